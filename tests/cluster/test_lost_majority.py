"""Two of three disks are gone for good: a person may order the rest to go on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.catalog.queue_names import QueueNames
from cluster.log import MEMBERSHIP, Log, LogError, LogIdentity
from cluster.log.disk import SystemClock
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_tables import GroupInfo
from cluster.machine.commands import Barrier, CreateGroup, DeclareQueue, MoveGroup, RemoveNode
from cluster.members import moving
from cluster.members.membership import next_step
from cluster.members.readmission import GivenUp
from cluster.raft import replication
from cluster.raft.configuration import Configuration
from cluster.recovery.lost_majority import NoCopy, examine, give_up, go_on, has_copy, without_copy
from cluster.types import (
    CATALOG_GROUP,
    GroupId,
    NodeId,
    QueueId,
    Stamp,
    first_term_of,
    numbers_skipped,
)
from tests.cluster.test_membership import changed, holders, join, moved, voters
from tests.cluster.world import MakeWorld, World, enqueue
from tests.log.support import World as LogWorld

pytestmark = pytest.mark.virtual_time

NODES = ("n1", "n2", "n3")


async def order(world: World, node: str, *lost: str) -> list[str]:
    """As the command does it; the groups that were in need."""
    founders = [NodeId(name) for name in world.founders]
    identity = LogIdentity(node, "test")
    log = await Log.open("/data", disk=world.disks[node], clock=SystemClock(), identity=identity)
    gone = [NodeId(each) for each in lost]
    _, found = examine(log, founders, gone)
    found = [each for each in found if node in each.survivors]
    give_up(log, found, NodeId(node), gone)
    log.write()
    await log.sync()
    await log.close()
    return [each.name for each in found]


async def named_without_copy(world: World, node: str, *lost: str) -> list[NoCopy]:
    """As the command looks before it is ordered."""
    identity = LogIdentity(node, "test")
    log = await Log.open("/data", disk=world.disks[node], clock=SystemClock(), identity=identity)
    gone = [NodeId(each) for each in lost]
    catalog, _ = examine(log, [NodeId(name) for name in world.founders], gone)
    found = without_copy(log, catalog, gone)
    await log.close()
    return found


async def test_a_group_without_any_copy_left_is_named_and_says_why_it_has_no_leader(
    make_world: MakeWorld,
) -> None:
    world = await make_world(5, default_groups=1).born()
    await world.declare("q")
    group = world.group_of("q")
    (info,) = world.any.catalog_machine.groups()
    lost = sorted(info.homes)
    assert len(lost) == 3
    survivors = [name for name in world.names if name not in lost]
    await world.until(lambda: all(world[name].queue_info("/", "q") for name in survivors))
    for name in world.names:
        world.kill(name)
    for name in survivors:
        assert await order(world, name, *lost) == ["catalog"]
    named = [NoCopy("default-1", tuple(map(NodeId, lost)), [("/", "q")])]
    assert await named_without_copy(world, survivors[0], *lost) == named
    assert await named_without_copy(world, survivors[0]) == named, "as it was told before"

    await world.start(*survivors)
    await world.until(lambda: world.leading() is not None)
    node = world[survivors[0]]
    outcome = await node.ask(group, Barrier())
    assert (outcome.kind, outcome.code) == ("refused", "no_leader")
    assert outcome.reason == (
        f"group default-1 has no copy left: {', '.join(lost)} had them, and were declared lost"
    )
    # What `quorate node recover` says to do next.
    await world.declare("p", at=survivors[0], queue_group="new")
    await world.publish("p", b"1")
    await world.until(lambda: world.ready("p", survivors[0]) == 1)


async def test_a_copy_that_was_told_nothing_yet_is_none_when_groups_without_one_are_named(
    make_world: MakeWorld,
) -> None:
    world = await make_world(5, default_groups=1).born()
    await world.declare("q")
    (info,) = world.any.catalog_machine.groups()
    lost = sorted(info.homes)
    new, other = sorted({*world.names} - info.homes)
    for name in lost:
        world.links[name].drop = lambda peer, message: peer == new and message[0] == info.id
    await changed(world, MoveGroup(info.id, [NodeId(name) for name in [*lost[1:], new]]))
    await world.until(lambda: info.id in world[new].groups)
    await world.until(lambda: _held_by(world, new, info.id) >= {new})
    await world.until(lambda: _held_by(world, other, info.id) >= {new})
    for name in world.names:
        world.kill(name)
    named = [NoCopy("default-1", (*map(NodeId, [*lost, new]),), [("/", "q")])]
    assert await named_without_copy(world, new, *lost) == named
    assert await named_without_copy(world, other, *lost) == [], "it can not say what the other has"


async def test_a_command_that_nodes_have_skipped_is_none_for_the_recovery_either(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = CatalogMachine.apply

    def raising(machine: CatalogMachine, stamp: Stamp, command: Any) -> Any:
        if isinstance(command, CreateGroup):
            raise KeyError("a bug")
        return apply(machine, stamp, command)

    monkeypatch.setattr(CatalogMachine, "apply", raising)
    world = await make_world(default_groups=0).born()
    outcome = await world.any.change(CreateGroup("g", tuple(map(NodeId, NODES))))
    assert outcome.code == "command_skipped"
    for name in world.names:
        world.kill(name)

    assert await order(world, "n1", "n2", "n3") == ["catalog"]


async def test_a_catalog_of_a_newer_release_is_refused(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world().born()
    for name in world.names:
        world.kill(name)
    monkeypatch.setattr(CatalogMachine, "newest", 0)

    with pytest.raises(LogError, match="catalog cannot be read"):
        await order(world, "n1", "n2", "n3")


def test_a_node_that_a_group_is_on_its_way_to_has_no_copy_of_it() -> None:
    """Also in its first move, when nobody has said yet who has a copy."""
    members, founders = map(NodeId, ("n2", "n3", "n4")), map(NodeId, NODES)
    info = GroupInfo(GroupId(5), "g", (*members,), default=True, founders=(*founders,))
    for node, has in (("n3", True), ("n4", False)):
        log: Any = SimpleNamespace(
            journals={}, wal=SimpleNamespace(identity=LogIdentity(node, "t"))
        )
        assert has_copy(log, info.id, info) is has


def _held_by(world: World, at: str, group: GroupId) -> set[NodeId]:
    info = world[at].catalog_machine.group(group)
    return set() if info is None else {*info.held}


async def test_a_group_whose_copies_were_lost_in_two_recoveries_is_named_by_the_second(
    make_world: MakeWorld,
) -> None:
    world = await make_world(5, default_groups=1).born()
    await world.declare("q")
    (info,) = world.any.catalog_machine.groups()
    first, second, last = sorted(info.homes)
    other, survivor = sorted(set(world.names) - info.homes)
    await world.until(lambda: all(world[name].queue_info("/", "q") for name in world.names))
    for name in world.names:
        world.kill(name)
    gone = [first, second, other]
    assert await named_without_copy(world, survivor, *gone) == []
    await order(world, last, *gone)
    await order(world, survivor, *gone)
    await world.start(last, survivor)
    await world.until(lambda: world.leading() is not None)
    await world.until(lambda: world.leading(info.id) == last)
    await asyncio.sleep(10)
    world.kill(last)
    world.kill(survivor)
    found = await named_without_copy(world, survivor, last)
    assert [each.name for each in found] == ["default-1"]
    assert await order(world, survivor, last) == ["catalog"]
    await world.start(survivor)
    await world.until(lambda: world.leading() is not None)
    outcome = await world[survivor].ask(info.id, Barrier())
    assert "has no copy left" in (outcome.reason or "")


async def _back_without_the_copies_of_a_group(make_world: MakeWorld) -> tuple[World, list[str]]:
    """Of five nodes those three are let in again, with empty folders, that had a group."""
    world = await make_world(5, default_groups=1).born()
    await world.declare("q")
    (info,) = world.any.catalog_machine.groups()
    lost = sorted(info.homes)
    survivors = [name for name in world.names if name not in lost]
    await world.until(lambda: all(world[name].queue_info("/", "q") for name in survivors))
    for name in world.names:
        world.kill(name)
    for name in survivors:
        await order(world, name, *lost)
    await world.start(*survivors)
    await world.until(lambda: world.leading() is not None)
    for name in lost:
        await world.start_empty(name)
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {*world.names}, 60)
    return world, [*lost]


def _registered(world: World, at: str, name: str) -> bool:
    known = world[at].catalog_machine.node(NodeId(name))
    return known is not None and known.incarnation == world.links[name].incarnation


async def test_lost_nodes_that_are_back_with_empty_folders_register_though_a_group_has_no_copy(
    make_world: MakeWorld,
) -> None:
    world, lost = await _back_without_the_copies_of_a_group(make_world)
    await world.until(lambda: all(_registered(world, world.leading() or "", n) for n in lost), 60)
    group = world.group_of("q")
    for _ in range(2):
        # There it is as before: what was promised to nobody in particular is promised still.
        await asyncio.sleep(10)
        assert world.leading(group) is None
        assert all(world[name].groups[group].votes_suspended for name in lost)
        for name in lost:
            world.kill(name)
        await world.start(*lost)
        await world.until(lambda: world.leading() is not None)


async def test_new_groups_on_nodes_that_are_back_after_a_recovery_get_leaders(
    make_world: MakeWorld,
) -> None:
    """What `quorate node recover` says to do next of a group without a copy."""
    world, lost = await _back_without_the_copies_of_a_group(make_world)
    survivor = next(name for name in world.names if name not in lost)
    await world.until(lambda: all(_registered(world, survivor, name) for name in lost), 60)
    for number in range(4):
        arguments = {"x-queue-group": f"new{number}"}
        outcome = await world[survivor].declare_queue("/", f"p{number}", arguments)
        assert outcome.kind == "ok", (number, outcome)
    new = [info for info in world[survivor].catalog_machine.groups() if info.name != "default-1"]
    assert any(len(info.homes & {*lost}) == 2 for info in new), "else it would show nothing"


@pytest.mark.parametrize(("count", "lost"), [(5, ["n3", "n4", "n5"]), (3, ["n2", "n3"])])
async def test_a_group_that_is_created_while_most_nodes_are_not_registered_has_a_leader(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, count: int, lost: list[str]
) -> None:
    """Such a node may be back with an empty folder, and withhold its votes in all that it learns
    of until it is registered. Two of three would keep a new group without a leader for ever.
    """
    world = await make_world(count, default_groups=1).born()
    survivors = [name for name in world.names if name not in lost]
    for name in world.names:
        world.kill(name)
    for name in survivors:
        await order(world, name, *lost)
    await world.start(*survivors)
    await world.until(lambda: world.leading() is not None)
    barrier, may_register = QueueNames.barrier, asyncio.Event()

    async def late(names: QueueNames) -> bool:
        if names not in [world[name].names for name in survivors]:
            await may_register.wait()
        return await barrier(names)

    monkeypatch.setattr(QueueNames, "barrier", late)
    for name in lost:
        await world.start_empty(name)
    node = world["n1"]
    await world.until(lambda: {*node.homes()} == {*world.names}, 60)
    outcome = await node.declare_queue("/", "q", {"x-queue-group": "new"})
    if len(survivors) == 1:  # one copy would be none too many: nobody would ever add another
        assert outcome.kind == "refused", outcome
        assert not await node.names.may_make_groups()
        may_register.set()
        assert await node.names.may_make_groups()
        outcome = await node.declare_queue("/", "q", {"x-queue-group": "new"})
    assert outcome.kind == "ok", outcome
    info = node.catalog_machine.group(world.group_of("q"))
    assert info is not None
    assert len(info.homes) == 3
    if not may_register.is_set():
        assert len(info.homes & {*lost}) == 1, "they are no majority"
    may_register.set()
    await world.until(lambda: all(_registered(world, "n1", name) for name in lost))


async def test_a_queue_that_is_there_is_declared_again_at_once_while_nobody_may_be_given_groups(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dedicated = {"x-queue-group": "dedicated"}
    assert (await world["n1"].declare_queue("/", "q", dedicated)).kind == "ok"
    monkeypatch.setattr(world["n1"].names, "_unsettled", lambda: {*world["n1"].homes()})
    before = world.loop.time()
    assert (await world["n1"].declare_queue("/", "q", dedicated)).kind == "ok"
    assert world.loop.time() - before < 1


async def test_a_new_group_waits_for_nodes_that_register_soon_and_has_all_its_copies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier, may_register = QueueNames.barrier, asyncio.Event()

    async def late(names: QueueNames) -> bool:
        if names is not world["n1"].names:
            await may_register.wait()
        return await barrier(names)

    monkeypatch.setattr(QueueNames, "barrier", late)
    for name in ("n2", "n3"):
        world.kill(name)
        await world.start(name)
    seen = world["n1"].peers.states
    for name in ("n2", "n3"):
        await world.until(lambda n=name: seen[NodeId(n)].incarnation == world.links[n].incarnation)
    arguments = {"x-queue-group": "new"}
    declaring = asyncio.create_task(world["n1"].declare_queue("/", "q", arguments))
    await asyncio.sleep(5)
    assert not declaring.done()
    may_register.set()
    assert (await declaring).kind == "ok"
    info = world["n1"].catalog_machine.group(world.group_of("q"))
    assert info is not None
    assert info.homes == {"n1", "n2", "n3"}


async def test_the_only_survivor_goes_on_with_what_it_has(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=2).born()
    await world.declare("q")
    stream = await world.declare("s", queue_type="stream", stream={"subjects": ["s"]})
    await world.until(lambda: len(world["n2"].queues()) == 2)
    for number in range(20):
        await world.publish("q", b"%d" % number)
    await world.until(lambda: all(world.ready("q", name) == 20 for name in NODES))
    group = world.group_of("q")
    for name in NODES:
        world.kill(name)
    needy = await order(world, "n2", "n1", "n3")
    assert sorted(needy) == ["catalog", "default-1", "default-2"]

    await world.start("n2")
    await world.until(lambda: world.leading(group) == "n2")
    assert world.ready("q", "n2") == 20
    await world.publish("q", b"more")
    machine: Any = world["n2"].groups[world.group_of("s")].machine
    skipped = numbers_skipped(first_term_of(1))
    await world.until(lambda: machine.stream(stream).retained.next > skipped)

    # The others come back with empty disks, and are members again by themselves.
    for name in ("n1", "n3"):
        await world.start_empty(name)
    await world.until(lambda: world.ready("q", "n1") == 21 and world.ready("q", "n3") == 21)
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2", "n3"}, 60)
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n1", "n2", "n3"}, 60)


async def test_streams_that_are_new_after_it_begin_at_1_whoever_makes_them_first(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(default_groups=1).born()
    old = await world.declare("old", queue_type="stream", stream={"subjects": ["old"]})
    await world.until(lambda: world["n2"].queue_info("/", "old") is not None)
    for name in NODES:
        world.kill(name)
    await order(world, "n2", "n1", "n3")
    await world.start("n2")
    await world.until(lambda: bool(world.leading() and world.leading(world.group_of("old"))))

    def begins(queue: QueueId) -> int | None:
        machine: Any = world["n2"].groups[world.group_of("old")].machine
        found = machine.find(queue)
        return None if found is None else found.retained.next

    def declaring(name: str) -> DeclareQueue:
        stream = {"x-queue-type": "stream", "x-stream": {"subjects": [name]}}
        return DeclareQueue("/", name, stream)

    steps = [declaring(name) for name in ("old", "imported")]
    assert (await world["n2"].names.change_all(steps)).kind == "ok"
    imported = world["n2"].queue_info("/", "imported")
    assert imported is not None

    at_once = QueueNames._ask_home  # pyright: ignore[reportPrivateUsage]

    async def late(self: QueueNames, info: Any, command: Any) -> Any:
        await world.until(lambda: begins(info.queue) is not None)
        return await at_once(self, info, command)

    monkeypatch.setattr(QueueNames, "_ask_home", late)
    declared = await world.declare("s", queue_type="stream", stream={"subjects": ["s"]})

    assert [begins(each) for each in (imported.queue, declared)] == [1, 1]
    assert (begins(old) or 0) > numbers_skipped(first_term_of(1))


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_node_that_was_let_in_again_lets_in_the_next_as_the_leader(
    make_world: MakeWorld, restarted: bool
) -> None:
    """What the next one gets first, a snapshot, still says that its leader is lost."""

    world = await make_world(default_groups=1).born()
    await world.declare("q")
    await world.publish("q", b"1")
    group = world.group_of("q")
    for name in NODES:
        world.kill(name)
    await order(world, "n2", "n1", "n3")
    await world.start("n2")
    await world.until(lambda: world.leading(group) == "n2")
    for each in world["n2"].groups.values():
        each.take_snapshot()
    await world.start_empty("n1")
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2"})
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n1", "n2"})
    if restarted:
        world.kill("n1")
        await world.start("n1")
    for each in (CATALOG_GROUP, group):
        await world.until(lambda: world.ready("q", "n1") == 1)
        world["n2"].groups[each].transfer(NodeId("n1"))
        await world.until(lambda each=each: world.leading(each) == "n1")
    await world.start_empty("n3")
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == set(NODES))
    await world.until(lambda: set(voters(world, group)) == set(NODES))
    assert world.leading(CATALOG_GROUP) == world.leading(group) == "n1"


async def test_of_two_survivors_the_one_that_has_more_leads(make_world: MakeWorld) -> None:
    world = make_world(5, default_groups=1, replication=5)
    await world.born()
    await world.declare("q")
    await world.publish("q", b"1")
    group = world.group_of("q")
    await world.until(lambda: all(world.ready("q", name) == 1 for name in world.names))
    behind = next(name for name in world.names if name != world.leading(group))
    world.kill(behind)
    ahead = next(n for n in world.names if n not in (behind, world.leading(group)))
    for number in range(5):
        await world.publish("q", b"%d" % number)
    await world.until(lambda: world.ready("q", ahead) == 6)
    for name in list(world.nodes):
        world.kill(name)
    lost = [name for name in world.names if name not in (ahead, behind)]
    for name in (ahead, behind):
        await order(world, name, *lost)

    await world.start(ahead, behind)
    await world.until(lambda: world.leading(group) is not None)
    await world.until(lambda: world.ready("q", behind) == 6)
    for name in lost:
        await changed(world, RemoveNode(NodeId(name)))
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {ahead, behind}, 60)
    await world.until(lambda: set(voters(world, group)) == {ahead, behind}, 60)
    await world.publish("q", b"more")


async def _lagging_by_rank(make_world: MakeWorld, count: int, behind_first: Sequence[str]) -> World:
    """Of `count` nodes these are cut off one after the other, while catalog and queues go on with
    the rest, which is killed in the end; so each has more than those before it, and knows that it
    was committed.
    """
    world = make_world(count, default_groups=2, replication=count)
    await world.born()
    for name in ("q", "p"):
        await world.declare(name)
    lost = [name for name in world.names if name not in behind_first]
    groups = [group for group in world.any.groups if world.any.groups[group].name != ""]
    for group in groups:
        while world.leading(group) not in lost:
            world.group(group).transfer(NodeId(lost[0]))
            await asyncio.sleep(0.2)
    for number, name in enumerate(behind_first):
        for queue in ("q", "p"):
            await world.publish(queue, *[b"%d" % each for each in range(3)])
        await world.declare(f"extra-{number}")
        last = {group: world.group(group).commit_index for group in groups}
        await world.until(
            lambda name=name, last=last: all(
                world[name].groups[group].applied_index >= index for group, index in last.items()
            )
        )
        for links in world.links.values():
            links.drop = _cut_off(behind_first[: number + 1])
    for name in list(world.nodes):
        world.kill(name)
    return world


def _cut_off(names: Sequence[str]) -> Callable[[str, list[Any]], bool]:
    return lambda peer, message: peer in names and message[0] >= 0


@pytest.mark.parametrize(
    ("count", "behind_first"),
    [
        *((5, order) for order in itertools.permutations(("n2", "n4"))),
        *((7, order) for order in itertools.permutations(("n2", "n4", "n7"))),
    ],
)
async def test_whatever_order_the_survivors_are_behind_in_nothing_is_lost_that_one_of_them_knows(
    make_world: MakeWorld, count: int, behind_first: Sequence[str]
) -> None:
    world = await _lagging_by_rank(make_world, count, behind_first)
    lost = [name for name in world.names if name not in behind_first]
    for name in behind_first:
        await order(world, name, *lost)
    await world.start(*behind_first)
    ahead = behind_first[-1]
    groups = list(world[ahead].groups)
    await world.until(lambda: all(world.leading(group) is not None for group in groups))
    messages = 3 * len(behind_first)
    for name in behind_first:
        for queue in ("q", "p"):
            await world.until(lambda q=queue, n=name: world.ready(q, n) == messages)
        for number in range(len(behind_first)):
            await world.until(
                lambda n=name, x=number: world[n].queue_info("/", f"extra-{x}") is not None
            )
        for group in world[name].groups.values():
            assert group.failed is None, (name, group.name, group.failed)
    for name in lost:
        await changed(world, RemoveNode(NodeId(name)))
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == set(behind_first), 60)
    await world.publish("q", b"more")
    await world.until(lambda: all(world.ready("q", n) == messages + 1 for n in behind_first))


async def test_lost_nodes_that_come_back_on_their_old_folders_are_not_listened_to_and_stop(
    make_world: MakeWorld,
) -> None:
    world = await _lagging_by_rank(make_world, 5, ("n4", "n2"))
    await world.start("n1", "n3", "n5")  # they confirm something more, under later terms
    await world.until(lambda: world.leading(GroupId(1)) is not None)
    await world.publish("q", b"lost")
    for name in ("n1", "n3", "n5"):
        world.kill(name)
    for name in ("n4", "n2"):
        await order(world, name, "n1", "n3", "n5")
    await world.start("n4", "n2")
    await world.until(lambda: world.ready("q", "n4") == 6 and world.ready("q", "n2") == 6)
    groups = list(world["n2"].groups)
    # While they hear only each other they cannot know it.
    for name in ("n1", "n3", "n5"):
        world.cut |= {frozenset((name, survivor)) for survivor in ("n2", "n4")}
    await world.start("n1", "n3", "n5")
    await asyncio.sleep(3)
    assert {world["n1"].leader_of(group) for group in groups} <= {"n1", "n3", "n5"}
    world.heal()
    await world.until(lambda: all(world[n].failed is not None for n in ("n1", "n3", "n5")))
    assert "declared lost" in str(world["n1"].failed)
    assert "empty one" in str(world["n1"].failed)
    await asyncio.sleep(3)
    for name in ("n2", "n4"):
        assert world.ready("q", name) == 6
        for group in world[name].groups.values():
            assert group.failed is None, group.failed
            assert set(group.configuration.voters) == {"n2", "n4"}
    # With empty folders they are members again by themselves.
    for name in ("n1", "n3", "n5"):
        world.kill(name)
        await world.start_empty(name)
    await world.until(lambda: all(set(voters(world, g)) == set(world.names) for g in groups), 60)
    assert world.group(groups[0]).configuration.lost == ()
    await world.publish("q", b"more")
    await world.until(lambda: all(world.ready("q", name) == 7 for name in world.names))


async def test_what_no_majority_ever_had_gives_way_to_what_a_later_leader_wrote(
    make_world: MakeWorld,
) -> None:
    world = make_world(5, default_groups=1, replication=5)
    await world.born()
    await world.declare("q")
    group = world.group_of("q")
    while world.leading(group) != "n5":
        world.group(group).transfer(NodeId("n5"))
        await asyncio.sleep(0.2)
    queue = world.any.queue_info("/", "q")
    assert queue is not None
    world.isolate("n5")
    for number in range(10):
        world["n5"].groups[group].propose(enqueue(queue.queue, b"%d" % number))
        await asyncio.sleep(0.02)
    others = ("n1", "n2", "n3", "n4")
    await world.until(lambda: any(world[n].groups[group].ready for n in others))
    leader = next(world[n] for n in others if world[n].groups[group].ready)
    for _ in range(2):
        assert (await leader.ask(group, enqueue(queue.queue, b"later"))).kind == "ok"
    await world.until(lambda: world.ready("q", "n4") == 2)
    assert world["n5"].groups[group].last_index > world["n4"].groups[group].last_index
    for name in list(world.nodes):
        world.kill(name)
    world.cut.clear()
    for name in ("n4", "n5"):
        await order(world, name, "n1", "n2", "n3")
    await world.start("n4", "n5")
    await world.until(lambda: world.ready("q", "n4") == 2 and world.ready("q", "n5") == 2)
    await world.until(lambda: not world["n5"].groups[group].journal.forced)
    assert world["n5"].groups[group].configuration.voters == ("n4", "n5")


async def test_a_survivor_that_was_not_told_yet_votes_and_follows(make_world: MakeWorld) -> None:
    world = await _lagging_by_rank(make_world, 7, ("n7", "n2", "n4"))
    lost = ("n1", "n3", "n5", "n6")
    for name in ("n2", "n4"):
        await order(world, name, *lost)
    await world.start("n2", "n4")
    await asyncio.sleep(5)
    assert world.leading() is None, "not all survivors were heard"
    await world.start("n7")
    await world.until(lambda: all(world.ready("q", name) == 9 for name in ("n2", "n4", "n7")))
    for name in ("n2", "n4", "n7"):
        assert all(group.failed is None for group in world[name].groups.values())
        groups = list(world[name].groups.values())
        await world.until(lambda g=groups: not any(group.journal.forced for group in g))


async def test_a_survivor_that_is_ahead_and_was_not_told_is_waited_for(
    make_world: MakeWorld,
) -> None:
    world = await _lagging_by_rank(make_world, 7, ("n7", "n2", "n4"))
    lost = ("n1", "n3", "n5", "n6")
    for name in ("n2", "n7"):
        await order(world, name, *lost)
    await world.start("n2", "n4", "n7")
    await asyncio.sleep(10)
    assert world.leading() is None
    world.kill("n4")
    await order(world, "n4", *lost)
    await world.start("n4")
    await world.until(lambda: all(world.ready("q", name) == 9 for name in ("n2", "n4", "n7")))


async def _joined_by_a_fourth(make_world: MakeWorld) -> tuple[World, GroupId]:
    """n1 leads the group of queue q, which n4 does not hold."""
    world = make_world(3, default_groups=1)
    await world.born()
    await world.declare("q")
    group = world.group_of("q")
    await join(world, "n4")
    while world.leading(group) != "n1":
        world.group(group).transfer(NodeId("n1"))
        await asyncio.sleep(0.2)
    return world, group


async def test_a_learner_that_has_more_than_the_voters_that_survive_leads_them(
    make_world: MakeWorld,
) -> None:
    world, group = await _joined_by_a_fourth(make_world)
    # It receives entries, and is not heard when it acknowledges them, so it stays a learner.
    world.links["n4"].drop = lambda _, message: message[:2] == [group, "ao"]
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n3", "n4")]))
    await world.until(lambda: "n4" in world.group(group).configuration.learners)
    await world.publish("q", b"1")
    await world.until(lambda: world.ready("q", "n3") == 1)
    assert world["n3"].groups[group].configuration.learners == ("n4",)
    world.links["n1"].drop = lambda peer, message: peer == "n3" and message[0] == group
    for _ in range(3):
        await world.publish("q", b"more")
    await world.until(lambda: world.ready("q", "n4") == 4)
    assert world.ready("q", "n3") == 1
    for name in list(world.nodes):
        world.kill(name)
    for name in ("n3", "n4"):
        assert "default-1" in await order(world, name, "n1", "n2")

    await world.start("n3", "n4")
    await world.until(lambda: world.ready("q", "n3") == 4 and world.ready("q", "n4") == 4)
    assert set(voters(world, group)) == {"n3", "n4"}


async def test_a_copy_that_was_not_told_that_it_is_one_brings_nothing_and_can_be_made_anew(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "APPEND_BYTES_MAX", 1)
    world, group = await _joined_by_a_fourth(make_world)
    await world.publish("q", b"1")
    await world.until(lambda: world.ready("q", "n3") == 1)

    def drop(peer: str, message: list[Any]) -> bool:
        """n3 stays behind; n4 gets all but what says that it is a member."""
        if message[0] != group or peer == "n2":
            return False
        entries = message[6] if message[1] == "ae" else ()
        told = any(bytes(command)[:1] == MEMBERSHIP for command, _ in entries or ())
        return peer == "n3" or told

    world.links["n1"].drop = drop
    for _ in range(5):
        await world.publish("q", b"more")
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n3", "n4")]))
    await world.until(lambda: group in world["n4"].groups and world.ready("q", "n4") == 6)
    assert "n4" in world.group(group).configuration.learners
    for name in list(world.nodes):
        world.kill(name)
    assert await order(world, "n3", "n1", "n2") == ["catalog", "default-1"]
    assert await order(world, "n4", "n1", "n2") == ["catalog"]

    await world.start("n3", "n4")
    await world.until(lambda: world.leading(group) == "n3")
    assert world.ready("q", "n3") == 1
    await world.until(lambda: world["n4"].groups[group].failed is not None)
    # As `quorate group rebuild` does it.
    await changed(world, MoveGroup(group, [NodeId("n3")]))
    await world.until(lambda: group not in world["n4"].groups)
    await changed(world, MoveGroup(group, [NodeId("n3"), NodeId("n4")]))
    await world.publish("q", b"new")
    await world.until(lambda: group in world["n4"].groups and world.ready("q", "n4") == 2)
    await world.until(lambda: set(voters(world, group)) == {"n3", "n4"}, 60)


@pytest.mark.parametrize("received", ["nothing", "all but that it is a learner"])
async def test_a_learner_that_was_not_told_yet_is_not_waited_for_and_is_made_a_voter_later(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, received: str
) -> None:
    """Its own log does not count, so nobody can give it the order; the voters' logs name it."""
    monkeypatch.setattr(replication, "APPEND_BYTES_MAX", 1)
    world, group = await _joined_by_a_fourth(make_world)
    await world.publish("q", b"1")
    await world.until(lambda: world.ready("q", "n3") == 1)

    def drop(peer: str, message: list[Any]) -> bool:
        if message[0] != group or peer != "n4":
            return False
        entries = message[6] if message[1] == "ae" else ()
        told = any(bytes(command)[:1] == MEMBERSHIP for command, _ in entries or ())
        return told or (received == "nothing" and message[1] in ("ae", "si"))

    world.links["n1"].drop = drop
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n3", "n4")]))
    await world.until(lambda: "n4" in world["n3"].groups[group].configuration.learners)
    await world.until(lambda: group in world["n4"].groups)
    if received != "nothing":
        await world.until(lambda: world.ready("q", "n4") == 1)
    for name in list(world.nodes):
        world.kill(name)
    assert await order(world, "n3", "n1", "n2") == ["catalog", "default-1"]
    assert await order(world, "n4", "n1", "n2") == ["catalog"]

    await world.start("n3", "n4")
    await world.until(lambda: world.leading(group) == "n3")
    assert world.ready("q", "n3") == 1
    await world.publish("q", b"2")
    await world.until(lambda: world.ready("q", "n4") == 2)
    await world.until(lambda: set(voters(world, group)) == {"n3", "n4"}, 60)


