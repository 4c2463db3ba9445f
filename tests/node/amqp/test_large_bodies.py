"""Bodies over 16 MiB: in and out by AMQP, on any node, in parts that nobody else waits for."""

from __future__ import annotations

import asyncio
import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiormq
import pika
import pytest
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pika.adapters.blocking_connection import BlockingChannel

from node.broker.bodies import PART_BYTES, PARTS_OF_GROUP_AT_ONCE, PartedBody
from node.node import Node
from tests.acceptance.semantics.wire import Wire
from tests.node.nodes import WAIT_S, Nodes, until

MIB = 1 << 20
LIMIT = 64 * MIB
#: More parts than a group has on their way at a time; the first test has larger ones.
LARGE = 2 * PARTS_OF_GROUP_AT_ONCE * PART_BYTES


def body_of(size: int, seed: int = 1) -> bytes:
    block = hashlib.sha256(str(seed).encode()).digest() * 4_099  # no divisor of a part
    return (block * (size // len(block) + 1))[:size]


@contextmanager
def channel_of(node: Node) -> Iterator[BlockingChannel]:
    host, _, port = node.amqp.address.rpartition(":")
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            host, int(port), credentials=pika.PlainCredentials("guest", "guest"), heartbeat=0
        )
    )
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def send(node: Node, *bodies: bytes, queue: str = "q", **properties: Any) -> None:
    with channel_of(node) as channel:
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def receive(node: Node, count: int, queue: str = "q", *, auto_ack: bool = False) -> list[bytes]:
    found: list[bytes] = []
    with channel_of(node) as channel:
        for method, _, body in channel.consume(queue, auto_ack=auto_ack, inactivity_timeout=30):
            assert method is not None, "nothing came for long"
            found.append(body)
            if not auto_ack:
                channel.basic_ack(method.delivery_tag)
            if len(found) == count:
                break
    return found


async def of(nodes: Nodes, work: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """The client blocks: beside the loop of the nodes."""
    return await asyncio.to_thread(work, *args, **named)


def spread(nodes: Nodes, queue: str = "q") -> tuple[Node, Node, Node]:
    """The leader of the queue, and the two others."""
    node = nodes.one
    info = node.cluster.queue_info("/", queue)
    assert info is not None
    leader = node.cluster.leader_of(info.group)
    rest = [each for name, each in nodes.nodes.items() if name != leader]
    return nodes.nodes[str(leader)], rest[0], rest[1]


async def empty(nodes: Nodes, queue: str = "q") -> None:
    leader, *_ = spread(nodes, queue)
    info = leader.cluster.queue_info("/", queue)
    assert info is not None
    machine = leader.broker.machine(info.group)
    await until(lambda: machine.queue(info.queue).messages == 0)


async def test_bodies_of_all_sizes_come_out_as_they_went_in_on_any_node(tmp_path: Path) -> None:
    sizes = (17 * MIB, 16 * MIB, 3, 20 * MIB + 1)
    bodies = [body_of(size, seed) for seed, size in enumerate(sizes)]
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        leader, one, other = spread(nodes)
        for publisher, consumer in ((one, other), (leader, one), (other, leader)):
            await of(nodes, send, publisher, *bodies)
            found = await of(nodes, receive, consumer, len(bodies))
            assert [len(each) for each in found] == [len(each) for each in bodies]
            assert found == bodies
            await empty(nodes)
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, PartedBody)]


async def test_no_ack_and_get_take_a_large_body_once(tmp_path: Path) -> None:
    body = body_of(LARGE)
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        _, one, other = spread(nodes)

        await of(nodes, send, one, body)
        assert await of(nodes, receive, other, 1, auto_ack=True) == [body]
        await empty(nodes)

        def get(*, auto_ack: bool) -> bytes:
            with channel_of(other) as channel:
                method, _, found = channel.basic_get("q", auto_ack=auto_ack)
                assert method is not None
                if not auto_ack:
                    channel.basic_ack(method.delivery_tag)
                return found

        for auto_ack in (True, False):
            await of(nodes, send, one, body)
            assert await of(nodes, get, auto_ack=auto_ack) == body
            await empty(nodes)


