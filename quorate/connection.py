"""One WebSocket to one node, from WELCOME until it is lost. It is used once; `Routes` makes the
next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp

from quorate import wire
from quorate.errors import Unreachable

#: How often a connection is looked at.
LOOK_S = 0.25
#: How much of the slowest answer is forgotten with each that is faster.
FORGET_SHARE = 0.1

#: Unique over all connections, so that a late answer is never taken for another one's.
_requests = itertools.count(1)


class ConnectFailed(Exception):
    """This address could not be used now. The text says why."""


def describe(error: BaseException) -> str:
    """Why a connection could not be made, in few words."""
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:
        return error.os_error.strerror
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if "Expected HTTP/" in str(error):  # aiohttp shows what came instead, over several lines
        if "b'AMQP" in str(error):
            return "this port is for clients of AMQP: give that of the node's `http`"
        return "what listens there does not speak HTTP: give the port of the node's `http`"
    return str(error) or type(error).__name__


class Reasons(dict[str, str]):
    """By address, why it did not do what it was asked."""

    def failed(self, url: str, error: BaseException) -> None:
        """What it said before says more than that time ran out."""
        if not isinstance(error, TimeoutError) or url not in self:
            self[url] = describe(error)

    def unreachable(self) -> Unreachable:
        each = "; ".join(f"{url}: {reason}" for url, reason in self.items())
        return Unreachable(f"no node answered: {each}")


class NeverWorks(Exception):
    """This node will never accept this client."""


class Asker(Protocol):
    """Whoever sent a request. Called exactly once with the answer, or with LOST."""

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None: ...


class Receiver(Protocol):
    """A consumer, as seen by its connection."""

    def delivered(self, chunks: list[list[Any]]) -> None: ...
    def ended(self, reason: str) -> None: ...
    def active_changed(self, active: bool, token: int) -> None: ...
    def split_over(self, shards: list[str]) -> None: ...
    def disturbed(self) -> None:
        """Subscribe again: the connection is gone, or the queue's leader is elsewhere."""
        ...


