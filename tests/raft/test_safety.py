"""The figures of the Raft paper, played out."""

from __future__ import annotations

from random import Random

import pytest

from cluster.raft.drive_loop import FATAL
from cluster.raft.following import Diverged
from cluster.raft.messages import APPEND, APPENDED
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.types import NodeId
from tests.raft.world import GROUP, World


def entry(term: int, index: int) -> bytes:
    return REGULAR + b"%d/%d" % (term, index)


def with_logs(logs: dict[str, list[int]], terms: dict[str, int] | None = None) -> World:
    """A world whose members start with these entries, given as the terms from index 2 on."""
    world = World(len(logs))
    for name, log in logs.items():
        journal = world[name].journal
        for index, term in enumerate(log, start=2):
            journal.add(entry(term, index), index, term)
        term = (terms or {}).get(name, max(log, default=0))
        journal.set_term(term, None)
        journal.keep()
        world[name].start()
    for a in world.names:
        for b in world.names:
            if a != b:
                world[a].member.link_up(NodeId(b))
    return world


FIGURE_7 = [
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6],  # the leader for term 8
    [1, 1, 1, 4, 4, 5, 5, 6, 6],  # (a) may be missing entries
    [1, 1, 1, 4],  # (b)
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],  # (c) may have extra uncommitted entries
    [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],  # (d)
    [1, 1, 1, 4, 4, 4, 4],  # (e) or both
    [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],  # (f)
]


def test_figure_7_a_leader_brings_every_log_into_line_with_its_own():
    names = [f"n{i + 1}" for i in range(7)]
    logs = dict(zip(names, FIGURE_7, strict=True))
    world = with_logs(logs, dict.fromkeys(names, 7))
    for node in world.nodes.values():
        node.paused = node.name != "n1"
    leader = world["n1"]
    leader.member.elections.campaign(world.now)
    for name in ("n2", "n3", "n6", "n7"):  # the votes of (a), (b), (e) and (f)
        world[name].paused = False
    world.until(lambda: leader.member.leads)
    for node in world.nodes.values():
        node.paused = False
    world.until(lambda: leader.member.commit_index == leader.journal.last_index)
    world.run(300)

    assert leader.member.leads
    for node in world.nodes.values():
        assert node.journal.tail == leader.journal.tail
        assert node.member.applied_index == leader.journal.last_index
    # Going back takes a step per term, not one per entry.
    rejections = sum(m[1] == "an" for _, _, m in world.wires.sent)
    assert rejections <= 12


def test_figure_7_the_followers_that_may_vote_are_those_whose_log_is_not_newer():
    """(c) and (d) have entries that the leader lacks, so they refuse their votes."""
    names = [f"n{i + 1}" for i in range(7)]
    world = with_logs(dict(zip(names, FIGURE_7, strict=True)), dict.fromkeys(names, 7))
    world["n1"].member.elections.campaign(world.now)
    world.run(5)
    granted = {a for a, _, m in world.wires.sent if m[1] == "vr" and m[3]}

    assert granted == {"n2", "n3", "n6", "n7"}


def test_figure_8_an_entry_of_an_earlier_term_is_not_committed_by_counting_replicas():
    """(c) of the figure: S1 leads term 4 and its entry of term 2 is on a majority, yet it may
    still be overwritten.
    """
    world = with_logs({"n1": [1, 2], "n2": [1, 2], "n3": [1], "n4": [1], "n5": [1, 3]})
    for name in world.names:
        world[name].journal.set_term(3, None)
        world[name].journal.keep()
        world[name].start()
    leader = world["n1"].member
    leader.now = world.now
    leader.elections.campaign(world.now)
    term = leader.term
    for voter in ("n2", "n3"):
        leader.receive(NodeId(voter), [GROUP, "vr", term, True])
    assert leader.leads
    for name in ("n2", "n3"):  # both hold index 3 (term 2), not yet the entry of term 4
        leader.receive(NodeId(name), [GROUP, APPENDED, term, 3])
    leader.tick(world.now)
    assert leader.journal.term_at(3) == 2
    assert leader.commit_index == 1

    world["n1"].journal.keep()
    for name in (
        "n2",
        "n3",
    ):  # (e): once an entry of its own term is there, all before it is committed
        leader.receive(NodeId(name), [GROUP, APPENDED, term, 4])
    leader.tick(world.now)
    assert leader.commit_index == 4


