"""Lines of a node to queues anywhere, and settles: in order and once, whatever leaders say."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Done, Outcome, refused, unknown
from cluster.machine import QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    BodyPart,
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    QueueConfig,
    SetCredit,
    Settle,
)
from cluster.machine.replies import UNKNOWN_DELIVERY, Enqueued, Ok
from cluster.machine.replies import Refused as MachineRefused
from cluster.machine.stream.errors import DUPLICATE, FORGOTTEN, STORED, WRONG_LAST_SEQUENCE
from cluster.machine.stream.settings import ASKED_ID, ASKED_LAST
from cluster.peers import forwarding
from cluster.peers.forwarding import Retries
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, Stamp
from node.broker import publishing
from node.broker.bodies import PARTS_OF_GROUP_AT_ONCE, Bodies, PartedBody
from node.broker.publishing import BODIES_AT_ONCE, IDLE_S_MAX, QueuePublisher, Stored, Uploaded
from node.broker.settle_retry import SettleCommand, SettleRetry
from node.metrics.client_counters import Counts
from node.peer_rpc import PeerRpc
from node.routing.shards import SHARD_OF
from node.tasks import Tasks

pytestmark = pytest.mark.virtual_time

GROUP, QUEUE = GroupId(1), QueueId(2)
INFO = QueueInfo(QUEUE, GROUP, "/", "orders", {})
SHARD = QueueInfo(QUEUE, GROUP, "/", "orders.1", {SHARD_OF: "orders"})
NOBODY = refused("no_leader", "try again")
LINK_LOST = unknown("the link broke")

Ranges = Sequence[tuple[int, int]]


class FakeCluster:
    """Takes proposals, and answers them as the test says: with what the queue's machine says, or
    without asking it.
    """

    def __init__(self) -> None:
        self.node = NodeId("here")
        self.links = SimpleNamespace(incarnation=7)
        self.leader: NodeId | None = NodeId("there")
        self.catalog: dict[QueueId, QueueInfo] = {QUEUE: INFO}
        self.catalog_machine = SimpleNamespace(queue_by_id=self.catalog.get, version=3)
        self.lost = False
        self.transient = self
        self.forwarder = self
        self.machine = QueueMachine(3)
        self.at_once: Outcome | None = None  # told from inside `propose`
        self.inbox: deque[tuple[Command, Done]] = deque()
        self.proposed: list[Command] = []
        self.order: list[bytes] = []  # as stored
        self._index = 0
        self._came = asyncio.Event()
        self.apply(CreateQueue(QUEUE, "/", "orders", QueueConfig()))

    def propose(self, group: GroupId, command: Command, done: Done) -> None:
        assert group == GROUP
        self.proposed.append(command)
        if self.at_once is not None:
            done(self.at_once)
            return
        self.inbox.append((command, done))
        self._came.set()

    def new_retries(self) -> Retries:
        return Retries(self.propose, self.leader_of, random.Random(0))

    def is_lost(self, _group: GroupId, _catalog: Any) -> bool:
        return self.lost

    def leader_of(self, _: GroupId) -> NodeId | None:
        return self.leader

    async def next(self) -> tuple[Any, Done]:
        """The oldest proposal without an answer."""
        while not self.inbox:
            self._came.clear()
            await self._came.wait()
        return self.inbox.popleft()

    async def answer(self, outcome: Outcome | None = None) -> Any:
        """Answer the oldest, as the machine does; or with this."""
        command, done = await self.next()
        done(self.apply(command) if outcome is None else outcome)
        return command

    def apply(self, command: Command) -> Outcome:
        self._index += 1
        stamp = Stamp(self._index, 1, 1_000)
        reply, _ = self.machine.apply(stamp, command)
        if isinstance(reply, MachineRefused):
            return Outcome("refused", reply, stamp, reply.code, reply.reason)
        if isinstance(reply, Enqueued) and type(command) is Enqueue:
            self.order += command.bodies[len(command.bodies) - reply.stored :]
        return Outcome("ok", reply, stamp)

    @property
    def stored(self) -> int:
        view = self.machine.queue(QUEUE)
        return 0 if view is None else view.messages


class Bench:
    """A publisher, and what its clients were told."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.tasks = Tasks()
        self.counts = Counts()
        cluster = cast(ClusterNode, self.cluster)
        self.publisher = QueuePublisher(cluster, self.tasks, self.counts, cast(Bodies, None))
        self.settle_retry = SettleRetry(cluster, self.counts)
        self.told: list[tuple[str, Ranges]] = []

    def publish(
        self,
        client: str,
        count: int = 1,
        metas: Any = None,
        attrs: Any = None,
        info: QueueInfo = INFO,
    ) -> None:
        bodies = [f"{client}{number}".encode() for number in range(count)]

        def done(ranges: Ranges) -> None:
            self.told.append((client, list(ranges)))

        self.publisher.publish(info, bodies, metas, attrs, 100, done)

    async def sent(self, *clients: str) -> None:
        """Each leaves as a command of its own."""
        for client in clients:
            before = len(self.cluster.proposed)
            self.publish(client)
            await asyncio.sleep(0)
            assert len(self.cluster.proposed) == before + 1


