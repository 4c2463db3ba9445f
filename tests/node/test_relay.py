"""Consumers served by another node: nothing is lost or sent twice, whatever links do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cluster.machine.catalog import QueueInfo
from cluster.machine.effects import ConsumerEnded, Deliver
from cluster.machine.replies import Chunk
from cluster.peers.peer_rpc import Answers
from cluster.peers.peers import PeerState
from cluster.types import BodyRef, ConsumerKey, GroupId, NodeId, QueueId, SessionId
from node.clients import relay
from node.clients.client_session import Subscription
from node.clients.relay import Relay
from node.dispatch import dispatch
from node.dispatch.dispatch import Dispatcher
from node.dispatch.outgoing import Delivery, Ended, Outgoing
from node.dispatch.plan import Detached, Drained, Send
from node.errors import Elsewhere, OutcomeUnknown
from node.peer_rpc import PeerRpc
from node.settings.sections import LimitSettings
from node.tasks import Tasks

pytestmark = pytest.mark.virtual_time

HOME = NodeId("home")  # where the client is
LEADERS = [NodeId("a"), NodeId("b")]
GROUP, QUEUE, KEY = GroupId(1), QueueId(2), ConsumerKey(3)
INFO = QueueInfo(QUEUE, GROUP, "/", "orders", {})


BUFFER_BYTES = 8


@pytest.fixture(autouse=True)
def taken_as_of_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much less than a buffer of these tests as it is of the smallest that can be set."""
    least = LimitSettings.model_fields["deliver_buffer_bytes_max"].metadata[0].ge
    monkeypatch.setattr(relay, "TAKEN_BYTES_MIN", relay.TAKEN_BYTES_MIN * BUFFER_BYTES // least)


@dataclass
class World:
    """Nodes whose messages are carried when the test says so; one machine's truth for all."""

    leader: NodeId = LEADERS[0]
    holds: list[Chunk] = field(default_factory=list[Chunk])
    wires: dict[tuple[NodeId, NodeId], list[bytes]] = field(default_factory=dict)
    full: bool = False
    replaced: bool = False  # the leader was, and has not heard of it: no barrier succeeds
    gone: str | None = None  # why the machine knows no such consumer
    nodes: dict[NodeId, FakeNode] = field(default_factory=dict)

    def carry(self, source: NodeId, target: NodeId) -> None:
        """Everything on this wire arrives."""
        wire = self.wires.setdefault((source, target), [])
        while wire:
            message = cbor2.loads(wire.pop(0))
            for listener in self.nodes[target].cluster.on_node_message:
                listener(source, message)

    def carry_all(self) -> None:
        while any(self.wires.values()):
            for source, target in list(self.wires):
                self.carry(source, target)

    def break_link(self, one: NodeId, other: NodeId) -> None:
        """What is on the wire is lost, both ends see a new link."""
        ends = ((one, other), (other, one))
        for source, target in ends:
            self.wires[source, target] = []
            cluster = self.nodes[source].cluster
            cluster.peers.states[target] = PeerState(up=False, incarnation=1)
            for listener in cluster.on_link_lost:
                listener(target)
        for source, target in ends:
            cluster = self.nodes[source].cluster
            cluster.peers.states[target] = PeerState(up=True, incarnation=1)


class FakeTraffic:
    """The real dispatcher; outputs are carried out at once."""

    def __init__(self, world: World, node: FakeNode) -> None:
        self.dispatcher = Dispatcher(
            self.read, in_flight_bytes_max=1 << 30, deliver_buffer_bytes_max=BUFFER_BYTES
        )
        self._world = world
        self._node = node
        self._sinks: dict[Any, Any] = {}
        self.connections: set[int] = set()

    def read(self, group: GroupId, ref: BodyRef) -> Sequence[tuple[bytes, Any]]:
        return [(b"12", None)] * ref.count

    def open(self, sink: Any) -> Any:
        number = len(self._sinks) + 1
        self._sinks[number] = sink
        self.connections.add(number)
        self.dispatcher.opened(number)  # type: ignore[arg-type]
        return number

    def close(self, connection: Any) -> None:
        self.connections.remove(connection)
        self.dispatcher.closed(connection)

    def announce(
        self, connection: Any, group: Any, queue: Any, name: str, consumer: Any, **options: Any
    ) -> None:
        self.dispatcher.announced(
            connection, group, queue, name, consumer, holds=self._world.holds, **options
        )
        self.perform()

    def taken(self, connection: Any, size_bytes: int) -> None:
        self.dispatcher.taken(connection, size_bytes)
        self.perform()

    def cancelled(self, queue: Any, consumer: Any) -> None:
        self.dispatcher.cancelled(queue, consumer)
        self.perform()

    def perform(self) -> None:
        while True:
            self.dispatcher.flush()
            outputs = self.dispatcher.take()
            if not outputs:
                return
            for output in outputs:
                if isinstance(output, Send):
                    self._sinks[output.connection].send(output.frame)
                elif isinstance(output, Detached):
                    self._sinks[output.connection].detached(output)
                elif isinstance(output, Drained):
                    self._sinks[output.connection].drained(output)


class FakeNode:
    def __init__(self, world: World, name: NodeId, incarnation: int = 1) -> None:
        self.name = name
        states = {other: PeerState(up=True, incarnation=1) for other in [HOME, *LEADERS]}
        self.cluster = SimpleNamespace(
            node=name,
            peers=SimpleNamespace(states=states, is_up=lambda node: states[node].up),
            on_node_message=[],
            on_link_lost=[],
            group={GROUP: SimpleNamespace(ready=True)}.get,
            leader_of=lambda group: world.leader,
            links=SimpleNamespace(incarnation=incarnation),
            send=self.send,
            answer=Answers(self.send, lambda _: True).send,
        )
        self._world = world
        cluster: Any = self.cluster
        broker: Any = SimpleNamespace(
            cluster=self.cluster,
            led=self.led,
            find=self.find,
            info=self.info,
            gone=self.gone,
            confirm_gone=self.confirm_gone,
        )
        self.traffic = FakeTraffic(world, self)
        self.relay = Relay(broker, self.traffic, PeerRpc(cluster, Tasks()))  # type: ignore[arg-type]

    def led(self, group: GroupId) -> Any:
        if self._world.leader != self.name:
            raise Elsewhere(self._world.leader)
        return self.cluster.group(group)

    def gone(self, group: GroupId, *_: Any) -> str | None:
        self.led(group)
        return self._world.gone

    def confirm_gone(self, *where: Any) -> None:
        *what, then = where
        then(None if self._world.replaced else self.gone(*what))

    async def find(self, vhost: str, name: str) -> QueueInfo:
        return INFO

    async def info(self, info: QueueInfo) -> dict[str, Any]:
        self._world.full = True
        return {"ready": 7}

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        if self._world.full:
            return False
        self._world.wires.setdefault((self.name, peer), []).append(cbor2.dumps(message))
        return True


class FakeConnection:
    """The client: remembers what it got, and takes it when the test says so."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.closed = False
        self.session = SessionId("s")
        self.consumers: dict[Any, Subscription] = {}
        self.got: list[int] = []
        self.untaken: list[Delivery] = []
        self.others: list[Outgoing] = []

    def send(self, frame: Outgoing) -> None:
        if not isinstance(frame, Delivery):
            self.others.append(frame)
            return
        self.untaken.append(frame)
        for batch in frame.batches:
            self.got += range(batch.first, batch.first + len(batch.bodies))

    def lost(self, consumer: Subscription) -> None:
        self.relay.attach(self, consumer)  # type: ignore[arg-type]

    def ended(self, queue: Any, consumer: Any) -> None:
        self.consumers.pop((queue, consumer), None)


def attached(world: World, *, incarnation: int) -> FakeConnection:
    """A process of the client's node, with one consumer."""
    world.nodes[HOME] = home = FakeNode(world, HOME, incarnation)
    client, consumer = (
        FakeConnection(home.relay),
        Subscription(INFO, KEY, auto_settle=False, active=True),
    )
    client.consumers[QUEUE, KEY] = consumer
    home.relay.attach(client, consumer)  # type: ignore[arg-type]
    world.carry_all()
    return client


def hand_out(world: World, first: int) -> None:
    fresh = Chunk(first, BodyRef(1, first, 1), first, 0, 0)
    world.holds.append(fresh)
    leader = world.nodes[world.leader].traffic
    leader.dispatcher.effects(GROUP, [Deliver(QUEUE, KEY, SessionId("s"), [fresh])])
    leader.perform()
    world.carry_all()


def test_a_node_that_is_back_before_the_leader_looked_is_served_as_another_process() -> None:
    """Killed and started again within a tick: its numbers are not those of the process before."""
    world = World()
    for name in LEADERS:
        world.nodes[name] = FakeNode(world, name)
    attached(world, incarnation=1)
    hand_out(world, 1)

    world.break_link(HOME, LEADERS[0])
    client = attached(world, incarnation=2)
    for first in range(2, 12):  # more than one connection may have on its way
        hand_out(world, first)
    for _ in range(20):
        while client.untaken:
            frame = client.untaken.pop(0)
            client.relay.taken(frame.origin, frame.size_bytes)
        world.carry_all()
        world.nodes[LEADERS[0]].relay.tick()
        world.carry_all()

    assert client.got == list(range(1, 12))
    leader = world.nodes[LEADERS[0]].traffic
    assert leader.connections == {2}  # the process before has none any more


class Carrying(RuleBasedStateMachine):
    """In whatever order: the client gets every position once, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        for name in [HOME, *LEADERS]:
            self.world.nodes[name] = FakeNode(self.world, name)
        self.home = self.world.nodes[HOME]
        self.client = FakeConnection(self.home.relay)
        self.consumer = Subscription(INFO, KEY, auto_settle=False, active=True)
        self.client.consumers[QUEUE, KEY] = self.consumer
        self.home.relay.attach(self.client, self.consumer)  # type: ignore[arg-type]

    @rule(count=st.integers(1, 5))
    def hand_out(self, count: int) -> None:
        holds = self.world.holds
        first = holds[-1].first + holds[-1].bodies.count if holds else 1
        fresh = Chunk(first, BodyRef(1, first, count), len(holds) + 1, 0, 0)
        holds.append(fresh)
        leader = self.world.nodes[self.world.leader].traffic
        leader.dispatcher.effects(GROUP, [Deliver(QUEUE, KEY, self.client.session, [fresh])])
        leader.perform()

    @rule(number=st.integers(0, 1), outward=st.booleans())
    def carry(self, number: int, outward: bool) -> None:
        pair = (HOME, LEADERS[number])
        self.world.carry(*(pair if outward else pair[::-1]))

    @rule()
    def carry_all(self) -> None:
        self.world.carry_all()

    @rule(number=st.integers(0, 1))
    def break_link(self, number: int) -> None:
        self.world.break_link(HOME, LEADERS[number])

    @rule(full=st.booleans())
    def fill_links(self, full: bool) -> None:
        self.world.full = full

    @rule(count=st.integers(1, 5))
    def hand_out_over_a_full_link(self, count: int) -> None:
        self.world.full = True
        self.hand_out(count)
        self.world.full = False

    @rule(number=st.integers(0, 1))
    def change_leader(self, number: int) -> None:
        old, self.world.leader = self.world.leader, LEADERS[number]
        if old != self.world.leader:
            traffic = self.world.nodes[old].traffic
            traffic.dispatcher.follows(GROUP)
            traffic.perform()

    @precondition(lambda self: self.client.untaken)
    @rule()
    def take(self) -> None:
        frame = self.client.untaken.pop(0)
        self.home.relay.taken(frame.origin, frame.size_bytes)

    @rule()
    def tick(self) -> None:
        for node in self.world.nodes.values():
            node.relay.tick()

    @invariant()
    def every_position_once_in_order(self) -> None:
        assert self.client.got == list(range(1, len(self.client.got) + 1))

    def teardown(self) -> None:
        self.world.full = False
        total = sum(chunk.bodies.count for chunk in self.world.holds)
        for _ in range(200):
            self.tick()
            self.world.carry_all()
            while self.client.untaken:
                self.take()
        assert self.client.got == list(range(1, total + 1))


TestCarrying = Carrying.TestCase
TestCarrying.settings = settings(max_examples=150, stateful_step_count=60)


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bodies a frame, so that one decision leaves in several."""
    monkeypatch.setattr(dispatch, "DELIVERY_BYTES_TARGET", 4)


def settled(state: Carrying) -> list[int]:
    """What the client has once every message arrived and every tick was had."""
    for _ in range(10):
        state.tick()
        state.world.carry_all()
        while state.client.untaken:
            state.take()
    return state.client.got


def test_a_delivery_that_the_link_did_not_take_is_sent_again():
    state = Carrying()
    state.world.carry_all()
    state.hand_out(2)
    state.world.carry_all()
    state.hand_out_over_a_full_link(2)
    state.hand_out(1)

    assert settled(state) == [1, 2, 3, 4, 5]


def test_what_was_taken_while_the_link_was_full_is_told_later():
    state = Carrying()
    state.world.carry_all()
    state.hand_out(5)  # four fill the buffer, the fifth waits until some are taken
    state.world.carry_all()
    state.world.full = True
    state.take()
    state.take()
    state.world.full = False

    assert settled(state) == [1, 2, 3, 4, 5]


def test_what_was_taken_is_told_in_few_messages() -> None:
    world = World()
    for name in LEADERS:
        world.nodes[name] = FakeNode(world, name)
    client = attached(world, incarnation=1)
    (attachment,) = (each for _, each in world.nodes[LEADERS[0]].relay._served)
    told = 0
    for _ in range(4 * relay.TAKEN_BYTES_MIN):
        client.relay.taken(attachment, 1)
        told += len(world.wires.pop((HOME, LEADERS[0]), []))

    assert told == 4


def test_a_delivery_that_was_lost_with_its_link_is_sent_again():
    state = Carrying()
    state.world.carry_all()
    state.hand_out(3)
    state.world.break_link(HOME, LEADERS[0])
    state.hand_out(1)

    assert settled(state) == [1, 2, 3, 4]


def test_a_new_leader_goes_on_where_the_last_one_stopped():
    state = Carrying()
    state.world.carry_all()
    state.hand_out(3)  # two fit into a frame, the third waits
    state.world.carry_all()
    state.change_leader(1)

    assert settled(state) == [1, 2, 3]


def test_a_consumer_that_was_cancelled_between_two_leaders_is_not_served_for_ever():
    """It is sent what it holds, and then the next leader forgets it."""
    state = Carrying()
    state.world.carry_all()
    state.hand_out(1)
    state.change_leader(1)
    state.consumer.cancelled = True

    assert settled(state) == [1]
    assert not state.client.consumers
    assert not state.world.nodes[LEADERS[1]].relay._served


def test_the_end_of_a_consumer_reaches_its_client():
    state = Carrying()
    state.world.carry_all()
    leader = state.world.nodes[LEADERS[0]].traffic
    ended = ConsumerEnded(QUEUE, KEY, SessionId("s"), "queue_deleted")
    leader.dispatcher.effects(GROUP, [ended])
    leader.perform()
    state.world.carry_all()

    assert state.client.others == [Ended("orders", KEY, "queue_deleted")]
    assert state.client.consumers == {}


def test_a_session_that_ended_while_its_node_was_cut_off_is_told_when_it_asks_again():
    state = Carrying()
    state.world.carry_all()
    ended: list[Any] = []
    state.world.nodes[HOME].relay.on_session_over.append(lambda *what: ended.append(what))
    state.world.gone = "session_over"
    state.change_leader(1)
    settled(state)

    assert (GROUP, SessionId("s"), "lost") in ended


def test_a_leader_that_was_replaced_ends_no_session_that_it_does_not_know():
    """Simulator, seed 140020: the session lived on where nobody would ever close it, and kept what
    it held.
    """
    state = Carrying()
    state.world.carry_all()
    ended: list[Any] = []
    state.world.nodes[HOME].relay.on_session_over.append(lambda *what: ended.append(what))
    state.world.gone, state.world.replaced = "session_over", True
    state.change_leader(1)
    settled(state)

    assert ended == []
    assert list(state.client.consumers) == [(QUEUE, KEY)]


def test_a_queue_that_was_deleted_while_its_node_was_cut_off_ends_its_consumer():
    state = Carrying()
    state.world.carry_all()
    state.world.gone = "queue_deleted"
    state.change_leader(1)
    settled(state)

    assert state.client.others == [Ended("orders", KEY, "queue_deleted")]
    assert state.client.consumers == {}


@pytest.mark.parametrize("linked", [True, False])
def test_a_consumer_ends_when_its_transient_queue_went_with_its_node(linked: bool) -> None:
    known: list[Any] = [True]
    state = Carrying()
    home = state.home
    home.cluster.catalog_machine = SimpleNamespace(queue_by_id=lambda _queue: known[0])
    consumer = Subscription(replace(INFO, node=LEADERS[0]), KEY, auto_settle=False, active=True)
    state.client.consumers[QUEUE, KEY] = consumer
    home.relay.attach(state.client, consumer)  # type: ignore[arg-type]
    if not linked:
        state.world.break_link(HOME, LEADERS[0])
    home.relay.tick()
    assert state.client.others == []

    known[0] = None
    home.relay.tick()
    assert state.client.others == [Ended(INFO.name, KEY, "queue_deleted")]
    assert state.client.consumers == {}


def test_a_tick_asks_for_the_leader_once_a_group_not_once_a_consumer() -> None:
    """Thousands of consumers elsewhere would keep an idle node busy."""
    world = World()
    for name in LEADERS:
        world.nodes[name] = FakeNode(world, name)
    world.nodes[HOME] = home = FakeNode(world, HOME)
    client = FakeConnection(home.relay)
    for key in range(100):
        consumer = Subscription(INFO, ConsumerKey(key), auto_settle=False, active=True)
        client.consumers[QUEUE, consumer.key] = consumer
        home.relay.attach(client, consumer)  # type: ignore[arg-type]
    world.carry_all()
    looked: list[GroupId] = []
    leader_of = home.cluster.leader_of
    home.cluster.leader_of = lambda group: looked.append(group) or leader_of(group)

    home.relay.tick()
    assert looked == [GROUP]

    world.leader = LEADERS[1]
    home.relay.tick()
    world.carry_all()
    assert len(world.nodes[LEADERS[1]].traffic.connections) == 100


async def test_an_answer_that_the_link_did_not_take_is_sent_again() -> None:
    world = World()
    home, leader = (FakeNode(world, name) for name in (HOME, LEADERS[0]))
    world.nodes = {HOME: home, LEADERS[0]: leader}
    answer = asyncio.ensure_future(home.relay.info(INFO))
    await asyncio.sleep(0)
    world.carry(HOME, LEADERS[0])
    while not world.full:
        await asyncio.sleep(0)
    world.full = False
    async with asyncio.timeout(60):
        while not answer.done():
            world.carry(LEADERS[0], HOME)
            await asyncio.sleep(0.01)
    assert answer.result() == {"ready": 7}


async def test_a_question_without_an_answer_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "ANSWER_S_MAX", 0.01)
    world = World()
    home = FakeNode(world, HOME)
    with pytest.raises(OutcomeUnknown):
        await home.relay.info(INFO)


async def test_a_question_whose_link_breaks_is_of_unknown_outcome() -> None:
    world = World()
    home, leader = (FakeNode(world, name) for name in (HOME, LEADERS[0]))
    world.nodes = {HOME: home, LEADERS[0]: leader}
    answer = asyncio.ensure_future(home.relay.info(INFO))
    await asyncio.sleep(0)
    world.break_link(HOME, LEADERS[0])
    with pytest.raises(OutcomeUnknown, match="broke"):
        await answer
