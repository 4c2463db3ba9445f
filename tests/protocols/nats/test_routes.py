"""Interest between two nodes whose link is a list: what is known after each of its mishaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.types import NodeId
from node.protocols.nats import routes as module
from node.protocols.nats.interest import Subscription, Taker
from node.protocols.nats.reader import Publish
from node.protocols.nats.subjects import Subjects
from tests.testkit.waiting import until

A, B = NodeId("a"), NodeId("b")


class Client:
    """Takes everything."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def deliver(
        self, subscription: Subscription, message: Publish, payloads: list[bytes], by: Taker | None
    ) -> list[bytes]:
        self.got += payloads
        return []


class End:
    """A node as its routes see it: the link, and the other end of it."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.other: End
        self.up = self.full = False
        self.buffered_bytes = 0
        self.sent: list[list[Any]] = []
        self.on_link_up: list[Callable[[NodeId], None]] = []
        self.on_link_lost: list[Callable[[NodeId], None]] = []
        self.links = SimpleNamespace(buffered=self.buffered)
        self.handlers: dict[str, Callable[[NodeId, list[Any]], None]] = {}
        self.subjects = Subjects(cast(Any, self), cast(Any, self))

    # as the peer RPC
    def on(self, kind: str, handler: Callable[[NodeId, list[Any]], None]) -> None:
        self.handlers[kind] = handler

    def others(self) -> list[NodeId]:
        return [self.other.node] if self.up else []

    def notify(self, node: NodeId, kind: str, *fields: Any) -> bool:
        assert node == self.other.node
        if not self.up or self.full:
            return False
        self.sent.append(list(fields))
        self.other.handlers[kind](self.node, list(fields))
        return True

    def buffered(self, node: NodeId) -> int:
        return self.buffered_bytes

    # as the test uses it
    def wants(self, subject: bytes, queue: bytes = b"") -> Subscription:
        found = Subscription(Client(), b"1", subject, queue)
        self.subjects.subscribe("/", found)
        return found

    def knows(self, subject: bytes) -> bool:
        match = self.subjects.match("/", subject)
        return bool(match.nodes) or any(group.nodes for group in match.groups.values())

    def publish(self, subject: bytes, *payloads: bytes) -> bool:
        message = Publish(subject, b"", 0, len(payloads[0]), [each + b"\r\n" for each in payloads])
        return self.subjects.publish("/", message, Client())


async def turn() -> None:
    """What waits for the end of a turn of the loop has happened."""
    for _ in range(2):
        await asyncio.sleep(0)


def link_up(*ends: End) -> None:
    for end in ends:
        end.up = True
    for end in ends:
        for listener in end.on_link_up:
            listener(end.other.node)


def link_lost(*ends: End) -> None:
    for end in ends:
        end.up = False
        for listener in end.on_link_lost:
            listener(end.other.node)


@pytest.fixture
def ends() -> tuple[End, End]:
    """Both serve clients, and have no link yet."""
    one, two = End(A), End(B)
    one.other, two.other = two, one
    for end in (one, two):
        end.subjects.routes.start((f"{end.node}:4222", None))
    return one, two


async def test_all_that_is_wanted_is_told_when_the_link_comes_up(ends: tuple[End, End]):
    one, two = ends
    two.wants(b"a.*")
    two.wants(b"b", b"workers")

    link_up(*ends)

    assert one.knows(b"a.x")
    assert one.knows(b"b")
    assert one.subjects.routes.addresses(tls=False) == ["b:4222"]


async def test_nothing_is_known_of_a_node_whose_link_was_lost_without_a_goodbye(
    ends: tuple[End, End],
):
    one, two = ends
    two.wants(b"a.*")
    two.wants(b"b", b"workers")
    link_up(*ends)

    link_lost(*ends)

    assert not one.knows(b"a.x")
    assert not one.knows(b"b")
    assert one.subjects.routes.addresses(tls=False) == []
    assert not one.publish(b"a.x", b"1")


async def test_what_ended_while_there_was_no_link_is_not_known_after_it(ends: tuple[End, End]):
    one, two = ends
    gone = two.wants(b"gone")
    two.wants(b"stays")
    link_up(*ends)
    link_lost(*ends)

    two.subjects.unsubscribe("/", gone)
    link_up(*ends)

    assert not one.knows(b"gone")
    assert one.knows(b"stays")


async def test_what_found_no_room_is_told_later(
    ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch
):
    one, two = ends
    gone = two.wants(b"gone")
    link_up(*ends)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)

    two.full = True
    two.wants(b"new")
    two.subjects.unsubscribe("/", gone)
    await turn()
    assert one.knows(b"gone")
    assert not one.knows(b"new")
    two.full = False

    await until(lambda: one.knows(b"new"), within_s=5)
    assert not one.knows(b"gone")


async def test_interest_goes_before_messages_of_the_same_turn(ends: tuple[End, End]):
    one, two = ends
    two.wants(b"question")
    link_up(*ends)
    one.sent.clear()

    one.publish(b"question", b"?")
    one.wants(b"answer")
    await turn()

    assert [kind for kind, *_ in one.sent] == ["interest", "messages"]


async def test_a_node_that_serves_no_nats_clients_is_told_nothing_and_says_nothing():
    one, two = ends = End(A), End(B)
    one.other, two.other = two, one
    one.subjects.routes.start(("a:4222", None))

    link_up(*ends)
    one.wants(b"a")
    one.publish(b"b", b"1")
    await turn()

    assert one.sent == [["hello", ["a:4222", None]]]
    assert two.sent == []


async def test_a_group_gets_what_its_members_here_do_not_take_and_nothing_else_goes_there(
    ends: tuple[End, End],
):
    one, two = ends
    there = two.wants(b"jobs", b"workers")
    link_up(*ends)
    one.sent.clear()

    assert one.publish(b"jobs", b"1", b"2")
    await turn()
    [[_, [routed]]] = one.sent
    assert (routed.plain, routed.queues, routed.payloads) == (False, [b"workers"], b"1\r\n2\r\n")
    assert cast(Client, there.taker).got == [b"1\r\n", b"2\r\n"]

    one.wants(b"jobs", b"workers")
    await turn()  # of that it is told
    assert one.publish(b"jobs", b"3")
    await turn()
    assert len(one.sent) == 2


async def test_a_full_link_drops_core_messages_and_counts_them(ends: tuple[End, End]):
    one, two = ends
    there = two.wants(b"a")
    link_up(*ends)

    one.buffered_bytes = module.LINK_BYTES_MAX
    one.publish(b"a", b"1", b"2", b"3")
    assert one.subjects.backlogged
    await turn()

    assert one.subjects.routes.dropped == 3
    assert cast(Client, there.taker).got == []
