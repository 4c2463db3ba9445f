"""Raft, 5.2 and 5.4.1; thesis, 6.2 (check-quorum), 9.6 (pre-vote), 3.10 (transfer)."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.raft.member import Role
from cluster.raft.messages import APPEND, APPENDED, PRE_VOTE, PRE_VOTED, TIMEOUT_NOW, VOTE, VOTED
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import NodeId
from tests.raft.world import GROUP, World


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_group_of_any_size_elects_one_leader_and_commits(count: int):
    world = World(count)
    world.elect()

    index = world.commit(b"x")

    world.run(50)
    assert all(node.member.applied_index >= index for node in world.nodes.values())


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_without_a_majority_nothing_is_committed_and_nobody_leads(count: int):
    world = World(count)
    world.elect()
    lost = count - count // 2  # what is left is at most half
    for name in world.names[:lost]:
        world.kill(name)

    world.run(6000)
    assert world.leader() is None


@pytest.mark.parametrize("count", [3, 4, 5])
def test_with_a_majority_left_a_leader_is_found(count: int):
    world = World(count)
    world.elect()
    for name in world.names[: (count - 1) // 2]:
        world.kill(name)

    world.until(lambda: world.leader() is not None)


def test_at_most_one_leader_is_elected_in_a_term():
    """Raft, figure 3, Election Safety; `World.step` asserts it at every step of a lossy run."""
    for seed in range(8):
        world = World(5, seed=seed)
        for n in range(12):
            a, b = world.names[n % 5], world.names[(n * 3 + seed) % 5]
            if a != b:
                world.cut(a, b)
            world.run(400)
            if n % 3 == seed % 3:
                world.heal_all()
        world.heal_all()
        world.elect()


def test_the_voter_grants_one_candidate_per_term_and_repeats_it_to_that_one():
    """Raft, 5.2: each server will vote for at most one candidate in a given term."""
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    for sender in ("n1", "n1", "n2"):
        node.member.receive(NodeId(sender), [GROUP, VOTE, 4, 10, 3])
    node.finish()

    votes = [(b, m[3]) for a, b, m in world.wires.sent if m[1] == VOTED]
    assert votes == [("n1", True), ("n1", True), ("n2", False)]


@pytest.mark.parametrize(
    ("answer", "counted"), [(True, {"votes"}), (None, {"suspended"}), (False, set[str]())]
)
def test_a_refusal_is_no_vote_and_no_suspended_one(
    monkeypatch: pytest.MonkeyPatch, answer: bool | None, counted: set[str]
):
    """After a lost majority a suspended vote of a learner is enough."""
    world = World(5)
    node, member = world["n1"], world["n1"].member
    member.now = world.now
    member.elections.campaign(world.now)
    node.finish()
    found = set[str]()

    def elects(votes: Any, suspended: Any) -> bool:
        for name, peers in (("votes", votes), ("suspended", suspended)):
            if any(peer.id == "n2" for peer in peers):
                found.add(name)
        return False

    monkeypatch.setattr(member, "elects", elects)
    member.receive(NodeId("n2"), [GROUP, VOTED, member.term, answer])

    assert member.campaigning
    assert found == counted


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(6, 1, True), (7, 1, True), (5, 1, False), (2, 2, True), (9, 0, False)],
)
def test_a_vote_goes_only_to_a_log_that_is_as_up_to_date(last_index, last_term, granted):
    """Raft, 5.4.1: the later term is more up-to-date; with equal terms the longer log."""
    world = World(3)
    node = world["n3"]
    node.member.now = world.now
    node.member.receive(NodeId("n1"), [GROUP, APPEND, 1, 1, 0, 1, [[REGULAR, 1]] * 5])
    node.member.receive(NodeId("n2"), [GROUP, VOTE, 4, last_index, last_term])
    node.finish()

    assert [m[3] for _, b, m in world.wires.sent if m[1] == VOTED] == [granted]


def test_a_vote_survives_a_crash():
    world = World(3)
    node = world["n3"]
    node.sync_ms = 3
    node.inbox.append(("n1", [GROUP, VOTE, 4, 10, 3]))
    world.run(5)
    world.kill("n3")
    world.restart("n3")

    world.wires.sent.clear()
    node.inbox.append(("n2", [GROUP, VOTE, 4, 10, 3]))
    world.run(5)

    assert [m[3] for a, b, m in world.wires.sent if m[1] == VOTED and b == "n2"] == [False]


def test_a_request_for_votes_leaves_only_when_the_own_vote_is_on_disk():
    world = World(3)
    node = world["n1"]
    node.sync_ms = 20
    world.until(lambda: node.member.role is Role.CANDIDATE)
    assert not any(m[1] == VOTE for _, _, m in world.wires.sent)

    world.run(25)
    assert any(m[1] == VOTE for a, _, m in world.wires.sent if a == "n1")


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_a_leader_whose_process_ends_is_replaced_within_tens_of_milliseconds(count, seed):
    world = World(count, seed=seed)
    leader = world.elect()
    world.kill(leader.name)

    gap = world.until(lambda: world.leader() is not None)
    assert gap <= 75


def test_it_is_also_replaced_quickly_when_the_others_learn_of_it_one_after_the_other():
    world = World(3)
    leader = world.elect("n3")
    world.wires.latency_ms = 1
    leader.up = False
    world.cut("n1", "n3", closed=True)
    world.run(90)
    world.cut("n2", "n3", closed=True)

    gap = world.until(lambda: world.leader() is not None)
    assert gap <= 250


def test_a_leader_whose_links_were_reset_vouches_for_nothing_before_a_majority_answers_again():
    """The others need not wait for a timeout: they may have elected another one by now."""
    world = World(3)
    leader = world.elect("n1")
    world.run(100)
    assert leader.member.heard_since() is not None
    for other in ("n2", "n3"):
        world.cut("n1", other, closed=True)
    assert leader.member.leads
    assert leader.member.heard_since() is None

    world.heal_all()
    assert leader.member.heard_since() is None
    world.until(lambda: world.leader() is not None and world.leader().member.heard_since())


def test_a_leader_without_a_majority_does_not_keep_its_followers_believing_in_it():
    world = World(5)
    leader, follower = world.elect("n1"), world["n2"]
    world.run(100)
    for one in ("n1", "n2"):
        for other in ("n3", "n4", "n5"):
            world.cut(one, other, closed=True)
    world.propose(b"1")
    world.run(1_000)
    assert leader.member.leads
    assert follower.member.heard_since() is None


def test_a_silent_leader_is_replaced_after_an_election_timeout_only():
    world = World(3)
    leader = world.elect()
    world.isolate(leader.name)
    others = [n for n in world.names if n != leader.name]

    gap = world.until(lambda: world.leader(others) is not None)
    assert 700 <= gap <= 2300


@pytest.mark.parametrize("seed", range(20))
def test_members_do_not_collide_when_a_leader_goes(seed: int):
    """The ranks spread them: one round of votes is enough, whatever the dice say."""
    world = World(5, seed=seed)
    leader = world.elect()
    term = leader.member.term
    world.kill(leader.name)
    world.until(lambda: world.leader() is not None)
    found = world.leader()
    assert found is not None
    assert found.member.term == term + 1


def test_a_pre_vote_changes_no_term_and_is_refused_while_a_leader_lives():
    world = World(3)
    leader = world.elect("n1")
    term = leader.member.term
    world.wires.sent.clear()
    for target in ("n1", "n2"):
        world[target].inbox.append(("n3", [GROUP, PRE_VOTE, term, term + 1, 10**6, term]))
    world.run(3)

    answers = {(a, tuple(m[3:])) for a, b, m in world.wires.sent if m[1] == PRE_VOTED}
    assert answers == {("n1", (term + 1, False)), ("n2", (term + 1, False))}
    assert {n.member.term for n in world.nodes.values()} == {term}
    assert leader.member.leads


def test_a_member_with_a_higher_term_is_not_left_out_for_ever():
    """It answers the leader's appends with its term; a new election brings everybody together."""
    world = World(3)
    leader = world.elect("n1")
    world.isolate("n3")
    node = world["n3"]
    node.journal.set_term(leader.member.term + 5, "n3")
    world.kill("n3")
    node.journal.set_term(leader.member.term + 5, "n3")
    node.journal.keep()
    world.restart("n3")
    world.heal_all()

    world.until(lambda: len({n.member.term for n in world.nodes.values()}) == 1)
    world.elect()


