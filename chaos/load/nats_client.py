"""What the workload of streams asks of a NATS client, and a small one for the simulated world: it
knows nothing of sockets. Neither mistakes silence for a no.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

CRLF = b"\r\n"
CONNECT_S_MAX = 2.0
#: Then the outcome is unknown.
ANSWER_S_MAX = 4.0
PONG_S_MAX = 1.0
RETRY_S = 0.1
INBOX_SID = b"1"

_STATUS = re.compile(rb"NATS/1\.0 (\d{3})")


class Wire(Protocol):
    """A connection to a node, which may end without a word."""

    node: str
    on_data: Callable[[bytes], None]
    on_lost: Callable[[], None]

    def write(self, data: bytes) -> None: ...
    def cut(self) -> None: ...


#: To any of the nodes; None: nobody listens there.
Dial = Callable[[], Awaitable[Wire | None]]


class Message(NamedTuple):
    subject: str
    reply: str
    status: int  # 0: it is none
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


Header = Mapping[str, str]


class StreamClient(Protocol):
    """One client: it comes back, at any node, whenever its connection is lost."""

    @property
    def name(self) -> str: ...
    @property
    def node(self) -> str | None:
        """To which it is connected."""
        ...

    async def tell(self, subject: str, body: bytes) -> None:
        """At most once."""
        ...

    async def request(
        self, subject: str, body: bytes, header: Header | None = None
    ) -> Message | None:
        """None: nobody knows whether it was heard, or will be."""
        ...

    def pull(
        self, stream: str, consumer: str, batch: int, expires_s: float
    ) -> AsyncGenerator[Message]:
        """What one request for more brings, until it is over: nothing of an earlier one."""
        ...

    def drop(self) -> None:
        """Its connection ends without a word, and it comes back as a new program."""
        ...


class Reader:
    """Of what a node writes. Errors of the protocol end the connection."""

    def __init__(self, on_message: Callable[[bytes, Message], None]) -> None:
        self._on_message = on_message
        self._buffer = b""
        self.pings = self.pongs = 0
        self.errors: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(CRLF)) >= 0:
            words = self._buffer[:end].split()
            word = words[0]
            if word in (b"MSG", b"HMSG"):
                size = int(words[-1])
                start = end + len(CRLF)
                if len(self._buffer) < start + size + len(CRLF):
                    return
                payload = self._buffer[start : start + size]
                self._buffer = self._buffer[start + size + len(CRLF) :]
                self._message(words, payload)
                continue
            self._buffer = self._buffer[end + len(CRLF) :]
            if word == b"PING":
                self.pings += 1
            elif word == b"PONG":
                self.pongs += 1
            elif word == b"-ERR":
                self.errors.append(b" ".join(words[1:]))

    def _message(self, words: list[bytes], payload: bytes) -> None:
        """`[H]MSG subject sid [reply] [header bytes] bytes`."""
        sizes = 2 if words[0] == b"HMSG" else 1
        header_bytes = int(words[-2]) if sizes == 2 else 0
        reply = words[3] if len(words) == 4 + sizes else b""
        found = _STATUS.match(payload[:header_bytes])
        status = 0 if found is None else int(found[1])
        body = payload[header_bytes:]
        self._on_message(words[2], Message(words[1].decode(), reply.decode(), status, body))


class NatsClient:
    """Implements `StreamClient`."""

    def __init__(self, name: str, dial: Dial, dice: random.Random) -> None:
        self.name = name
        self._dial = dial
        self._dice = dice
        self._prefix = "_INBOX." + name.replace("/", "-").replace(".", "-")
        self._wire: Wire | None = None
        self._reader = Reader(self._heard)
        self._connecting = asyncio.Lock()
        self._serial = 0
        #: By subject, or by the id of a subscription of its own. None: the connection is lost.
        self._inboxes: dict[str, asyncio.Queue[Message | None]] = {}
        self._changed = asyncio.Event()

    @property
    def node(self) -> str | None:
        return None if self._wire is None else self._wire.node

    # --- connections ------------------------------------------------------------------------------

    async def connected(self) -> Wire:
        """However long that takes."""
        async with self._connecting:
            while (wire := self._wire) is None:
                found = await self._dial()
                if found is None or not await self._greet(found):
                    await asyncio.sleep(RETRY_S * self._dice.uniform(0.5, 2.0))
            return wire

    async def _greet(self, wire: Wire) -> bool:
        self._reader = reader = Reader(self._heard)
        lost = asyncio.Event()

        def read(data: bytes) -> None:
            reader.feed(data)
            if reader.pings:
                wire.write(b"PONG\r\n" * reader.pings)
                reader.pings = 0
            self._changed.set()

        def end() -> None:
            lost.set()
            self._changed.set()
            if self._wire is wire:
                self._lose()

        wire.on_data, wire.on_lost = read, end
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "user": "guest",
            "pass": "guest",
            "name": self.name,
        }
        hello = b"CONNECT %b\r\nSUB %b.* %b\r\nPING\r\n"
        wire.write(hello % (json.dumps(options).encode(), self._prefix.encode(), INBOX_SID))
        with suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_S_MAX):
                while not (reader.pongs or lost.is_set()):
                    self._changed.clear()
                    await self._changed.wait()
        if reader.pongs and not lost.is_set():
            self._wire = wire
            return True
        wire.cut()
        return False

    def _lose(self) -> None:
        self._wire = None
        for inbox in self._inboxes.values():
            inbox.put_nowait(None)

    def drop(self) -> None:
        wire = self._wire
        if wire is not None:
            self._lose()
            wire.cut()

    async def _look(self, wire: Wire) -> None:
        """It was silent: is anybody there?"""
        if self._wire is not wire:
            return
        reader, pongs = self._reader, self._reader.pongs
        wire.write(b"PING\r\n")
        with suppress(TimeoutError):
            async with asyncio.timeout(PONG_S_MAX):
                while reader.pongs == pongs and self._wire is wire:
                    self._changed.clear()
                    await self._changed.wait()
        if reader.pongs == pongs and self._wire is wire:
            self.drop()

    def _heard(self, sid: bytes, message: Message) -> None:
        """What a stream hands out has the subject under which it was stored."""
        inbox = self._inboxes.get(message.subject if sid == INBOX_SID else sid.decode())
        if inbox is not None:
            inbox.put_nowait(message)

    # --- what it says -----------------------------------------------------------------------------

    def _open(self) -> tuple[str, asyncio.Queue[Message | None]]:
        self._serial += 1
        subject = f"{self._prefix}.{self._serial}"
        inbox = self._inboxes[subject] = asyncio.Queue()
        return subject, inbox

    async def tell(self, subject: str, body: bytes) -> None:
        if self._wire is not None:
            self._wire.write(_publish(subject, "", body))

    async def request(
        self, subject: str, body: bytes, header: Header | None = None
    ) -> Message | None:
        wire = await self.connected()
        reply, inbox = self._open()
        try:
            wire.write(_publish(subject, reply, body, header))
            async with asyncio.timeout(ANSWER_S_MAX):
                return await inbox.get()
        except TimeoutError:
            await self._look(wire)
            return None
        finally:
            del self._inboxes[reply]

    async def pull(
        self, stream: str, consumer: str, batch: int, expires_s: float
    ) -> AsyncGenerator[Message]:
        wire = await self.connected()
        self._serial += 1
        sid = str(self._serial + 1)
        reply = f"{self._prefix}-{sid}"
        inbox = self._inboxes[sid] = asyncio.Queue[Message | None]()
        asked = {"batch": batch, "expires": round(expires_s * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        try:
            subscribe = f"SUB {reply} {sid}\r\n".encode()
            wire.write(subscribe + _publish(subject, reply, json.dumps(asked).encode()))
            while batch > 0:
                async with asyncio.timeout(expires_s + PONG_S_MAX):
                    message = await inbox.get()
                if message is None or message.status not in (0, 100):
                    return
                if not message.status:
                    batch -= 1
                    yield message
        except TimeoutError:
            await self._look(wire)
        finally:
            del self._inboxes[sid]
            if self._wire is wire:
                wire.write(f"UNSUB {sid}\r\n".encode())


def _publish(subject: str, reply: str, body: bytes, header: Header | None = None) -> bytes:
    where = f"{subject} {reply}" if reply else subject
    if header:
        lines = "".join(f"{name}: {value}\r\n" for name, value in header.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        sizes = f"{len(block)} {len(block) + len(body)}"
        return f"HPUB {where} {sizes}\r\n".encode() + block + body + CRLF
    return f"PUB {where} {len(body)}\r\n".encode() + body + CRLF
