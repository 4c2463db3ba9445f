"""Sends one input, and says how the node answered."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from pamqp.commands import Channel, Connection

from tests.acceptance.fuzz import wire
from tests.acceptance.fuzz.inputs import Input

#: An end that the node owes comes within this time, on a machine however busy.
ANSWER_S_MAX = 60.0
#: What it does not owe is waited for as long.
QUIET_S = 0.15
SEND_S_MAX = 60.0

_FRAME = struct.Struct(">BHI")
_CLOSES = {Channel.Close.index: "channel", Connection.Close.index: "connection"}


@dataclass
class Answers:
    """Frames that came back, by what they mean for us."""

    codes: Counter[str] = field(default_factory=Counter[str])
    ended: bool = False  # the node said goodbye, or closed the socket
    connected: bool = False
    owed: bool = False  # an end that never came
    _kept: bytes = b""

    def feed(self, data: bytes) -> None:
        data = self._kept + data
        at = 0
        while len(data) - at >= _FRAME.size:
            if data.startswith(b"AMQP", at):
                self.codes["protocol header"] += 1
                at += 8
                continue
            kind, _, size = _FRAME.unpack_from(data, at)
            stop = at + _FRAME.size + size
            if stop >= len(data):
                break
            if kind == wire.METHOD:
                self._method(data[at + 7 : stop])
            at = stop + 1
        self._kept = data[at:]

    def _method(self, payload: bytes) -> None:
        index = int.from_bytes(payload[:4])
        if index in _CLOSES:
            self.codes[f"{int.from_bytes(payload[4:6])} {_CLOSES[index]}"] += 1
        if index in (Connection.Close.index, Connection.CloseOk.index):
            self.ended = True


class Attacker(asyncio.Protocol):
    """A socket without manners."""

    def __init__(self, *, reads: bool) -> None:
        self.answers = Answers()
        self.over = asyncio.Event()  # the node has nothing more to say
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
        if self.answers.ended:
            self.over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.answers.ended = True
        self.over.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def send(self, data: bytes) -> None:
        self.transport.write(data)
        await asyncio.sleep(0)
        await self._room.wait()


async def attack(port: int, given: Input) -> Answers:
    """One connection from its beginning to its end, which is a reset half of the time."""
    attacker = Attacker(reads=given.reads)
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: attacker, "127.0.0.1", port)
    except OSError:
        return attacker.answers
    try:
        await _send(attacker, given)
        await _until_over(attacker, given)
    finally:
        if given.number % 2:
            attacker.transport.abort()
        else:
            attacker.transport.close()
            loop.call_later(1, attacker.transport.abort)
    return attacker.answers


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


async def _until_over(attacker: Attacker, given: Input) -> None:
    wait_s = ANSWER_S_MAX if given.polite else max(QUIET_S, given.hold_s)
    try:
        async with asyncio.timeout(wait_s):
            await attacker.over.wait()
    except TimeoutError:
        attacker.answers.owed = given.polite