def test_a_higher_term_makes_anyone_step_down():
    """Raft, 5.1."""
    world = World(3)
    leader = world.elect("n1")
    term = leader.member.term
    leader.member.receive(NodeId("n2"), [GROUP, VOTED, term + 3, False])

    assert leader.member.role is Role.FOLLOWER
    assert leader.member.term == term + 3
    assert leader.journal.voted_for is None


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_transfer_makes_the_named_member_leader_without_waiting(name: str):
    world = World(3)
    leader = world.elect("n1")
    world.propose(b"on its way")
    target = next(p for p in leader.member.voters if p.id == name)
    leader.member.replication.transfer(target, world.now)

    gap = world.until(lambda: world[name].member.leads)
    assert gap <= 15
    assert world.elect().name == name
    assert any(c == REGULAR + b"on its way" for c, _, _ in world[name].host.applied)


def test_a_transfer_waits_until_the_target_has_the_whole_log():
    world = World(3)
    leader = world.elect("n1")
    world.wires.hold.add(("n1", "n2"))
    world.propose(b"x")
    world.run(3)
    peer = next(p for p in leader.member.voters if p.id == "n2")
    leader.member.replication.transfer(peer, world.now)
    world.run(100)
    assert not any(m[1] == TIMEOUT_NOW for _, _, m in world.wires.sent)

    world.wires.hold.clear()
    world.until(lambda: world["n2"].member.leads, 50)


