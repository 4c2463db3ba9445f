"""The four cases of a backlog between two clusters: each trouble is made, and one command ends it.

At a thousandth of the usual levels: (1) over 20,000 messages in the queue, or 10 MB, its oldest go
to a queue of another cluster, (2) until fewer than 1,000 and 0.5 MB are left; (3) below 100 and
50 kB they come back, (4) until there are over 1,000.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.links.shovels import Quorate, Say, channel_of, declare, drained, publish
from tests.local_nodes import three_nodes

MAIN, PARKED = "main", "parked"
LEVELS = ("--above", "20000", "--above-bytes", "10000000")
LARGE_BYTES = 100_000
#: The command must have ended by then.
WITHIN_S = 300.0


@dataclass(frozen=True)
class Row:
    case: str
    before: tuple[int, int]  # messages in the queue, and in that of the other cluster
    after: tuple[int, int]
    wanted: bool

    def line(self) -> str:
        ok = "ok" if self.wanted else "WRONG"
        return f"{ok}: {self.case}: {_pair(self.before)} before, {_pair(self.after)} after"


def _pair(counts: tuple[int, int]) -> str:
    return f"{counts[0]:,} + {counts[1]:,}"


async def relieve(folder: Path, say: Say) -> bool:
    async with three_nodes(folder / "here") as ours, three_nodes(folder / "there") as theirs:
        here, there = Quorate(ours), Quorate(theirs)
        await declare(here, MAIN)
        await declare(there, PARKED)
        cases = Cases(here, there, ours.folder)
        good = True
        async for row in cases.run():
            say(row.line())
            good &= row.wanted
        return good


class Cases:
    def __init__(self, here: Quorate, there: Quorate, folder: Path) -> None:
        self._here, self._there, self._folder = here, there, folder
        self._taken: list[str] = []
        self._published = 0

    async def run(self) -> AsyncGenerator[Row]:
        await self._publish(25_000)
        yield await self._row("(1) and (2), by messages", lambda h, t: (h, t) == (999, 24_001))
        yield await self._row("between the levels", lambda h, t: (h, t) == (999, 24_001))
        await self._take(950)
        yield await self._row("(3) and (4)", lambda h, t: (h, t) == (1_001, 23_049))
        await self._publish(200, LARGE_BYTES)
        yield await self._row("(1) and (2), by bytes", lambda h, t: h < 1_000 and h + t == 24_250)
        yield await self._account()

    async def _publish(self, count: int, size: int = 0) -> None:
        bodies = [f"{self._published + number}".ljust(size) for number in range(count)]
        self._published += count
        await publish(self._here, bodies, MAIN)

    async def _take(self, count: int) -> None:
        async with channel_of(self._here) as channel:
            for _ in range(count):
                got = await channel.basic_get(MAIN)
                assert got.delivery_tag is not None
                self._taken.append(got.body.decode())
                await channel.basic_ack(got.delivery_tag)

    async def _row(self, case: str, wanted: Callable[[int, int], bool]) -> Row:
        before = await self._counts()
        command = ("queue", "relieve", MAIN, PARKED, *LEVELS, "--uri", self._there.uris[0])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "quorate", *command, "--once"),
            *("--url", str(self._folder)),
        )
        async with asyncio.timeout(WITHIN_S):
            assert await process.wait() == 0
        after = await self._counts()
        return Row(case, before, after, wanted(*after))

    async def _counts(self) -> tuple[int, int]:
        return await _count(self._here, MAIN), await _count(self._there, PARKED)

    async def _account(self) -> Row:
        """All that was published is somewhere, once."""
        before = await self._counts()
        self._taken += await drained(self._here, MAIN)
        self._taken += await drained(self._there, PARKED)
        times = Counter(map(str.strip, self._taken))
        once = len(times) == self._published == sum(times.values())
        return Row("all is there, each once", before, await self._counts(), once)


async def _count(side: Quorate, queue: str) -> int:
    async with channel_of(side) as channel:
        return (await channel.queue_declare(queue, passive=True)).message_count or 0
