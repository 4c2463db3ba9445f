"""Nodes join, leave and are replaced, and groups move, while messages pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.group import Role
from cluster.groups.outcome import Outcome
from cluster.machine import QueueMachine
from cluster.machine.commands import (
    AddNode,
    Barrier,
    CreateGroup,
    MoveGroup,
    NodeDown,
    OpenSession,
    RemoveNode,
)
from cluster.members.moving import LEAVE_S_MAX, Moving
from cluster.members.unknown_peers import UNKNOWN_PEER_S
from cluster.types import CATALOG_GROUP, GroupId, NodeId, SessionId, first_term_of
from tests.cluster.world import MakeWorld, World
from tests.log.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time


async def join(world: World, name: str) -> None:
    world.add_machine(name)
    await changed(world, AddNode(NodeId(name), {"peer": f"{name}:70"}))
    await world.start(name)
    await world.until(lambda: name in voters(world, CATALOG_GROUP))


async def changed(world: World, command: object) -> None:
    outcome = await world.any.change(command)  # type: ignore[arg-type]
    assert outcome.kind == "ok", outcome


def voters(world: World, group: GroupId | int) -> Sequence[str]:
    name = world.leading(group)
    return () if name is None else world[name].groups[GroupId(group)].configuration.voters


def holders(world: World, group: GroupId | int) -> set[str]:
    return {name for name, node in world.nodes.items() if GroupId(group) in node.groups}


async def moved(world: World, group: GroupId, *members: str) -> None:
    await changed(world, MoveGroup(group, [NodeId(name) for name in members]))
    await world.until(lambda: set(voters(world, group)) == set(members), 60)
    await world.until(lambda: holders(world, group) == set(members), 60)


async def test_a_node_that_joins_has_the_catalog_and_no_group_yet(world: World) -> None:
    await world.declare("q")
    await join(world, "n4")

    assert set(voters(world, CATALOG_GROUP)) == {"n1", "n2", "n3", "n4"}
    assert world["n4"].queue_info("/", "q") is not None
    assert list(world["n4"].groups) == [CATALOG_GROUP]


async def test_a_node_that_nobody_let_in_stays_outside(world: World) -> None:
    world.add_machine("n4")
    await world.start("n4")
    await asyncio.sleep(10)

    assert set(voters(world, CATALOG_GROUP)) == {"n1", "n2", "n3"}
    assert world["n4"].catalog.role.name == "FOLLOWER"
    assert world["n4"].catalog.term == 0


async def test_a_group_moves_to_other_nodes_with_all_its_messages(world: World) -> None:
    await world.declare("q")
    for number in range(30):
        await world.publish("q", b"%d" % number)
    await join(world, "n4")
    await join(world, "n5")
    group = world.group_of("q")

    await moved(world, group, "n3", "n4", "n5")
    for name in ("n1", "n2", "n3"):
        if name != "n3":
            assert world[name].log.groups().count(group) == 0
    assert world.ready("q", "n4") == 30
    await world.publish("q", b"more")
    leader = world.leading(group) or ""
    world.kill(leader)
    await world.until(lambda: world.leading(group) is not None)
    assert world.ready("q", world.leading(group) or "") == 31


async def test_a_group_comes_back_to_a_node_that_had_dropped_its_copy(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    await world.publish("q", b"1")
    await join(world, "n4")
    group = world.group_of("q")

    await moved(world, group, "n2", "n3", "n4")
    await world.publish("q", b"2")
    await moved(world, group, "n1", "n2", "n3")
    await world.until(lambda: world.ready("q", "n1") == 2)
    world.kill("n1")
    await world.start("n1")
    await world.until(lambda: world.ready("q", "n1") == 2)


async def test_a_node_leaves_and_others_take_its_places(world: World) -> None:
    await world.declare("q")
    await world.publish("q", b"1")
    await join(world, "n4")

    await changed(world, RemoveNode(NodeId("n1")))
    await world.until(lambda: world["n1"].left, 60)
    await world["n1"].stop()
    world.nodes.pop("n1")
    world.links.pop("n1")
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n2", "n3", "n4"})
    for info in world.any.catalog_machine.groups():
        assert set(voters(world, info.id)) == {"n2", "n3", "n4"}
    await world.until(lambda: all("n1" not in links.known for links in world.links.values()))
    assert [info.node for info in world.any.catalog_machine.nodes()] == ["n2", "n3", "n4"]
    await world.publish("q", b"2")


@pytest.mark.parametrize("balance_after_s", [0.1, 60.0])
@pytest.mark.parametrize("node", ["n1", "n2", "n3"])
async def test_a_node_leaves_within_seconds_and_is_given_nothing_to_lead_meanwhile(
    make_world: MakeWorld, node: str, balance_after_s: float
) -> None:
    """One of them leads the catalog, and is preferred for that."""
    world = await make_world(default_groups=1, balance_after_s=balance_after_s).born()
    await join(world, "n4")
    began_s, term = world.loop.time(), world["n4"].catalog.term
    await changed(world, RemoveNode(NodeId(node)))
    await world.until(lambda: _state(world["n4"], node) == "removed", 60)
    assert world.loop.time() - began_s < LEAVE_S_MAX
    assert world["n4"].catalog.term <= term + 1


async def test_while_a_node_leaves_its_steps_do_not_wait_for_a_period(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    looks: list[bool] = []
    look = Moving.look

    def seen(moving: Moving) -> None:
        look(moving)
        node = moving._cluster
        if node.catalog.ready and _state(world[node.node], "n1") == "leaving":
            looks.append(moving.moves)

    monkeypatch.setattr(Moving, "look", seen)
    await changed(world, RemoveNode(NodeId("n1")))
    await world.until(lambda: _state(world["n4"], "n1") == "removed", 60)
    assert looks
    assert all(looks)


async def test_a_dead_node_is_replaced_by_another(world: World) -> None:
    await world.declare("q")
    await world.publish("q", b"1")
    world.kill("n2")
    await world.publish("q", b"2")
    await join(world, "n4")

    await changed(world, RemoveNode(NodeId("n2"), NodeId("n4")))
    await world.until(lambda: set(voters(world, CATALOG_GROUP)) == {"n1", "n3", "n4"}, 60)
    group = world.group_of("q")
    assert set(voters(world, group)) == {"n1", "n3", "n4"}
    assert world.ready("q", "n4") == 2

    # What was removed comes back, and disturbs nobody.
    terms = {g.id: g.term for g in world["n1"].groups.values()}
    await world.start("n2")
    await asyncio.sleep(10)
    assert {g.id: g.term for g in world["n1"].groups.values()} == terms


@pytest.mark.parametrize("crash", ["n1", "n2", "n3", "n4", "n5"])
async def test_a_cluster_grows_to_five_and_shrinks_while_a_node_crashes(
    make_world: MakeWorld, crash: str
) -> None:
    world = await make_world(default_groups=2).born()
    await world.declare("q")
    published = 0

    async def publish(count: int) -> None:
        nonlocal published
        for _ in range(count):
            await world.publish("q", b"%d" % published)
            published += 1

    await publish(10)
    await join(world, "n4")
    await join(world, "n5")
    for info in world.any.catalog_machine.groups():
        command = MoveGroup(info.id, [NodeId(f"n{n}") for n in range(1, 6)])
        await changed(world, command)
    await publish(10)
    world.kill(crash)
    await asyncio.sleep(0.5)
    await publish(10)
    await world.start(crash)
    for info in world.any.catalog_machine.groups():
        await world.until(lambda g=info.id: len(voters(world, g)) == 5, 60)
    await publish(10)
    for name in ("n5", "n4"):
        await changed(world, RemoveNode(NodeId(name)))
        await world.until(lambda n=name: n in world.nodes and world[n].left, 60)
        await world.nodes.pop(name).stop()
        world.links.pop(name)
        await publish(5)
    group = world.group_of("q")
    assert set(voters(world, group)) == {"n1", "n2", "n3"}
    for name in ("n1", "n2", "n3"):
        await world.until(lambda n=name: world.ready("q", n) == published)


async def test_sessions_of_a_node_that_was_removed_end_though_the_leader_changed_meanwhile(
    world: World,
) -> None:
    await world.declare("q")
    group = world.group_of("q")
    await join(world, "n4")
    leader = world[world.leading(group) or ""]
    removed = next(name for name in ("n1", "n2", "n3") if name != leader.node)
    node = world[removed]
    opened = OpenSession(SessionId("s"), node.node, node.links.incarnation)
    assert (await node.ask(group, opened)).kind == "ok"
    propose = leader.groups[group].propose

    def overloaded(command: Any, done: Any = None) -> None:
        if not isinstance(command, NodeDown):
            propose(command, done)

    leader.groups[group].propose = overloaded  # type: ignore[method-assign]
    await changed(world, RemoveNode(NodeId(removed)))
    await world.until(lambda: world[removed].left, 60)
    await world.until(lambda: NodeId(removed) not in leader.links.peers())
    await world.nodes.pop(removed).stop()
    world.links.pop(removed)
    world.kill(leader.node)
    await world.until(lambda: world.leading(group) is not None)
    machine = world.group(group).machine
    assert isinstance(machine, QueueMachine)
    await world.until(lambda: not machine._sessions.by_id)  # pyright: ignore[reportPrivateUsage]


async def test_a_node_that_was_let_in_and_never_comes_keeps_nobody_from_leaving(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    await changed(world, AddNode(NodeId("n9"), {"peer": "n9:70"}))
    await asyncio.sleep(3)
    world.kill("n3")
    await changed(world, RemoveNode(NodeId("n3"), NodeId("n4")))
    await world.until(lambda: "n3" not in voters(world, CATALOG_GROUP), 60)


async def test_no_group_is_made_on_a_node_that_is_about_to_go(make_world: MakeWorld) -> None:
    """Its maker may not know that yet."""
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    await changed(world, RemoveNode(NodeId("n3"), NodeId("n4")))
    members = [NodeId(name) for name in ("n1", "n2", "n3")]
    outcome = await world.any.change(CreateGroup("late", members))
    assert outcome.code == "no_node"
    await world.until(lambda: world.any.catalog_machine.node(NodeId("n3")).state == "removed", 60)  # type: ignore[union-attr]


async def test_who_was_away_hears_a_leader_that_was_let_in_again_meanwhile(
    make_world: MakeWorld,
) -> None:
    """Simulator seed 40748418: its copy of the catalog says that the leader was removed."""
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    world.kill("n2")
    await changed(world, RemoveNode(NodeId("n2")))
    await world.until(lambda: _state(world["n1"], "n2") == "removed", 60)
    await asyncio.sleep(5)  # and n1 notes that it is committed
    await world.nodes.pop("n1").stop()
    world.links.pop("n1")
    await changed(world, AddNode(NodeId("n2"), {"peer": "n2:70"}))
    await world.start_empty("n2")
    await _is_led_by_and_heard_by(world, "n2", "n1")


async def test_who_was_away_hears_a_leader_that_came_meanwhile(make_world: MakeWorld) -> None:
    world = await make_world(default_groups=1).born()
    world.kill("n1")
    await join(world, "n4")
    await _is_led_by_and_heard_by(world, "n4", "n1")


def _state(node: ClusterNode, of: str) -> str | None:
    info = node.catalog_machine.node(NodeId(of))
    return None if info is None else info.state


def _incarnation(node: ClusterNode, of: str) -> int | None:
    info = node.catalog_machine.node(NodeId(of))
    return None if info is None else info.incarnation


async def _is_led_by_and_heard_by(world: World, leader: str, away: str) -> None:
    """The one that is back, and was alone at first, hears it though it knows of no such member."""
    await world.until(lambda: leader in voters(world, CATALOG_GROUP), 60)
    world.group(CATALOG_GROUP).transfer(NodeId(leader))
    await world.until(lambda: world.leading() == leader)
    world.isolate(away)
    await world.start(away)
    await asyncio.sleep(5)
    world.links[away].known.discard(leader)  # who came later is in no settings
    world.heal()
    for _ in range(100):
        world.connect_again(leader, away)
        await asyncio.sleep(0.1)
    assert world.leading() == leader
    last = world.group(CATALOG_GROUP).commit_index
    assert (world[away].catalog.leader, world[away].catalog.applied_index) == (leader, last)
    assert leader in world.links[away].up
    assert NodeId(leader) in world[away].peers.states
    assert not world[leader].left
    # Nothing waits for an answer of that time.
    await world.until(lambda: _incarnation(world[leader], away) == world.links[away].incarnation)
    assert await world[away].names.barrier()


async def _replaced_while_away(make_world: MakeWorld, replaced: str, away: str = "n2") -> World:
    """n4 took the place of a node, and nobody who is up can tell `away` who n4 is. There are two
    messages in q.
    """
    world = await make_world(default_groups=2).born()
    await world.declare("q")
    await world.publish("q", b"1")
    world.kill(away)
    await join(world, "n4")
    await changed(world, RemoveNode(NodeId(replaced), NodeId("n4")))
    await world.until(lambda: world[replaced].left, 60)
    await world.nodes.pop(replaced).stop()
    world.links.pop(replaced)
    await world.publish("q", b"2")
    (other,) = world.nodes.keys() - {"n4"}
    world.kill(other)
    return world


async def come_back(world: World, name: str, *unknown: str) -> None:
    """It is started, and is called again and again, as links do. Who came meanwhile is in no
    settings.
    """
    world.isolate(name)
    await world.start(name)
    world.links[name].known -= {*unknown}
    world.heal()

    async def call() -> None:
        while name in world.links:
            for caller in list(world.links):
                if caller != name:
                    world.connect_again(caller, name)
            await asyncio.sleep(0.1)

    world.calls.append(asyncio.create_task(call()))


@pytest.mark.parametrize("replaced", ["n1", "n3"])
async def test_a_majority_elects_though_one_of_it_does_not_know_the_other(
    make_world: MakeWorld, replaced: str
) -> None:
    """In each group: n4 has all that is committed, and needs the vote of n2."""
    world = await _replaced_while_away(make_world, replaced)
    await come_back(world, "n2", "n4")
    await world.until(lambda: world.leading() == "n4", 60)
    assert "n4" in world.links["n2"].up
    group = world.group_of("q")
    await world.until(lambda: world.leading(group) is not None, 60)
    await world.publish("q", b"3")
    await world.until(lambda: world.ready("q", "n2") == world.ready("q", "n4") == 3)
    # It is a guest no more, and nothing waits for an answer of that time.
    await world.until(lambda: NodeId("n4") in world["n2"].peers.states)
    assert await world["n2"].names.barrier()


async def test_an_empty_folder_elects_nobody_who_calls_as_a_stranger(make_world: MakeWorld) -> None:
    """n2 may have acknowledged what n4 lacks, and has forgotten it."""
    world = await _replaced_while_away(make_world, "n3")
    world.disks["n2"] = MemoryDisk()
    await come_back(world, "n2", "n4")
    connections: set[int] = set()
    for _ in range(600):
        await asyncio.sleep(0.05)
        connections.add(world.links["n2"].up.get("n4", 0))
        groups = [group for node in world.nodes.values() for group in node.groups.values()]
        assert not any(group.role is Role.LEADER for group in groups)
    assert world["n2"].catalog.votes_suspended
    # Who only asks for votes may have been removed: a guest does not stay for ever.
    assert 3 <= len(connections) <= 6
    assert NodeId("n4") not in world["n2"].peers.states
    assert NodeId("n4") not in world["n2"].linked()

    await world.start("n1")
    await world.until(lambda: world.leading(world.group_of("q")) is not None, 60)
    await world.until(lambda: world.ready("q", "n2") == 2, 60)


async def test_a_group_elects_a_guest_while_the_catalog_has_no_majority(
    make_world: MakeWorld,
) -> None:
    """Of five nodes two are up, which are two of the three of the group."""
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    world.kill("n2")
    for name in ("n4", "n5"):
        await join(world, name)
    group = world.group_of("q")
    names = ("n2", "n4", "n5")
    await changed(world, MoveGroup(group, [NodeId(name) for name in names]))
    await world.until(lambda: set(voters(world, group)) == {*names}, 60)
    for name in ("n1", "n3", "n5"):
        world.kill(name)
    await come_back(world, "n2", "n4", "n5")
    await world.until(lambda: world.leading(group) == "n4", 60)
    outcome = await world["n4"].groups[group].barrier()
    assert outcome.kind == "ok", outcome
    assert world["n2"].groups[group].leader == "n4"

    # It stays a guest as long as it leads, and what it asks is answered, though not done.
    number = world.links["n2"].up["n4"]
    await asyncio.sleep(30)
    assert world.links["n2"].up["n4"] == number
    asked: list[Outcome] = []
    world["n4"].forwarder._request(NodeId("n2"), group, Barrier(), asked.append)  # pyright: ignore[reportPrivateUsage]
    await world.until(lambda: asked)
    assert (asked[0].kind, asked[0].code) == ("refused", "no_leader")
    assert asked[0].reason == "node n2 has not heard yet that n4 is a member"


async def test_a_guest_votes_for_a_copy_that_counts_it_and_follows_it(
    make_world: MakeWorld,
) -> None:
    """n2 has what the group's log says of n4, and does not know of it by the catalog."""
    world = await make_world(default_groups=1).born()
    await world.declare("q")
    group = world.group_of("q")
    for name in ("n1", "n3"):
        world.links[name].drop = lambda peer, message: peer == "n2" and message[0] == CATALOG_GROUP
    await join(world, "n4")
    world.links["n4"].drop = world.links["n1"].drop
    await changed(world, MoveGroup(group, [NodeId(name) for name in ("n1", "n2", "n4")]))
    await world.until(lambda: set(voters(world, group)) == {"n1", "n2", "n4"}, 60)
    world.group(group).transfer(NodeId("n1"))
    await world.until(lambda: world.leading(group) == "n1", 60)
    world.links["n1"].drop = lambda peer, message: (
        (peer, message[0])
        in {
            ("n2", CATALOG_GROUP),
            ("n4", group),
        }
    )
    await world.publish("q", b"n4 lacks it")
    for name in ("n1", "n3"):
        world.kill(name)
    world.links["n4"].drop = lambda _peer, _message: False
    await come_back(world, "n2", "n4")
    await world.until(lambda: world.leading(group) == "n2", 60)
    assert world["n2"].unknown_peers.is_unknown_peer(NodeId("n4"))
    assert world["n2"].catalog_machine.node(NodeId("n4")) is None
    assert world.ready("q", "n2") == 1
    await world.until(lambda: world.ready("q", "n4") == 1)