def test_log_matching_a_gap_is_refused():
    """Raft, 5.3, the consistency check: such an append changes nothing."""
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    node.member.receive(NodeId("n1"), [GROUP, APPEND, 1, 5, 1, 9, [[REGULAR, 1]]])
    node.finish()

    assert node.journal.last_index == 1
    assert node.member.commit_index == 1
    assert world.wires.sent[-1] == ("n3", "n1", [GROUP, "an", 1, 5, 1, 0])


def test_an_acknowledgement_leaves_after_the_entry_is_on_disk():
    world = World(3)
    leader = world.elect("n1")
    for name in ("n2", "n3"):
        world[name].sync_ms = 30
    index = world.propose(b"x")
    world.run(25)
    assert leader.member.commit_index < index

    for name in ("n2", "n3"):  # the power goes before the sync ends: nobody was promised anything
        world.kill(name)
        assert world[name].journal.last_index < index


def test_leader_completeness_under_kills_and_power_cuts():
    """Raft, figure 3: what was committed is in every later leader's log.

    Random kills, crashes lose what is unsynced.
    """
    for seed in range(12):
        dice = Random(seed)
        world = World(3 if seed % 2 else 5, seed=seed)
        for node in world.nodes.values():
            node.sync_ms = dice.randint(0, 8)
        committed: dict[int, tuple[bytes, int]] = {}
        for n in range(60):
            leader = world.leader()
            if leader is not None:
                for _ in range(dice.randint(1, 5)):
                    world.propose(b"%d:%d" % (n, dice.getrandbits(16)), leader)
            world.run(dice.randint(1, 60))
            for node in world.nodes.values():
                if node.up:
                    for command, index, term in node.host.applied:
                        known = committed.setdefault(index, (command, term))
                        assert known == (command, term), f"seed {seed}: two entries at {index}"
            fault = dice.random()
            name = dice.choice(world.names)
            if fault < 0.15 and sum(n.up for n in world.nodes.values()) > len(world.names) // 2 + 1:
                if world[name].up:
                    world.kill(name)
            elif fault < 0.3:
                for each in world.names:
                    if not world[each].up:
                        world.restart(each)
            elif fault < 0.4:
                world.isolate(name)
            elif fault < 0.6:
                world.heal_all()
        for each in world.names:
            if not world[each].up:
                world.restart(each)
        world.heal_all()
        leader = world.elect()
        world.check_logs_match()
        for index, (command, term) in committed.items():
            assert (command, index, term) in leader.journal.tail, f"seed {seed}: {index} was lost"


def test_no_log_ever_ends_before_an_entry_that_was_acknowledged_in_a_calm_cluster_under_load():
    """The probe that found the stock hole: several windows in flight, and nobody's log ever gets
    shorter.
    """
    world = World(3, latency_ms=7)
    leader = world.elect()
    highest = dict.fromkeys(world.names, 0)
    for _ in range(600):
        for _ in range(4):
            world.propose(bytes(4000))
        world.step()
        for name, node in world.nodes.items():
            assert node.journal.last_index >= highest[name]
            highest[name] = node.journal.last_index
    last = leader.journal.last_index
    world.until(lambda: all(n.member.applied_index == last for n in world.nodes.values()))
    assert all(not n.journal.truncations for n in world.nodes.values())


def test_the_leader_is_cut_off_under_load_and_killed_and_nothing_confirmed_is_lost():
    """The directed scenario in which the stock class lost commands in 8 of 20 seeds."""
    for seed in range(20):
        dice = Random(seed)
        world = World(3, seed=seed, latency_ms=dice.randint(1, 6))
        for node in world.nodes.values():
            node.sync_ms = dice.randint(0, 3)
        leader = world.elect()
        followers = [n for n in world.names if n != leader.name]
        for n in range(dice.randint(60, 200)):
            for _ in range(3):
                world.propose(b"%d" % n + bytes(4000), leader)
            world.step()
        world.cut(leader.name, followers[seed % 2])
        world.run(dice.randint(1, 10))
        confirmed = leader.host.applied[:]
        world.kill(leader.name)
        world.heal_all()
        found = world.elect()
        for each in confirmed:
            assert each in found.journal.tail or each[0] == NO_OP, f"seed {seed}: {each[1]} is lost"


def test_an_append_that_contradicts_a_committed_entry_stops_the_member_instead_of_being_obeyed():
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    node.member.receive(NodeId("n1"), [GROUP, APPEND, 1, 1, 0, 3, [[REGULAR, 1]] * 3])
    with pytest.raises(Diverged):
        node.member.receive(NodeId("n2"), [GROUP, APPEND, 2, 1, 0, 3, [[REGULAR, 2]]])

    assert not issubclass(Diverged, FATAL)  # the group stops, the node goes on