@pytest.fixture(autouse=True)
def leaders_are_looked_for_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "RETRY_S", 0.001)
    monkeypatch.setattr(forwarding, "AGAIN_S", 0.001)


Test = Callable[[Bench], Awaitable[None]]


def in_a_loop(test: Test) -> Callable[[], None]:
    """Nothing here takes long; what never comes ends the test."""

    async def run() -> None:
        bench = Bench()
        async with asyncio.timeout(60):
            await test(bench)
        await bench.tasks.stop()

    def sync() -> None:
        asyncio.run(run())

    sync.__name__, sync.__doc__ = test.__name__, test.__doc__  # type: ignore[attr-defined]
    return sync


@in_a_loop
async def test_of_a_large_body_whose_queue_was_deleted_nothing_is_published(bench: Bench) -> None:
    """Its group may have the queue for a while: how the body begins is no message there."""
    told: list[Ranges] = []

    del bench.cluster.catalog[QUEUE]
    publishing = asyncio.create_task(publish_large(bench, PartedBody([b"x" * 10_000]), told))
    await bench.cluster.answer(NOBODY)
    await publishing
    await asyncio.sleep(0)

    assert [type(command) for command in bench.cluster.proposed] == [BodyPart]
    assert told == [()]


@in_a_loop
async def test_a_large_body_to_a_shard_that_is_gone_is_refused(bench: Bench) -> None:
    """Its queue is one again, and would have taken it."""
    told: list[Ranges] = []

    del bench.cluster.catalog[QUEUE]
    publishing = asyncio.create_task(publish_large(bench, PartedBody([b"x" * 10_000]), told, SHARD))
    await bench.cluster.answer(NOBODY)
    await publishing

    assert told == [[(0, 0)]]


async def publish_large(
    bench: Bench, body: PartedBody, told: list[Ranges], info: QueueInfo = INFO
) -> None:
    cluster = cast(ClusterNode, bench.cluster)
    peer_rpc = cast(PeerRpc, SimpleNamespace(on=lambda *_: None))
    publisher = QueuePublisher(cluster, bench.tasks, bench.counts, Bodies(cluster, peer_rpc))
    uploaded = await publisher.upload(info, [body])
    publisher.publish_large(info, uploaded, None, None, len(body), told.append, 1)


@in_a_loop
async def test_a_group_that_takes_no_parts_yet_gets_what_may_travel_whole(bench: Bench) -> None:
    told: list[Ranges] = []
    body = PartedBody([b"x" * 10_000, b"y" * 10])

    publishing = asyncio.create_task(publish_large(bench, body, told))
    for _ in range(2):
        await bench.cluster.answer(refused("not_upgraded", "version 3 is needed"))
    await publishing
    assert (await bench.cluster.answer()).bodies == [b"x" * 10_000 + b"y" * 10]
    assert told == [()]

    bench.cluster.proposed.clear()
    bench.cluster.catalog_machine.version = 2
    await publish_large(bench, body, told)
    assert (await bench.cluster.answer()).bodies == [b"x" * 10_000 + b"y" * 10]
    assert [type(command) for command in bench.cluster.proposed] == [Enqueue]


