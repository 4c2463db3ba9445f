"""What the site has besides the files of docs/: pages made from the source, links to them,
and diagrams that follow the site's colours.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs knows only the file of the hooks
#: Documents outside of docs/, by where they are in the repository.
PROJECT = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "helm/quorate/README.md": "project/chart.md",
}
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *(```+)[^\n]*\n.*?^ *\1 *$", re.MULTILINE | re.DOTALL)
DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)"(?: title="[^"]*")? ?/?>')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """What the menu does not name of the pages of docs/ itself is listed last under Reference."""
    assert config.nav is not None
    named = str(config.nav)
    reference = next(each["Reference"] for each in config.nav if "Reference" in each)
    reference += [
        p.name for p in sorted((ROOT / "docs").glob("*.md")) if f"'{p.name}'" not in named
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, target in PROJECT.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, target, content=text))
    from docs.site.reference import PAGES

    for target, make in PAGES.items():
        files.append(File.generated(config, target, content=make()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as they are on GitHub, from file to file of the repository, made links of the site."""
    here = page.file.src_uri
    source = next((s for s, target in PROJECT.items() if target == here), f"docs/{here}")
    pages = {uri: PROJECT.get(uri, uri.removeprefix("docs/")) for uri in _uris(files)}

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if found in pages:
            there = posixpath.relpath(pages[found], posixpath.dirname(here) or ".")
            return f"[{text}]({there}{'#' + anchor if anchor else ''})"
        if found.startswith("docs/"):
            return match[0]  # mkdocs says that it is not there
        assert (ROOT / found).exists(), f"{source}: {target} is not there"
        return text if text.startswith("`") else f"{text} (`{found}`)"

    return _outside_of_code(markdown, lambda part: LINK.sub(link, part))


def _uris(files: Files) -> Iterable[str]:
    yield from PROJECT
    for file in files:
        yield f"docs/{file.src_uri}"


def _outside_of_code(markdown: str, change: Any) -> str:
    parts: list[str] = []
    at = 0
    for fence in FENCED.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Drawings become part of the page: its style gives them their colours."""

    def drawing(match: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        path = ROOT / "docs" / posixpath.normpath(posixpath.join(folder, match[2]))
        assert path.exists(), f"{page.file.src_uri}: {match[2]} is not there"
        svg = re.sub(r"\s*\n\s*", "\n", path.read_text(encoding="utf-8"))
        return f'<span class="drawing">{svg}</span>'

    return DRAWING.sub(drawing, html)
