"""`make newcomer`: from a fresh clone to the first messages in three languages, as the pages say.

Commands are those of the pages, and so are the words that are clicked in the browser. What was seen
becomes a page of its own with times and pictures.
"""

# pyright: basic
from __future__ import annotations

import argparse
import asyncio
import datetime as dt
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from node.version import PRODUCT_VERSION
from tests.architecture.sources import ROOT
from tests.site.walks import COLOUR, DOCS, DONE, FENCE, Step, Terminal, Walk
from tests.ui.browser import browser, missing

HOME_PAGE = "index.md"
LESSON = "tutorials/first-queue.md"
LANGUAGES = ("Python", "Java", "Node")
STARTED = "3 of 3 nodes running"
#: The whole walk, on a machine that does nothing else.
GOAL_S = 300.0
HANGS_S = 3_600.0
#: Lines of a step's output that are shown.
SHOWN = 16
#: What a newcomer does not have.
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "QUORATE_URL", "MAKEFLAGS", "MAKELEVEL", "PYTEST_CURRENT_TEST")


@dataclass
class Record:
    """What was done and seen, in order."""

    pictures: Path
    steps: list[tuple[str, Step]] = field(default_factory=list)
    seen: dict[int, str] = field(default_factory=dict)  # pictures, by the step they come behind

    def add(self, title: str, step: Step) -> None:
        self.steps.append((title, step))
        print(f"{step.seconds:7.1f} s  {title}", flush=True)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for _, step in self.steps)


def shell(folder: Path) -> dict[str, str]:
    """The environment of somebody who never built anything here."""
    environment = {k: v for k, v in os.environ.items() if k not in OURS}
    venv = str(Path(sys.executable).parent)
    path = [each for each in environment["PATH"].split(os.pathsep) if each != venv]
    return {
        **environment,
        "PATH": os.pathsep.join(path),
        "COLUMNS": "110",
        "PYTHONUNBUFFERED": "1",
        "PIP_CACHE_DIR": str(folder / "pip"),
        "MAVEN_OPTS": f"-Dmaven.repo.local={folder / 'maven'}",
        "npm_config_cache": str(folder / "npm"),
    }


async def started(record: Record, folder: Path) -> tuple[Terminal, SimpleNamespace, dict[str, str]]:
    """A clone, and its three nodes."""
    clone, environment = folder / "quorate", shell(folder)
    began = time.monotonic()
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, env=environment)
    record.add(
        "Clone",
        Step(HOME_PAGE, None, "git clone … quorate", "", "", time.monotonic() - began),
    )
    up = FENCE.findall((DOCS / HOME_PAGE).read_text(encoding="utf-8"))[0][2].strip()
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", up),
        cwd=clone,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    terminal = Terminal(process)
    terminal.reading = asyncio.create_task(terminal.read())
    try:
        await terminal.prints(f"...{STARTED}...", HANGS_S)
    except BaseException:
        await terminal.end()
        raise
    seconds = time.monotonic() - began
    record.add("Start three nodes", Step(HOME_PAGE, None, up, "", terminal.said, seconds))
    rows = json.loads((clone / ".quorate" / "cluster.json").read_text(encoding="utf-8"))["nodes"]
    nodes = [SimpleNamespace(url=f"http://127.0.0.1:{row['http']}", **row) for row in rows]
    return terminal, SimpleNamespace(nodes=nodes), environment


async def look(record: Record, url: str) -> None:
    """What the lesson says of the browser: log in, then click what is bold."""
    text = (DOCS / LESSON).read_text(encoding="utf-8")
    told = next(line for line in text.splitlines() if line.startswith("In the browser"))
    user, password = re.findall(r"`(\w+)`", told)
    began = time.monotonic()
    async with browser(f"{url}/") as chromium:
        page = await chromium.page(width=1200)
        await chromium.entered(page, user, password)
        await page.get_by_role("img", name="Messages a second").locator("canvas").wait_for()
        await page.screenshot(path=record.pictures / "overview.png")
        for word in re.findall(r"\*\*([^*]+)\*\*", told):
            await page.get_by_role("link", name=word, exact=True).first.click()
        await page.locator(".message").first.wait_for()
        await page.screenshot(path=record.pictures / "queue.png", full_page=True)
        assert chromium.seen.errors == []
        assert chromium.seen.elsewhere == []
    step = Step(LESSON, None, "", "", told, time.monotonic() - began)
    record.add("Look at the message in the browser", step)
    record.seen[len(record.steps) - 1] = "overview.png queue.png"


