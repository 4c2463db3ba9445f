"""Who the members are: entries of the log, one voter at a time, and disks that do not count."""

from __future__ import annotations

import pytest

from cluster.members.membership import Transfer, next_step
from cluster.raft.configuration import Configuration, Configurations, decode, encode, split
from cluster.raft.host import Role
from cluster.recovery.lost_majority import go_on
from cluster.types import NodeId
from tests.raft.world import MemoryJournal, World


def nodes(names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names.split())


ABC = Configuration(nodes("a b c"))


def test_a_configuration_survives_the_log() -> None:
    configuration = Configuration(nodes("a b c"), nodes("d"))
    assert decode(encode(configuration)) == configuration


@pytest.mark.parametrize("garbage", [b"", b"\x80", b"\x02\xff", b"\x02\x82\x80\x80", b"\x02\x01"])
def test_an_entry_that_cannot_be_read_changes_nothing(garbage: bytes) -> None:
    assert decode(garbage) is None


def test_a_truncated_log_goes_back_to_the_configuration_before() -> None:
    known = Configurations(ABC, MemoryJournal(), None)
    known.add(5, encode(ABC.with_learner(NodeId("d"))))
    known.add(9, encode(ABC.with_voter(NodeId("d"))))
    assert known.current.voters == nodes("a b c d")
    known.truncate(9)
    assert known.current.learners == nodes("d")
    assert known.index == 5
    known.truncate(2)
    assert known.current == ABC


def test_a_snapshot_says_who_the_members_were_at_its_entry() -> None:
    known = Configurations(ABC, MemoryJournal(), None)
    known.add(5, encode(ABC.with_learner(NodeId("d"))))
    known.add(9, encode(ABC.with_voter(NodeId("d"))))
    found, machine = split(known.joined(7, b"state"))
    assert found == (5, ABC.with_learner(NodeId("d")))
    assert machine == b"state"
    assert known.current.voters == nodes("a b c d")
    assert split(b"of before") == (None, b"of before")


def test_only_one_voter_may_come_or_go_at_a_time() -> None:
    assert ABC.with_voter(NodeId("d")).follows(ABC)
    assert ABC.without(NodeId("a")).follows(ABC)
    assert not ABC.with_voter(NodeId("d")).without(NodeId("a")).follows(ABC)
    assert ABC.with_learner(NodeId("d")).with_learner(NodeId("e")).follows(ABC)


def steps(configuration: Configuration, wanted: str, ready: str, leader: str = "a") -> list[str]:
    """All steps until none is left, by what they make of it."""
    seen: list[str] = []
    heard = nodes(ready)
    for _ in range(20):
        step = next_step(configuration, nodes(wanted), leader=NodeId(leader), ready=heard, up=heard)
        if step is None:
            return seen
        if isinstance(step, Transfer):
            leader = step.to
            seen.append(f"to {step.to}")
            continue
        assert step.follows(configuration)
        assert leader in step.voters
        configuration = step
        seen.append(" ".join(step.voters) + "".join(f" ({n})" for n in step.learners))
    raise AssertionError(f"it never ends: {seen}")


def test_a_dead_member_is_replaced_without_ever_losing_the_majority() -> None:
    assert steps(ABC, "a b d", "a b d") == ["a b c (d)", "a b c d", "a b d"]


def test_nobody_goes_before_the_new_one_has_caught_up() -> None:
    assert steps(ABC, "a b d", "a b c") == ["a b c (d)"]


def test_a_leader_hands_over_before_it_goes() -> None:
    assert steps(ABC, "b c d", "a b c d") == ["a b c (d)", "a b c d", "to b", "b c d"]


def test_no_voter_goes_when_too_few_of_the_rest_are_there() -> None:
    assert steps(ABC, "a b", "a c") == []


def test_a_learner_that_is_wanted_no_more_goes_at_once() -> None:
    learning = ABC.with_learner(NodeId("d"))
    assert steps(learning, "a b c", "a b c d") == ["a b c"]


# --- disks that forgot


