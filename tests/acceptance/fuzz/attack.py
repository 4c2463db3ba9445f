"""Sends one input, and says how the node answered."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from tests.acceptance.fuzz.inputs import Input

#: An end that the node owes comes within this time, on a machine however busy.
ANSWER_S_MAX = 60.0
#: What it does not owe is waited for as long.
QUIET_S = 0.15
SEND_S_MAX = 60.0


class Answers:
    """What came back, by what it means for us."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.replies = 0
        self.ended = False  # the node said goodbye, or closed the socket
        self.connected = False
        self.owed: list[str] = []  # and never came

    def feed(self, data: bytes) -> None:
        raise NotImplementedError

    def finish(self, given: Input) -> None:
        """Nothing more comes: is what was said enough?"""


class Attacker(asyncio.Protocol):
    """A socket without manners."""

    def __init__(self, answers: Answers, *, reads: bool) -> None:
        self.answers = answers
        self.over = asyncio.Event()  # the node has nothing more to say
        self.news = asyncio.Event()
        self.transport: asyncio.Transport
        self._reads = reads
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.answers.connected = True
        if not self._reads:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.answers.feed(data)
        self.news.set()
        if self.answers.ended:
            self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.answers.ended = True
        self.over.set()
        self.news.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def send(self, data: bytes) -> None:
        self.transport.write(data)
        await asyncio.sleep(0)
        await self._room.wait()


async def attack(port: int, given: Input, answers: Answers) -> None:
    """One connection from its beginning to its end, which is a reset half of the time."""
    attacker = Attacker(answers, reads=given.reads)
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: attacker, "127.0.0.1", port)
    except OSError:
        return
    try:
        await _send(attacker, given)
        if given.replies:
            await _until_answered(attacker, given)
        await _until_over(attacker, given)
        answers.finish(given)
    finally:
        if given.number % 2:
            attacker.transport.abort()
        else:
            attacker.transport.close()
            loop.call_later(1, attacker.transport.abort)


async def _send(attacker: Attacker, given: Input) -> None:
    # A node that no longer reads us, since it is told to slow us down, is no finding.
    try:
        async with asyncio.timeout(SEND_S_MAX if given.reads else given.hold_s):
            for step in given.steps:
                if attacker.over.is_set():
                    return
                await attacker.send(step.data)
                if step.pause_s:
                    await asyncio.sleep(step.pause_s)
    except TimeoutError:
        pass


async def _until_answered(attacker: Attacker, given: Input) -> None:
    answers = attacker.answers
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            while answers.replies < given.replies and not attacker.over.is_set():
                attacker.news.clear()
                await attacker.news.wait()
    except TimeoutError:
        pass
    if answers.replies < given.replies:
        how = "it was closed" if attacker.over.is_set() else f"{ANSWER_S_MAX:.0f} s"
        answers.owed.append(f"{answers.replies} of {given.replies} replies came until {how}")
    attacker.transport.write(given.goodbye)


async def _until_over(attacker: Attacker, given: Input) -> None:
    wait_s = ANSWER_S_MAX if given.polite else max(QUIET_S, given.hold_s)
    try:
        async with asyncio.timeout(wait_s):
            await attacker.over.wait()
    except TimeoutError:
        if given.polite:
            attacker.answers.owed.append("its goodbye was never answered")
