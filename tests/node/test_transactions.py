"""Transactions over queues of several groups: done whole, whatever ends on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Done, Outcome, refused
from cluster.machine import QueueMachine
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    Command,
    DeleteQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Reserve,
    Settle,
    Step,
    Subscribe,
    Withdraw,
)
from cluster.machine.replies import (
    NO_QUEUE,
    NOT_ALLOWED,
    NOT_EMPTY,
    QUEUE_FULL,
    Committed,
    Ok,
    Subscribed,
)
from cluster.machine.transactions import RESERVED_MS
from cluster.peers.forwarding import Retries
from cluster.seams import Down
from cluster.types import TRANSIENT_GROUPS, Body, GroupId, NodeId, QueueId, SessionId
from node.broker.transactions import TransactionCoordinator
from node.errors import BrokerError, Elsewhere, OutcomeUnknown, Refused
from node.tasks import Tasks
from tests.cluster.world import World, enqueue

pytestmark = pytest.mark.virtual_time

Steps = dict[GroupId, list[Step]]


class Forgetful(TransactionCoordinator):
    """Proposes, and does no more."""

    async def _carry_out(
        self, source: GroupId, committed: Committed, others: Sequence[Any]
    ) -> None:
        raise OutcomeUnknown("stopped here")


class Cluster(World):
    """Three queues, a, b and c, each in a group of its own, and transactions on every node."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.tasks: dict[str, Tasks] = {}
        self.transactions: dict[str, TransactionCoordinator] = {}
        self.infos: dict[str, QueueInfo] = {}

    async def start(self, *names: str, **config: Any) -> World:
        for name in names or self.names:
            await super().start(name, **config)
            self.tasks[name] = Tasks()
            self.transactions[name] = TransactionCoordinator(self.nodes[name], self.tasks[name])
        return self

    async def with_queues(self, **arguments: Any) -> Cluster:
        await self.born()
        for name in "abc":
            await self.declare(name, **arguments)
            found = await self.any.names.find("/", name)
            assert isinstance(found, QueueInfo)
            self.infos[name] = found
        assert len({self.group_of(name) for name in "abc"}) == 3
        return self

    def kill(self, name: str, *, power: bool = True) -> None:
        super().kill(name, power=power)
        self.end_tasks(name)

    def end_tasks(self, name: str) -> None:
        for task in self.tasks[name]._running:
            task.cancel()

    async def stop(self) -> None:
        for name in self.nodes:
            self.end_tasks(name)
        await super().stop()

    def forgets(self, name: str) -> TransactionCoordinator:
        """From now on this node carries nothing out that it proposes."""
        self.transactions[name] = Forgetful(self.nodes[name], self.tasks[name])
        return self.transactions[name]

    def info(self, name: str) -> QueueInfo:
        return self.infos[name]

    def group_of(self, name: str) -> GroupId:
        return self.infos[name].group

    def publishes(self, **bodies: list[bytes]) -> Steps:
        steps: Steps = {}
        for name, each in bodies.items():
            info = self.info(name)
            steps.setdefault(info.group, []).append(enqueue(info.queue, *each))
        return steps

    def machine(self, name: str) -> QueueMachine:
        found = self.group(self.group_of(name)).machine
        assert isinstance(found, QueueMachine)
        return found

    async def bodies(self, name: str) -> list[Body]:
        """As the leader has them, in order."""
        info = self.info(name)
        if self.leading(info.group) is None:
            return []
        group = self.group(info.group)
        rows = self.machine(name).browse(info.queue, 1, 1_000)
        return [(await group.load_bodies(row.chunk.bodies))[0][0] for row in rows]

    async def upgraded(self, version: int = 3) -> None:
        await self.until(lambda: all(self.machine(name).version >= version for name in "abc"))

    def homes(self, name: str) -> set[NodeId]:
        (group,) = [g for g in self.any.catalog_machine.groups() if g.id == self.group_of(name)]
        return set(group.members)

    def reserved(self, name: str) -> bool:
        return bool(self.machine(name)._transactions.reserved)

    def is_over(self) -> bool:
        """Every group has a leader and no transaction that waits for another."""
        return all(
            self.leading(self.group_of(name)) and not self.machine(name).transactions()
            for name in "abc"
        )

    async def consume(self, name: str) -> Any:
        """The key of a consumer that holds all that is in the queue."""
        info = self.info(name)
        node = self.any
        session = SessionId("s")
        await node.ask(info.group, OpenSession(session, NodeId("n1"), node.links.incarnation))
        outcome = await node.ask(info.group, Subscribe(info.queue, session, "t"))
        assert isinstance(outcome.reply, Subscribed)
        return outcome.reply.consumer


