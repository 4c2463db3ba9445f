"""nats-py. Each step is done as it is, and again while the node that leads the stream is killed."""

# pyright: basic
from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    ObjectNotFoundError,
)

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import (
    Failover,
    Given,
    NotOfferedError,
    equal,
    until_true,
)

#: What a request, or an attempt at one, may take.
TIMEOUT_S = 2.0
ACK_WAIT_S = 10.0
OBJECT_BYTES = 4 << 20


@contextlib.asynccontextmanager
async def connected(urls: list[str], **options: Any) -> AsyncIterator[Client]:
    """To the first that answers; then to any other when that one dies."""
    options = {"max_reconnect_attempts": -1, "reconnect_time_wait": 0.1} | options
    client = await nats.connect(urls, dont_randomize=True, **options)
    try:
        yield client
    finally:
        await client.close()


@dataclass
class Scene:
    """A stream, a client at the node that leads it, and one at another node."""

    given: Given
    stream: str
    near: Client
    far: Client
    kill: bool

    def load(self, **counts: int) -> Failover:
        return Failover(self.given.urls, kill=self.kill, **counts)

    async def throughout(self, load: Failover, attempt: Callable[[bytes], Awaitable[Any]]) -> None:
        """An attempt for each number, again until it succeeds; the leader dies in the midst."""
        while not load.done:
            try:
                await attempt(load.next)
            except (nats.errors.Error, TimeoutError) as error:
                if not self.kill:
                    raise
                load.lost(error)
                await asyncio.sleep(0.02)
            else:
                load.confirm(self.given, self.stream)

    async def publish(self) -> Failover:
        """Numbers, each stored once however often it was tried."""
        js, load = self.near.jetstream(timeout=TIMEOUT_S), self.load()

        async def attempt(body: bytes) -> None:
            headers = {"Nats-Msg-Id": body.decode()}
            ack = await js.publish(self.stream, body, headers=headers)
            equal(ack.seq, int(body) + 1, "sequence")

        await self.throughout(load, attempt)
        return load


@contextlib.asynccontextmanager
async def scene(
    given: Given, what: str, kill: bool, make: Callable[[JetStreamContext, str], Awaitable[str]]
) -> AsyncIterator[Scene]:
    """`make` makes something of a name that becomes the stream which it returns."""
    name = given.name(what).replace(".", "-") + "-kill" * kill
    async with connected(given.urls) as client:
        stream = await make(client.jetstream(), name)
    leader, *others = given.led(stream)
    async with (
        connected([leader, *others]) as near,
        connected([*others, leader]) as far,
    ):
        yield Scene(given, stream, near, far, kill)
        await far.jetstream().delete_stream(stream)


async def plain(js: JetStreamContext, name: str) -> str:
    await js.add_stream(name=name, subjects=[name], num_replicas=3)
    return name


async def connect(given: Given) -> str:
    async with connected(given.urls[:1]) as client:
        await until_true(lambda: len(known(client)) == len(given.urls), "all addresses")
        await client.flush()
        version = client.connected_server_version
    try:
        address = given.url.replace("guest:guest", "guest:wrong")
        async with connected([address], allow_reconnect=False, max_reconnect_attempts=0):
            raise AssertionError("a wrong password was taken")
    except nats.errors.Error as error:
        return f"a node says {version}; a wrong password: {error}"


async def websocket(given: Given) -> str:
    """From one node to another, with acknowledgements."""
    if len(given.websockets) < 2:
        raise NotOfferedError("no URLs are known")
    count, name = 1_000, given.name("websocket").replace(".", "-")
    user = {"user": "guest", "password": "guest"}
    async with (
        connected(given.websockets[:1], **user) as near,
        connected(given.websockets[1:2], **user) as far,
    ):
        js = near.jetstream()
        await js.add_stream(name=name, subjects=[f"{name}.>"])
        body = b"x" * 1_000
        acks = [await js.publish_async(f"{name}.{each}", body) for each in range(count)]
        await asyncio.gather(*acks)
        subscription = await far.jetstream().pull_subscribe(f"{name}.>", durable="all")
        left = count
        while left:
            for message in await subscription.fetch(min(left, 100), timeout=TIMEOUT_S * 5):
                equal(message.data, body, "a body")
                await message.ack_sync()
                left -= 1
        await js.delete_stream(name)
    return f"{count} messages"


def known(client: Client) -> set[tuple[str | None, int | None]]:
    """The nodes that a client was told of; given with a user, it lists one twice."""
    return {(url.hostname, url.port) for url in client.servers}


async def publish(given: Given, kill: bool) -> str:
    async with scene(given, "publish", kill, plain) as it:
        load = await it.publish()
        js = it.far.jetstream()
        for body in load.confirmed:
            equal((await js.get_msg(it.stream, int(body) + 1)).data, body, "message")
        again = await js.publish(it.stream, b"", headers={"Nats-Msg-Id": "7"})
        equal((again.seq, again.duplicate), (8, True), "the same id again")
        try:
            await js.publish(it.stream, b"", headers={"Nats-Expected-Last-Sequence": "7"})
            raise AssertionError("a wrong sequence was taken")
        except APIError as error:
            equal(error.err_code, 10071, "code")
        state = (await js.stream_info(it.stream)).state
        equal(state.messages, len(load.confirmed), "messages")
    return told(load)


