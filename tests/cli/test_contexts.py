"""Clusters by name, and what lists show of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorate
from quorate.cli import run
from quorate.cli.output import viewing
from quorate.cli.tables import Columns, chosen
from quorate.places import Context, Contexts, PlaceError
from tests.client.fake_node import FakeCluster
from tests.testkit.threads import in_a_thread

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("QUORATE_URL", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with in_a_thread(FakeCluster(2)) as (cluster, _):
        yield cluster


def test_a_named_cluster_is_gone_to(cluster: FakeCluster, capsys: Output):
    assert run(["context", "add", "live", "--url", ",".join(cluster.urls)]) == 0
    assert run(["status", "--context", "live"]) == run(["--context", "live", "status"]) == 0
    assert run(["status"]) == 4  # it was named, not chosen
    assert run(["context", "use", "live"]) == run(["status"]) == 0

    capsys.readouterr()
    assert run(["context", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "context": "live",
        "used": True,
        "url": ",".join(cluster.urls),
        "user": None,
    }
    assert run(["context", "remove", "live"]) == 0
    assert Contexts.read() == Contexts()


def test_a_cluster_of_this_folder_comes_before_the_chosen_one(cluster: FakeCluster, tmp_path: Path):
    assert run(["context", "add", "gone", "--url", "127.0.0.1:1", "--use"]) == 0
    assert run(["status", "--timeout", "1"]) == 4
    (tmp_path / ".quorate").mkdir()
    (tmp_path / ".quorate" / "cluster.json").write_text(json.dumps({"urls": cluster.urls}))

    assert run(["status"]) == 0


def test_two_clusters_at_once_are_refused(capsys: Output):
    Contexts(contexts={"live": Context("127.0.0.1:1")}).write()

    assert run(["status", "--context", "live", "--url", "127.0.0.1:2"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert run(["status", "--context", "life"]) == 1
    assert "(there are: live): `quorate context add life " in capsys.readouterr().err
    assert run(["context", "remove", "life"]) == 1
    said = capsys.readouterr().err
    assert "there is no context 'life' (there are: live)" in said
    assert "context add" not in said


def test_what_the_command_line_says_beats_the_context(tmp_path: Path):
    from quorate.cli.output import addresses, login

    word = tmp_path / "word"
    word.write_text("secret\n")
    Contexts("live", {"live": Context("127.0.0.1:1", "ops", word)}).write()
    login.url = login.context = login.user = login.password_file = None
    try:
        assert addresses(None) == ["127.0.0.1:1"]
        assert (login.user, login.password) == ("ops", "secret")
        login.user, login.password_file = "me", None
        addresses(None)
        assert login.user == "me"
    finally:
        login.user = login.password_file = None


def test_a_broken_file_is_named(capsys: Output):
    file = Contexts.file()
    file.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"contexts": {"a": {}}}', '{"contexts": 7}'):
        file.write_text(text)
        assert run(["context", "list"]) == 1
        assert str(file) in capsys.readouterr().err


async def test_a_client_without_addresses_finds_the_local_cluster(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(PlaceError, match="quorate up"):
        quorate.connect()
    (tmp_path / ".quorate").mkdir()
    (tmp_path / ".quorate" / "cluster.json").write_text(json.dumps({"urls": cluster.urls}))
    async with quorate.connect() as client:
        assert (await client.declare("orders"))["created"]
    monkeypatch.setenv("QUORATE_URL", str(tmp_path / ".quorate"))
    async with quorate.connect() as client:
        assert not (await client.declare("orders"))["created"]


ROWS = [
    {"queue": "jobs-10", "ready": 5},
    {"queue": "jobs-2", "ready": None},
    {"queue": "mail", "ready": 1_000},
]
COLUMNS: Columns = {"queue": lambda row: row["queue"], "ready": lambda row: row["ready"]}


@pytest.mark.parametrize(
    ("only", "sort", "shown"),
    [
        (None, None, ["jobs-10", "jobs-2", "mail"]),
        (None, "queue", ["jobs-2", "jobs-10", "mail"]),
        (None, "ready", ["jobs-2", "jobs-10", "mail"]),
        (None, "-ready", ["mail", "jobs-10", "jobs-2"]),
        ("jobs", None, ["jobs-10", "jobs-2"]),
        ("ready=1,000", None, ["mail"]),
        ("queue=5", None, []),
        ("5", None, ["jobs-10"]),
    ],
)
def test_rows_are_chosen_and_sorted(
    monkeypatch: pytest.MonkeyPatch, only: str | None, sort: str | None, shown: list[str]
):
    monkeypatch.setattr(viewing, "filter", only)
    monkeypatch.setattr(viewing, "sort", sort)

    assert [row["queue"] for row in chosen(ROWS, COLUMNS)] == shown


def test_an_unknown_column_is_told(capsys: Output):
    assert run(["context", "list", "--sort", "user"]) == 2  # it asks no cluster
    Contexts(contexts={"a": Context("127.0.0.1:1")}).write()
    assert run(["vhost", "list", "--sort"]) == 2
    assert "requires an argument" in capsys.readouterr().err


def test_what_is_watched_is_shown_until_it_is_interrupted(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, capsys: Output
):
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("quorate.cli.time.sleep", pause)

    assert run(["status", "--url", cluster.urls[0], "--watch", "2", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert pauses == [2, 2, 2]
    assert run(["status", "--nonsense", "--watch", "2"]) == 2
    assert len(pauses) == 3
