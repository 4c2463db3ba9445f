"""Nodes end, come back, lose their disk or their links: nothing confirmed is lost."""

# pyright: basic
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Outcome, Role
from cluster.log import FatalDiskError, WrongIdentity
from cluster.log.wal import Wal
from cluster.machine import QueueMachine
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import CreateGroup, NodeDown, NodeUp, OpenSession, Subscribe
from cluster.members.disk_identity import DiskIdentity
from cluster.types import CATALOG_GROUP, GroupId, NodeId, SessionId
from tests.cluster.world import MakeWorld, World, enqueue
from tests.log.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time


async def with_messages(world: World, count: int, name: str = "q") -> None:
    await world.declare(name)
    for n in range(count):
        await world.publish(name, b"%d" % n)


# --- leaders end


@pytest.mark.parametrize("power", [True, False])
async def test_another_node_leads_when_the_leader_ends_and_all_messages_are_there(
    world: World, power: bool
) -> None:
    await with_messages(world, 20)
    group = world.group_of("q")
    leader = world.leading(group) or ""
    began = world.loop.time()
    world.kill(leader, power=power)
    await world.until(lambda: world.leading(group) is not None)
    assert world.loop.time() - began < 0.3  # the link was reset: nobody waits for a timeout
    new = world.leading(group) or ""
    assert world.ready("q", new) == 20
    await world.publish("q", b"more")

    await world.start(leader)
    await world.until(lambda: world.ready("q", leader) == 21)


async def test_a_leader_that_is_cut_off_is_replaced_and_follows_when_it_is_back(
    world: World,
) -> None:
    await with_messages(world, 3)
    group = world.group_of("q")
    old = world.leading(group) or ""
    info = world[old].queue_info("/", "q")
    assert info is not None
    world.isolate(old)
    lost = asyncio.create_task(world[old].ask(group, enqueue(info.queue, b"lost")))
    await world.until(lambda: world[old].groups[group].role is not Role.LEADER)
    await world.until(lambda: world.leading(group) not in (None, old))
    new = world[world.leading(group) or ""]
    assert (await new.ask(group, enqueue(info.queue, b"kept"))).kind == "ok"
    world.heal()
    assert (await lost).kind in ("refused", "unknown")
    await world.until(lambda: world.ready("q", old) == 4)
    await world.settled()


async def test_all_nodes_lose_power_and_serve_again(world: World) -> None:
    await with_messages(world, 10)
    for name in world.names:
        world.kill(name)
    await world.start()
    await world.settled()
    assert all(world.ready("q", name) is not None for name in world.names)
    assert world.ready("q", world.leading(world.group_of("q")) or "") == 10
    await world.declare("q2")


# --- restarts


async def test_a_node_catches_up_from_the_log(world: World) -> None:
    await with_messages(world, 5)
    world.kill("n2")
    for n in range(30):
        await world.publish("q", b"%d" % n)
    await world.declare("later")
    await world.start("n2")
    await world.until(lambda: world.ready("q", "n2") == 35 and world.ready("later", "n2") == 0)


async def test_a_node_that_is_far_behind_catches_up_from_a_snapshot(make_world: MakeWorld) -> None:
    world = await make_world(snapshot_entries=20).born()
    await with_messages(world, 2)
    world.kill("n2")
    for n in range(60):
        await world.publish("q", b"%d" % n)
    group = world.group_of("q")
    await world.until(
        lambda: all(n.groups[group].journal.base_index > 40 for n in world.nodes.values())
    )
    await world.start("n2")
    copy = world["n2"].groups[group].journal if group in world["n2"].groups else None
    assert copy is None or copy.base_index < 30
    await world.until(lambda: world.ready("q", "n2") == 62)
    assert world["n2"].groups[group].journal.base_index > 40
    await world.until(
        lambda: len({n.groups[group].applied_index for n in world.nodes.values()}) == 1
    )
    digests = {n.groups[group].machine.digest() for n in world.nodes.values()}
    assert len(digests) == 1
    # It has the bodies too: it can take over.
    world["n1"].groups[group].transfer(NodeId("n2"))
    for name in ("n1", "n3"):
        if world.leading(group) == name:
            world[name].groups[group].transfer(NodeId("n2"))
    await world.until(lambda: world.leading(group) == "n2")


