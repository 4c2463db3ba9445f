"""A follower that is behind the leader's log gets the snapshot, the live entries, then the rest
(Raft, 7).
"""

from __future__ import annotations

import cbor2
import pytest

from cluster.raft import snapshot_transfer
from cluster.raft.messages import APPEND, INSTALL
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import BodyRef, NodeId
from tests.raft.nodes import Cluster, GroupOptions, enqueue
from tests.raft.world import GROUP, Node, World

pytestmark = pytest.mark.virtual_time

DATA = cbor2.dumps([b"state", b"." * 3000])


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(snapshot_transfer, "PART_BYTES", 256)
    monkeypatch.setattr(snapshot_transfer, "INSTALL_WINDOW_BYTES_MAX", 1024)


def snapshot(node: Node, live: list[tuple[int, int]], data: bytes = DATA) -> int:
    index = node.member.applied_index
    term = node.journal.term_at(index)
    assert term is not None
    with pytest.raises(StopIteration):
        node.journal.save_snapshot(index, term, data, live).send(None)
    return index


def behind(entries: int = 60) -> tuple[World, Node, Node, int]:
    """n3 was away while the others committed much and dropped their logs."""
    world = World(3)
    leader = world.elect("n1")
    world.kill("n3")
    for n in range(entries):
        world.commit(b"%d" % n + b"." * 100)
    world.run(50)
    index = snapshot(leader, [(5, 9), (20, 20)])
    snapshot(world["n2"], [(5, 9), (20, 20)])
    return world, leader, world["n3"], index


def test_it_receives_positions_and_live_entries_and_then_the_tail():
    world, leader, node, index = behind()
    world.restart("n3")
    last = world.commit(b"after")

    world.until(lambda: node.member.applied_index == last, 3000)
    assert node.journal.base_index == index
    assert node.host.base == DATA
    assert sorted(node.journal.old.entries) == [5, 6, 7, 8, 9, 20]
    for each in (5, 9, 20):
        assert node.journal.read(each) == leader.journal.read(each)
    assert node.host.applied[-1][0] == REGULAR + b"after"
    assert node.host.applied[0][1] == index


def test_nothing_is_acknowledged_before_the_last_part_is_installed():
    world, leader, node, index = behind()
    world.restart("n3")
    world.until(lambda: any(m[1] == INSTALL for _, _, m in world.wires.sent))
    while node.journal.base_index < index:
        world.step()
        peer = next(p for p in leader.member.voters if p.id == "n3")
        assert leader.member.replication.match_of(peer) < index


@pytest.mark.parametrize("after_ms", range(2, 30, 3))
def test_a_link_that_breaks_in_the_middle_only_makes_it_start_again(after_ms: int):
    world, _, node, index = behind()
    world.restart("n3")
    world.until(lambda: any(m[1] == INSTALL for _, _, m in world.wires.sent))
    world.run(after_ms)
    world.cut("n1", "n3")
    world.run(20)
    world.heal("n1", "n3")

    world.until(lambda: node.member.applied_index >= index, 5000)
    assert node.host.base == DATA


@pytest.mark.parametrize("after_ms", range(2, 30, 3))
def test_a_new_leader_in_the_middle_takes_over(after_ms: int):
    world, leader, node, index = behind()
    world.restart("n3")
    world.until(lambda: any(m[1] == INSTALL for _, _, m in world.wires.sent))
    world.run(after_ms)
    world.kill(leader.name)

    world.until(lambda: world.leader() is not None and node.member.applied_index >= index, 8000)
    assert node.host.base == DATA
    world.commit(b"and on")


@pytest.mark.parametrize("after_ms", range(2, 30, 3))
def test_a_receiver_that_crashes_in_the_middle_starts_from_what_it_had(after_ms: int):
    world, _, node, index = behind()
    world.restart("n3")
    world.until(lambda: any(m[1] == INSTALL for _, _, m in world.wires.sent))
    world.run(after_ms)
    world.kill("n3")
    world.run(10)
    world.restart("n3")

    world.until(lambda: node.member.applied_index >= index or node.journal.base_index >= index)


def test_parts_on_their_way_are_bounded():
    world, _, node, index = behind()
    world.restart("n3")
    node.paused = True
    world.run(500)
    parts = [m for _, b, m in world.wires.sent if m[1] == INSTALL and b == "n3"]
    size = sum(len(cbor2.dumps(part)) for part in parts)
    assert 256 < size < 1024 + 1024

    node.paused = False
    world.until(lambda: node.member.applied_index >= index, 5000)


