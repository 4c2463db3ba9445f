"""Transient queues through the broker of a node: published, delivered, described and dropped."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.commands import CloseSession, OpenSession, Subscribe
from cluster.machine.replies import Declared, Subscribed
from cluster.types import Body, SessionId
from node.broker.broker import Broker
from node.clients.client_session import ClientSession
from node.clients.traffic import Traffic
from node.dispatch.outgoing import Delivery, Outgoing
from node.settings.settings import LimitSettings
from node.tasks import Tasks
from tests.cluster.world import MakeWorld, World, enqueue

pytestmark = pytest.mark.virtual_time

SESSION = SessionId("s")


class Client:
    """A connection that keeps what it is sent."""

    def __init__(self, world: World, name: str) -> None:
        self.cluster = world[name]
        self.broker = Broker(self.cluster, LimitSettings())
        self.traffic = Traffic(self.broker, Tasks())
        self.sent: list[Outgoing] = []
        self.connection = self.traffic.open(self)  # type: ignore[arg-type]

    def send(self, frame: Outgoing) -> None:
        self.sent.append(frame)

    def bodies(self) -> list[Body]:
        return [
            body
            for frame in self.sent
            if isinstance(frame, Delivery)
            for batch in frame.batches
            for body in batch.bodies
        ]

    async def open_session(self, declared: Declared, session: SessionId = SESSION) -> None:
        node = self.cluster
        await node.ask(declared.group, OpenSession(session, node.node, node.links.incarnation))

    async def subscribe(
        self, declared: Declared, session: SessionId = SESSION, credit: int = 10
    ) -> Subscribed:
        node = self.cluster
        await self.open_session(declared, session)
        outcome = await node.ask(declared.group, Subscribe(declared.queue, session, "t", credit))
        assert isinstance(outcome.reply, Subscribed)
        key = outcome.reply.consumer
        self.traffic.announce(self.connection, declared.group, declared.queue, "q", key)
        return outcome.reply


async def declare(world: World, **flags: Any) -> Declared:
    outcome = await world["n1"].declare_queue("/", "q", {}, transient=True, **flags)
    assert isinstance(outcome.reply, Declared)
    return outcome.reply


async def test_what_any_node_publishes_its_node_delivers(world: World) -> None:
    declared = await declare(world)
    home, other = Client(world, "n1"), Client(world, "n2")
    await home.subscribe(declared)
    for client, body in ((home, b"here"), (other, b"elsewhere")):
        info = client.broker.locate("/", "q")
        assert info is not None
        command, size = client.broker.ingress.batch(None, info, None, 0, [body], None, None)
        client.traffic.publish(client.connection, 1, declared.group, "q", command, size)
        await world.until(lambda: body in home.bodies())  # noqa: B023
        await world.until(lambda: any(not isinstance(f, Delivery) for f in client.sent))  # noqa: B023


async def test_every_node_describes_it(world: World) -> None:
    await declare(world)
    for name, node in world.nodes.items():
        info = node.queue_info("/", "q")
        assert info is not None
        about = Client(world, name).broker.describe(info)
        assert about["leader"] == "n1"
        assert about["members"] == ["n1"]
        assert ("ready" in about) == (name == "n1")
        assert (await Client(world, "n1").broker.info(info))["ready"] == 0


async def test_an_auto_delete_queue_goes_with_its_last_consumer(make_world: MakeWorld) -> None:
    flags: dict[str, Any]
    for flags in ({"transient": True}, {}):
        world = await make_world().born()
        outcome = await world["n1"].declare_queue("/", "q", {}, auto_delete=True, **flags)
        assert isinstance(outcome.reply, Declared)
        leader = world["n1"].leader_of(outcome.reply.group)
        assert leader is not None
        client = Client(world, leader)
        await client.subscribe(outcome.reply)
        node = client.cluster
        await node.ask(outcome.reply.group, CloseSession(SESSION))
        await world.until(
            lambda: all(each.queue_info("/", "q") is None for each in world.nodes.values()),  # noqa: B023
            seconds=5,
        )
        await world.stop()


class Unsendable:
    """The end of a connection at which some bug raises."""

    closed: str | None = None

    def send(self, frame: Outgoing) -> None:
        raise ValueError(f"a bug of this client's {type(frame).__name__}")

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self, reason: str, detail: str) -> None:
        self.closed = f"{reason}: {detail}"


async def test_a_client_that_cannot_be_sent_something_costs_no_other(world: World) -> None:
    declared = await declare(world)
    client, peer = Client(world, "n1"), Unsendable()
    session = ClientSession(
        peer,
        SessionId("bad"),
        broker=client.broker,
        traffic=client.traffic,
        relay=None,  # type: ignore[arg-type]
        tasks=Tasks(),
        resume_ms=0,
        vhost="/",
        forward=False,
    )
    for connection, name in ((session.id, session.session), (client.connection, SESSION)):
        client.connection = connection
        await client.subscribe(declared, name, credit=1)

    await world["n1"].ask(declared.group, enqueue(declared.queue, b"1", b"2"))

    await world.until(lambda: len(client.bodies()) == 1)
    assert peer.closed is not None
    assert peer.closed.startswith("session_ended: this node cannot write a Delivery")