def test_a_transfer_that_comes_to_nothing_is_given_up_and_the_leader_goes_on():
    world = World(3)
    leader = world.elect("n1")
    peer = next(p for p in leader.member.voters if p.id == "n2")
    world["n2"].paused = True
    leader.member.replication.transfer(peer, world.now)
    world.run(100)
    assert leader.member.replication.transferring

    world.run(1000)
    assert leader.member.leads
    assert not leader.member.replication.transferring
    world.commit(b"x")


def test_timeout_now_from_anyone_but_the_leader_is_ignored():
    world = World(3)
    world.elect("n1")
    term = world["n2"].member.term
    world["n2"].inbox.append(("n3", [GROUP, TIMEOUT_NOW, term]))
    world.run(50)

    assert world["n1"].member.leads
    assert world["n1"].member.term == term


def test_a_leader_that_hears_a_majority_does_not_step_down():
    world = World(5)
    leader = world.elect("n1")
    world.kill("n4")
    world.kill("n5")
    world.run(10_000)

    assert leader.member.leads


def test_messages_of_a_later_version_are_ignored():
    world = World(3)
    leader = world.elect()
    leader.member.receive(NodeId("n2"), [GROUP, "zz", 10**9, 1, 2, 3])

    assert leader.member.leads


def test_elections_do_not_depend_on_the_hash_seed_or_the_run():
    def trace() -> list[object]:
        world = World(5, seed=3)
        world.elect()
        world.kill(world.leader().name)  # type: ignore[union-attr]
        world.run(3000)
        return world.wires.sent

    assert trace() == trace()


def test_answers_of_before_a_leader_stood_still_do_not_hide_the_break():
    """Its links were given up, so it hears of its successor only after they are back."""
    world = World(3)
    leader = world.elect("n1")
    world.commit(b"x")
    world.run(1000)
    member = leader.member
    since = member.heard_since()
    assert since is not None
    answer = [GROUP, APPENDED, member.term, member.last_index]
    leader.paused = True
    world.isolate("n1")
    world.until(lambda: world.leader(["n2", "n3"]) is not None)
    world.commit(b"y")

    leader.inbox += [("n2", answer), ("n3", answer)]
    leader.paused = False
    world.run(1)

    assert member.leads
    assert member.heard_since() not in (None, since)


def test_a_leader_that_hears_a_majority_has_no_break():
    world = World(3)
    leader = world.elect("n1")
    world.run(1000)
    since = leader.member.heard_since()
    world.kill("n3")
    world.run(10_000)

    assert since is not None
    assert leader.member.heard_since() == since
