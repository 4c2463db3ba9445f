"""Every command and program of the tutorials, done against three nodes."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from quorate.local import LocalCluster
from tests.local_nodes import three_nodes
from tests.site.walks import DOCS, Walk, lacking, programs, shown, tabs

PYTHON = ("Python", "Python, native client")
#: What a tab needs besides Python.
TOOLS = {"Java": ("mvn", "javac"), "Go": ("go",), "Node": ("node", "npm"), "PHP": ("php",)}
#: There is no .NET where these tests run.
NOT_RUN = {"tutorials/dotnet.md"}
PAGES = [
    "index.md",
    "concepts/consumers.md",
    "guides/troubleshooting.md",
    "guides/upgrades.md",
    *sorted({str(path.relative_to(DOCS)) for path in (DOCS / "tutorials").glob("*.md")} - NOT_RUN),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with three_nodes(tmp_path_factory.mktemp("walks") / "cluster") as cluster:
        yield cluster


#: With another broker at the other end.
MIGRATIONS = {"guides/from-rabbitmq.md", "guides/from-nats.md"}
#: Commands that measure or run the tests, for minutes.
LONG = {"guides/sizing.md"}


def walks(*, python: bool) -> list[tuple[str, str | None]]:
    return [
        (page, tab)
        for page in PAGES
        for tab in (tabs(page) or [None])
        if (tab is None or tab in PYTHON) == python
    ]


@pytest.mark.ops
@pytest.mark.xdist_group("walks")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("page", "tab"), walks(python=True))
async def test_a_page_does_what_it_says(
    page: str, tab: str | None, cluster: LocalCluster, tmp_path: Path
):
    assert await Walk(cluster, tmp_path).through(page, tab) >= 1


@pytest.mark.toolchain
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("walks")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("page", "tab"), walks(python=False))
async def test_a_page_does_what_it_says_in_other_languages(
    page: str, tab: str, cluster: LocalCluster, tmp_path: Path
):
    if missing := [tool for tool in TOOLS[tab] if shutil.which(tool) is None]:
        pytest.skip(f"{', '.join(missing)} is missing")
    if tab == "PHP" and not Path("/usr/share/php/PhpAmqpLib").exists():
        pytest.skip("php-amqplib is missing (apt-get install php-amqplib)")

    assert await Walk(cluster, tmp_path).through(page, tab) >= 2


def test_no_command_hides_its_failure():
    hidden = [
        f"{path.relative_to(DOCS)}: {line}"
        for path in DOCS.rglob("*.md")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "|| true" in line
    ]

    assert hidden == []


def test_every_program_is_on_a_page():
    on_pages = {name for path in DOCS.rglob("*.md") for name in shown(str(path.relative_to(DOCS)))}

    assert sorted(set(programs()) - on_pages) == []


def test_every_page_of_the_new_folders_with_commands_is_walked():
    folders = ("tutorials", "concepts", "guides")
    found = [path for folder in folders for path in (DOCS / folder).glob("*.md")]
    with_commands = {
        str(path.relative_to(DOCS)) for path in found if "```sh" in path.read_text(encoding="utf-8")
    }

    assert with_commands - MIGRATIONS - LONG - NOT_RUN == set(PAGES) - {"index.md"}


def test_what_is_not_run_says_so_before_anything_else():
    firsts = [(DOCS / page).read_text(encoding="utf-8").split("\n\n")[1] for page in NOT_RUN]

    assert all(first.startswith('!!! warning "No test runs this page"') for first in firsts)


def test_what_is_printed_is_compared_line_by_line_and_in_order():
    said = "one\ntwo [x]\nthree\n"

    assert lacking("one\ntwo [x]\n", said) is None
    assert lacking("t... [x]\nthree", said) is None
    assert lacking("two [x]\none\n", said) == "one"
    assert lacking("tw\n", said) == "tw"