async def walk(record: Record, folder: Path, *, with_browser: bool) -> None:
    terminal, cluster, environment = await started(record, folder)
    looked = not with_browser

    async def after(step: Step) -> None:
        nonlocal looked
        if set(step.code.splitlines()) <= DONE and step.code:
            return  # before, in a terminal of its own
        where = "Home" if step.page == HOME_PAGE else step.tab or ""
        words = step.code.strip().splitlines() or [f"{step.title} prints"]
        record.add(f"{where}: {words[-1]}", step)
        if "queue peek" in step.code and not looked:
            looked = True
            await look(record, cluster.nodes[0].url)

    try:
        clone = folder / "quorate"
        for page, tab in [(HOME_PAGE, None), *[(LESSON, each) for each in LANGUAGES]]:
            steps = await Walk(cluster, clone, clone=environment, after=after).through(page, tab)
            assert steps > 2, f"{page} has nothing to do for {tab}"
    finally:
        terminal.process.terminate()
        await terminal.end()


def page_of(record: Record, load: float) -> str:
    """As Markdown, with pictures beside it."""
    when = dt.datetime.now(dt.UTC).date()
    minutes = f"{int(record.seconds // 60)} min {record.seconds % 60:.0f} s"
    languages = f"{', '.join(LANGUAGES[:-1])} and {LANGUAGES[-1]}"
    lines = [
        "# The first minutes, recorded",
        "",
        "`make newcomer` makes a fresh clone with empty caches, types what [Home](index.md) and",
        "[First queue](tutorials/first-queue.md) say, and writes this page.",
        f"On {when}, with version {PRODUCT_VERSION}, the way to messages in {languages} took",
        f"**{minutes}** on two cores, for which {load:.0f} processes waited (load average).",
        "",
        "| | s |",
        "|---|---|",
        *[f"| {title.replace('|', '')} | {step.seconds:.1f} |" for title, step in record.steps],
    ]
    for number, (title, step) in enumerate(record.steps):
        lines += ["", f"## {number + 1}. {title.partition(': ')[0]}", ""]
        if number in record.seen:
            lines += [step.said, ""]
            for picture in record.seen[number].split():
                lines += [f"![{picture.removesuffix('.png')}](first-minutes/{picture})", ""]
            continue
        typed = [f"$ {line}" for line in step.code.strip().splitlines()]
        name = f' title="{step.title}"' if step.title else ""
        lines += [f"```console{name}", *typed, *shown(step.said), "```"]
    return "\n".join(lines) + "\n"


def shown(said: str) -> list[str]:
    lines = [line.rstrip() for line in COLOUR.sub("", said).splitlines()]
    return lines if len(lines) <= SHOWN else [*lines[: SHOWN // 2], "…", *lines[-SHOWN // 2 :]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make newcomer", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "var" / "newcomer")
    given: Any = parser.parse_args()
    output = given.output.resolve()
    (output / "first-minutes").mkdir(parents=True, exist_ok=True)
    if (why := missing()) is not None:
        print(f"without the browser: {why}", file=sys.stderr)
    record = Record(output / "first-minutes")
    load = os.getloadavg()[1]
    with tempfile.TemporaryDirectory(prefix="newcomer-", ignore_cleanup_errors=True) as folder:
        asyncio.run(walk(record, Path(folder), with_browser=why is None))
    load = max(0.0, (load + os.getloadavg()[1]) / 2)
    (output / "first-minutes.md").write_text(page_of(record, load), encoding="utf-8")
    within = "within" if record.seconds <= GOAL_S else "over"
    print(f"{record.seconds:7.1f} s  in all, {within} five minutes; {output / 'first-minutes.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