@in_a_loop
async def test_of_all_large_bodies_of_a_group_only_so_many_parts_are_on_their_way(
    bench: Bench,
) -> None:
    """In turn, so a body of a few parts does not wait for all of a larger one."""
    cluster = cast(ClusterNode, bench.cluster)
    peer_rpc = cast(PeerRpc, SimpleNamespace(on=lambda *_: None))
    publisher = QueuePublisher(cluster, bench.tasks, bench.counts, Bodies(cluster, peer_rpc))
    larger = [PartedBody([b"x" * 5_000] * 50) for _ in range(3)]
    uploads = [publisher.upload(INFO, [body]) for body in [*larger, PartedBody([b"y" * 5_000] * 3)]]
    taken = 0
    while not uploads[-1].done():
        await bench.cluster.answer()
        taken += 1
        for _ in range(4):
            await asyncio.sleep(0)
        on_their_way = len(bench.cluster.proposed) - taken
        assert on_their_way <= PARTS_OF_GROUP_AT_ONCE
    assert not any(upload.done() for upload in uploads[:-1])
    assert taken < 30
    while not all(upload.done() for upload in uploads):
        await bench.cluster.answer()
        for _ in range(4):
            await asyncio.sleep(0)
    assert all(isinstance(upload.result(), Uploaded) for upload in uploads)


@in_a_loop
async def test_a_large_body_whose_parts_were_forgotten_is_refused_alone(bench: Bench) -> None:
    bench.publish("before")
    large = {0: ("upload", [[1, 0, 9]])}
    bench.publisher.publish(
        INFO, [b"head"], None, None, 100, lambda ranges: bench.told.append(("large", ranges)), large
    )
    bench.publish("behind")

    await bench.cluster.answer()
    await bench.cluster.answer(refused("parts_missing", "publish it again"))
    await bench.cluster.next()
    await bench.cluster.answer()

    assert bench.told == [("before", []), ("large", [(0, 0)]), ("behind", [])]
    assert bench.cluster.order == [b"before0", b"behind0"]


# --- one command of many clients ------------------------------------------------------------------


@in_a_loop
async def test_what_is_published_in_one_iteration_leaves_as_one_command(bench: Bench) -> None:
    bench.publish("a", 2, b"x")
    bench.publish("b", 1, b"x")
    bench.publish("c", 2, [b"y", b"z"], {1: 5})

    command = await bench.cluster.answer()

    assert command.bodies == [b"a0", b"a1", b"b0", b"c0", b"c1"]
    assert command.meta == [b"x", b"x", b"x", b"y", b"z"]
    assert command.attrs == [None, None, None, {1: 5}, {1: 5}]
    assert command.seqno == 1
    assert bench.told == [("a", []), ("b", []), ("c", [])]
    assert bench.counts.confirmed == bench.counts.published == 5


@in_a_loop
async def test_each_client_is_told_which_of_its_own_messages_were_refused(bench: Bench) -> None:
    for client, count in (("a", 3), ("b", 2), ("c", 4), ("d", 1)):
        bench.publish(client, count)

    await bench.cluster.answer(Outcome("ok", Enqueued(1, 4, 0, [(1, 3), (6, 8)])))

    assert bench.told == [("a", [(1, 2)]), ("b", [(0, 0)]), ("c", [(1, 3)]), ("d", [])]


