"""A `basic.get` whose answer is lost has taken its message: the next try is answered with it."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiormq
import pytest

from cluster.groups.outcome import Done, Outcome, unknown
from cluster.machine.commands import Command, Get
from cluster.types import GroupId
from node.clients import relay
from tests.node.nodes import Nodes, machine_of, until


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        yield nodes


def group_of(nodes: Nodes) -> GroupId:
    info = nodes.one.broker.locate("/", "orders")
    assert info is not None
    return info.group


async def channel_of(nodes: Nodes) -> tuple[aiormq.Connection, Any]:
    """At n1, and what is in the queue: 0, 1, 2."""
    connection = aiormq.Connection(f"amqp://guest:guest@{nodes.nodes['n1'].amqp.address}/%2F")
    await connection.connect()
    channel: Any = await connection.channel()
    for number in range(3):
        await channel.basic_publish(b"%d" % number, routing_key="orders")
    return connection, channel


def silence(nodes: Nodes, name: str, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """The first get that this node carries out for another one is never answered."""
    taken = asyncio.Event()
    handlers = nodes.nodes[name].peer_rpc._handlers
    answer = handlers["get"]

    async def get(peer: Any, fields: list[Any]) -> Any:
        answered = await answer(peer, fields)
        if not taken.is_set():
            taken.set()
            await asyncio.Event().wait()
        return answered

    patch.setitem(handlers, "get", get)
    return taken


def counts(nodes: Nodes) -> tuple[int, int]:
    queue, machine = machine_of(nodes, "orders")
    view = machine.queue(queue)
    return view.ready_count, view.unsettled_count


async def drained(nodes: Nodes, channel: Any, first: Any, *, no_ack: bool) -> None:
    """That is what the lost one took, as if it had not been lost, and nothing else was taken."""
    assert (first.body, first.delivery.redelivered) == (b"0", False)
    bodies = [first.body]
    await until(lambda: counts(nodes) == (2, 0 if no_ack else 1))
    message = first
    while message is not None:
        if not no_ack:
            await channel.basic_ack(message.delivery.delivery_tag)
        message = await channel.basic_get("orders", no_ack=no_ack)
        if message.body is None or type(message.delivery).__name__ == "GetEmpty":
            break
        bodies.append(message.body)
    assert bodies == [b"0", b"1", b"2"]
    await until(lambda: counts(nodes) == (0, 0))


@pytest.mark.parametrize("no_ack", [False, True], ids=["acked", "not acked"])
async def test_a_leader_that_ends_before_it_answers_leaves_no_message_held(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, no_ack: bool
):
    await nodes.led_by("n2", group_of(nodes))
    connection, channel = await channel_of(nodes)
    settled: list[Command] = []  # with the process that would repeat them

    def lose(_: GroupId, command: Command, **how: Any) -> None:
        settled.append(command)

    monkeypatch.setattr(nodes.nodes["n2"].broker.settle_retry, "settle", lose)
    taken = silence(nodes, "n2", monkeypatch)
    getting = asyncio.ensure_future(channel.basic_get("orders", no_ack=no_ack))
    await taken.wait()
    await nodes.stop("n2", transfer=False)
    await drained(nodes, channel, await getting, no_ack=no_ack)
    await connection.close()


async def test_a_leader_that_lives_answers_with_what_was_taken(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """It was too slow."""
    await nodes.led_by("n2", group_of(nodes))
    connection, channel = await channel_of(nodes)
    before = await channel.basic_get("orders")
    await channel.basic_nack(before.delivery.delivery_tag)
    held = await channel.basic_get("orders")
    taken = silence(nodes, "n2", monkeypatch)
    monkeypatch.setattr(relay, "ANSWER_S_MAX", 0.2)
    message = await channel.basic_get("orders")
    assert taken.is_set()
    assert (held.body, message.body) == (b"0", b"1")
    await until(lambda: counts(nodes) == (1, 2))
    await connection.close()


async def test_a_node_that_leads_itself_finds_what_was_taken_in_doubt(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
):
    await nodes.led_by("n1", group_of(nodes))
    connection, channel = await channel_of(nodes)
    group: Any = nodes.nodes["n1"].cluster.group(group_of(nodes))
    propose, lost = group.propose, list[Outcome]()

    def proposed(command: Command, done: Done | None = None) -> None:
        def lose(outcome: Outcome) -> None:
            lost.append(outcome)
            assert done is not None
            done(unknown("the leader changed"))

        propose(command, lose if type(command) is Get and not lost else done)

    monkeypatch.setattr(group, "propose", proposed)
    await drained(nodes, channel, await channel.basic_get("orders"), no_ack=False)
    assert len(lost) == 1
    await connection.close()


async def test_what_was_not_taken_is_got_anew(nodes: Nodes, monkeypatch: pytest.MonkeyPatch):
    await nodes.led_by("n1", group_of(nodes))
    connection, channel = await channel_of(nodes)
    group: Any = nodes.nodes["n1"].cluster.group(group_of(nodes))
    propose, lost = group.propose, list[Command]()

    def proposed(command: Command, done: Done | None = None) -> None:
        if type(command) is Get and not lost:
            lost.append(command)
            assert done is not None
            done(unknown("the leader changed"))
        else:
            propose(command, done)

    monkeypatch.setattr(group, "propose", proposed)
    await drained(nodes, channel, await channel.basic_get("orders"), no_ack=False)
    await connection.close()