async def _catalog_without_its_end(
    make_world: MakeWorld, **arguments: Any
) -> tuple[World, QueueId]:
    """n2 is left of three: its group has queue `lost` and a message, its catalog has not."""
    world = await make_world(default_groups=1).born()
    await world.declare("q", **arguments)
    await world.until(lambda: world["n2"].queue_info("/", "q") is not None)
    group = world.group_of("q")
    if arguments:
        assert (await world["n2"].remove_queue("/", "q")).kind == "ok"
    for links in world.links.values():
        links.drop = lambda peer, message: peer == "n2" and message[0] == CATALOG_GROUP
    lost = await world.declare("lost", at="n1", **arguments)
    assert world.group_of("lost") == group
    await world.publish("lost", b"of one that is lost")
    await world.until(lambda: _held(world, lost) is not None)
    for name in NODES:
        world.kill(name)
    await order(world, "n2", "n1", "n3")
    await world.start("n2")
    await world.until(lambda: world.leading() and world.leading(group))
    assert world["n2"].queue_info("/", "lost") is None
    return world, lost


def _held(world: World, queue: QueueId) -> Any:
    machines: list[Any] = [group.machine for group in world["n2"].groups.values()]
    found = [m.queue(queue) for m in machines if isinstance(m, QueueMachine)]
    return next((view for view in found if view is not None), None)