async def test_a_graceful_stop_hands_over_and_the_gap_is_small(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=6).born()
    await with_messages(world, 3)
    name = world.leading(world.group_of("q")) or ""
    node = world.nodes[name]
    led = [g.id for g in node.groups.values() if g.role is Role.LEADER]
    began = world.loop.time()
    stopping = asyncio.create_task(node.stop())
    others = [n for n in world.names if n != name]
    await world.until(
        lambda: all(any(world[n].groups[g].ready for n in others) for g in led), seconds=5
    )
    assert world.loop.time() - began < 0.2
    await stopping
    assert world.loop.time() - began < 1.0
    del world.nodes[name], world.links[name]
    await world.publish("q", b"after")
    assert world.ready("q", world.leading(world.group_of("q")) or "") == 4


async def test_nobody_hands_leadership_back_to_a_node_that_is_leaving(
    make_world: MakeWorld,
) -> None:
    world = await make_world(balance_after_s=0.5, care_period_s=0.05).born()
    await asyncio.sleep(3)
    assert world.leading(3) == "n1"  # its preferred one
    peers = world["n2"].peers
    world["n1"].stopping = True
    hand_over = asyncio.create_task(world["n1"].liveness.hand_over())
    await world.until(lambda: world.leading(3) in ("n2", "n3"))
    await hand_over
    await asyncio.sleep(2)
    assert peers.stays_for(NodeId("n1"), world.loop.time()) == 0.0
    assert world.leading(3) in ("n2", "n3")


async def test_who_was_handed_a_leadership_keeps_it_for_a_while(make_world: MakeWorld) -> None:
    """The preferred node does not take it back at once: somebody wanted it elsewhere."""
    world = await make_world(balance_after_s=2.0, care_period_s=0.05).born()
    await world.until(lambda: world.leading(3) == "n1")
    await asyncio.sleep(3)
    world.group(3).transfer(NodeId("n2"))
    await world.until(lambda: world.leading(3) == "n2")
    await asyncio.sleep(1)
    assert world.leading(3) == "n2"
    await world.until(lambda: world.leading(3) == "n1")


async def test_nodes_that_all_stop_at_once_do_not_hand_leaderships_to_and_fro(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=5, balance_after_s=0.5, care_period_s=0.05).born()
    await asyncio.sleep(3)
    assert len({world.leading(group) for group in range(6)}) == 3
    nodes = list(world.nodes.values())
    groups = [group for node in nodes for group in node.groups.values()]
    before = {group.id: group.term for group in groups}
    began = world.loop.time()
    for node in nodes:
        node.stopping = True
    await asyncio.gather(*(node.liveness.hand_over() for node in nodes))
    assert world.loop.time() - began < 1.0
    assert all(group.term <= before[group.id] + 2 for group in groups)


# --- folders


@pytest.mark.parametrize(("node", "cluster"), [("n2", "test"), ("n1", "other")])
async def test_the_folder_of_another_node_or_cluster_is_refused(
    world: World, node: str, cluster: str
) -> None:
    await world.stop()
    world.disks[node] = world.disks["n1"]
    other = world.make(node)
    object.__setattr__(other.config, "cluster", cluster)
    with pytest.raises(WrongIdentity, match="it belongs to node 'n1' of cluster 'test'"):
        await other.start()
    assert not world.links[node].running


