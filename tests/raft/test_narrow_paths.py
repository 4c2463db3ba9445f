"""Sequences of events that are rare in life and were found by reading: each once went wrong."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from cluster.log import FatalDiskError, Log, LogIdentity, LogOptions, SnapshotRefused
from cluster.raft import snapshot_transfer
from cluster.raft.member import Role
from cluster.raft.messages import APPEND
from cluster.types import NodeId
from tests.log.memory_disk import MemoryDisk
from tests.raft.nodes import Cluster, ListMachine, enqueue
from tests.raft.test_install import behind
from tests.raft.world import GROUP, MemoryJournal, World
from tests.testkit.clocks import FakeClock

pytestmark = pytest.mark.virtual_time


def test_a_follower_that_comes_back_with_an_empty_disk_is_filled_again():
    world = World(3)
    leader = world.elect("n1")
    for n in range(20):
        world.commit(b"%d" % n)
    world.run(50)
    assert leader.member.replication.match_of(world["n3"].member.me) == leader.journal.last_index
    world.kill("n3")
    world["n3"].journal = MemoryJournal()
    world.restart("n3")

    world.until(lambda: world["n3"].journal.last_index == leader.journal.last_index, 3000)
    last = world.commit(b"after")
    world.until(lambda: world["n3"].member.applied_index == last, 3000)
    world.check_logs_match()


def test_a_follower_that_comes_back_counts_for_nothing_before_it_has_said_what_it_has():
    world = World(5)
    leader = world.elect("n1")
    for away in ("n4", "n5"):
        world.kill(away)
    world.wires.hold.add(("n3", "n1"))
    index = world.propose(b"on the disks of n1, n2 and n3")
    world.until(lambda: leader.member.replication.match_of(world["n2"].member.me) == index)
    world.kill("n2")
    world["n2"].journal = MemoryJournal()
    world["n2"].journal.set_votes_suspended(True)
    world.wires.hold.add(("n2", "n1"))
    world.restart("n2")

    world.wires.hold.discard(("n3", "n1"))
    world.until(lambda: leader.member.replication.match_of(world["n3"].member.me) == index)
    world.run(20)

    assert leader.member.leads
    assert leader.member.commit_index < index


def test_members_change_only_when_the_change_before_is_committed():
    world = World(3)
    leader = world.elect("n1")
    assert leader.member.may_change()
    leader.member.change(leader.member.configuration.without(NodeId("n3")))
    assert not leader.member.may_change()

    with pytest.raises(AssertionError):
        leader.member.change(leader.member.configuration.without(NodeId("n2")))
    world.until(leader.member.may_change)


def test_members_that_only_a_truncated_entry_named_are_the_members_no_more():
    world = World(3)
    leader = world.elect("n1")
    before = leader.member.configuration
    world.isolate("n1")
    leader.member.change(before.without(NodeId("n3")))
    assert leader.member.configuration.voters == ("n1", "n2")
    world.until(lambda: world.leader(["n2", "n3"]) is not None)
    world.heal_all()
    world.until(lambda: world["n1"].journal.truncations)

    assert world["n1"].member.configuration == before


def test_what_a_follower_had_is_remembered_while_it_is_away():
    world = World(3)
    leader = world.elect("n1")
    last = world.commit(b"one")
    world.run(50)
    world.kill("n3")
    world.run(10)

    assert leader.member.replication.match_of(world["n3"].member.me) == last


def test_an_install_that_another_leader_does_not_finish_leaves_room_for_snapshots(monkeypatch):
    monkeypatch.setattr(snapshot_transfer, "PART_BYTES", 256)
    monkeypatch.setattr(snapshot_transfer, "INSTALL_WINDOW_BYTES_MAX", 1024)
    world, _leader, node, _ = behind()
    aborted: list[int] = []
    world.restart("n3")
    journal = node.journal
    journal.abort_install = lambda: aborted.append(1)  # type: ignore[method-assign]
    world.until(lambda: journal._installing is not None)
    for name in ("n1", "n2"):
        world[name].paused = True
    world.kill("n1")
    member = node.member
    member.receive(NodeId("n2"), [GROUP, APPEND, member.term + 1, 1, 0, 1, []])

    assert aborted, "what was received of the first one is still held"


def test_a_member_that_is_poisoned_while_it_asks_for_votes_does_not_become_leader():
    world = World(3)
    world.elect("n1")
    world.commit(b"one")
    world.run(50)
    member = world["n2"].member
    term = member.term
    member.poisoned = None
    peers = {peer.id: peer for peer in member.peers}
    member.elections._pre_votes = {member.me}
    member.poisoned = "entry 3: a bug"
    member.elections.on_pre_voted(peers[NodeId("n3")], term + 1, True)
    assert not member.campaigning
    assert not member.leads

    member.poisoned = None
    member.elections.campaign(world.now)
    member.poisoned = "entry 3: a bug"
    member.elections.on_voted(peers[NodeId("n3")], True)
    assert not member.leads


async def test_a_proposal_whose_place_is_taken_by_a_later_one_of_ours_is_answered_too():
    """The index is used again when this node leads again before the first one was given up."""

    cluster = await Cluster().start()
    first = await cluster.elect()
    name = first.node
    others = [n for n in cluster.names if n != name]
    cluster.isolate(name)
    lost: list[Any] = []
    for n in range(6):  # six entries that nobody else gets
        first.propose(enqueue(b"lost %d" % n), lost.append)
        await asyncio.sleep(0.005)
    await cluster.until(
        lambda: cluster.nodes[others[0]].groups[1].ready or cluster.nodes[others[1]].groups[1].ready
    )
    second = next(cluster.nodes[n].groups[1] for n in others if cluster.nodes[n].groups[1].ready)
    cluster.heal()
    await cluster.until(
        lambda: first.member.leader is not None and first.member.leader.id == second.node
    )
    await cluster.until(lambda: first.last_index == second.last_index)
    entries = first._proposals._entries
    assert [i for i in entries if i > first.last_index + 1], "the scenario lost its point"
    for each in entries.values():
        each.until = None  # as if it all happened within one election timeout
    second.transfer(NodeId(name))
    await cluster.until(lambda: first.ready)
    after: list[Any] = []
    for n in range(8):
        first.propose(enqueue(b"after %d" % n), after.append)
        await asyncio.sleep(0.005)
    await cluster.until(lambda: len(after) == 8)
    assert [o.kind for o in after] == ["ok"] * 8
    assert len(lost) == 6
    assert "ok" not in [o.kind for o in lost]
    assert first.pending_bytes == 0
    await cluster.stop()


async def test_a_copy_that_failed_does_not_say_that_it_leads():
    cluster = await Cluster().start()
    group = await cluster.elect()
    group.fail(AssertionError("a bug"))

    assert group.role is Role.FOLLOWER
    assert not group.ready
    assert group.leader is None
    await cluster.until(lambda: any(n.groups[1].ready for n in cluster.nodes.values()), 10)
    await cluster.stop()


async def test_a_disk_that_breaks_while_an_entry_is_applied_is_no_bug(
    monkeypatch: pytest.MonkeyPatch,
):
    cluster = await Cluster().start()
    group = await cluster.elect()

    def note(*_: Any) -> None:
        raise FatalDiskError("no space left")

    monkeypatch.setattr(group.member.host, "apply_entry", note)
    group.propose(enqueue(b"one"), print)
    task = cluster.nodes[group.node].task
    with pytest.raises(FatalDiskError):
        await task
    assert group.poisoned is None
    monkeypatch.undo()
    cluster.nodes[group.node].task = asyncio.create_task(asyncio.sleep(0))
    await cluster.stop()


async def test_a_copy_that_failed_keeps_nothing_that_others_send_it():
    cluster = await Cluster().start()
    group = await cluster.elect()
    group.fail(AssertionError("a bug"))
    kept: list[Any] = group._inbox
    await cluster.until(lambda: any(n.groups[1].ready for n in cluster.nodes.values()), 10)
    await asyncio.sleep(5)

    assert kept == []
    assert group.due == math.inf
    await cluster.stop()


async def test_a_snapshot_that_cannot_be_taken_now_is_taken_later():
    cluster = await Cluster().start()
    group = await cluster.elect()
    group.take_snapshot()
    await group._snapshots.take(lambda: None)  # one is being sent, or a backup reads

    assert group.taking_snapshot
    await cluster.until(lambda: not group.taking_snapshot)
    assert group.journal.base_index > 0
    await cluster.stop()


async def test_time_is_not_proposed_while_leadership_is_handed_over():
    cluster = await Cluster().start()
    group = await cluster.elect()
    machine: ListMachine = group.machine  # type: ignore[assignment]
    follower = next(n for n in cluster.names if n != group.node)
    cluster.cut.add(frozenset((group.node, follower)))  # it stays behind
    assert (await group.ask(enqueue(b"one"))).kind == "ok"
    group.transfer(NodeId(follower))
    last = group.last_index
    machine.due_ms = 0
    await asyncio.sleep(0.2)
    assert group.last_index == last
    await cluster.stop()


async def test_a_snapshot_that_is_overtaken_by_an_install_is_refused():
    """The entry it ends with may still be there: as a live one of the newer snapshot."""

    gate = asyncio.Event()
    held = [True]

    async def pause(operation: str) -> None:
        if operation == "sync" and held[0]:
            held[0] = False
            await gate.wait()

    disk = MemoryDisk()
    loop: Any = asyncio.get_running_loop()
    log = await Log.open(
        "/data",
        disk=disk,
        clock=FakeClock(loop),
        identity=LogIdentity("n1", "test"),
        options=LogOptions(min_free_bytes=0),
    )
    journal = log.journal(1)
    journal.set_term(1, None)
    for index in range(2, 12):
        journal.add(b"\x00%d" % index, index, 1)
    log.write()
    await log.sync()
    digest = journal.hash_at(10)
    assert digest is not None
    disk._pause = pause
    saving = asyncio.create_task(journal.save_snapshot(10, 1, b"older", [(10, 10)]))
    await asyncio.sleep(0.01)
    journal.begin_install(50, 1, bytes(range(16)), b"newer", [(10, 10)])
    journal.add_live(10, 1, b"\x0010", digest)
    await journal.finish_install()
    gate.set()
    with pytest.raises(SnapshotRefused):
        await saving
    assert (journal.base_index, journal.last_index) == (50, 50)
    snapshot = journal.load_snapshot()
    assert snapshot is not None
    assert snapshot.data == b"newer"
    await log.close()


def lost_disk(world: World, name: str) -> None:
    world.kill(name)
    world[name].journal = MemoryJournal()
    world.restart(name)
    world[name].member.votes_suspended = True


def test_a_member_that_lost_its_disk_does_not_help_to_forget_what_it_acknowledged():
    """Without this the one that missed the entries would be elected, and they would be lost."""
    world = World(3)
    world.elect("n1")
    world.kill("n2")
    last = world.commit(b"only n1 and n3 have it")
    world.run(50)
    world.kill("n1")
    world.restart("n2")
    lost_disk(world, "n3")
    world.run(8_000)
    assert world.leader() is None

    world.restart("n1")
    leader = world.elect()
    assert leader.name == "n1"
    assert leader.member.commit_index >= last
    world.check_logs_match()


def test_it_votes_again_once_a_leader_gave_it_all_that_is_committed():
    world = World(3)
    leader = world.elect("n1")
    for n in range(20):
        world.commit(b"%d" % n)
    world.run(50)
    lost_disk(world, "n3")
    member = world["n3"].member
    world.until(lambda: not member.votes_suspended, 3000)
    assert member.last_index == leader.journal.last_index
    # It may have voted in this term before: now its vote is the leader's.
    assert (member.term, member.voted_for) == (leader.member.term, "n1")

    world.kill("n1")
    assert world.elect().name in ("n2", "n3")


async def test_timers_go_on_after_a_clock_jumped_ahead_and_was_set_right_again():
    cluster = await Cluster().start()
    group = await cluster.elect()
    clock = cluster.nodes[group.node].clock
    clock.skew_ms = 300_000
    assert (await group.ask(enqueue(b"one"))).kind == "ok"
    clock.skew_ms = 0
    machine: ListMachine = group.machine  # type: ignore[assignment]
    machine.due_ms = machine.now_ms + 1_000
    await group.ask(enqueue(b"two"))  # what a machine waits for, it waits for since some entry
    await asyncio.sleep(1.9)
    assert machine.ticks == 0
    await asyncio.sleep(0.3)
    assert machine.ticks == 1, "time that is ahead goes on at half its speed"
    await cluster.stop()


async def test_a_tick_that_was_lost_with_a_leadership_does_not_stop_the_next_one():
    cluster = await Cluster().start()
    group = await cluster.elect()
    machine: ListMachine = group.machine  # type: ignore[assignment]
    group._tick_index = group.last_index + 50  # it was there before the log was truncated
    other = next(n for n in cluster.names if n != group.node)
    group.transfer(NodeId(other))
    await cluster.until(lambda: cluster.nodes[other].groups[1].ready)
    cluster.nodes[other].groups[1].transfer(group.node)
    await cluster.until(lambda: group.ready)
    machine.due_ms = 0
    group.propose(enqueue(b"one"))
    await cluster.until(lambda: machine.ticks == 1, 2)
    await cluster.stop()
