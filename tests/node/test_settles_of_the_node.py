"""What a node settles or gives back by itself is repeated when its leader changes at that moment:
nobody else would, and the messages would stay with the session for as long as that lives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.groups.outcome import Done, unknown
from cluster.machine.commands import Command, Return, Settle
from cluster.types import GroupId
from node.broker import broker
from node.protocols.native.frames import Opcode
from tests.node.nodes import Client, Nodes, machine_of, until


def lose_one(nodes: Nodes, patch: pytest.MonkeyPatch, kind: type[Command]) -> list[Command]:
    """The first command of this kind goes with the leader that was to decide it."""
    info = nodes.one.broker.locate("/", "orders")
    assert info is not None
    group: Any = nodes.one.cluster.group(info.group)
    propose, lost = group.propose, list[Command]()

    def proposed(command: Command, done: Done | None = None) -> None:
        if type(command) is not kind or lost:
            propose(command, done)
            return
        lost.append(command)
        if done is not None:
            done(unknown("the leader changed"))

    patch.setattr(group, "propose", proposed)
    return lost


def counts(nodes: Nodes) -> tuple[int, int]:
    queue, machine = machine_of(nodes, "orders")
    view = machine.queue(queue)
    return view.ready_count, view.unsettled_count


@pytest.mark.parametrize("how", ["consume", "get"])
async def test_what_amqp_takes_without_acks_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
):
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        connection = aiormq.Connection(f"amqp://guest:guest@{nodes.one.amqp.address}/%2F")
        await connection.connect()
        channel: Any = await connection.channel()
        await channel.basic_publish(b"1", routing_key="orders")
        lost = lose_one(nodes, monkeypatch, Settle)
        got: list[bytes] = []

        async def take(message: Any) -> None:
            got.append(message.body)

        if how == "consume":
            await channel.basic_consume("orders", take, no_ack=True)
        else:
            await take(await channel.basic_get("orders", no_ack=True))

        await until(lambda: got == [b"1"] and len(lost) == 1 and counts(nodes) == (0, 0))
        await connection.close()


async def test_what_does_not_fit_into_one_answer_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(broker, "GET_BYTES_MAX", 5)
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        async with Client(nodes.url("n1")) as client:
            await client.publish("orders", b"12345", b"67890")
            lost = lose_one(nodes, monkeypatch, Return)
            await client.ask(Opcode.GET, 2, "orders", 2, False)

            await until(lambda: len(lost) == 1 and counts(nodes) == (1, 1))


async def test_what_a_lost_leader_sent_and_did_not_settle_the_next_one_settles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with Nodes(tmp_path, 3) as nodes:
        home = nodes.nodes["n1"]
        await nodes.declare("orders")
        info = home.cluster.queue_info("/", "orders")
        assert info is not None
        await nodes.led_by("n2", info.group)
        connection = aiormq.Connection(f"amqp://guest:guest@{home.amqp.address}/%2F")
        await connection.connect()
        channel: Any = await connection.channel()
        got: list[bytes] = []

        async def take(message: Any) -> None:
            got.append(message.body)

        await channel.basic_consume("orders", take, no_ack=True)
        lost: list[Command] = []  # with the process that would repeat them

        def lose(_: GroupId, command: Command, **how: Any) -> None:
            lost.append(command)

        monkeypatch.setattr(nodes.nodes["n2"].broker.settle_retry, "settle", lose)
        for number in range(3):
            await channel.basic_publish(b"%d" % number, routing_key="orders")
        await until(lambda: len(got) == 3)
        assert lost
        assert counts(nodes) == (0, 3)

        await nodes.led_by("n3", info.group)
        await until(lambda: counts(nodes) == (0, 0))
        await channel.basic_publish(b"3", routing_key="orders")
        await until(lambda: len(got) == 4 and counts(nodes) == (0, 0))
        assert got == [b"0", b"1", b"2", b"3"]
        await connection.close()