async def test_a_start_that_fails_leaves_nothing_open(make_world: MakeWorld) -> None:
    world = make_world()
    node = world.make("n1")

    async def in_use(*_: Any) -> None:
        raise OSError("address in use")

    world.links["n1"].start = in_use  # type: ignore[method-assign]
    with pytest.raises(OSError, match="address in use"):
        await node.start()
    await world.start()
    await world.settled()


# --- disks


async def test_a_failed_fsync_ends_the_node_and_the_others_go_on(world: World) -> None:
    await with_messages(world, 3)
    group = world.group_of("q")
    name = world.leading(group) or ""
    node = world[name]
    info = node.queue_info("/", "q")
    assert info is not None
    world.disks[name].failing.add("sync")
    outcome = await node.ask(group, enqueue(info.queue, b"x"))
    assert outcome.kind == "unknown"
    await world.until(lambda: node.failed is not None)
    assert isinstance(node.failed, FatalDiskError)
    assert (await node.ask(group, enqueue(info.queue, b"x"))).kind == "refused"
    await node.stop()
    del world.nodes[name], world.links[name]

    await world.until(lambda: world.leading(group) is not None)
    await world.publish("q", b"after")


async def test_a_node_with_an_empty_folder_does_not_vote_what_it_acknowledged_away(
    world: World,
) -> None:
    """n1 and n3 confirmed it, n2 never heard of it; then n1 is away and n3 lost its disk."""
    await world.declare("q")
    await world.until(lambda: world["n2"].catalog_machine.node(NodeId("n3")))
    world.kill("n2", power=False)
    await world.settled()
    await world.publish("q", b"confirmed")
    for name in ("n1", "n3"):
        world.kill(name)
    world.disks["n3"] = MemoryDisk()
    await world.start("n2", "n3")
    await asyncio.sleep(20)
    assert world.leading(1) is None
    assert all(group.votes_suspended for group in world["n3"].groups.values())

    await world.start("n1")
    await world.settled()
    await world.until(lambda: [world.ready("q", n) for n in world.names] == [1, 1, 1])
    await world.until(
        lambda: not any(group.votes_suspended for group in world["n3"].groups.values())
    )
    world.kill("n1")  # n3 votes again
    await world.until(lambda: world.leading(world.group_of("q")) is not None)


async def _wiped_while_its_queue_has_no_leader(make_world: MakeWorld) -> tuple[World, GroupId, str]:
    """Of three copies one is down, one never heard of what the other two confirmed, and one of
    these is on a node whose folder is gone. The catalog has a majority.
    """
    world = await make_world(5, default_groups=1).born()
    await world.declare("q")
    group = world.group_of("q")
    (info,) = world.any.catalog_machine.groups()
    away, behind, wiped = sorted(info.homes)
    await world.until(
        lambda: all(world.links[n].incarnation == _known(world, n) for n in info.homes)
    )
    world.kill(behind, power=False)
    await world.until(lambda: world.leading(group) in (away, wiped))
    await world.publish("q", b"confirmed")
    for name in (away, wiped):
        world.kill(name)
    await world.start(behind)
    await world.until(lambda: world.leading() is not None)
    return world, group, wiped


def _known(world: World, node: str) -> int:
    """The start of it that the others know of."""
    known = [
        info.incarnation
        for other in world.nodes.values()
        if (info := other.catalog_machine.node(NodeId(node))) is not None
    ]
    return min(known, default=0)


async def test_a_wiped_node_registers_and_withholds_votes_over_restarts_where_nobody_leads(
    make_world: MakeWorld,
) -> None:
    world, group, wiped = await _wiped_while_its_queue_has_no_leader(make_world)
    world.disks[wiped] = MemoryDisk()
    for _ in range(3):
        await world.start(wiped)
        await world.until(lambda: world.links[wiped].incarnation == _known(world, wiped))
        await asyncio.sleep(5)
        assert not world[wiped]._registration.stale
        assert world[wiped].groups[group].votes_suspended
        assert world.leading(group) is None
        world.kill(wiped)
    away = next(name for name in world.names if name != wiped and name not in world.nodes)
    await world.start(wiped, away)
    await world.until(lambda: world.leading(group) is not None)
    for name in world[away].groups[group].members:
        await world.until(lambda n=name: world.ready("q", n) == 1)
        await world.until(lambda n=name: not world[n].groups[group].votes_suspended)