@pytest.fixture
async def world() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    yield cluster
    await cluster.stop()


async def test_publishes_to_three_groups_are_there_when_it_returns_whichever_node_commits(
    world: Cluster,
) -> None:
    await world.with_queues()
    for name in world.names:
        body = name.encode()
        steps = world.publishes(a=[body, b"2"], b=[body], c=[body])
        await world.transactions[name].commit(steps)
        assert [(await world.bodies(queue)).count(body) for queue in "abc"] == [1, 1, 1]
    await world.until(world.is_over)
    assert await world.bodies("a") == [b"n1", b"2", b"n2", b"2", b"n3", b"2"]


async def test_a_group_with_something_to_settle_decides(world: Cluster) -> None:
    await world.with_queues()
    await world.publish("c", b"job", b"other")
    consumer = await world.consume("c")
    steps = world.publishes(a=[b"result"], b=[b"audit"])
    steps[world.group_of("c")] = [Settle(world.info("c").queue, consumer, [(1, 1)])]
    await world.transactions["n2"].commit(steps)
    assert [await world.bodies(queue) for queue in "abc"] == [[b"result"], [b"audit"], [b"other"]]

    with pytest.raises(Refused):  # settled already: nothing of it happens
        await world.transactions["n2"].commit(steps)

    assert [await world.bodies(queue) for queue in "abc"] == [[b"result"], [b"audit"], [b"other"]]
    await world.until(world.is_over)


async def test_what_is_impossible_where_it_is_decided_happens_nowhere(world: Cluster) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"])
    steps[min(steps)].append(Enqueue(world.info("a").queue + 50, None, 0, [b"z"]))  # type: ignore[arg-type]

    with pytest.raises(Refused) as caught:
        await world.transactions["n3"].commit(steps)

    assert caught.value.code == NO_QUEUE
    assert [await world.bodies(queue) for queue in "abc"] == [[], [], []]
    await world.transactions["n3"].commit({})


async def test_a_queue_that_is_deleted_meanwhile_does_not_hold_up_the_rest(world: Cluster) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"], c=[b"z"])
    info = world.info("c")
    await world.any.ask(info.group, DeleteQueue(info.queue))

    await world.transactions["n1"].commit(steps)

    assert [await world.bodies(queue) for queue in "ab"] == [[b"x"], [b"y"]]


async def test_a_node_that_dies_after_the_decision_leaves_the_rest_to_the_leader(
    world: Cluster,
) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"], c=[b"z"])
    leader = world.leading(min(steps))
    name = next(each for each in world.names if each != leader)
    with pytest.raises(OutcomeUnknown):
        await world.forgets(name).commit(steps)
    assert await world.bodies("b") == await world.bodies("c") == []
    world.kill(name)

    await world.until(world.is_over)

    assert [await world.bodies(queue) for queue in "abc"] == [[b"x"], [b"y"], [b"z"]]


@pytest.mark.parametrize("victims", [1, 3])
async def test_when_the_leader_that_decided_dies_the_next_one_carries_it_out(
    world: Cluster, victims: int
) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"], c=[b"z"])
    leader = world.leading(min(steps))
    assert leader is not None
    with pytest.raises(OutcomeUnknown):
        await world.forgets(leader).commit(steps)
    dead = [leader, *(each for each in world.names if each != leader)][:victims]
    for name in dead:
        world.kill(name)
    await world.start(*dead)

    await world.until(world.is_over)

    assert [await world.bodies(queue) for queue in "abc"] == [[b"x"], [b"y"], [b"z"]]