async def test_the_number_of_a_queue_that_the_catalog_lost_is_not_given_again(
    make_world: MakeWorld,
) -> None:
    """Neither would it show in that queue, nor go with it."""
    world, lost = await _catalog_without_its_end(make_world)
    for name in ("new", "newer"):
        assert await world.declare(name) > lost
        assert world.ready(name, "n2") == 0
        await world.publish(name, b"1")
    await asyncio.sleep(5)
    assert [world.ready(name, "n2") for name in ("new", "newer")] == [1, 1]
    assert _held(world, lost).ready_count == 1


async def test_a_queue_that_the_catalog_lost_is_there_again_when_it_is_declared(
    make_world: MakeWorld,
) -> None:
    world, lost = await _catalog_without_its_end(make_world)
    await world.declare("new")
    assert await world.declare("lost") == lost
    assert world.ready("lost", "n2") == 1
    await world.publish("lost", b"2")
    await asyncio.sleep(5)
    assert world.ready("lost", "n2") == 2

    # Deleted and declared once more it is another one.
    assert (await world["n2"].remove_queue("/", "lost")).kind == "ok"
    assert await world.declare("lost") > lost
    await asyncio.sleep(5)
    assert world.ready("lost", "n2") == 0
    assert _held(world, lost) is None


async def test_a_dedicated_queue_that_the_catalog_lost_is_there_again_when_it_is_declared(
    make_world: MakeWorld,
) -> None:
    """The catalog knows its group, which another queue had before."""
    world, lost = await _catalog_without_its_end(make_world, queue_group="dedicated")
    assert await world.declare("lost", queue_group="dedicated") == lost
    assert world.ready("lost", "n2") == 1