async def test_a_start_is_recorded_when_the_votes_that_it_withholds_are_on_disk(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power fails as soon as the others might hear of it."""
    world, group, wiped = await _wiped_while_its_queue_has_no_leader(make_world)
    disk = world.disks[wiped] = MemoryDisk()
    record, sync = DiskIdentity.record, Wal.sync
    recorded = asyncio.Event()

    async def never_ends(identity: DiskIdentity, incarnation: int) -> None:
        await record(identity, incarnation)
        if identity._disk is disk:
            recorded.set()
            await asyncio.Event().wait()

    async def slow(wal: Wal) -> float:
        if wal.disk is disk:
            await asyncio.sleep(2)
        return await sync(wal)

    monkeypatch.setattr(DiskIdentity, "record", never_ends)
    monkeypatch.setattr(Wal, "sync", slow)
    await world.start(wiped)
    await world.until(recorded.is_set)
    world.kill(wiped)
    monkeypatch.undo()
    await world.start(wiped)
    await world.until(lambda: world.links[wiped].incarnation == _known(world, wiped))
    assert not world[wiped]._registration.stale
    await asyncio.sleep(10)
    assert world[wiped].groups[group].votes_suspended
    assert world.leading(group) is None


async def test_a_group_that_is_made_while_a_start_is_recorded_begins_after_it_and_votes(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, group, wiped = await _wiped_while_its_queue_has_no_leader(make_world)
    disk = world.disks[wiped] = MemoryDisk()
    record = DiskIdentity.record
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def waits(identity: DiskIdentity, incarnation: int) -> None:
        if identity._disk is disk:
            begun.set()
            await may_end.wait()
        await record(identity, incarnation)

    monkeypatch.setattr(DiskIdentity, "record", waits)
    await world.start(wiped)
    await world.until(begun.is_set)
    others = [NodeId(name) for name in world.nodes if name != wiped]
    members = [NodeId(wiped), *others[:2]]
    assert (await world[others[0]].change(CreateGroup("new", members))).kind == "ok"
    new = next(g.id for g in world[others[0]].catalog_machine.groups() if g.name == "new")
    await asyncio.sleep(5)
    assert {*world[wiped].groups} == {CATALOG_GROUP, group}
    may_end.set()
    await world.until(lambda: new in world[wiped].groups)
    assert not world[wiped].groups[new].votes_suspended
    await world.until(lambda: world.leading(new) is not None)


async def test_a_node_with_an_older_copy_of_its_folder_does_not_vote_either(world: World) -> None:
    registered = world["n3"]._registration.disk_identity
    await world.until(lambda: registered.registered > 0)
    world.kill("n3")
    copy = world.disks["n3"].after_crash()
    await world.start("n3")
    known = world["n2"].catalog_machine
    incarnation = world["n3"].links.incarnation
    await world.until(
        lambda: (info := known.node(NodeId("n3"))) and info.incarnation == incarnation
    )
    world.kill("n3")
    world.disks["n3"] = copy
    world.kill("n1")
    await world.start("n3")
    await asyncio.sleep(10)
    assert world.leading() is None
    await world.start("n1")
    await world.settled()


async def test_a_normal_restart_votes_at_once(world: World) -> None:
    for name in world.names:
        registration = world[name]._registration
        await world.until(lambda r=registration: r.disk_identity.registered)
    for _ in range(3):
        world.kill("n3")
        world.kill("n1")
        await world.start("n3")
        await world.until(lambda: world.leading() is not None)
        assert not world["n3"]._registration.stale
        await world.start("n1")
        await world.settled()


# --- sessions live and die with nodes


def machine(node: ClusterNode, group: Any) -> QueueMachine:
    found = node.groups[group].machine
    assert isinstance(found, QueueMachine)
    return found


async def consume(world: World, name: str, session: str) -> None:
    """A consumer whose client is connected to that node."""
    node = world[name]
    info = await node.names.find("/", "q")
    assert isinstance(info, QueueInfo)
    opened = OpenSession(SessionId(session), node.node, node.links.incarnation)
    assert (await node.ask(info.group, opened)).kind == "ok"
    subscribe = Subscribe(info.queue, SessionId(session), "tag", credit=10)
    assert (await node.ask(info.group, subscribe)).kind == "ok"


def sessions(world: World) -> dict[str, bool]:
    """The sessions of the queue's group by id, and whether they are there."""
    group = world.group_of("q")
    known = machine(world[world.leading(group) or ""], group)._sessions.by_id
    return {session.id: session.connected for session in known.values()}


async def test_sessions_of_a_node_end_when_its_process_ends(world: World) -> None:
    await world.declare("q")
    follower = world.other_than(world.leading(world.group_of("q"))).node
    await consume(world, follower, "s")
    world.kill(follower)
    await world.until(lambda: sessions(world) == {})


async def test_sessions_of_a_silent_node_are_suspected_and_come_back(world: World) -> None:
    await world.declare("q")
    follower = world.other_than(world.leading(world.group_of("q"))).node
    await consume(world, follower, "s")
    world.isolate(follower)
    await world.until(lambda: sessions(world) == {"s": False})
    world.heal()
    await world.until(lambda: sessions(world) == {"s": True})


async def test_sessions_of_an_earlier_process_of_the_leader_itself_end(
    make_world: MakeWorld,
) -> None:
    world = await make_world(1).born()
    await world.declare("q")
    await consume(world, "n1", "s")
    world.kill("n1")
    await world.start("n1")
    await world.settled()
    await world.until(lambda: sessions(world) == {})


async def test_a_node_that_never_came_back_is_missed_by_those_that_did(world: World) -> None:
    """All nodes lost power; nobody ever saw a link to the third one break."""
    await world.declare("q")
    await world.until(lambda: world["n1"].catalog_machine.node(NodeId("n3")))
    await consume(world, "n3", "s")
    for name in world.names:
        world.kill(name)
    await world.start("n1", "n2")
    await world.until(lambda: world.leading(1) is not None and world.any.queues())
    await world.until(lambda: world.leading(world.group_of("q")) is not None)
    await world.until(lambda: sessions(world) == {"s": False})
    await world.start("n3")
    await world.until(lambda: sessions(world) == {})  # its new process knows nothing of it


async def test_what_a_leader_refused_to_hear_of_a_node_is_told_again(world: World) -> None:
    await world.declare("q")
    group = world.group(world.group_of("q"))
    follower = world.other_than(group.node).node
    await consume(world, follower, "s")
    propose = group.propose
    refused: list[Any] = []

    def overloaded(command: Any, done: Any = None) -> None:
        if isinstance(command, NodeDown | NodeUp) and not refused:
            refused.append(command)
            done(Outcome("refused", code="overloaded"))
        else:
            propose(command, done)

    group.propose = overloaded  # type: ignore[method-assign]
    world.kill(follower)
    await world.until(lambda: refused and sessions(world) == {})


async def test_a_start_with_a_number_that_was_there_before_takes_the_next_one(world: World) -> None:
    await world.until(lambda: world["n1"].catalog_machine.node(NodeId("n3")))
    world.kill("n3")
    world._starts = 0  # as if its count of starts were lost
    await world.start("n3")
    await asyncio.sleep(3)
    info = world["n1"].catalog_machine.node(NodeId("n3"))
    assert info is not None
    assert info.incarnation == 4, "the others knew of start 3"
    assert world["n3"].links.incarnation == 4