async def test_what_a_copy_that_has_left_had_decided_is_the_next_leaders_business(
    world: Cluster,
) -> None:
    """It leaves while others that it decided are carried out."""
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"])
    source = min(steps)
    leader = world.leading(source)
    assert leader is not None
    transactions = world.forgets(leader)
    with pytest.raises(OutcomeUnknown):
        await transactions.commit(steps)
    (one,) = transactions._open(source)
    world[leader].drop_group(source)

    assert not await transactions._finish(source, one)


async def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_done_twice(
    world: Cluster,
) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"])
    leader = world.leading(min(steps))
    assert leader is not None
    name = next(each for each in world.names if each != leader)
    lost = asyncio.Event()

    def drop(peer: NodeId, message: list[Any]) -> bool:
        if lost.is_set() or peer != name or message[:2] != [-1, "answer"]:
            return False
        lost.set()
        return True

    world.links[leader].drop = drop
    commit = asyncio.create_task(world.transactions[name].commit(steps))
    await lost.wait()
    world.break_link(name, leader, Down.SILENT)
    world.connect(name, leader)

    await commit

    await world.until(world.is_over)
    assert [await world.bodies(queue) for queue in "ab"] == [[b"x"], [b"y"]]


async def test_a_group_that_cannot_be_reached_makes_it_unknown_and_gets_its_part_later(
    world: Cluster,
) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"])
    group = world.group_of("b")
    reachable = False

    def within_reach(node: ClusterNode) -> Any:
        ask = node.ask

        async def asked(group_id: GroupId, command: Any) -> Any:
            if group_id == group and not reachable:
                return await ask(GroupId(77), command)
            return await ask(group_id, command)

        return asked

    for node in world.nodes.values():
        node.ask = within_reach(node)
    with pytest.raises(OutcomeUnknown):
        await world.transactions["n1"].commit(steps)
    assert await world.bodies("a") == [b"x"]
    assert await world.bodies("b") == []
    reachable = True

    await world.until(world.is_over)

    assert await world.bodies("b") == [b"y"]


async def test_without_a_leader_it_surely_did_not_happen(world: Cluster) -> None:
    await world.with_queues()
    steps = world.publishes(a=[b"x"], b=[b"y"])
    name = world.leading(min(steps))
    assert name is not None
    node = world[name]
    world.isolate(name)
    await world.until(lambda: node.leader_of(min(steps)) is None)

    with pytest.raises(BrokerError) as caught:
        await world.transactions[name].commit(steps)

    assert caught.value.code == "no_leader"
    assert [await world.bodies(queue) for queue in "ab"] == [[], []]
    world.heal()
    await world.settled()


async def test_numbers_of_answered_transactions_are_forgotten(world: Cluster) -> None:
    await world.with_queues()
    for _ in range(20):
        await world.transactions["n1"].commit(world.publishes(a=[b"x"], b=[b"y"]))
    await world.until(world.is_over)
    (state,) = world.machine("a")._transactions.dump()
    _, _, ((_, _, _, answers),), _ = state
    assert len(answers) == 1
    (state,) = world.machine("b")._transactions.dump()
    _, _, _, ((_, _, done),) = state
    assert sum(last - first + 1 for first, last in done) <= 2


async def test_a_group_that_outlives_its_nodes_decides_for_transient_ones(world: Cluster) -> None:
    await world.with_queues()
    one, two = GroupId(TRANSIENT_GROUPS + 1), GroupId(TRANSIENT_GROUPS + 2)
    step = enqueue(world.info("a").queue, b"x")
    decider = world.transactions["n1"]._decider

    assert decider({one: [step]}) == one
    assert decider({one: [step], two: [step]}) == min(map(world.group_of, "abc"))
    assert decider({one: [step], GroupId(2): [step], GroupId(3): [step]}) == 2
    settle = Settle(step.queue, 1, [(1, 1)])  # type: ignore[arg-type]
    assert decider({one: [settle], GroupId(2): [step], GroupId(3): [step, settle]}) == 3