def test_a_newer_snapshot_in_the_middle_replaces_the_one_that_lost_its_entries():
    world, leader, node, index = behind()
    world.restart("n3")
    world.until(lambda: any(m[1] == INSTALL for _, _, m in world.wires.sent))
    node.paused = True
    world.commit(b"more")
    newer = snapshot(leader, [], cbor2.dumps([b"newer"]))
    node.paused = False

    world.until(lambda: node.member.applied_index >= newer, 5000)
    assert newer > index
    assert node.host.base == cbor2.dumps([b"newer"])


def test_heartbeats_go_on_during_an_install():
    world, _, node, index = behind()
    world.restart("n3")
    node.paused = True
    world.run(3000)
    node.paused = False
    assert any(b == "n3" and m[1] == APPEND and m[3] == 0 for _, b, m in world.wires.sent)

    term = node.member.term
    world.until(lambda: node.member.applied_index >= index, 5000)
    assert node.member.term == term


def test_a_follower_whose_log_agrees_at_the_snapshot_keeps_all_of_it():
    """Raft, 7: it retains what follows; it may have acknowledged that."""
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    entries = [[REGULAR + b"%d" % n, 1] for n in range(8)]
    node.member.receive(NodeId("n1"), [GROUP, APPEND, 1, 1, 0, 1, entries])
    begin = [snapshot_transfer.BEGIN, 1, bytes(16), 3000, []]
    node.member.receive(NodeId("n1"), [GROUP, INSTALL, 1, 5, 0, begin])

    assert node.journal.last_index == 9
    assert node.member.commit_index == 5
    assert node.host.installing is None


@pytest.mark.parametrize(
    "part",
    [
        [snapshot_transfer.DATA, b"x" * 10_000],
        [snapshot_transfer.LIVE, [[2, 1, b"\x00", bytes(16)]]],
        [snapshot_transfer.END],
        [9, 9],
        [snapshot_transfer.BEGIN, 1, bytes(16), 5, []],
    ],
)
def test_a_part_that_does_not_fit_is_refused_and_changes_nothing(part: list):
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    node.member.receive(
        NodeId("n1"), [GROUP, INSTALL, 1, 50, 0, [snapshot_transfer.BEGIN, 1, bytes(16), 3000, []]]
    )
    node.member.receive(NodeId("n1"), [GROUP, INSTALL, 1, 50, 1, part])

    assert world.wires.sent[-1] == ("n3", "n1", [GROUP, "sa", 1, 50, -1])
    assert node.journal.last_index == 1


async def test_with_the_real_log_a_follower_that_was_away_gets_snapshot_live_entries_and_tail():
    cluster = await Cluster(options=GroupOptions(1000, 2000, 200, snapshot_entries=50)).start()
    group = await cluster.elect()
    away = next(n for n in cluster.names if n != group.node)
    cluster.kill(away)
    for n in range(200):
        assert (await group.ask(enqueue(b"a%d" % n, b"b%d" % n, meta=n))).kind == "ok"
    await cluster.until(lambda: group.journal.base_index > 100)
    node = await cluster.start_node(away)
    await cluster.until(lambda: node.groups[1].applied_index >= group.applied_index)

    there = node.groups[1]
    assert there.journal.base_index > 100
    assert there.machine.digest() == group.machine.digest()
    assert there.machine.refs[0][0] < there.journal.base_index
    for ref in there.machine.refs:
        assert await there.load_bodies(BodyRef(*ref)) == await group.load_bodies(BodyRef(*ref))
    last = await group.ask(enqueue(b"after"))
    await cluster.until(lambda: there.applied_index >= last.stamp.index)

    # and once more from its own disk
    cluster.kill(away)
    node = await cluster.start_node(away)
    there = node.groups[1]
    await cluster.until(lambda: there.applied_index >= last.stamp.index)
    assert there.machine.digest() == group.machine.digest()
    assert await there.load_bodies(BodyRef(*there.machine.refs[0])) == [(b"a0", 0), (b"b0", 0)]
    await cluster.stop()


def test_parts_that_came_before_the_receiver_was_ready_are_sent_again_soon():
    """A node that just started hears its links before it has looked up which groups it has."""
    world, _, node, index = behind()
    dropped: list[int] = []

    def not_ready(_source: str, target: str, message: list) -> bool:
        lost = target == "n3" and message[1] == INSTALL and len(dropped) < 4
        if lost:
            dropped.append(message[4])
        return lost

    world.wires.drop = not_ready
    world.restart("n3")
    world.until(lambda: len(dropped) == 4)
    assert world.until(lambda: node.member.applied_index >= index, 5000) < 2000