def told(load: Failover) -> str:
    return f"{len(load.confirmed)} acknowledged, the longest wait {load.gap_s:.2f} s"


class Settled:
    """What a consumer got and acknowledged for sure. Nothing of it may come again."""

    def __init__(self) -> None:
        self.at: dict[int, bool] = {}
        self.twice = 0

    async def take(self, message: Msg) -> None:
        number, came = int(message.data), time.monotonic()
        if number in self.at:
            equal(self.at[number], False, f"{number} came again though it was acknowledged in time")
            self.twice += 1
        deadline = came + ACK_WAIT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                await acknowledged(message)
                self.at[number] = time.monotonic() - came < ACK_WAIT_S / 2
                return
            await asyncio.sleep(0.05)


async def acknowledged(message: Msg) -> None:
    """As `ack_sync`, which may be called once only."""
    await message._client.request(message.reply, b"+ACK", timeout=TIMEOUT_S)


async def finished(it: Scene, load: Failover, settled: Settled, consumer: str) -> str:
    """All came and is acknowledged."""
    await until_true(lambda: len(settled.at) >= len(load.confirmed), "all that is acknowledged")
    info = await it.far.jetstream().consumer_info(it.stream, consumer)
    assert info.ack_floor is not None
    found = (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending)
    equal(found, (len(load.confirmed), 0, 0), "acknowledged up to, and what is open")
    return f"{told(load)}, {settled.twice} twice"


async def pull(given: Given, kill: bool) -> str:
    async with scene(given, "pull", kill, plain) as it:
        js, settled = it.far.jetstream(timeout=TIMEOUT_S), Settled()
        config = ConsumerConfig(ack_wait=ACK_WAIT_S)
        consumer = await js.pull_subscribe(it.stream, "reader", it.stream, config=config)

        async def take() -> None:
            while True:
                try:
                    messages = await consumer.fetch(10, timeout=TIMEOUT_S)
                except (TimeoutError, nats.errors.Error) as error:
                    if not kill and not isinstance(error, asyncio.TimeoutError):
                        raise
                    await asyncio.sleep(0.02)
                    continue
                for message in messages:
                    if int(message.data) == 3 and message.metadata.num_delivered == 1:
                        await message.nak()
                    else:
                        await settled.take(message)

        async with meanwhile(take()):
            load = await it.publish()
            return await finished(it, load, settled, "reader")


@contextlib.asynccontextmanager
async def meanwhile(work: Awaitable[Any]) -> AsyncIterator[None]:
    """Does the work beside; what it raises ends the other too."""
    async with asyncio.TaskGroup() as group:

        async def worked() -> None:
            await work

        task = group.create_task(worked())
        yield
        task.cancel()


async def push(given: Given, kill: bool) -> str:
    async with scene(given, "push", kill, plain) as it:
        js, settled, came = it.far.jetstream(), Settled(), asyncio.Queue[Msg]()
        await js.subscribe(
            it.stream,
            durable="reader",
            cb=came.put,
            manual_ack=True,
            config=ConsumerConfig(ack_wait=ACK_WAIT_S),
            idle_heartbeat=1,
            flow_control=True,
        )

        async def take() -> None:
            while True:
                await settled.take(await came.get())

        async with meanwhile(take()):
            load = await it.publish()
            return await finished(it, load, settled, "reader")


async def ordered(given: Given, kill: bool) -> str:
    async with scene(given, "ordered", kill, plain) as it:
        came: list[int] = []

        async def take(message: Msg) -> None:
            came.append(message.metadata.sequence.stream)

        js = it.far.jetstream()
        await js.subscribe(it.stream, cb=take, ordered_consumer=True, idle_heartbeat=1)
        load = await it.publish()
        await until_true(lambda: len(came) >= len(load.confirmed), "all that is acknowledged")
        equal(came, [int(body) + 1 for body in load.confirmed], "in order")
    return told(load)