async def test_what_is_moved_to_a_queue_that_is_gone_stays_where_it_was(world: Cluster) -> None:
    """The copy of the catalog of the node that is asked still has the queue."""
    await world.with_queues()
    await world.upgraded()
    await world.publish("a", b"x")
    steps = world.publishes(b=[b"x"], c=[b"x"])
    steps[world.group_of("a")] = [Withdraw(world.info("a").queue, [(1, 1)])]
    info = world.info("c")
    await world.any.ask(info.group, DeleteQueue(info.queue))

    with pytest.raises(Refused) as caught:
        await world.transactions["n1"].commit(steps)

    assert caught.value.code == NO_QUEUE
    assert [await world.bodies(name) for name in "ab"] == [[b"x"], []]
    await world.until(lambda: not world.reserved("b"))


@pytest.mark.parametrize("small", "abc")
async def test_what_a_stream_of_any_group_refuses_is_refused_whole(
    world: Cluster, small: str
) -> None:
    await world.born()
    for name in "abc":
        config = {"name": name, "max_msg_size": 1 if name == small else -1}
        await world.declare(name, queue_type="stream", stream=config)
        found = await world.any.names.find("/", name)
        assert isinstance(found, QueueInfo)
        world.infos[name] = found
    await world.until(lambda: all(world.machine(name).version >= 5 for name in "abc"))

    steps = world.publishes(a=[b"large"], b=[b"large"], c=[b"large"])
    with pytest.raises(Refused) as caught:
        await world.transactions["n2"].commit(steps)

    assert caught.value.code == NOT_ALLOWED
    assert [await world.bodies(name) for name in "abc"] == [[], [], []]
    await world.transactions["n2"].commit(world.publishes(a=[b"1"], b=[b"2"], c=[b"3"]))
    assert [await world.bodies(name) for name in "abc"] == [[b"1"], [b"2"], [b"3"]]
    await world.until(lambda: not any(world.reserved(name) for name in "abc"))


LIMITED = {"max_length": 1, "overflow": "reject-publish"}


@pytest.mark.parametrize("full", "abc")
async def test_a_full_queue_of_any_group_refuses_the_whole_transaction(
    world: Cluster, full: str
) -> None:
    await world.with_queues(**LIMITED)
    await world.upgraded()
    await world.publish(full, b"there already")
    steps = world.publishes(a=[b"x"], b=[b"y"], c=[b"z"])

    with pytest.raises(Refused) as caught:
        await world.transactions["n2"].commit(steps)

    assert caught.value.code == QUEUE_FULL
    left = {name: await world.bodies(name) for name in "abc"}
    assert left == {name: [b"there already"] if name == full else [] for name in "abc"}
    await world.until(lambda: not any(world.reserved(name) for name in "abc"))
    others = [name for name in "abc" if name != full]
    await world.transactions["n2"].commit(world.publishes(**{each: [b"1"] for each in others}))
    assert [await world.bodies(each) for each in others] == [[b"1"], [b"1"]]
    await world.until(lambda: not any(world.reserved(name) for name in "abc"))


async def test_of_transactions_for_the_last_room_only_as_many_are_done_as_fit(
    world: Cluster,
) -> None:
    await world.with_queues(**LIMITED)
    await world.upgraded()
    tries = [
        world.transactions[name].commit(world.publishes(a=[b"x"], b=[b"y"], c=[b"z"]))
        for name in world.names
        for _ in range(3)
    ]

    ended = await asyncio.gather(*tries, return_exceptions=True)

    assert all(each is None or isinstance(each, Refused) for each in ended)
    done = sum(each is None for each in ended)
    assert done == 1
    assert [len(await world.bodies(name)) for name in "abc"] == [done] * 3


class Died(Exception):
    """The node that proposes is no more."""