async def test_a_node_that_nobody_let_in_calls_for_a_while_at_those_that_have_no_leader(
    make_world: MakeWorld,
) -> None:
    world = await make_world().born()
    for name in ("n2", "n3"):
        world.kill(name)
    await world.until(lambda: world["n1"].catalog.leader is None)
    world.add_machine("n4")
    await world.start("n4")
    one = world["n1"]
    assert "n4" in world.links["n1"].up
    assert NodeId("n4") not in one.linked()
    assert NodeId("n4") not in one.peers.states
    await world.until(lambda: "n4" not in world.links["n1"].up, 2 * UNKNOWN_PEER_S)
    assert not one.unknown_peers.is_unknown_peer(NodeId("n4"))

    # Once there is a leader it is told that it is not let in.
    await world.start("n2")
    await world.until(lambda: one.catalog.leader is not None)
    await world.until(lambda: all(group.leader for group in one.groups.values()))
    world.connect_again("n4", "n1")
    assert "n4" not in world.links["n1"].up


async def test_a_guest_of_a_later_recovery_is_not_heard_by_a_copy_that_holds_something(
    make_world: MakeWorld,
) -> None:
    world = await make_world(default_groups=1).born()
    for name in ("n2", "n3"):
        world.kill(name)
    one = world["n1"]
    await world.until(lambda: one.catalog.leader is None)
    world.add_machine("n4")
    await world.start("n4")
    await world.until(lambda: NodeId("n4") in one.unknown_peers.connected)
    term = one.catalog.term
    for era, heard in ((0, True), (1, False)):
        message: list[Any] = [CATALOG_GROUP, "ae", first_term_of(era) + term + 1, 0, 0, 0, []]
        assert one.unknown_peers.takes(NodeId("n4"), message) is heard
