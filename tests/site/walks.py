"""Pages of the documentation, done as they say: commands in order, programs in terminals of their
own, and what they print.

A block `sh` is run and must succeed; one with a title is left running in the terminal of that name.
A block `text` behind it is what it prints, in this order among other lines; with a title, what that
terminal prints sooner or later. With the title `exit status N` it also says how the block before it
ends. `...` stands for anything. Of tabs one is walked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from quorate.local import PORTS
from tests.architecture.sources import ROOT

DOCS = ROOT / "docs"
TAB = re.compile(r'^=== "([^"]+)"\n((?:(?:    [^\n]*)?\n)+)', re.MULTILINE)
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
#: Done by the fixture: the cluster runs, and the environment is the one of these tests.
DONE = frozenset({"make up", ". .venv/bin/activate"})
#: A program that takes longer hangs.
WAIT_S_MAX = 600.0
WHERE = "__where__"
EXIT = re.compile(r"exit status (\d+)")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def tabs(page: str) -> list[str]:
    """In the order of the page, each once."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return list(dict.fromkeys(name for name, _ in TAB.findall(text)))


@dataclass
class Terminal:
    """A process that is left running, and what it has printed."""

    process: asyncio.subprocess.Process
    said: str = ""
    more: asyncio.Event = field(default_factory=asyncio.Event)
    reading: asyncio.Task[None] | None = None

    async def read(self) -> None:
        assert self.process.stdout is not None
        while chunk := await self.process.stdout.read(65_536):
            self.said += chunk.decode(errors="replace")
            self.more.set()
        self.more.set()

    async def prints(self, wanted: str, wait_s_max: float = WAIT_S_MAX) -> None:
        assert self.reading is not None
        try:
            async with asyncio.timeout(wait_s_max):
                while (lacks := lacking(wanted, self.said)) is not None:
                    assert not self.reading.done(), f"it ended without {lacks!r}: {self.said}"
                    self.more.clear()
                    await self.more.wait()
        except TimeoutError:
            pytest.fail(f"it does not print {lacking(wanted, self.said)!r}: {self.said}")

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        if self.reading is not None:
            await self.reading


def lacking(wanted: str, said: str) -> str | None:
    """The first line that is not printed, in the order of `wanted`."""
    lines = iter(COLOUR.sub("", said).splitlines())
    for line in wanted.splitlines():
        pattern = re.sub(r"([\[\]?*])", r"[\1]", line.strip()).replace("...", "*")
        if not any(fnmatch.fnmatchcase(each.strip(), pattern) for each in lines):
            return line
    return None


class Cluster(Protocol):
    @property
    def nodes(self) -> Sequence[Any]:
        """With their ports, by the names in PORTS."""
        ...


@dataclass(frozen=True)
class Step:
    """A block that was done, how long it took, and what it printed so far."""

    page: str
    tab: str | None
    code: str
    title: str
    said: str
    seconds: float