@pytest.mark.parametrize("heard", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("leads", [False, True], ids=["other", "leader"])
async def test_at_whatever_step_its_node_dies_all_is_done_or_nothing(
    world: Cluster, step: int, heard: bool, leads: bool
) -> None:
    """A move and publishes, over three groups that may refuse. The node dies before it asks for a
    step, or behind it.
    """
    await world.with_queues(**LIMITED)
    await world.upgraded()
    await world.publish("a", b"moved")
    steps = world.publishes(b=[b"moved"], c=[b"y"])
    steps[world.group_of("a")] = [Withdraw(world.info("a").queue, [(1, 1)])]
    leader = world.leading(world.group_of("a"))
    name = next(each for each in world.names if (each == leader) is leads)
    node, asked = world[name], 0

    def dying(ask: Any) -> Any:
        async def dies(group: GroupId, command: Any, **how: Any) -> Any:
            nonlocal asked
            is_last = asked == step
            asked += 1
            if asked > step + 1 or (is_last and not heard):
                raise Died
            outcome = await ask(group, command, **how)
            if is_last:
                raise Died
            return outcome

        return dies

    node.ask = dying(node.ask)  # type: ignore[method-assign]
    node.retries.ask = dying(node.retries.ask)  # type: ignore[method-assign]
    confirmed = True
    try:
        await world.transactions[name].commit(steps)
    except (Died, ExceptionGroup):
        confirmed = False
    world.kill(name)
    await world.start(name)

    await world.until(world.is_over)

    left = [await world.bodies(queue) for queue in "abc"]
    assert left in ([[], [b"moved"], [b"y"]], [[b"moved"], [], []])
    assert not confirmed or left[0] == []


@pytest.fixture
async def five() -> AsyncIterator[Cluster]:
    cluster = Cluster(count=5)
    yield cluster
    await cluster.stop()


@pytest.mark.parametrize("decided", [True, False], ids=["decided", "undecided"])
async def test_a_target_does_not_go_before_the_group_that_decides_says_what_became_of_it(
    five: Cluster, decided: bool
) -> None:
    """As a shard does when it is joined: that group is down for longer than room is kept."""
    await five.with_queues()
    await five.upgraded(5)
    await five.publish("a", b"moved")
    homes = {name: five.homes(name) for name in "abc"}
    target = next(name for name in "bc" if homes[name] != homes["a"])
    leader = five.leading(five.group_of("a"))
    assert leader is not None
    (other, *_) = sorted(homes["a"] - {leader}, key=lambda name: name in homes[target])
    dead = [leader, other]
    proposer = next(name for name in five.names if name not in dead)
    steps = five.publishes(**{target: [b"moved"]})
    steps[five.group_of("a")] = [Withdraw(five.info("a").queue, [(1, 1)])]

    async def undecided(source: GroupId, command: Command) -> Committed:
        raise OutcomeUnknown("stopped here")

    transactions = five.forgets(proposer)
    if not decided:
        transactions._decide = undecided  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await transactions.commit(steps)
    for name in dead:
        five.kill(name)
    await asyncio.sleep(2 * RESERVED_MS / 1_000)

    info = five.info(target)
    node = five[proposer]
    removal = DeleteQueue(info.queue, if_empty=True, if_settled=True)
    refused = (await node.retries.ask(info.group, removal)).reply
    assert isinstance(refused, codes.Refused)
    assert refused.code == NOT_EMPTY

    await five.start(*dead)
    await five.until(five.is_over)
    left = [await five.bodies(name) for name in ("a", target)]
    assert left == ([[], [b"moved"]] if decided else [[b"moved"], []])
    await five.until(lambda: not five.reserved(target))
    removed = await node.retries.ask(info.group, removal)
    assert (removed.kind == "ok") is not decided


@pytest.mark.parametrize("heard", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("step", range(6))
@pytest.mark.parametrize("victim", ["a", "b"], ids=["decides", "takes-part"])
async def test_at_whatever_step_a_group_loses_its_leader_large_bodies_are_moved_whole_or_not(
    five: Cluster, step: int, heard: bool, victim: str
) -> None:
    """Larger than an entry is to be, and than what followers are sent at once."""
    await five.with_queues(**LIMITED)
    await five.upgraded(5)
    large = [nth.to_bytes() * (3 << 20) for nth in b"xy"]
    await five.publish("a", large[0])
    steps = five.publishes(b=[large[0]], c=[large[1]])
    steps[five.group_of("a")] = [Withdraw(five.info("a").queue, [(1, 1)])]
    name = five.leading(five.group_of(victim))
    assert name is not None
    node = five.other_than(name)
    asked = 0

    def losing(ask: Any) -> Any:
        async def loses(group: GroupId, command: Any, **how: Any) -> Any:
            nonlocal asked
            is_due = asked == step
            asked += 1
            if is_due and not heard:
                five.kill(name)
            outcome = await ask(group, command, **how)
            if is_due and heard:
                five.kill(name)
            return outcome

        return loses

    node.ask = losing(node.ask)  # type: ignore[method-assign]
    node.retries.ask = losing(node.retries.ask)  # type: ignore[method-assign]
    try:
        await five.transactions[node.node].commit(steps)
        confirmed = True
    except BrokerError:
        confirmed = False
    await five.until(lambda: name not in five.nodes)
    await five.start(name)

    await five.until(five.is_over)

    left = [await five.bodies(queue) for queue in "abc"]
    assert left == [[], large[:1], large[1:]] if confirmed or not left[0] else [large[:1], [], []]
    await five.until(lambda: five.is_over() and not any(map(five.reserved, "abc")), 120)


async def test_a_refusal_that_no_repetition_changes_ends_a_commit_at_once() -> None:
    """As it ends a publish: it was asked again for as long as a change of leader may take."""
    asked: list[Command] = []

    def propose(group: GroupId, command: Command, done: Done) -> None:
        asked.append(command)
        done(refused("transient_full", "consume some"))

    cluster: Any = SimpleNamespace(
        node="n1",
        links=SimpleNamespace(incarnation=1),
        on_effects=[],
        on_role=[],
        catalog_machine=SimpleNamespace(groups=tuple),
        retries=Retries(propose, lambda group: NodeId("n1"), Random(0)),
    )
    step = enqueue(QueueId(1), b"body")

    with pytest.raises(Refused, match="consume some"):
        await TransactionCoordinator(cluster, Tasks()).commit({GroupId(TRANSIENT_GROUPS): [step]})
    assert len(asked) == 1


async def test_nothing_is_decided_when_room_that_was_kept_may_be_given_back_by_then() -> None:
    asked: list[type] = []

    async def given_back(group: GroupId, command: Command) -> Outcome:
        return Outcome("ok", Ok(1))

    def propose(group: GroupId, command: Command, done: Done) -> None:
        asked.append(type(command))
        asyncio.get_running_loop().call_later(14, done, Outcome("ok", Ok(1)))

    cluster: Any = SimpleNamespace(
        node="n1",
        links=SimpleNamespace(incarnation=1),
        on_effects=[],
        on_role=[],
        catalog_machine=SimpleNamespace(
            queue_by_id=lambda _: None,
            config_of=lambda _: QueueConfig(max_length=1, overflow="reject-publish"),
        ),
        retries=Retries(propose, lambda group: NodeId("n1"), Random(0)),
        ask=given_back,
    )
    steps: Steps = {GroupId(each): [enqueue(QueueId(each), b"body")] for each in range(1, 8)}
    with pytest.raises(Elsewhere):
        await TransactionCoordinator(cluster, Tasks()).commit(steps)
    assert set(asked) == {Reserve}


@pytest.mark.parametrize("heard", [True, False], ids=["kept", "on its way"])
async def test_a_commit_that_is_given_up_before_the_decision_keeps_no_room(
    world: Cluster, heard: bool
) -> None:
    """As when its channel closes. Nobody will decide it, so nobody needs the room for a minute."""

    await world.with_queues(**LIMITED)
    await world.upgraded()
    node = world["n2"]
    ask, asked = node.retries.ask, asyncio.Event()

    async def slow(group: GroupId, command: Any, **how: Any) -> Any:
        if type(command) is not Reserve or not command.wants or group != world.group_of("c"):
            return await ask(group, command, **how)
        answer = asyncio.ensure_future(ask(group, command, **how))
        if heard:
            await answer
        asked.set()
        await asyncio.Event().wait()
        return None

    node.retries.ask = slow  # type: ignore[method-assign]
    steps = world.publishes(a=[b"x"], b=[b"y"], c=[b"z"])
    commit = asyncio.ensure_future(world.transactions["n2"].commit(steps))
    await asked.wait()
    assert world.reserved("b")
    assert world.reserved("c") or not heard
    began_s = asyncio.get_running_loop().time()
    commit.cancel()

    await world.until(lambda: not any(world.reserved(name) for name in "abc"))
    assert asyncio.get_running_loop().time() - began_s < 30
    assert [await world.bodies(name) for name in "abc"] == [[], [], []]
