"""A client of many queues, in a process of its own: one connection or several, a channel for each
few queues. Writes lines as `tests.acceptance.bench.worker`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from functools import partial
from typing import Any

import uvloop
from pamqp import base, commands, frame
from pamqp.header import ContentHeader, ProtocolHeader

from tests.acceptance.bench.many_works import EXCHANGE, Declare, FanOut, Spread, queue_name
from tests.acceptance.bench.worker import HEAD, say
from tests.acceptance.bench.workers import Outcome

FRAME = struct.Struct(">BHI")
METHOD = struct.Struct(">HH")
ACK = struct.Struct(">QB")
DELIVER, ACK_METHOD, NACK_METHOD = (60, 60), (60, 80), (60, 120)
ANSWER_S_MAX = 60.0


class Connection(asyncio.Protocol):
    """Parses what comes often by itself, and leaves the rest to pamqp."""

    def __init__(self) -> None:
        self._got = b""
        self._answers: dict[int, deque[asyncio.Future[base.Frame]]] = {}
        #: Told the channel, the tag and whether it stands for those before.
        self.on_ack: Callable[[int, int, bool], None] = lambda _channel, _tag, _multiple: None
        #: Told the channel, the tag and the body.
        self.on_message: Callable[[int, int, bytes], None] = lambda _channel, _tag, _body: None
        self._tags: dict[int, int] = {}
        self.transport: asyncio.Transport

    @classmethod
    async def open(cls, port: int, channels: int) -> Connection:
        loop = asyncio.get_running_loop()
        _, self = await loop.create_connection(cls, "127.0.0.1", port)
        started = self.answer(0)
        self.transport.write(ProtocolHeader(0, 9, 1).marshal())
        await started
        tune = self.answer(0)
        self.say(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        await tune
        self.say(0, commands.Connection.TuneOk(channels, 131_072, 0))
        await self.ask(0, commands.Connection.Open())
        for channel in range(1, channels + 1):
            await self.ask(channel, commands.Channel.Open())
        return self

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def say(self, channel: int, *methods: base.Frame) -> None:
        self.transport.write(b"".join(frame.marshal(method, channel) for method in methods))

    def answer(self, channel: int) -> asyncio.Future[base.Frame]:
        future: asyncio.Future[base.Frame] = asyncio.get_running_loop().create_future()
        self._answers.setdefault(channel, deque()).append(future)
        return future

    async def ask(self, channel: int, method: base.Frame) -> base.Frame:
        answer = self.answer(channel)
        self.say(channel, method)
        return await asyncio.wait_for(answer, ANSWER_S_MAX)

    def data_received(self, data: bytes) -> None:
        got = self._got + data if self._got else data
        at, end = 0, len(got)
        while at + 8 <= end:
            kind, channel, size = FRAME.unpack_from(got, at)
            if at + size + 8 > end:
                break
            payload = at + 7
            if kind == 1:
                method = METHOD.unpack_from(got, payload)
                if method == ACK_METHOD:
                    tag, multiple = ACK.unpack_from(got, payload + 4)
                    self.on_ack(channel, tag, bool(multiple))
                elif method == DELIVER:
                    (tag,) = struct.unpack_from(">Q", got, payload + 5 + got[payload + 4])
                    self._tags[channel] = tag
                else:
                    self._other(channel, got[at : at + size + 8])
            elif kind == 3:
                self.on_message(channel, self._tags[channel], got[payload : payload + size])
            at += size + 8
        self._got = got[at:]

    def _other(self, channel: int, data: bytes) -> None:
        _, _, method = frame.unmarshal(data)
        assert isinstance(method, base.Frame)
        if method.name in {"Connection.Close", "Channel.Close", "Basic.Nack", "Basic.Return"}:
            raise SystemExit(f"the node said {dict(method)} by {method.name}")
        self._answers[channel].popleft().set_result(method)


# --- declare --------------------------------------------------------------------------------------


async def declare(work: Declare) -> Outcome:
    """Each channel sends the next when the one before is answered; or, without waiting, all."""
    connection = await Connection.open(work.port, work.channels)
    names = iter([queue_name(number) for number in range(work.first, work.first + work.count)])
    taken_ms: list[float] = []
    say({"done": 0})
    start_s = time.monotonic()

    async def one_by_one(channel: int) -> None:
        for name in names:
            asked_s = time.monotonic()
            await connection.ask(channel, commands.Queue.Declare(queue=name, durable=True))
            if work.bound:
                bind = commands.Queue.Bind(queue=name, exchange=EXCHANGE, routing_key="")
                await connection.ask(channel, bind)
            taken_ms.append((time.monotonic() - asked_s) * 1000)

    if work.bound:
        exchange = commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="fanout")
        await connection.ask(1, exchange)
    if work.nowait:
        for name in names:
            connection.say(1, commands.Queue.Declare(queue=name, durable=True, nowait=True))
        last = queue_name(work.first + work.count - 1)
        await connection.ask(1, commands.Queue.Declare(queue=last, passive=True))
    else:
        await asyncio.gather(*[one_by_one(channel + 1) for channel in range(work.channels)])
    return Outcome(work.count, start_s, time.monotonic(), taken_ms)


# --- spread ---------------------------------------------------------------------------------------


def publish_bytes(channel: int, exchange: str, key: str, body: bytes) -> bytes:
    header = ContentHeader(0, len(body), commands.Basic.Properties(delivery_mode=2))
    return b"".join(
        (
            frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), channel),
            frame.marshal(header, channel),
            b"\x03" + struct.pack(">HI", channel, len(body)) + body + b"\xce",
        )
    )


def acked_at_once(
    connection: Connection, ages_ms: list[float], channel: int, tag: int, body: bytes
) -> None:
    ages_ms.append((time.monotonic_ns() - HEAD.unpack_from(body)[1]) / 1e6)
    connection.transport.write(
        FRAME.pack(1, channel, 13) + METHOD.pack(*ACK_METHOD) + ACK.pack(tag, 0) + b"\xce"
    )


async def spread(work: Spread) -> Outcome:
    """At a rate, to all queues in turn; of each queue at most `window` are unconfirmed: then the
    next of it waits.
    """
    per_connection = -(-work.queues // work.connections)
    connections = [
        await Connection.open(work.ports[number % len(work.ports)], per_connection)
        for number in range(work.connections)
    ]
    latencies_ms: list[float] = []
    ages_ms: list[float] = []
    open_s: list[deque[float]] = [deque() for _ in range(work.queues)]
    lowest = [1] * work.queues
    done: dict[int, set[int]] = {}
    held_back: list[deque[float]] = [deque() for _ in range(work.queues)]
    loop = asyncio.get_running_loop()
    end = b"x" * (work.size - HEAD.size) + b"\xce"
    frames: list[bytes] = []  # all of a publish up to its body
    sent = 0

    def place_of(queue: int) -> tuple[Connection, int]:
        return connections[queue // per_connection], queue % per_connection + 1

    def send(queue: int, due_s: float) -> None:
        nonlocal sent
        connection, _ = place_of(queue)
        sent += 1
        open_s[queue].append(due_s)
        stamp = HEAD.pack(sent, time.monotonic_ns())
        connection.transport.write(frames[queue] + stamp + end)

    def acked(queue: int, tag: int, multiple: bool) -> None:
        now_s = time.monotonic()
        low = lowest[queue]
        if not multiple and tag != low:
            done.setdefault(queue, set()).add(tag)
            return
        early = done.get(queue)
        while lowest[queue] <= tag or (early and lowest[queue] in early):
            if early:
                early.discard(lowest[queue])
            lowest[queue] += 1
            latencies_ms.append((now_s - open_s[queue].popleft()) * 1000)
        while held_back[queue] and len(open_s[queue]) < work.window:
            send(queue, held_back[queue].popleft())

    def on_ack(number: int) -> Callable[[int, int, bool], None]:
        first = number * per_connection - 1
        return lambda channel, tag, multiple: acked(first + channel, tag, multiple)

    for number, connection in enumerate(connections):
        connection.on_ack = on_ack(number)
        connection.on_message = partial(acked_at_once, connection, ages_ms)
    for queue in range(work.queues):
        connection, channel = place_of(queue)
        await connection.ask(channel, commands.Confirm.Select())
        if work.consume:
            await connection.ask(channel, commands.Basic.Qos(0, 100, False))
            await connection.ask(
                channel, commands.Basic.Consume(queue=queue_name(work.first + queue))
            )
        whole = publish_bytes(channel, "", queue_name(work.first + queue), b"x" * work.size)
        frames.append(whole[: -work.size - 1])
    say({"done": 0})
    start_s = due_s = time.monotonic()
    end_s = start_s + work.seconds
    made = 0
    while (now_s := time.monotonic()) < end_s:
        while due_s <= now_s:
            queue = made % work.queues
            made += 1
            if held_back[queue] or len(open_s[queue]) >= work.window:
                held_back[queue].append(due_s)
            else:
                send(queue, due_s)
            due_s = start_s + made / work.rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    confirmed_in_time = len(latencies_ms)
    patience_s = loop.time() + work.drain_s
    while any(open_s) and loop.time() < patience_s:
        await asyncio.sleep(0.01)
    about = {"ages_ms": ages_ms, "asked": made, "sent": sent, "open": sum(map(len, open_s))}
    return Outcome(confirmed_in_time, start_s, end_s, latencies_ms, about)


# --- fan-out --------------------------------------------------------------------------------------


async def fan_out(work: FanOut) -> Outcome:
    """Consumers on the queues in turn, and one publisher to the exchange of all queues."""
    per_connection = -(-work.consumers // work.connections)
    ages_ms: list[float] = []

    consumer = 0
    for number in range(work.connections):
        connection = await Connection.open(work.ports[number % len(work.ports)], per_connection)
        connection.on_message = partial(acked_at_once, connection, ages_ms)
        waits: list[asyncio.Future[base.Frame]] = []
        for channel in range(1, per_connection + 1):
            if consumer == work.consumers:
                break
            waits += [connection.answer(channel), connection.answer(channel)]
            name = queue_name(work.first + consumer % work.queues)
            connection.say(
                channel, commands.Basic.Qos(0, 10, False), commands.Basic.Consume(queue=name)
            )
            consumer += 1
        await asyncio.gather(*waits)
    publisher = await Connection.open(work.ports[0], 1)
    await publisher.ask(1, commands.Confirm.Select())
    say({"done": 0})
    start_s = time.monotonic()
    number = 0
    while (now_s := time.monotonic()) < start_s + work.seconds:
        number += 1
        body = HEAD.pack(number, time.monotonic_ns()) + b"x" * 84
        publisher.transport.write(publish_bytes(1, EXCHANGE, "", body))
        await asyncio.sleep(max(0.0, start_s + number / work.rate - time.monotonic()))
    wanted = number * work.queues
    patience_s = time.monotonic() + work.drain_s
    while len(ages_ms) < wanted and time.monotonic() < patience_s:
        await asyncio.sleep(0.01)
    return Outcome(len(ages_ms), start_s, now_s, ages_ms, {"wanted": wanted})


def main() -> None:
    fields = json.loads(sys.argv[1])
    runs: dict[str, Callable[[], Coroutine[Any, Any, Outcome]]] = {
        "declare": lambda: declare(Declare(**fields)),
        "spread": lambda: spread(Spread(**fields)),
        "fan-out": lambda: fan_out(FanOut(**fields)),
    }
    outcome = uvloop.run(runs[fields["verb"]]())
    for times in (outcome.latencies_ms, outcome.extra.get("ages_ms", [])):
        times[:] = [round(each, 3) for each in times]
    say(asdict(outcome))


if __name__ == "__main__":
    main()