class Walk:
    """One reader of one page, in a copy of the clone's examples."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        programs: Path | None = None,
        addresses: Mapping[str, str] | None = None,
        clone: Mapping[str, str] | None = None,
        after: Callable[[Step], Awaitable[None]] | None = None,
    ) -> None:
        """`programs`: a folder that comes first in PATH; `addresses`: others that pages name, such
        as `rabbit.example:5672`, and what they are here. `clone`: `folder` is a clone with an
        environment of its own, and this is that of its reader's shell.
        """
        self._ports = {
            f"127.0.0.1:{first + number}": f"127.0.0.1:{getattr(node, kind)}"
            for number, node in enumerate(cluster.nodes)
            for kind, first in PORTS.items()
        }
        self._addresses = addresses or {}
        self._after = after
        self._clone = self._here = folder
        self._first = "set -eu -o pipefail"
        if clone is not None:  # as the tutorials say of each terminal
            self._first += f"\n. {folder}/.venv/bin/activate"
        self._terminals: dict[str, Terminal] = {}
        first = [] if programs is None else [str(programs)]
        path = os.pathsep.join([*first, str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environment: Mapping[str, str] = clone or {
            **os.environ,
            "PATH": path,
            "PYTHONUNBUFFERED": "1",
            "QUORATE_URL": ",".join(node.url for node in cluster.nodes),
            "COLUMNS": "200",
        }
        ignored = shutil.ignore_patterns("node_modules", "target", "__pycache__")
        if clone is None:
            folder.mkdir(exist_ok=True)
            shutil.copytree(DOCS / "examples", folder / "docs" / "examples", ignore=ignored)
        self._adapt_programs()

    def _adapt_programs(self) -> None:
        for source in programs().values():  # not what was built beside them
            path = self._clone / "docs" / source.relative_to(DOCS)
            path.write_text(self._adapted(path.read_text(encoding="utf-8")), encoding="utf-8")

    def _adapted(self, text: str) -> str:
        """With the addresses that there are."""
        for named, here in self._addresses.items():
            text = text.replace(named, here)
        return re.sub(r"127\.0\.0\.1:\d+", lambda match: self._ports.get(match[0], match[0]), text)

    async def through(self, page: str, tab: str | None = None) -> int:
        """How many commands and outputs there were."""
        text = (DOCS / page).read_text(encoding="utf-8")
        text = TAB.sub(lambda match: undented(match[2]) if match[1] == tab else "", text)
        printed: str | None = None
        steps = 0
        try:
            blocks = FENCE.findall(text)
            for (language, title, code), (_, next_title, _) in zip(
                blocks, [*blocks[1:], ("", "", "")], strict=True
            ):
                began = time.monotonic()
                if language == "sh":
                    steps += 1
                    ends = EXIT.fullmatch(next_title)
                    printed = await self._run(code, title, 0 if ends is None else int(ends[1]))
                    await self._did(page, tab, code, title, printed, began)
                elif language == "text" and title and not EXIT.fullmatch(title):
                    steps += 1
                    await self._terminals[title].prints(code)
                    printed_there = self._terminals[title].said
                    await self._did(page, tab, "", title, printed_there, began)
                elif language == "text":
                    steps += 1
                    assert printed is not None, f"{page}: nothing was run that prints {code}"
                    lacks = lacking(code, printed)
                    assert lacks is None, f"{page}: no line {lacks!r} in {printed}"
        finally:
            for terminal in self._terminals.values():
                await terminal.end()
        return steps

    async def _did(
        self, page: str, tab: str | None, code: str, title: str, said: str, began: float
    ) -> None:
        if self._after is not None:
            await self._after(Step(page, tab, code, title, said, time.monotonic() - began))

    async def _run(self, code: str, title: str, status: int) -> str:
        lines = [line for line in self._adapted(code).splitlines() if line.strip() not in DONE]
        script = "\n".join([self._first, *lines])
        if title:
            assert title not in self._terminals, f"{title} is taken"
            process = await self._bash(script, self._clone)
            terminal = self._terminals[title] = Terminal(process)
            terminal.reading = asyncio.create_task(terminal.read())
            return ""
        process = await self._bash(f"trap 'echo \"{WHERE}$PWD\"' EXIT\n{script}", self._here)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                output, _ = await process.communicate()
        except TimeoutError:
            pytest.fail(f"it does not end: {code}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        said = output.decode(errors="replace")
        assert process.returncode == status, f"{code}: {said}"
        said, _, where = said.rpartition(WHERE)
        self._here = Path(where.strip())
        return said

    async def _bash(self, script: str, folder: Path) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=folder,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )


def undented(block: str) -> str:
    return "".join(line.removeprefix("    ") for line in block.splitlines(True))


def shown(page: str) -> set[str]:
    """The files that the page includes."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return set(re.findall(r'--8<-- "([^"]+)"', text))


def programs() -> Mapping[str, Path]:
    """All that are there to be shown, by how pages name them."""
    kinds = ("*.py", "*.java", "*.js", "*.go", "*.php", "*.cs")
    found = [path for kind in kinds for path in (DOCS / "examples").rglob(kind)]
    return {str(path.relative_to(DOCS)): path for path in found if "node_modules" not in path.parts}
