"""Requests to other nodes: each ends once, by its answer or by what makes that impossible."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.peers import peer_rpc
from cluster.peers.peer_rpc import Answers, LinkBatches, LinkLost, NotSent, Requests, TooMany
from cluster.types import NodeId
from tests.testkit.waiting import until

pytestmark = pytest.mark.virtual_time

ONE, OTHER = NodeId("n2"), NodeId("n3")


class Link:
    """To both nodes; takes what there is room for."""

    def __init__(self, room: int = 1_000) -> None:
        self.room = room
        self.said: list[tuple[NodeId, Any]] = []
        self.flushed: list[int] = []  # how many had been said then

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        if len(self.said) >= self.room:
            return False
        self.said.append((peer, message))
        return True

    def flush(self) -> None:
        self.flushed.append(len(self.said))

    @property
    def numbers(self) -> list[int]:
        return [message[0] for _, message in self.said]


def requests(link: Link, incarnation: int = 1, open_max: int = 10) -> Requests[str]:
    return Requests(link.send, incarnation, open_max=open_max)


def frame(number: int) -> list[Any]:
    return [number]


def ignored(_: str | Exception) -> None: ...


async def test_an_answer_finds_its_request_by_node_and_number():
    link = Link()
    asked = requests(link)
    answers: list[str | Exception] = []
    number = asked.send(ONE, frame, answers.append)
    asked.answered(OTHER, number, "from somebody else")
    asked.answered(ONE, number + 1, "to something else")
    assert answers == []
    asked.answered(ONE, number, "yes")
    asked.answered(ONE, number, "twice")

    assert answers == ["yes"]


async def test_no_two_processes_of_a_node_use_one_number():
    numbers: list[int] = []
    for incarnation in (1, 2):
        link = Link()
        asked = requests(link, incarnation, open_max=100)
        for _ in range(100):
            asked.send(ONE, frame, ignored)
        numbers += link.numbers

    assert len(set(numbers)) == 200


async def test_a_lost_link_ends_what_was_asked_over_it_and_nothing_else():
    asked = requests(Link())
    lost = asyncio.create_task(asked.ask(ONE, frame, within_s=60))
    kept: list[str | Exception] = []
    number = asked.send(OTHER, frame, kept.append)
    await asyncio.sleep(0)
    asked.link_lost(ONE)

    with pytest.raises(LinkLost):
        await lost
    asked.answered(OTHER, number, "yes")
    assert kept == ["yes"]


async def test_what_is_not_sent_is_not_open():
    link = Link(room=2)
    asked = requests(link, open_max=2)
    number = asked.send(ONE, frame, ignored)
    asked.send(ONE, frame, ignored)
    with pytest.raises(TooMany):
        asked.send(ONE, frame, ignored)
    with pytest.raises(NotSent):
        asked.send(OTHER, frame, ignored)
    asked.answered(ONE, number, "yes")
    link.room = 3

    asked.send(ONE, frame, ignored)


async def test_who_does_not_wait_any_more_leaves_room_for_others():
    link = Link()
    asked = requests(link, open_max=1)
    with pytest.raises(TimeoutError):
        await asked.ask(ONE, frame, within_s=0.01)
    answers: list[str | Exception] = []
    number = asked.send(ONE, frame, answers.append)
    asked.answered(ONE, link.numbers[0], "late")
    assert answers == []
    asked.answered(ONE, number, "yes")

    assert answers == ["yes"]


async def test_a_bug_of_one_who_asked_keeps_no_answer_from_others():
    asked = requests(Link())
    answers: list[str | Exception] = []

    def raises(_: str | Exception) -> None:
        raise ZeroDivisionError("a bug")

    number = asked.send(ONE, frame, raises)
    asked.answered(ONE, number, "yes")
    asked.send(ONE, frame, raises)
    asked.send(ONE, frame, answers.append)
    asked.link_lost(ONE)

    assert [type(answer) for answer in answers] == [LinkLost]


async def test_an_error_is_an_answer():
    link = Link()
    asked = requests(link)
    waiting = asyncio.create_task(asked.ask(ONE, frame, within_s=60))
    await asyncio.sleep(0)
    asked.answered(ONE, link.numbers[0], ValueError("no"))

    with pytest.raises(ValueError, match="no"):
        await waiting


async def test_answers_wait_for_room_and_one_that_never_fits_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(peer_rpc, "ROOM_LOOK_S", 0.001)
    monkeypatch.setattr(peer_rpc, "ROOM_S_MAX", 0.2)
    link = Link(room=0)

    def send(peer: NodeId, message: list[Any]) -> bool:
        return message != ["too large"] and link.send(peer, message)

    dropped = ["was dropped"]

    answers = Answers(send, lambda _: True)
    for answer in ("too large", "a", "b"):
        answers.send(ONE, [answer], dropped=dropped)
    answers.send(OTHER, ["c"], dropped=[])
    link.room = 10

    await until(lambda: len(link.said) == 4 and not answers.waiting)
    assert sorted(link.said) == [(ONE, ["a"]), (ONE, ["b"]), (ONE, dropped), (OTHER, ["c"])]


@pytest.mark.parametrize("why", ["too long", "too many"])
async def test_an_answer_that_is_dropped_is_said_to_be_when_there_is_room(
    why: str, monkeypatch: pytest.MonkeyPatch
):
    """Or who asked would wait as long as the link lasts."""
    monkeypatch.setattr(peer_rpc, "ROOM_LOOK_S", 0.001)
    monkeypatch.setattr(peer_rpc, "ROOM_S_MAX", 0.05 if why == "too long" else 60.0)
    monkeypatch.setattr(peer_rpc, "WAITING_MAX", 1)
    link = Link(room=0)
    answers = Answers(link.send, lambda _: True)
    answers.send(ONE, ["a"], dropped=["a is dropped"])
    answers.send(ONE, ["b"], dropped=["b is dropped"])
    await asyncio.sleep(0.1)
    link.room = 10

    await until(lambda: not answers.waiting)
    first = ["a is dropped"] if why == "too long" else ["a"]
    assert sorted(link.said) == [(ONE, first), (ONE, ["b is dropped"])]


async def test_answers_to_who_is_not_there_do_not_wait():
    answers = Answers(Link(room=0).send, lambda _: False)
    answers.send(ONE, ["a"], dropped=[])

    assert answers.waiting == 0


async def test_the_first_message_of_a_turn_leaves_at_once_and_the_others_together() -> None:
    link = Link()
    batches = LinkBatches(link)  # type: ignore[arg-type]
    for number in range(5):
        assert batches.send(ONE, [number])
    assert link.flushed == [1]

    await asyncio.sleep(0)
    assert link.flushed == [1, 5]

    batches.send(OTHER, [5])
    assert link.flushed == [1, 5, 6]


async def test_what_was_said_before_the_end_leaves() -> None:
    link = Link()
    batches = LinkBatches(link)  # type: ignore[arg-type]
    batches.send(ONE, [0])
    batches.send(ONE, [1])
    batches.stop()
    assert link.flushed == [1, 2]
    await asyncio.sleep(0)
    assert link.flushed == [1, 2]