async def kv(given: Given, kill: bool) -> str:
    async def bucket(js: JetStreamContext, name: str) -> str:
        await js.create_key_value(bucket=name, history=5, replicas=3)
        return f"KV_{name}"

    async with scene(given, "kv", kill, bucket) as it:
        name = it.stream.removeprefix("KV_")
        near = await it.near.jetstream(timeout=TIMEOUT_S).key_value(name)
        far = await it.far.jetstream().key_value(name)
        revision = 0
        for value in (b"1", b"2", b"3"):
            revision = await near.put("a.b", value)
        equal([entry.value for entry in await far.history("a.b")], [b"1", b"2", b"3"], "history")
        equal((await far.get("a.b", revision=2)).value, b"2", "an earlier revision")
        await refused(far.create("a.b", b"4"))
        await refused(far.update("a.b", b"4", last=revision - 1))
        revision = await far.update("a.b", b"4", last=revision)
        await near.put("gone", b"")
        await near.delete("gone")
        equal(await far.keys(), ["a.b"], "keys")
        try:
            await far.get("gone")
            raise AssertionError("a deleted key was found")
        except KeyNotFoundError:
            pass

        watched: list[bytes] = []
        watcher = await far.watch("count")

        async def watch() -> None:
            async for entry in watcher:
                watched.extend([entry.value or b""] if entry else [])

        load, last = it.load(), await near.create("count", b"none")

        async def count(value: bytes) -> None:
            """Compare and set. What became of an attempt without an answer, the bucket knows."""
            nonlocal last
            try:
                last = await near.update("count", value, last=last)
            except nats.errors.Error:
                found = await near.get("count")
                wanted = {b"%d" % (int(value) - 1) if int(value) else b"none", value}
                equal(found.value in wanted, True, f"{found.value} where {value} was to be set")
                last = found.revision or 0
                if found.value != value:
                    raise

        async with meanwhile(watch()):
            await it.throughout(load, count)
            await until_true(lambda: watched[-1:] == load.confirmed[-1:], "the last one, watched")
        values = [int(value) for value in watched if value != b"none"]
        equal(values, sorted(set(values)), "watched in order")
        equal((await far.get("count")).value, load.confirmed[-1], "the last one")
        entry = await far.get("a.b")
        equal((entry.value, entry.revision), (b"4", revision), "what was there before")
        await watcher.stop()
    return told(load)


async def refused(work: Awaitable[Any]) -> None:
    try:
        await work
    except KeyWrongLastSequenceError:
        return
    raise AssertionError("a wrong revision was taken")


async def objects(given: Given, kill: bool) -> str:
    async def bucket(js: JetStreamContext, name: str) -> str:
        await js.create_object_store(name, replicas=3)
        return f"OBJ_{name}"

    async with scene(given, "objects", kill, bucket) as it:
        name = it.stream.removeprefix("OBJ_")
        near = await it.near.jetstream(timeout=TIMEOUT_S).object_store(name)
        far = await it.far.jetstream().object_store(name)
        load = it.load(before=2, after=2)
        await it.throughout(load, lambda number: near.put(number.decode(), content(number)))
        for number in load.confirmed:
            found = await far.get(number.decode())
            equal(found.data == content(number), True, f"object {number.decode()} is the same")
            equal(found.info.size, OBJECT_BYTES, "size")
        names = {info.name for info in await far.list()}
        equal(names >= {number.decode() for number in load.confirmed}, True, "all are listed")
        await far.delete("0")
        try:
            await near.get("0")
            raise AssertionError("a deleted object was found")
        except ObjectNotFoundError:
            pass
    return f"{told(load)}, {OBJECT_BYTES >> 20} MiB each"


@functools.cache
def content(number: bytes) -> bytes:
    return b"".join(
        hashlib.sha256(number + b"/%d" % block).digest() for block in range(OBJECT_BYTES // 32)
    )


async def services(given: Given, kill: bool) -> str:
    async with scene(given, "services", kill, plain) as it:
        load = it.load()
        service = await nats.micro.add_service(it.near, name="upper", version="1.2.3")

        async def upper(request: Any) -> None:
            await request.respond(request.data + b"!")

        await service.add_endpoint(name="upper", subject=f"{it.stream}.upper", handler=upper)

        async def ask(number: bytes) -> None:
            answer = await it.far.request(f"{it.stream}.upper", number, timeout=TIMEOUT_S)
            equal(answer.data, number + b"!", "answer")

        await answered(it.far, f"$SRV.PING.upper.{service.id}")
        await it.throughout(load, ask)
        for verb in ("PING", "INFO", "STATS"):
            for subject in (
                f"$SRV.{verb}",
                f"$SRV.{verb}.upper",
                f"$SRV.{verb}.upper.{service.id}",
            ):
                answer = await it.far.request(subject, timeout=TIMEOUT_S)
                about = json.loads(answer.data)
                found = (about["name"], about["version"], about["id"])
                equal(found, ("upper", "1.2.3", service.id), subject)
        count = about["endpoints"][0]["num_requests"]
        equal(count >= len(load.confirmed), True, f"{count} requests are counted")
        await service.stop()
    return told(load)


async def answered(client: Client, subject: str) -> None:
    """Another node has heard of the subject."""
    async with asyncio.timeout(program.WAIT_S_MAX):
        while True:
            with contextlib.suppress(nats.errors.NoRespondersError):
                await client.request(subject, timeout=TIMEOUT_S)
                return
            await asyncio.sleep(0.02)


WITH_A_STREAM = {
    "publish": publish,
    "pull": pull,
    "push": push,
    "ordered": ordered,
    "kv": kv,
    "objects": objects,
    "services": services,
}
STEPS = (
    {"connect": connect, "websocket": websocket}
    | {name: functools.partial(step, kill=False) for name, step in WITH_A_STREAM.items()}
    | {f"{name}+kill": functools.partial(step, kill=True) for name, step in WITH_A_STREAM.items()}
)

if __name__ == "__main__":
    program.run(STEPS)