@in_a_loop
async def test_what_is_too_much_for_one_command_is_cut_between_clients(bench: Bench) -> None:
    for client in "abc":
        bench.publish(client, BODIES_AT_ONCE // 2)
    await asyncio.sleep(0)

    first, second = cast("list[Enqueue]", bench.cluster.proposed)

    assert (len(first.bodies), first.seqno) == (BODIES_AT_ONCE, 1)
    assert (len(second.bodies), second.seqno) == (BODIES_AT_ONCE // 2, BODIES_AT_ONCE + 1)


# --- a leader that fails --------------------------------------------------------------------------


@in_a_loop
async def test_a_refused_command_and_those_behind_it_come_again_in_order(bench: Bench) -> None:
    await bench.sent("a", "b", "c")
    await bench.cluster.answer(NOBODY)
    await bench.cluster.answer()  # out of sequence
    await bench.cluster.answer()

    for _ in "abc":
        await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b", "c"]
    assert bench.cluster.stored == 3
    assert len({command.publisher for command in _enqueues(bench)}) == 1


@in_a_loop
async def test_a_command_of_unknown_outcome_is_stored_once(bench: Bench) -> None:
    await bench.sent("a", "b")
    command, done = await bench.cluster.next()
    bench.cluster.apply(command)
    done(LINK_LOST)
    await bench.cluster.answer(LINK_LOST)  # and this one was not applied

    await bench.cluster.answer()
    await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b"]
    assert bench.cluster.stored == 2
    assert (bench.counts.confirmed, bench.counts.duplicates) == (1, 1)


@in_a_loop
async def test_an_outcome_that_comes_after_the_repeat_has_left_is_not_told_twice(
    bench: Bench,
) -> None:
    await bench.sent("a", "b")
    _, first = await bench.cluster.next()
    late, done = await bench.cluster.next()
    first(NOBODY)
    await bench.cluster.answer()  # a, again
    await bench.cluster.answer()  # b, again

    done(bench.cluster.apply(late))

    assert [client for client, _ in bench.told] == ["a", "b"]
    assert bench.cluster.stored == 2


@in_a_loop
async def test_a_leader_that_goes_on_refusing_is_sent_the_first_command_only(bench: Bench) -> None:
    await bench.sent("a", "b", "c")
    for _ in "abc":
        await bench.cluster.answer(NOBODY)
    for _ in range(3):
        assert (await bench.cluster.answer(NOBODY)).bodies == [b"a0"]
    assert len(bench.cluster.proposed) == 6

    for _ in "abc":
        await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b", "c"]


@in_a_loop
async def test_a_refusal_at_once_keeps_back_what_would_overtake(bench: Bench) -> None:
    bench.cluster.at_once = NOBODY
    for client in "abc":
        bench.publish(client, BODIES_AT_ONCE)
    await asyncio.sleep(0)
    assert len(bench.cluster.proposed) == 1
    bench.cluster.at_once = None

    for _ in "abc":
        await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b", "c"]
    assert len(bench.cluster.proposed) == 4


@in_a_loop
async def test_what_is_published_while_there_is_no_leader_waits_its_turn(bench: Bench) -> None:
    bench.cluster.leader = None
    await bench.sent("a")
    await bench.cluster.answer(NOBODY)
    bench.publish("b")
    await asyncio.sleep(3 * publishing.RETRY_S)
    assert len(bench.cluster.proposed) == 1

    bench.cluster.leader = NodeId("other")
    await bench.cluster.answer()
    await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_to_commands_all_is_stored_once_and_in_order(seed: int) -> None:
    dice = random.Random(seed)

    @in_a_loop
    async def scenario(bench: Bench) -> None:
        cluster = bench.cluster
        published: list[bytes] = []
        while len(published) < 60 or len(bench.told) < len(published):
            idle = len(bench.told) == len(published)
            if len(published) < 60 and (idle or dice.random() < 0.6):
                client = f"m{len(published)}:"
                published.append(f"{client}0".encode())
                bench.publish(client)
                await asyncio.sleep(0)
                continue
            command, done = await cluster.next()
            match dice.randint(0, 5):
                case 0:
                    done(NOBODY)
                case 1:
                    done(LINK_LOST)
                case 2:
                    cluster.apply(command)
                    done(LINK_LOST)
                case 3:
                    cluster.inbox.append((command, done))  # overtaken
                case _:
                    done(cluster.apply(command))
        assert cluster.order == published
        assert sorted(client.encode() + b"0" for client, _ in bench.told) == sorted(published)

    scenario()


# --- a publisher that was forgotten ---------------------------------------------------------------


@in_a_loop
async def test_a_forgotten_publisher_goes_on_under_another_name(bench: Bench) -> None:
    await bench.sent("a")
    await bench.cluster.answer()
    bench.cluster.apply(DeleteQueue(QUEUE))
    bench.cluster.apply(CreateQueue(QUEUE, "/", "orders", QueueConfig()))  # remembers nobody
    await bench.sent("b", "c")
    await bench.cluster.answer()
    await bench.cluster.answer()

    again = await bench.cluster.answer()
    await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b", "c"]
    assert (again.bodies, again.seqno) == ([b"b0"], 1)
    assert again.publisher != _enqueues(bench)[0].publisher
    assert bench.cluster.stored == 2


@in_a_loop
async def test_an_old_refusal_that_comes_late_is_no_sign_of_it(bench: Bench) -> None:
    """The machine expected `a` when `b` overtook it; by the time this is heard, `a` is stored."""
    await bench.sent("a", "b")
    first, first_done = await bench.cluster.next()
    second, second_done = await bench.cluster.next()
    overtook = bench.cluster.apply(second)
    first_done(bench.cluster.apply(first))
    second_done(overtook)

    again = await bench.cluster.answer()

    assert again == second
    assert [client for client, _ in bench.told] == ["a", "b"]


@in_a_loop
async def test_a_line_ends_with_its_queue(bench: Bench) -> None:
    """Many short-lived queues for replies must not leave as many lines."""
    await bench.sent("a")
    now_s = asyncio.get_running_loop().time()
    del bench.cluster.catalog[QUEUE]
    bench.publisher.forget_idle(now_s)
    assert QUEUE in bench.publisher._pipelines, "it has work"
    await bench.cluster.answer()

    bench.publisher.forget_idle(now_s)

    assert QUEUE not in bench.publisher._pipelines


@in_a_loop
async def test_an_idle_line_ends_and_one_that_waits_does_not(bench: Bench) -> None:
    await bench.sent("a")
    now_s = asyncio.get_running_loop().time()
    bench.publisher.forget_idle(now_s + 2 * IDLE_S_MAX)
    await bench.sent("b")
    await bench.cluster.answer()
    await bench.cluster.answer()
    bench.publisher.forget_idle(now_s + 2 * IDLE_S_MAX)
    await bench.sent("c")

    command = await bench.cluster.answer()

    names = [each.publisher for each in _enqueues(bench)]
    assert names[0] == names[1] != names[2]
    assert command.seqno == 1


# --- queues that are gone, or not there yet -------------------------------------------------------


@in_a_loop
async def test_what_goes_to_a_deleted_queue_is_done(bench: Bench) -> None:
    bench.cluster.apply(DeleteQueue(QUEUE))
    bench.cluster.catalog.clear()
    await bench.sent("a", "b")
    await bench.cluster.answer()
    await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b"]
    assert bench.counts.confirmed == 0


@in_a_loop
async def test_a_queue_that_the_catalog_has_is_waited_for(bench: Bench) -> None:
    """Two clients declare it at once: one is told that it is there before its group knows it."""
    bench.cluster.apply(DeleteQueue(QUEUE))
    await bench.sent("a", "b")
    for _ in range(3):
        await bench.cluster.answer()
    assert bench.told == []

    bench.cluster.apply(CreateQueue(QUEUE, "/", "orders", QueueConfig()))
    await bench.cluster.answer()
    await bench.cluster.answer()

    assert [client for client, _ in bench.told] == ["a", "b"]
    assert bench.cluster.stored == 2


@in_a_loop
async def test_a_transient_queue_that_went_with_its_node_is_not_waited_for(bench: Bench) -> None:
    bench.cluster.leader = None
    await bench.sent("a", "b")
    await bench.cluster.answer(NOBODY)
    await bench.cluster.answer(NOBODY)
    assert bench.told == []

    bench.cluster.catalog.clear()
    while len(bench.told) < 2:
        await asyncio.sleep(publishing.RETRY_S)

    assert [client for client, _ in bench.told] == ["a", "b"]


@in_a_loop
async def test_what_goes_to_a_shard_that_is_gone_is_refused(bench: Bench) -> None:
    """Its queue is one again, and would have taken it."""
    bench.cluster.apply(DeleteQueue(QUEUE))
    bench.cluster.catalog.clear()
    bench.publish("a", 2, info=SHARD)
    await bench.cluster.answer()

    assert bench.told == [("a", [(0, 1)])]


@in_a_loop
async def test_and_so_it_is_when_its_group_has_no_leader_to_say_so(bench: Bench) -> None:
    bench.cluster.leader = None
    bench.publish("a", 2, info=SHARD)
    await bench.cluster.answer(NOBODY)
    bench.cluster.catalog.clear()
    while not bench.told:
        await asyncio.sleep(publishing.RETRY_S)

    assert bench.told == [("a", [(0, 1)])]


# --- what no repetition changes -------------------------------------------------------------------


@in_a_loop
async def test_what_is_too_large_is_refused_and_what_is_behind_it_moves_up(bench: Bench) -> None:
    await bench.sent("a", "b", "c")
    await bench.cluster.answer()
    await bench.cluster.answer(refused("too_large", "an entry holds less"))
    await bench.cluster.answer()  # out of sequence, for ever

    again = await bench.cluster.answer()

    assert (again.bodies, again.seqno) == ([b"c0"], 1)
    assert again.publisher != _enqueues(bench)[0].publisher
    assert bench.told == [("a", []), ("b", [(0, 0)]), ("c", [])]
    assert bench.cluster.stored == 2


@in_a_loop
async def test_it_is_refused_in_its_turn(bench: Bench) -> None:
    await bench.sent("a", "b")
    first, first_done = await bench.cluster.next()
    await bench.cluster.answer(refused("too_large", "an entry holds less"))
    assert bench.told == []
    first_done(bench.cluster.apply(first))

    await bench.cluster.answer()  # a, again
    await bench.cluster.answer(refused("too_large", "an entry holds less"))

    assert bench.told == [("a", []), ("b", [(0, 0)])]
    assert bench.cluster.stored == 1


# --- settles --------------------------------------------------------------------------------------

SETTLE = Settle(QUEUE, ConsumerKey(1), [(1, 3)], token=1)
GONE = Outcome("refused", MachineRefused(UNKNOWN_DELIVERY, "gone"), None, UNKNOWN_DELIVERY, "gone")


def _tell(bench: Bench, command: SettleCommand, name: str) -> None:
    bench.settle_retry.settle(GROUP, command, lambda _: bench.told.append((name, ())))


@in_a_loop
async def test_a_settle_is_decided_by_a_machine_either_way(bench: Bench) -> None:
    _tell(bench, SETTLE, "done")
    _tell(bench, SETTLE, "gone")

    await bench.cluster.answer(Outcome("ok", Ok(3)))
    await bench.cluster.answer(GONE)

    assert bench.told == [("done", ()), ("gone", ())]
    assert bench.counts.settled == 3


@in_a_loop
async def test_a_settle_of_unknown_outcome_is_repeated_until_it_is_decided(bench: Bench) -> None:
    _tell(bench, SETTLE, "a")
    await bench.cluster.answer(LINK_LOST)
    await bench.cluster.answer(NOBODY)
    assert bench.told == []

    await bench.cluster.answer(Outcome("ok", Ok(3)))

    assert bench.told == [("a", ())]
    assert bench.counts.settled == 3


@in_a_loop
async def test_what_is_told_while_there_is_no_leader_keeps_its_order(bench: Bench) -> None:
    bench.cluster.leader = None
    commands = [Settle(QUEUE, ConsumerKey(1), [(at, at)], token=1) for at in (1, 2, 3)]
    _tell(bench, commands[0], "1")
    await bench.cluster.answer(NOBODY)
    _tell(bench, commands[1], "2")
    _tell(bench, commands[2], "3")
    await asyncio.sleep(3 * publishing.RETRY_S)
    assert len(bench.cluster.proposed) == 1

    bench.cluster.leader = NodeId("other")
    found = [await bench.cluster.answer(Outcome("ok", Ok())) for _ in commands]

    assert found == commands
    assert [name for name, _ in bench.told] == ["1", "2", "3"]


@pytest.mark.parametrize("redirected", [False, True])
@pytest.mark.parametrize("late", [refused("not_leader", "an entry took its place"), LINK_LOST])
def test_a_credit_whose_outcome_comes_after_a_later_one_is_not_proposed_again(
    late: Outcome, redirected: bool
) -> None:
    """It was on its way to a leader that was replaced meanwhile."""

    @in_a_loop
    async def scenario(bench: Bench) -> None:
        told: list[Outcome] = []
        for credit in (0, 100):
            command = SetCredit(QUEUE, ConsumerKey(1), credit)
            bench.settle_retry.settle(GROUP, command, told.append, redirected=redirected)
        _, older = await bench.cluster.next()
        _, newer = await bench.cluster.next()
        newer(Outcome("ok", Ok()))
        older(late)
        await asyncio.sleep(10 * forwarding.AGAIN_S)

        assert [outcome.kind for outcome in told] == ["ok", "ok"]
        assert len(bench.cluster.proposed) == 2
        assert not bench.settle_retry._credits

    scenario()


@in_a_loop
async def test_settles_of_a_transient_queue_that_is_gone_are_over(bench: Bench) -> None:
    bench.cluster.lost = True
    _tell(bench, SETTLE, "a")
    await bench.cluster.answer(NOBODY)

    assert bench.told == [("a", ())]


@in_a_loop
async def test_a_settle_that_cannot_be_is_over(bench: Bench) -> None:
    _tell(bench, SETTLE, "a")
    await bench.cluster.answer(refused("bad_argument", "no"))

    assert bench.told == [("a", ())]


def _enqueues(bench: Bench) -> list[Enqueue]:
    return [command for command in bench.cluster.proposed if type(command) is Enqueue]


class TestStreams:
    """Sequences and answers come back to those whose messages they are of."""

    STREAM = QueueInfo(QUEUE, GROUP, "/", "S", {"x-queue-type": "stream", "x-stream": {}})

    def publish(
        self, bench: Bench, told: list[Stored | None], count: int, asked: dict[int, Any] | None
    ) -> None:
        attrs: dict[int, Any] = {ATTR_SUBJECT: b"s"}
        if asked is not None:
            attrs[ATTR_ASKED] = asked
        bodies = [b"x"] * count
        bench.publisher.publish(
            self.STREAM, bodies, None, attrs, 100, lambda _: None, stored=told.append
        )

    def bench(self) -> Bench:
        bench = Bench()
        bench.cluster.machine = QueueMachine(4)
        bench.cluster.apply(CreateQueue(QUEUE, "/", "S", QueueConfig(type="stream", stream={})))
        return bench

    async def test_each_of_a_batch_learns_its_own(self):
        bench = self.bench()
        told: list[Stored | None] = []
        self.publish(bench, told, 2, None)
        self.publish(bench, told, 1, {ASKED_ID: "a"})
        self.publish(bench, told, 1, {ASKED_ID: "a"})
        self.publish(bench, told, 1, {ASKED_LAST: 77})
        self.publish(bench, told, 3, None)

        await bench.cluster.answer()

        found = [sequences(each, count) for each, count in zip(told, (2, 1, 1, 1, 3), strict=True)]
        assert found == [[1, 2], [3], [(DUPLICATE, 3)], [(WRONG_LAST_SEQUENCE, 3)], [4, 5, 6]]

    async def test_a_repeated_batch_is_told_as_the_first_time(self):
        bench = self.bench()
        told: list[Stored | None] = []
        self.publish(bench, told, 2, None)
        self.publish(bench, told, 1, {ASKED_LAST: 77})
        self.publish(bench, told, 2, None)
        command, done = await bench.cluster.next()
        bench.cluster.apply(command)
        done(LINK_LOST)

        await bench.cluster.answer()

        found = [sequences(each, count) for each, count in zip(told, (2, 1, 2), strict=True)]
        assert found == [[1, 2], [(WRONG_LAST_SEQUENCE, 2)], [3, 4]]

    async def test_what_was_refused_is_not_confirmed_after_many_commands_were_under_way(self):
        """All are committed, and the leader is gone before any answer leaves."""
        bench = self.bench()
        compared: list[Stored | None] = []
        plain: list[Stored | None] = []
        for _ in range(12):
            for _ in range(200):
                self.publish(bench, compared, 1, {ASKED_LAST: 1 << 40})
                self.publish(bench, plain, 1, None)
            await asyncio.sleep(0)
        lost = list(bench.cluster.inbox)
        bench.cluster.inbox.clear()
        for command, _ in lost:
            bench.cluster.apply(command)
        for _, done in lost:
            done(LINK_LOST)
        for _ in lost:
            await bench.cluster.answer()

        assert len(lost) == 12
        assert len(compared) == len(plain) == 2_400
        codes = {answer[0] for each in compared if each for answer in each.each(1) if answer}
        assert codes == {FORGOTTEN, WRONG_LAST_SEQUENCE}
        answers = [each.each(1)[0] for each in plain if each]
        assert {answer[0] for answer in answers if answer} == {FORGOTTEN, STORED}
        assert bench.cluster.stored == 2_400

    async def test_of_a_stream_that_is_gone_nobody_is_told_that_it_has_it(self):
        bench = self.bench()
        told: list[Stored | None] = []
        self.publish(bench, told, 2, None)
        del bench.cluster.catalog[QUEUE]
        bench.cluster.apply(DeleteQueue(QUEUE))

        await bench.cluster.answer()

        assert told == [None]

    async def test_what_is_refused_for_good_was_not_stored(self):
        bench = self.bench()
        told: list[Stored | None] = []
        self.publish(bench, told, 2, None)

        await bench.cluster.answer(refused("too_large", "no"))

        assert told == [Stored(0, [(0, 1)], {})]


def sequences(stored: Stored | None, count: int) -> list[Any]:
    """Of each message its sequence, or why it has none of its own."""
    assert stored is not None
    refused_places = {p for first, last in stored.refused for p in range(first, last + 1)}
    found: list[Any] = []
    sequence = stored.first
    for place in range(count):
        answer = stored.answers.get(place)
        if answer is not None:
            found.append(answer[1] if answer[0] == STORED else tuple(answer))
        else:
            assert place not in refused_places
            found.append(sequence)
            sequence += 1
    return found
