"""Questions to leaders elsewhere, and whose answers are taken."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from cluster.codec.entries import encode_command, encode_reply
from cluster.groups.outcome import Done, Outcome
from cluster.machine.commands import DeclareQueue
from cluster.machine.replies import Ok, Refused
from cluster.peers import forwarding, peer_rpc
from cluster.peers.forwarding import Forwarder
from cluster.types import GroupId, NodeId
from tests.testkit.waiting import until

pytestmark = pytest.mark.virtual_time

LEADER = NodeId("n2")
GROUP = GroupId(1)


class Wire:
    """What a process says to the leader."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.said: list[list[Any]] = []
        self.leader: NodeId | None = LEADER
        self.full = False

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        assert peer == LEADER
        if not self.full:
            self.said.append(message)
        return not self.full

    def connected(self, peer: NodeId) -> bool:
        return True

    def flush(self) -> None: ...


def process(incarnation: int) -> tuple[Forwarder, Wire]:
    """One start of node n1."""
    wire = Wire(incarnation)
    forwarder = Forwarder(
        NodeId("n1"),
        wire,  # type: ignore[arg-type]
        random=Random(),
        group_of=lambda group: None,
        leader_of=lambda group: wire.leader,
    )
    return forwarder, wire


def answer_to(question: list[Any]) -> list[Any]:
    return [-1, "answer", question[2], "ok", encode_reply(Ok(1)), (7, 1), None, None, None]


async def test_an_answer_to_the_process_before_is_not_taken() -> None:
    """A node is killed while the leader has questions of it, starts again and asks other ones; the
    leader answers by the name of the node.
    """
    before, first = process(1)
    before.propose(GROUP, DeclareQueue("/", "old", {}))
    again, second = process(2)
    told: list[Any] = []
    again.propose(GROUP, DeclareQueue("/", "new", {}), told.append)

    again.on_message(LEADER, answer_to(first.said[0]))
    await _turns()
    assert told == []

    again.on_message(LEADER, answer_to(second.said[0]))
    await _turns()
    assert [outcome.kind for outcome in told] == ["ok"]


async def test_what_an_earlier_try_may_have_done_is_not_called_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader gets a change and is killed; nobody leads when it is asked for again."""
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.2)
    forwarder, wire = process(1)
    asked = asyncio.ensure_future(forwarder.new_retries().ask(GROUP, DeclareQueue("/", "q", {})))
    await _turns()
    assert len(wire.said) == 1
    wire.leader = None
    forwarder.on_down(LEADER)

    outcome = await asked

    assert (outcome.kind, outcome.code) == ("unknown", "link_lost")


async def test_an_answer_to_a_later_try_is_the_answer() -> None:
    forwarder, wire = process(1)
    asked = asyncio.ensure_future(forwarder.new_retries().ask(GROUP, DeclareQueue("/", "q", {})))
    await _turns()
    forwarder.on_down(LEADER)
    await until(lambda: len(wire.said) == 2)
    forwarder.on_message(LEADER, answer_to(wire.said[1]))

    assert (await asked).kind == "ok"


async def test_an_answer_that_finds_its_link_full_is_sent_when_there_is_room() -> None:
    """Who asked waits for it as long as the link lasts."""
    forwarder, wire = process(1)
    wire.full = True
    forwarder.on_message(LEADER, [-1, "ask", 7, GROUP, encode_command(DeclareQueue("/", "q", {}))])
    wire.full = False

    await until(lambda: wire.said)
    assert [message[:4] for message in wire.said] == [[-1, "answer", 7, "refused"]]


async def test_an_answer_that_finds_no_room_in_time_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proposal may have been applied, and its proposer waits for an outcome."""
    monkeypatch.setattr(peer_rpc, "ROOM_S_MAX", 0.05)
    monkeypatch.setattr(peer_rpc, "ROOM_LOOK_S", 0.001)
    leader, back = process(1)
    proposer, there = process(2)
    asked = asyncio.create_task(proposer.ask(GROUP, DeclareQueue("/", "q", {})))
    while not there.said:
        await asyncio.sleep(0)
    back.full = True
    leader.on_message(LEADER, there.said[0])
    await asyncio.sleep(0.1)
    back.full = False

    async with asyncio.timeout(10):
        while not back.said:
            await asyncio.sleep(0.01)
    proposer.on_message(LEADER, back.said[0])
    outcome = await asked
    assert (outcome.kind, outcome.code) == ("unknown", "answer_dropped")


async def test_an_answer_does_not_go_over_a_later_link() -> None:
    forwarder, wire = process(1)
    wire.full = True
    forwarder.on_message(LEADER, [-1, "ask", 7, GROUP, encode_command(DeclareQueue("/", "q", {}))])
    forwarder.on_down(LEADER)
    wire.full = False
    forwarder.on_message(LEADER, [-1, "ask", 8, GROUP, encode_command(DeclareQueue("/", "q", {}))])

    await asyncio.sleep(0.3)
    assert [message[2] for message in wire.said] == [8]


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_answer_that_cannot_be_written_is_unknown_to_who_asked() -> None:
    class Group:
        def propose(self, _: Any, done: Done) -> None:
            done(Outcome("refused", Refused("why", "no", object()), None, "why", "no"))

    wire = Wire(1)
    forwarder = Forwarder(
        LEADER,
        wire,  # type: ignore[arg-type]
        random=Random(),
        group_of=lambda _: Group(),  # type: ignore[arg-type,return-value]
        leader_of=lambda _: LEADER,
    )
    question = encode_command(DeclareQueue("/", "q", {}))
    forwarder.on_message(LEADER, [-1, "ask", 7, 1, question])

    assert [message[:4] for message in wire.said] == [[-1, "answer", 7, "unknown"]]
    assert wire.said[0][6] == "bad_answer"