async def test_a_queue_that_the_catalog_lost_does_not_come_back_as_one_of_another_kind(
    make_world: MakeWorld,
) -> None:
    world, lost = await _catalog_without_its_end(make_world)
    await world.declare("new")
    assert await world.declare("lost", single_active_consumer=True) > lost
    await asyncio.sleep(5)
    assert world.ready("lost", "n2") == 0
    assert _held(world, lost).ready_count == 1


STAGES = {
    "it is wanted": 0,
    "the new one learns": 1,
    "the new one votes": 2,
    "the old one is out, and was not told": 3,
    "the old one is out, and its catalog does not know": 3,
}


def _nothing(*_: object) -> None:
    """In the place of what would happen in a moment."""


async def _moving(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: str
) -> tuple[World, GroupId]:
    """A group on its way from n3 to n4, stopped there. All have message 1; n3, once it is out, has
    neither 2 nor heard from the others that it is; its catalog says so, or does not know.
    """
    unaware = "n3" if "catalog" in stage else ""
    world, group = await _joined_by_a_fourth(make_world)
    await world.publish("q", b"1")
    made: list[object] = []

    def of_group_to_n3(peer: str, message: list[Any]) -> bool:
        return peer == "n3" and (message[0] == group or (unaware != "" and message[0] == 0))

    def some(*args: Any, **named: Any) -> Any:
        step = next_step(*args, **named) if len(made) < STAGES[stage] else None
        if step is not None:
            made.append(step)
            if len(made) == 3:
                for links in world.links.values():
                    links.drop = of_group_to_n3
        return step

    with monkeypatch.context() as patched:
        patched.setattr(moving, "next_step", some)
        patched.setattr(moving.Moving, "_retire", _nothing)
        await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n4")]))
        await world.until(lambda: len(made) == STAGES[stage])
        having = {"n1", "n2", "n3", "n4"} if made else {"n1", "n2", "n3"}
        having -= {"n3"} if len(made) == 3 else set()
        await world.until(
            lambda: all(_held_by(world, n, group) == having for n in world.names if n != unaware)
        )
        await world.until(lambda: all(world.ready("q", name) == 1 for name in having))
        await world.publish("q", b"2")
        await world.until(lambda: all(world.ready("q", name) == 2 for name in having))
        for name in list(world.nodes):
            world.kill(name)
    return world, group


