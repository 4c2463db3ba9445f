"""A node whose folder was wiped forgot its votes and what it confirmed: it elects nobody who lacks
what is committed, however little the other one knows of it yet.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cluster.machine.commands import AddNode, RemoveNode
from cluster.raft.member import Member
from cluster.seams import Down
from cluster.types import CATALOG_GROUP, NodeId
from tests.cluster.test_membership import changed, come_back, join
from tests.cluster.world import MakeWorld, World
from tests.log.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("replay_s", [0.0, 1.0])
async def test_a_wiped_founder_elects_nobody_while_the_other_replays_its_catalog(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, replay_s: float
) -> None:
    """n2 says on the new link which start of n3 it knows: by what it has applied so far, none."""
    world = await make_world(default_groups=1).born()
    world.group(CATALOG_GROUP).transfer(NodeId("n1"))
    await world.until(lambda: world.leading() == "n1")
    await asyncio.sleep(5)
    world.kill("n2")
    await changed(world, AddNode(NodeId("n9"), {"peer": "n9:70"}))
    world.kill("n1")
    world.kill("n3")
    _slow_replay(world, monkeypatch, "n2", replay_s)
    await world.start("n2")
    await world.start_empty("n3")
    for _ in range(300):
        await asyncio.sleep(0.05)
        assert world.leading() is None


@pytest.mark.parametrize(("replay_s", "joins"), [(0.0, True), (1.0, True), (1.0, False)])
async def test_a_wiped_newcomer_elects_nobody_while_the_other_replays_its_catalog(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, replay_s: float, joins: bool
) -> None:
    """n2 has in its log that n4 started, and has not applied it: n4 is a guest there. By now its
    settings may not say any more that it joined.
    """
    world = await make_world(default_groups=1).born()
    await join(world, "n4")
    await changed(world, RemoveNode(NodeId("n3"), NodeId("n4")))
    await world.until(lambda: world["n3"].left, 60)
    await world.nodes.pop("n3").stop()
    world.links.pop("n3")
    n2 = world["n2"]
    await world.until(lambda: (info := n2.catalog_machine.node(NodeId("n4"))) and info.incarnation)
    if world.leading() == "n2":
        n2.catalog.transfer(NodeId("n1"))
    await world.until(lambda: world.leading() in ("n1", "n4"))
    await world.until(lambda: set(n2.catalog.configuration.voters) == {"n1", "n2", "n4"})
    await asyncio.sleep(5)
    world.kill("n2")
    await changed(world, AddNode(NodeId("n9"), {"peer": "n9:70"}))
    world.kill("n1")
    world.kill("n4")
    world.disks["n4"] = MemoryDisk()

    _slow_replay(world, monkeypatch, "n2", replay_s)
    await come_back(world, "n2", "n4")
    n4 = world.make("n4")
    n4.config = replace(n4.config, join=joins)
    await n4.start()
    world.nodes["n4"] = n4
    for _ in range(300):
        await asyncio.sleep(0.05)
        assert world.leading() is None


async def test_a_newcomer_whose_folder_was_wiped_elects_nobody_who_has_not_heard_of_its_start(
    make_world: MakeWorld,
) -> None:
    """n2 has the entry that makes n3 a voter, and not the one that registers it."""
    world = await make_world(2, default_groups=1).born()
    world.add_machine("n3")
    outcome = await world["n1"].change(AddNode(NodeId("n3"), {"peer": "n3:70"}))
    assert outcome.kind == "ok"
    node = world.make("n3")
    heard = False

    def registers(_peer: str, message: list[object]) -> bool:
        return not heard and message[:2] == [-1, "ask"] and node.catalog.commit_index > 1

    world.links["n3"].drop = registers
    await node.start()
    world.nodes["n3"] = node
    await world.until(lambda: "n3" in world["n2"].catalog.configuration.voters, 60)
    if world.leading() == "n2":
        world["n2"].catalog.transfer(NodeId("n1"))
        await world.until(lambda: world.leading() == "n1")
    world.kill("n2")
    heard = True
    world.break_link("n3", "n1", Down.SILENT)
    world.connect("n3", "n1")
    found = world["n1"].catalog_machine.node
    await world.until(lambda: (info := found(NodeId("n3"))) and info.incarnation, 60)
    outcome = await world["n1"].change(AddNode(NodeId("n9"), {"peer": "n9:70"}))
    assert outcome.kind == "ok", outcome
    world.kill("n1")
    world.kill("n3")
    await world.start("n2")
    world.disks["n3"] = MemoryDisk()
    await world.start("n3")
    for name in ("n2", "n3"):
        world.connect_again(name, "n3" if name == "n2" else "n2")
    await asyncio.sleep(30)
    assert world.leading() is None


def _slow_replay(world: World, monkeypatch: pytest.MonkeyPatch, node: str, replay_s: float) -> None:
    """More than `APPLY_BYTES_MAX` of its catalog is behind its snapshot."""
    until_s = world.loop.time() + replay_s
    apply, due = Member.apply, Member.due

    def slow(member: Member) -> bool:
        at = (member.me.id, member.group)
        return at == (node, CATALOG_GROUP) and world.loop.time() < until_s

    monkeypatch.setattr(Member, "apply", lambda self: None if slow(self) else apply(self))
    monkeypatch.setattr(
        Member, "due", lambda self: self.elections.deadline if slow(self) else due(self)
    )
