"""The site of docs/: built strictly, and whole without any other host."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.architecture.sources import ROOT
from tests.ui.browser import browser, missing

#: What a browser loads by itself; `a` only leads somewhere.
LOADS = {"img": "src", "script": "src", "iframe": "src", "source": "src", "use": "href"}
#: `link` elements that are no load.
NAMES = {"canonical", "prev", "next", "edit"}


class Html(HTMLParser):
    """Ids, links, and what the page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        of = {name: value or "" for name, value in attrs}
        self.ids |= {of[name] for name in ("id", "name") if name in of}
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
        if tag in LOADS and LOADS[tag] in of:
            self.loads.append(of[LOADS[tag]])
        if tag == "link" and not NAMES & set(of.get("rel", "").split()):
            self.loads.append(of.get("href", ""))


def read(path: Path) -> Html:
    page = Html()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed (make docs, or pip install -e '.[docs]')")
    folder = tmp_path_factory.mktemp("docs") / "site"
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}


pytestmark = [pytest.mark.ops, pytest.mark.xdist_group("site")]


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Html]):
    elsewhere = [
        f"{path.relative_to(site)}: {load}"
        for path, page in pages.items()
        for load in page.loads
        if urlsplit(load).netloc
    ]
    styles = [
        f"{path.relative_to(site)}: {url}"
        for path in site.rglob("*.css")
        for url in re.findall(r"url\(([^)]+)\)|@import", path.read_text(encoding="utf-8"))
        if urlsplit(url.strip("'\"")).netloc
    ]

    assert len(pages) > 20
    assert elsewhere == []
    assert styles == []


def test_every_link_within_it_leads_to_a_page_and_a_place_on_it(
    site: Path, pages: dict[Path, Html]
):
    wrong: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = there / "index.html" if there.is_dir() else there
            known = target in pages and (not parts.fragment or parts.fragment in pages[target].ids)
            if not known and not (target.is_file() and not parts.fragment):
                wrong.append(f"{path.relative_to(site)}: {link}")

    assert wrong == []


async def test_the_search_works_from_files(site: Path):
    if (why := missing()) is not None:
        pytest.skip(f"no browser: {why}")
    async with browser((site / "index.html").as_uri()) as chromium:
        page = await chromium.page()
        await page.goto(f"{chromium.url}?q=dead%20letters")
        await page.locator(".md-search-result__item").first.wait_for(timeout=120_000)

        assert chromium.seen.errors == []
        assert chromium.seen.elsewhere == []


def test_every_page_is_found_by_the_search(site: Path, pages: dict[Path, Html]):
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    missing = [name for path in pages if f'"{(name := str(path.relative_to(site)))}' not in index]

    assert missing == []