async def test_a_body_over_the_limit_is_refused_in_rabbitmqs_words(tmp_path: Path) -> None:
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": 20 * MIB}) as nodes:
        await nodes.declare("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            await of(nodes, send, nodes.one, body_of(20 * MIB + 1))
        assert refused.value.reply_code == 406
        assert refused.value.reply_text == (
            f"PRECONDITION_FAILED - message size {20 * MIB + 1} is larger than configured max size"
            f" {20 * MIB}"
        )
        await of(nodes, send, nodes.one, body_of(20 * MIB))


async def test_what_is_behind_a_large_body_stays_behind_it(tmp_path: Path) -> None:
    """On one channel, for one queue: whatever its size."""
    bodies = [b"1", body_of(LARGE, 2), b"3", body_of(LARGE, 4), b"5", b"6"]
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        _, one, other = spread(nodes)

        def publish_all() -> None:
            with channel_of(one) as channel:  # without confirms nothing is waited for
                beside = channel.connection.channel()
                for body in bodies:
                    channel.basic_publish("", "q", body)
                    beside.basic_qos(prefetch_count=1)  # a read of its own

        await of(nodes, publish_all)
        assert await of(nodes, receive, other, len(bodies)) == bodies


async def test_an_unroutable_large_body_is_returned(tmp_path: Path) -> None:
    body = body_of(LARGE)
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": LIMIT}) as nodes:

        def publish() -> bytes:
            with channel_of(nodes.one) as channel:
                channel.confirm_delivery()
                with pytest.raises(pika.exceptions.UnroutableError) as error:
                    channel.basic_publish("", "nowhere", body, mandatory=True)
                return error.value.messages[0].body

        assert await of(nodes, publish) == body


async def test_a_large_body_is_dead_lettered_into_another_group(tmp_path: Path) -> None:
    body = body_of(LARGE)
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("dead")
        await nodes.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
        assert spread(nodes)[0].cluster.queue_info("/", "q").group != (
            nodes.one.cluster.queue_info("/", "dead").group
        )

        def reject() -> None:
            with channel_of(nodes.one) as channel:
                method, _, _ = channel.basic_get("q")
                assert method is not None
                channel.basic_reject(method.delivery_tag, requeue=False)

        await of(nodes, send, nodes.one, body)
        await of(nodes, reject)
        assert await of(nodes, receive, nodes.one, 1, "dead") == [body]
        await empty(nodes)


async def test_a_change_of_leader_in_the_middle_loses_and_repeats_nothing(tmp_path: Path) -> None:
    bodies = [body_of(16 * MIB, seed) for seed in range(3)]
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        leader, one, other = spread(nodes)
        info = leader.cluster.queue_info("/", "q")
        sending = asyncio.create_task(of(nodes, send, one, *bodies))
        group = leader.cluster.groups[info.group]
        await until(group.machine.live_indexes)  # parts are there
        assert not sending.done()
        group.transfer(None)
        await until(lambda: not group.member.leads)
        await sending
        receiving = asyncio.create_task(of(nodes, receive, other, 3))
        leader, *_ = spread(nodes)
        group = leader.cluster.groups[info.group]
        await until(lambda: group.machine.queue(info.queue).unsettled_count)
        group.transfer(None)
        assert await receiving == bodies
        await empty(nodes)


async def test_a_restart_keeps_a_large_body(tmp_path: Path) -> None:
    body = body_of(LARGE)
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        await of(nodes, send, nodes.one, body, delivery_mode=2)
        info = nodes.one.cluster.queue_info("/", "q")
        nodes.one.cluster.groups[info.group].take_snapshot()
        await nodes.stop("n1")
        await nodes.start("n1")
        await until(nodes.settled)
        assert await of(nodes, receive, nodes.one, 1) == [body]


@pytest.mark.parametrize("size", [LARGE, 20])
@pytest.mark.parametrize("listener", [0, 1], ids=["leader", "follower"])
async def test_methods_come_after_a_publish_of_their_channel(
    tmp_path: Path, listener: int, size: int
) -> None:
    """However large: that is what they find, count, remove or commit behind."""
    body = body_of(size)
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        one = spread(nodes)[listener]

        def get() -> tuple[int, bytes | None]:
            with channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                _, _, found = channel.basic_get("q", auto_ack=True)
                return 0, found

        def purge() -> tuple[int, bytes | None]:
            with channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                return channel.queue_purge("q").method.message_count, None

        def count() -> tuple[int, bytes | None]:
            with channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                known = channel.queue_declare("q", passive=True).method.message_count
                _, _, found = channel.basic_get("q", auto_ack=True)
                return known, found

        def commit() -> tuple[int, bytes | None]:
            with channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                channel.tx_select()
                channel.basic_publish("", "q", b"small")
                channel.tx_commit()
                _, _, found = channel.basic_get("q", auto_ack=True)
                return channel.queue_purge("q").method.message_count, found

        def delete() -> tuple[int, bytes | None]:
            with channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                return channel.queue_delete("q").method.message_count, None

        assert await of(nodes, get) == (0, body)
        assert await of(nodes, purge) == (1, None)
        assert await of(nodes, count) == (1, body)
        assert await of(nodes, commit) == (1, body)
        assert await of(nodes, delete) == (1, None)


async def test_an_upload_that_fails_holds_up_nothing_of_its_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the mistake is: the body is refused, what came behind it is published."""

    tried = asyncio.Event()

    async def broken(*_: object) -> None:
        tried.set()
        raise ZeroDivisionError

    async with Nodes(tmp_path, 1) as nodes:
        await nodes.declare("q")
        monkeypatch.setattr(nodes.one.bodies, "upload", broken)
        connection = aiormq.Connection(f"amqp://guest:guest@{nodes.one.amqp.address}/%2F")
        await connection.connect()
        channel = await connection.channel()
        large = asyncio.ensure_future(channel.basic_publish(body_of(2 * MIB), routing_key="q"))
        await tried.wait()
        behind = asyncio.ensure_future(channel.basic_publish(b"behind", routing_key="q"))
        getting = asyncio.ensure_future(channel.basic_get("q", no_ack=True))
        answers: list[Any] = [large, behind, getting]
        await asyncio.wait(answers, timeout=WAIT_S)

        assert all(answer.done() for answer in answers)
        assert isinstance(large.exception(), aiormq.exceptions.DeliveryError)
        assert getting.result().body == b"behind"
        await connection.close()


async def test_a_channel_is_closed_when_its_large_publish_is_in_its_queue(tmp_path: Path) -> None:
    body = body_of(LARGE)
    async with Nodes(tmp_path, 3, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        _, one, other = spread(nodes)

        def publish_and_close() -> bytes | None:
            with channel_of(other) as beside, channel_of(one) as channel:
                channel.basic_publish("", "q", body)
                channel.close()
                _, _, found = beside.basic_get("q", auto_ack=True)
                return found

        assert await of(nodes, publish_and_close) == body


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (commands.Basic.Ack(99), commands.Channel.Close),
        (commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk),
        (commands.Channel.Flow(active=True), commands.Channel.FlowOk),
    ],
    ids=["error", "close", "flow"],
)
async def test_nothing_of_its_channel_comes_between_the_frames_of_a_large_body(
    tmp_path: Path, said: Any, answered: Any
) -> None:
    """AMQP 4.2.6: what is begun is said to its end, also when the channel ends meanwhile."""
    body = body_of(20 * MIB)  # more than the sockets hold
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        await of(nodes, send, nodes.one, body)

        def receive_slowly() -> list[int]:
            wire = Wire(f"amqp://{nodes.one.amqp.address}")
            wire.open()
            wire.send(commands.Basic.Consume(queue="q"))
            wire.expect(commands.Basic.ConsumeOk)
            for kind in (commands.Basic.Deliver, ContentHeader):
                assert isinstance(wire.frame()[1], kind)
            wire.send(said)
            sizes: list[int] = []
            while True:
                _, frame = wire.frame()
                if isinstance(frame, answered):
                    break
                assert isinstance(frame, ContentBody), frame
                sizes.append(len(frame.value))
            if answered is commands.Channel.Close:
                wire.send(commands.Channel.CloseOk())
            if answered is not commands.Channel.FlowOk:
                wire.open()  # the number is free again
            wire.close()
            return sizes

        assert sum(await of(nodes, receive_slowly)) == len(body)


async def test_a_large_body_that_is_sent_to_its_end_after_a_close_comes_again_as_redelivered(
    tmp_path: Path,
) -> None:
    """Its client has all of it, whatever it makes of it."""
    body = body_of(20 * MIB)
    async with Nodes(tmp_path, 1, **{"limits.message_bytes_max": LIMIT}) as nodes:
        await nodes.declare("q")
        await of(nodes, send, nodes.one, body)

        def close_in_the_middle() -> tuple[bool, bool]:
            wire = Wire(f"amqp://{nodes.one.amqp.address}")
            redelivered: list[bool] = []
            for _ in range(2):
                wire.open()
                wire.send(commands.Basic.Consume(queue="q"))
                wire.expect(commands.Basic.ConsumeOk)
                _, delivery = wire.frame()
                assert isinstance(delivery, commands.Basic.Deliver)
                redelivered.append(delivery.redelivered)
                wire.send(commands.Channel.Close(200, "", 0, 0))
                while not isinstance(wire.frame()[1], commands.Channel.CloseOk):
                    pass
            wire.close()
            return redelivered[0], redelivered[1]

        assert await of(nodes, close_in_the_middle) == (False, True)