@pytest.mark.parametrize("survivors", [["n3"], ["n4"], ["n3", "n4"]], ids=" ".join)
@pytest.mark.parametrize("stage", STAGES)
async def test_at_every_stage_of_a_move_what_the_best_survivor_has_is_served(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, stage: str, survivors: list[str]
) -> None:
    world, group = await _moving(make_world, monkeypatch, stage)
    lost = [name for name in world.names if name not in survivors]
    ready = {"n3": 1 if STAGES[stage] == 3 else 2, "n4": 2 if STAGES[stage] else 0}
    best = max(ready[name] for name in survivors)
    for name in survivors:
        named = [each.name for each in await named_without_copy(world, name, *lost)]
        assert named == ([] if best else ["default-1"])
        await order(world, name, *lost)
    await world.start(*survivors)
    if not best:
        await world.until(lambda: world.leading() is not None)
        assert world.leading(group) is None
        return
    await world.until(lambda: world.leading(group) is not None)
    assert world.ready("q", world.leading(group) or "") == best
    if survivors == ["n3"]:
        await world.until(lambda: _held_by(world, "n3", group) == {"n3"})
    before = {*voters(world, group)}
    for name in lost:
        await world.start_empty(name)
        if name == "n1":
            await world.until(lambda: "n1" in voters(world, group), 60)
            await asyncio.sleep(5)
            assert {*voters(world, group)} > before, "nobody goes before the others are back"
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2", "n4"}, 60)
    await world.until(lambda: holders(world, group) == {"n1", "n2", "n4"}, 60)
    await world.until(lambda: all(world.ready("q", n) == best for n in ("n1", "n2", "n4")))
    await world.until(lambda: _held_by(world, "n1", group) == {"n1", "n2", "n4"})