def test_a_wiped_voter_does_not_help_an_old_leader_to_commit_what_a_new_one_lacks() -> None:
    """It voted for a later leader, lost its disk, and hears the old leader first: what those two
    have in common is no majority that anybody else respects.
    """
    world = World(3)
    old = world.elect("n1")
    world.cut("n1", "n2")
    new = world["n2"].member
    new.elections.campaign(world.now)
    world["n2"].finish()
    world.until(lambda: world["n3"].member.voted_for == "n2")
    world.cut("n1", "n3")
    world.until(lambda: new.leads)
    world.cut("n2", "n3")

    wiped = world["n3"]
    wiped.journal = MemoryJournal()
    wiped.start()
    wiped.member.votes_suspended = True
    assert old.member.leads
    index = world.propose(b"only here", old)
    world.heal("n1", "n3")
    world.until(lambda: wiped.journal.last_index >= index, 500)
    world.run(20)
    assert old.member.commit_index < index

    for pair in (("n1", "n2"), ("n2", "n3")):
        world.heal(*pair)
    world.until(lambda: new.commit_index == new.last_index == old.journal.last_index, 8_000)
    world.until(lambda: not wiped.member.votes_suspended)


def forget(world: World, name: str) -> None:
    """Its copy begins anew. No link breaks: the others are not told."""
    node = world[name]
    node.journal = MemoryJournal()
    node.start()
    node.member.votes_suspended = True
    for other in world.names:
        if other != name:
            node.member.link_up(NodeId(other))


def test_who_forgets_twice_needs_a_proof_from_after_the_second_time() -> None:
    world = World(3)
    leader = world.elect("n1")
    twice = world["n3"]
    forget(world, "n3")
    world.until(lambda: not twice.member.votes_suspended)
    world.run(500)
    world.cut("n1", "n2")
    forget(world, "n3")
    world.until(lambda: twice.journal.last_index == leader.journal.last_index > 2)
    world.run(500)
    assert twice.member.votes_suspended
    world.heal("n1", "n2")
    world.until(lambda: not twice.member.votes_suspended)


def test_a_word_of_trust_for_an_earlier_copy_is_none_for_the_next() -> None:
    world = World(3)
    world.elect("n1")
    held: list[str] = []
    world.wires.drop = lambda _from, _to, message: message[1] == "tr" and not held.append("")
    forget(world, "n3")
    world.until(lambda: held)
    proof = world["n1"].member.last_index
    forget(world, "n3")
    follower = world["n3"].member
    world.until(lambda: follower.leader is not None)
    follower.following.on_readmit(world["n3"].member.leader, proof + 1)
    assert follower.votes_suspended


@pytest.mark.parametrize(("learner", "ahead"), [(True, False), (True, True), (False, False)])
def test_the_first_leader_after_a_lost_majority_takes_a_withheld_vote_of_a_learner_not_ahead(
    learner: bool, ahead: bool
) -> None:
    """Nobody else takes one from anybody."""
    world = World(3)
    leader = world.elect("n1").member
    if learner:
        for change in ("without", "with_learner"):
            world.until(leader.may_change)
            leader.change(getattr(leader.configuration, change)(NodeId("n3")))
    world.propose(b"1")
    world.until(lambda: leader.commit_index == leader.last_index)
    survivor, forgot = world["n2"], world["n3"]
    world.until(lambda: survivor.member.last_index == forgot.member.last_index)
    if ahead:
        world.wires.drop = lambda *ends_and_message: set(ends_and_message[:2]) == {"n1", "n2"}
        index = world.propose(b"2")
        world.until(lambda: forgot.journal.last_index == index)
    world.kill("n1")
    world.wires.drop = lambda *_: False
    for node in (survivor, forgot):
        world.kill(node.name)
    forgot.journal.set_votes_suspended(True)
    forgot.journal.keep()
    for node in (survivor, forgot):
        world.restart(node.name)
    world.run(6_000)
    assert survivor.member.role is forgot.member.role is Role.FOLLOWER

    world.kill("n2")
    go_on(survivor.journal, nodes("n2 n3"), nodes("n1"))  # type: ignore[arg-type]
    survivor.journal.keep()
    world.restart("n2")
    world.run(6_000)
    assert survivor.member.leads is (learner and not ahead)
    if survivor.member.leads:
        assert forgot.journal.voted_for == "n2"
        assert survivor.member.configuration.voters == nodes("n2")
        assert survivor.member.configuration.learners == nodes("n3")
        world.until(lambda: forgot.journal.last_index == survivor.journal.last_index)
        world.until(lambda: not forgot.member.votes_suspended)


def test_a_leader_that_learns_that_its_disk_forgot_leads_no_longer() -> None:
    world = World(3)
    leader = world.elect("n1")
    leader.member.votes_suspended = True
    world.run(2)
    assert not leader.member.leads
    world.until(lambda: world.leader() in (world["n2"], world["n3"]))
    world.until(lambda: not leader.member.votes_suspended)