class _FutureAsker:
    """Goes on later than what was read together with the answer is handed out."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[list[Any]]) -> None:
        self.future = future

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        if not self.future.done():
            self.future.set_result(frame if opcode else [wire.LOST])


class _SubscribeAsker(_FutureAsker):
    __slots__ = ("subscribed",)

    def __init__(
        self, future: asyncio.Future[list[Any]], subscribed: Callable[[int], object]
    ) -> None:
        """`subscribed` is told the consumer at once."""
        super().__init__(future)
        self.subscribed = subscribed

    def answered(self, request: int, opcode: int, frame: list[Any]) -> None:
        if opcode == wire.SUBSCRIBED:
            self.subscribed(frame[2])
        super().answered(request, opcode, frame)


Moved = Callable[[str, "str | None", "str | None"], None]


class Connection:
    """Sends frames in order and hands every answer to who asked. All methods but `run` are
    synchronous.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, url: str, welcome: list[Any], moved: Moved
    ) -> None:
        about: dict[str, Any] = welcome[2]
        self.url = url
        self.node = str(about["node"])
        self.nodes: dict[str, str] = dict(about.get("nodes") or {})
        self.resumed = bool(about.get("resumed"))
        self.frame_bytes_max = int(about.get("frame_bytes_max") or wire.MESSAGE_BYTES_MAX)
        self.in_flight_bytes_max = int(about.get("in_flight_bytes_max") or wire.WINDOW_BYTES_MAX)
        self.in_flight_bytes = 0
        self.lost = False
        self.lost_code: int | None = None
        self.silent = False  # given up because nothing was heard
        self.superseded = False  # we replaced it ourselves: a take-over is no surprise
        self._socket = socket
        self._moved = moved
        self._pending: dict[int, tuple[Asker, int]] = {}
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._receivers: dict[tuple[str, int], Receiver] = {}
        self._shards: dict[str, list[str]] = {}  # of queues that are split
        self._unclaimed: dict[tuple[str, int], list[list[Any]]] = {}  # frames, until `attach`
        self._parts: dict[tuple[str, int, int], list[bytes]] = {}  # of large bodies, by position
        self._subscribing = 0
        self._blocked: dict[Callable[[], None], None] = {}
        self._heard_at_s = 0.0
        self._pinged_at_s = 0.0
        self._slowest_s = 0.0  # answer to a ping, of late

    @classmethod
    async def open(
        cls, session: aiohttp.ClientSession, url: str, hello: dict[str, Any], moved: Moved
    ) -> Connection:
        """Connect and say HELLO. Raises ConnectFailed or NeverWorks."""
        socket = None
        try:
            async with asyncio.timeout(wire.CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(
                    f"{url}/v1/connect",
                    compress=0,
                    max_msg_size=wire.MESSAGE_BYTES_MAX,
                    autoclose=True,
                )
                await socket.send_bytes(wire.encode([wire.HELLO, wire.VERSION, hello]))
                message = await socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                if socket.close_code == wire.CLOSED_VERSION:
                    raise NeverWorks(
                        f"{url} does not speak version {wire.VERSION} of the native protocol:"
                        " use a client of the cluster's release"
                    )
                raise ConnectFailed(f"{url} closed the connection ({socket.close_code})")
            frame = wire.decode(message.data)
            if frame[0] == wire.ERROR:
                if frame[2] in wire.NEVER_ADMITTED:
                    no_vhost = frame[2] == "no_vhost"
                    advice = ": `quorate vhost list` shows those that there are" if no_vhost else ""
                    raise NeverWorks(f"{url}: {frame[3]}{advice}")
                raise ConnectFailed(f"{url}: {frame[2]}: {frame[3]}")
            if frame[0] != wire.WELCOME or len(frame) < 3:
                raise ConnectFailed(f"{url} answered HELLO with opcode {frame[0]}")
            return cls(socket, url, frame, moved)
        except TimeoutError as error:
            raise ConnectFailed(
                f"{url} did not answer within {wire.CONNECT_TIMEOUT_S:g} s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == 401:
                raise NeverWorks(
                    f"{url} does not let us in: give the name and the password of a user"
                    " whom the cluster knows"
                ) from None  # what it was asked with has the password
            raise ConnectFailed(f"{url}: {describe(error)}") from error
        except (ConnectFailed, NeverWorks):
            if socket is not None:
                await socket.close()
            raise

    # --- sending ----------------------------------------------------------------------------------

    def next_request(self) -> int:
        return next(_requests)

    def send(self, data: bytes) -> None:
        """Queue one encoded frame for which no answer is wanted."""
        self._outbox.append(data)
        self._wake.set()

    def ask(self, request: int, data: bytes, asker: Asker, *, counted: bool = False) -> None:
        """Queue one encoded frame; `asker` gets the answer. `counted`: it fills the window until
        then.
        """
        if self.lost:
            asker.answered(request, wire.LOST, [])
            return
        size = len(data) if counted else 0
        self.in_flight_bytes += size
        self._pending[request] = (asker, size)
        self._outbox.append(data)
        self._wake.set()

    async def call(self, opcode: int, *fields: Any) -> list[Any]:
        """Ask and wait: the answering frame, `[LOST]` when the connection ended first."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        request = self.next_request()
        self.ask(request, wire.encode([opcode, request, *fields]), _FutureAsker(future))
        return await future

    def has_room(self, size: int) -> bool:
        """Whether the node's window takes `size` more bytes. A frame larger than the window goes
        alone.
        """
        return self.in_flight_bytes == 0 or self.in_flight_bytes + size <= self.in_flight_bytes_max

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when an answer has made room."""
        self._blocked[resume] = None

    # --- consumers --------------------------------------------------------------------------------

    async def subscribe(self, queue: str, options: dict[str, Any]) -> list[Any]:
        """SUBSCRIBED or another answer. What comes for the consumer waits for `attach`."""
        future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        request = self.next_request()
        asker = _SubscribeAsker(future, lambda key: self._unclaimed.setdefault((queue, key), []))
        self._subscribing += 1
        try:
            self.ask(request, wire.encode([wire.SUBSCRIBE, request, queue, options]), asker)
            return await future
        finally:
            self._subscribing -= 1

    def attach(self, queue: str, consumer: int, receiver: Receiver) -> None:
        self._receivers[queue, consumer] = receiver
        early = self._unclaimed.pop((queue, consumer), ())
        if not self._subscribing:
            self._unclaimed.clear()
        for frame in early:
            self._received(frame)
        if queue in self._shards:
            receiver.split_over(self._shards[queue])

    def detach(self, queue: str, consumer: int) -> None:
        self._receivers.pop((queue, consumer), None)

    # --- life -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read, write and ping until the connection is lost; then everyone who waits is told."""
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._write()),
            asyncio.create_task(self._ping()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end()
            await self._shut()

    async def _shut(self) -> None:
        # A node that is paused or cut off never answers the closing handshake, and nobody may wait
        # for it.
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(0.2):
                await self._socket.close()

    async def goodbye(self) -> None:
        """End the session: what it holds returns at once."""
        if self.lost:
            return
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
            async with asyncio.timeout(1.0):
                while self._outbox:
                    await self._socket.send_bytes(self._outbox.popleft())
                await self._socket.send_bytes(wire.encode([wire.CLOSE, 1000, "goodbye"]))
                await self._socket.close()

    def _end(self) -> None:
        self.lost = True
        self.lost_code = self._socket.close_code
        pending, self._pending = self._pending, {}
        receivers, self._receivers = self._receivers, {}
        self._outbox.clear()
        self.in_flight_bytes = 0
        for request, (asker, _) in pending.items():
            asker.answered(request, wire.LOST, [])
        for receiver in receivers.values():
            receiver.disturbed()
        self._unblock()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at_s = loop.time()
        while True:
            message = await self._socket.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                return
            self._heard_at_s = loop.time()
            try:
                frame = wire.decode(message.data)
                if frame[0] == wire.CLOSE:
                    return
                self._received(frame)
            except (ValueError, IndexError, TypeError) as error:
                # A node that breaks the protocol cannot be trusted with the rest of the stream
                # either.
                self.send(wire.encode([wire.CLOSE, 4000, f"bad frame: {error}"]))
                return

    async def _write(self) -> None:
        outbox, socket = self._outbox, self._socket
        with contextlib.suppress(aiohttp.ClientError, OSError):
            while True:
                while outbox:
                    await socket.send_bytes(outbox.popleft())
                self._wake.clear()
                await self._wake.wait()

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        waits = False  # for what a ping brings
        looked_at_s = loop.time()
        while True:
            await asyncio.sleep(LOOK_S)
            before_s, now_s = looked_at_s, loop.time()
            looked_at_s = now_s
            if now_s - before_s > 2 * LOOK_S:  # this program stood still: read what came meanwhile
                self._pinged_at_s = now_s
                continue
            if waits and self._heard_at_s >= self._pinged_at_s:
                waits = False
                took_s = self._heard_at_s - self._pinged_at_s
                self._slowest_s = max(took_s, self._slowest_s * (1 - FORGET_SHARE))
            if waits and now_s - self._pinged_at_s > self.silence_s:
                self.silent = True
                return
            interval_s = wire.PING_WAITING_S if self._pending else wire.PING_INTERVAL_S
            if not waits and now_s - self._heard_at_s >= min(interval_s, wire.PING_INTERVAL_S):
                waits, self._pinged_at_s = True, now_s
                number += 1
                self.send(wire.encode([wire.PING, number]))

    @property
    def silence_s(self) -> float:
        """How long an answer may take: a node that is always slow is not given up for that."""
        wanted_s = max(wire.SILENCE_S_MIN, wire.ANSWER_TIMES * self._slowest_s)
        return min(wanted_s, wire.SILENCE_S_MAX)

    # --- receiving --------------------------------------------------------------------------------

    def _received(self, frame: list[Any]) -> None:
        opcode: int = frame[0]
        if opcode == wire.CONFIRM:
            for row in frame[1]:
                self._answer(row[0], opcode, row)
        elif opcode == wire.DELIVER:
            self._deliver(frame)
        elif opcode == wire.DELIVER_PART:
            _, queue, consumer, position, data = frame[:5]
            self._parts.setdefault((queue, consumer, position), []).append(data)
        elif opcode in (wire.OK, wire.SUBSCRIBED, wire.GOT, wire.MESSAGES):
            if opcode == wire.GOT and self._parts:
                self._join_parts(frame[2], frame[3], frame[5])
            elif opcode == wire.MESSAGES and self._parts:
                self._join_parts(frame[2], 0, frame[4])
            self._answer(frame[1], opcode, frame)
        elif opcode == wire.ERROR:
            # The node does not know either, as if the connection had been lost.
            self._answer(frame[1], wire.LOST if frame[2] == wire.UNKNOWN else opcode, frame)
        elif opcode == wire.REDIRECT:
            self._redirect(frame)
        elif opcode == wire.PING:
            self.send(wire.encode([wire.PONG, frame[1]]))
        elif opcode == wire.ENDED:
            receiver = self._receivers.pop((frame[1], frame[2]), None)
            if receiver is not None:
                receiver.ended(frame[3])
            else:
                self._keep_early((frame[1], frame[2]), frame)
        elif opcode == wire.SHARDS:
            self._shards[frame[1]] = frame[2]
            for key in [key for key in self._receivers if key[0] == frame[1]]:
                self._receivers[key].split_over(frame[2])
        elif opcode == wire.ACTIVE:
            receiver = self._receivers.get((frame[1], frame[2]))
            if receiver is not None:
                receiver.active_changed(bool(frame[3]), int(frame[4] or 0))
            else:
                self._keep_early((frame[1], frame[2]), frame)

    def _keep_early(self, key: tuple[str, int], frame: list[Any]) -> None:
        """Of a consumer whose subscription was answered a moment ago."""
        if key in self._unclaimed:
            self._unclaimed[key].append(frame)

    def _answer(self, request: int, opcode: int, frame: list[Any]) -> None:
        entry = self._pending.pop(request, None)
        if entry is None:
            return
        asker, size = entry
        self.in_flight_bytes -= size
        asker.answered(request, opcode, frame)
        if self._blocked and size:
            self._unblock()

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, {}
        for resume in blocked:
            resume()

    def _deliver(self, frame: list[Any]) -> None:
        _, queue, consumer, chunks = frame[:4]
        if self._parts:
            self._join_parts(queue, consumer, chunks)
        receiver = self._receivers.get((queue, consumer))
        if receiver is not None:
            receiver.delivered(chunks)
        elif self._subscribing:
            self._unclaimed.setdefault((queue, consumer), []).append(frame)

    def _join_parts(self, queue: str, consumer: int, chunks: list[list[Any]]) -> None:
        """Large bodies, whose parts came before."""
        for chunk in chunks:
            if chunk[4] == [None]:
                chunk[4] = [b"".join(self._parts.pop((queue, consumer, chunk[0]), ()))]

    def _redirect(self, frame: list[Any]) -> None:
        _, request, queue, node, url = frame[:5]
        self._moved(queue, node or None, url)
        if request:
            self._answer(request, wire.REDIRECT, frame)
            return
        for key in [key for key in self._receivers if key[0] == queue]:
            self._receivers.pop(key).disturbed()
        for key in [key for key in self._unclaimed if key[0] == queue]:
            self._keep_early(key, frame)