def test_nobody_goes_while_a_new_member_must_not_come_yet() -> None:
    """There might be one copy then: that of the first who came."""
    a, b, c = map(NodeId, "abc")
    grown = Configuration((a, b))

    def step(*refused: NodeId) -> object:
        seen = {"ready": (b, c), "up": (b, c)}
        return next_step(grown, (b, c), leader=b, refused=refused, **seen)

    assert step(c) is None
    assert step() == grown.with_learner(c)


async def _ordered_to_go_on_without_those_who_hold_it(
    make_world: MakeWorld,
) -> tuple[World, GroupId]:
    """n3, which was away while n4 and n5 were let in."""
    world, group = await _joined_by_a_fourth(make_world)
    await join(world, "n5")
    await world.publish("q", b"1")
    await world.until(lambda: world.ready("q", "n3") == 1)
    world.kill("n3")
    await moved(world, group, "n1", "n4", "n5")
    await world.publish("q", b"2")
    assert await order(world, "n3", "n1", "n2") == ["default-1"]
    return world, group


async def test_a_copy_that_is_told_to_go_on_though_others_hold_the_group_is_let_go(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node was away, and its catalog does not know them. What they have is the truth."""
    world, group = await _ordered_to_go_on_without_those_who_hold_it(make_world)
    await world.start("n3")
    await world.until(lambda: group not in world["n3"].groups)
    await asyncio.sleep(5)
    assert set(voters(world, group)) == {"n1", "n4", "n5"}
    assert _held_by(world, "n3", group) == {"n1", "n4", "n5"}
    await world.publish("q", b"3")
    assert world.ready("q", world.leading(group) or "") == 3


async def test_a_node_that_was_away_neither_stops_those_who_hold_a_group_nor_serves_it_itself(
    make_world: MakeWorld,
) -> None:
    """The same, and the catalog's entries are a long time coming."""
    world, group = await _ordered_to_go_on_without_those_who_hold_it(make_world)
    for links in world.links.values():
        links.drop = lambda peer, message: peer == "n3" and message[0] == CATALOG_GROUP
    await world.start("n3")
    await asyncio.sleep(20)
    assert all(node.failed is None for node in world.nodes.values())
    info = world["n3"].queue_info("/", "q")
    assert info is not None
    outcome = await world["n3"].ask(group, enqueue(info.queue, b"3"))
    assert outcome.kind == "ok", "by those who hold it"
    for links in world.links.values():
        links.drop = lambda peer, message: False
    await world.until(lambda: group not in world["n3"].groups)
    await asyncio.sleep(5)
    assert all(node.failed is None for node in world.nodes.values())
    assert set(voters(world, group)) == {"n1", "n4", "n5"}
    assert world.ready("q", world.leading(group) or "") == 3


@pytest.mark.parametrize("recorded", [False, True], ids=["as it goes on", "later"])
async def test_a_folder_of_before_stops_when_the_catalog_says_that_its_group_went_on(
    make_world: MakeWorld, recorded: bool
) -> None:
    """As an up-to-date catalog has it, or any that knows of the recovery."""
    world, group = await _joined_by_a_fourth(make_world)
    await join(world, "n5")
    await world.publish("q", b"1")
    await world.until(lambda: world.ready("q", "n3") == 1)
    for name in NODES:
        world.kill(name)
    assert await order(world, "n3", "n1", "n2") == ["default-1"]
    await world.start("n3")
    if recorded:
        await world.until(lambda: _held_by(world, "n3", group) == {"n3"})
        for links in world.links.values():
            links.drop = lambda peer, message: peer == "n3" and message[0] == CATALOG_GROUP
    await world.start("n1")
    await world.until(lambda: world["n1"].failed is not None)
    assert isinstance(world["n1"].failed, GivenUp)


async def test_a_survivor_may_be_lost_as_well_before_the_others_have_a_leader(
    make_world: MakeWorld,
) -> None:
    world = await _lagging_by_rank(make_world, 7, ("n7", "n4", "n2"))
    lost = ("n1", "n3", "n5", "n6")
    for name in ("n2", "n4", "n7"):
        await order(world, name, *lost)
    await world.start("n7", "n4")
    await asyncio.sleep(5)
    assert world.leading() is None
    for name in ("n4", "n7"):
        world.kill(name)
        assert "catalog" in await order(world, name, "n2", *lost)
        assert await order(world, name, "n2", *lost) == []
    await world.start("n4", "n7")
    await world.until(lambda: all(world.ready("q", name) == 6 for name in ("n4", "n7")))
    assert set(world.group(CATALOG_GROUP).configuration.lost) == {"n2", *lost}
    await world.start("n2")
    await world.until(lambda: world["n2"].failed is not None)


async def test_survivors_that_were_told_different_nodes_never_lead_both(
    make_world: MakeWorld,
) -> None:
    world = await _lagging_by_rank(make_world, 5, ("n2", "n4"))
    await order(world, "n2", "n1", "n3", "n5")
    await order(world, "n4", "n1", "n2", "n3", "n5")
    await world.start("n2", "n4")
    await world.until(lambda: world.leading() == "n4")
    await world.until(lambda: world["n2"].failed is not None)
    await world.until(lambda: world.ready("q", "n4") == 6)


async def test_what_was_ordered_outlives_restarts_and_ends_with_the_first_leader(
    make_world: MakeWorld,
) -> None:
    world = await _lagging_by_rank(make_world, 5, ("n4", "n2"))
    for name in ("n2", "n4"):
        await order(world, name, "n1", "n3", "n5")
    for _ in range(3):
        await world.start("n2")
        await asyncio.sleep(3)
        assert world.leading() is None
        assert all(group.journal.forced for group in world["n2"].groups.values())
        world.kill("n2")
    await world.start("n2", "n4")
    await world.until(lambda: world.ready("q", "n4") == 6 and world.ready("q", "n2") == 6)
    groups = list(world["n2"].groups)
    await world.until(
        lambda: all(not world[n].groups[g].journal.forced for n in ("n2", "n4") for g in groups)
    )
    for name in ("n2", "n4"):
        world.kill(name)
    await world.start("n2", "n4")
    await world.until(lambda: world.ready("q", "n4") == 6 and world.ready("q", "n2") == 6)
    for name in ("n2", "n4"):
        for group in world[name].groups.values():
            assert set(group.configuration.voters) == {"n2", "n4"}
            assert set(group.configuration.lost) == {"n1", "n3", "n5"}


async def test_the_lost_may_leave_though_the_survivor_never_heard_who_the_last_members_were(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    for name in ("n4", "n5"):
        await join(world, name)
    group = world.group_of("q")
    await moved(world, group, *world.names)

    def to_survivor(peer: str, message: list[Any]) -> bool:
        return peer == "n5" and message[:2] in ([group, "ae"], [group, "si"])

    for links in world.links.values():
        links.drop = to_survivor
    last = world["n5"].groups[group].last_index
    for _ in range(40):
        await world.publish("q", b"lost")
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n3", "n5")]))
    await world.until(lambda: world["n5"].catalog_machine.group(group).held_at > last)  # type: ignore[union-attr]
    await asyncio.sleep(1)
    for name in list(world.nodes):
        world.kill(name)
    await order(world, "n5", "n1", "n2", "n3", "n4")

    await world.start("n5")
    await world.until(lambda: world.leading(group) == "n5")
    for name in ("n1", "n2", "n3", "n4"):
        await changed(world, RemoveNode(NodeId(name)))
    await asyncio.sleep(10)
    for _ in range(60):
        await world.publish("q", b"more")
    await world.until(
        lambda: [info.node for info in world.any.catalog_machine.nodes()] == ["n5"], 60
    )


async def test_an_order_that_was_torn_while_it_was_written_was_not_given() -> None:
    """What this copy promised is forgotten: it may vote with the survivors, not as before."""
    disk = LogWorld()
    log = await disk.open()
    journal = log.journal(1)
    journal.set_term(3, "n1")
    journal.set_votes_suspended(True)
    log.write()
    await log.sync()
    [name] = disk.files()
    before = len(disk.content(name))
    go_on(journal, [NodeId("n1"), NodeId("n2")], [NodeId("n3")])
    log.write()
    await log.sync()
    whole = bytes(disk.content(name))
    found: set[tuple[bool, bool, int]] = set()
    for end in range(before, len(whole) + 1):
        torn = LogWorld()
        torn.disk = disk.disk.after_crash()
        torn.tear(name, end)
        its = (await torn.open()).journal(1)
        found.add((its.votes_suspended, bool(its.forced), its.current_term))
    assert found == {(True, False, 3), (False, True, first_term_of(1))}
