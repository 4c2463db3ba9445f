"""Acks that nobody waits for are told to the leader a little later, many at once."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.groups.outcome import Done
from cluster.machine.arguments import GROUP_KEY
from cluster.machine.commands import Command, Settle
from cluster.raft.drive_loop import DriveLoop
from node.broker import settle_retry
from tests.node.nodes import Nodes, machine_of, until

#: "Soon" does not come while a test runs.
NEVER_S = 86_400.0


class Consuming:
    """A client with one consumer of `orders`, and the settles that reach the queue's group."""

    def __init__(self, nodes: Nodes, connection: aiormq.Connection, channel: Any) -> None:
        self.nodes = nodes
        self.connection = connection
        self.channel = channel
        self.got: list[Any] = []
        self.settles: list[Settle] = []

    async def start(self, prefetch: int, patch: pytest.MonkeyPatch, *, whole: bool = False) -> None:
        info = self.nodes.one.broker.locate("/", "orders")
        assert info is not None
        group: Any = self.nodes.one.cluster.group(info.group)
        propose = group.propose

        def proposed(command: Command, done: Done | None = None) -> None:
            if type(command) is Settle:
                self.settles.append(command)
            propose(command, done)

        patch.setattr(group, "propose", proposed)
        await self.channel.basic_qos(prefetch_count=prefetch, global_=whole)

        async def take(message: Any) -> None:
            self.got.append(message)

        await self.channel.basic_consume("orders", take)

    async def publish(self, count: int, **properties: Any) -> None:
        for number in range(count):
            await self.channel.basic_publish(
                b"%d" % number,
                routing_key="orders",
                properties=aiormq.spec.Basic.Properties(**properties),
            )

    async def ack(self, place: int) -> None:
        await self.channel.basic_ack(self.got[place].delivery_tag)

    @property
    def counts(self) -> tuple[int, int]:
        """Ready, unsettled."""
        queue, machine = machine_of(self.nodes, "orders")
        view = machine.queue(queue)
        return view.ready_count, view.unsettled_count

    @property
    def settled(self) -> bool:
        return self.counts == (0, 0)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
async def consuming(nodes: Nodes) -> AsyncIterator[Consuming]:
    connection = aiormq.Connection(f"amqp://guest:guest@{nodes.one.amqp.address}/%2F")
    await connection.connect()
    yield Consuming(nodes, connection, await connection.channel())
    with suppress(Exception):  # it may be lost
        await connection.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for other work only."""
    monkeypatch.setattr(settle_retry, "SOON_S", NEVER_S)


@pytest.fixture
def never(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for what makes them known at once."""
    monkeypatch.setattr(DriveLoop, "join", lambda *_: None)


async def acked_three(consuming: Consuming, patch: pytest.MonkeyPatch) -> None:
    """One after the other, by a consumer with room for many more."""
    await consuming.nodes.declare("orders")
    await consuming.start(100, patch)
    for number in range(3):
        await consuming.publish(1)
        await until(lambda number=number: len(consuming.got) == number + 1)
        await consuming.ack(number)


async def test_acks_are_told_soon(consuming: Consuming, monkeypatch: pytest.MonkeyPatch):
    await acked_three(consuming, monkeypatch)
    await until(lambda: consuming.settled)


@pytest.mark.usefixtures("patient")
async def test_acks_are_told_with_the_next_work_of_any_group(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
):
    await acked_three(consuming, monkeypatch)
    assert not consuming.settled
    await consuming.nodes.declare("other")
    await until(lambda: consuming.settled)


@pytest.mark.usefixtures("never")
async def test_acks_that_nobody_waits_for_are_one_command_with_what_comes_next(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
):
    await acked_three(consuming, monkeypatch)
    assert not consuming.settles
    await consuming.channel.queue_declare("orders", passive=True)
    await until(lambda: consuming.settled)
    assert [len(list(settle.ranges)) for settle in consuming.settles] == [1]


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("end", ["channel", "connection", "lost"])
async def test_what_was_acked_before_the_end_does_not_come_back(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, end: str
):
    await acked_three(consuming, monkeypatch)
    if end == "channel":
        await consuming.channel.close()
    elif end == "connection":
        await consuming.connection.close()
    else:
        await consuming.publish(1)  # all that was written before has been read when this is here
        await until(lambda: len(consuming.got) == 4)
        await consuming.ack(3)
        await consuming.publish(1)
        await until(lambda: len(consuming.got) == 5)
        (ours,) = consuming.nodes.one.amqp._connections
        ours.wire._transport.abort()
    left = 1 if end == "lost" else 0  # what was not acked
    await until(lambda: consuming.counts == (left, 0))


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("whole", [False, True])
async def test_a_consumer_without_room_waits_for_nothing(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, whole: bool
):
    await consuming.nodes.declare("orders")
    await consuming.start(1, monkeypatch, whole=whole)
    await consuming.publish(3)
    for number in range(3):
        await until(lambda number=number: len(consuming.got) == number + 1)
        await consuming.ack(number)
    await until(lambda: consuming.settled)


@pytest.mark.usefixtures("never")
async def test_the_next_message_of_a_group_waits_for_nothing(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
):
    await consuming.channel.queue_declare("orders", durable=True, arguments={GROUP_KEY: "customer"})
    await consuming.start(100, monkeypatch)
    await consuming.publish(3, headers={"customer": "7"})
    for number in range(3):
        await until(lambda number=number: len(consuming.got) == number + 1)
        await consuming.ack(number)
        await asyncio.sleep(0)
    await until(lambda: consuming.settled)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("prefetch", [10, 0])
async def test_many_acks_do_not_wait(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, prefetch: int
):
    """Of a consumer without a limit too."""
    await consuming.nodes.declare("orders")
    await consuming.start(prefetch, monkeypatch)
    for number in range(300):
        await consuming.publish(1)
        await until(lambda number=number: len(consuming.got) == number + 1)
        await consuming.ack(number)
    assert consuming.settles
    assert len(consuming.settles) <= 300 / 2
