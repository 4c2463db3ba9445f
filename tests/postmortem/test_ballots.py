"""Votes, terms and leaders: what is broken is found, what may merely be missing is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.postmortem.life.ballots import (
    TERM_BACK,
    TWICE,
    UNELECTED,
    Ballots,
    Config,
    Known,
    Members,
    Noted,
)

S_NS = 10**9
ALL = ("n1", "n2", "n3")
LOGS = {node: Known(0, 100 * S_NS, ended=False, whole=True) for node in ALL}


class Log:
    """What nodes note, one thing a second."""

    def __init__(self) -> None:
        self.noted: list[Noted] = []

    def _add(self, node: str, kind: str, term: int, **more: Any) -> None:
        at = 10 + len(self.noted)
        told = {"disk": 0, "holes": 0, "index": 1, "vote": None, **more}
        self.noted.append(
            Noted(
                node=node, kind=kind, term=term, place=at, ref_ns=at * S_NS, at_ns=at * S_NS,
                file=f"{node}.log", offset=at, **told,
            )
        )  # fmt: skip

    def votes(self, node: str, term: int, vote: str | None, **more: Any) -> None:
        self._add(node, "hard-state", term, vote=vote, **more)

    def leads(self, node: str, term: int, **more: Any) -> None:
        self._add(node, "role", term, **more)

    def removed(self, node: str) -> None:
        self._add(node, "group-removed", 0)

    def elect(self, node: str, term: int, *voters: str) -> None:
        for each in (node, *voters):
            self.votes(each, term, node)
        self.leads(node, term)


def codes(log: Log, **known: Any) -> list[tuple[str, str, int]]:
    ballots = Ballots(**{"logs": LOGS, **known})
    return [(each.code, each.at.node, each.at.term) for each in ballots.judge(log.noted)]


def test_elections_in_order_break_nothing():
    log = Log()
    log.elect("n1", 1, "n2", "n3")
    log.votes("n3", 2, None)
    log.elect("n2", 2, "n3")
    log.votes("n3", 2, "n2")  # written again by the cleaner
    log.elect("n3", 5, "n1")

    assert codes(log) == []


def test_two_votes_in_a_term_are_found_whatever_lies_between():
    log = Log()
    log.elect("n1", 1, "n2")
    log.votes("n2", 1, None)
    log.votes("n2", 1, "n3", disk=1)  # its disk was replaced

    assert codes(log) == [(TWICE, "n2", 1)]


def test_a_term_that_goes_back_is_found_unless_the_copy_is_a_new_one():
    log = Log()
    log.votes("n1", 5, "n1")
    log.votes("n1", 4, None)
    log.votes("n2", 5, "n1")
    log.removed("n2")
    log.votes("n2", 0, None)
    log.votes("n3", 5, "n1")
    log.votes("n3", 2, None, disk=1)

    assert codes(log) == [(TERM_BACK, "n1", 4)]


def unelected(**options: Any) -> Log:
    """n1 leads term 3 by its own vote; the others were in term 1 before, in term 4 behind it."""
    log = Log()
    log.elect("n2", 1, "n1", "n3")
    log.elect("n1", 3)
    for node in ("n2", "n3"):
        log.votes(node, 4, "n2", **options)
    log.leads("n2", 4)
    return log


def test_a_leader_by_its_own_vote_alone_is_found():
    assert codes(unelected()) == [(UNELECTED, "n1", 3)]


def test_it_is_found_where_the_others_never_heard_of_that_term():
    log = Log()
    log.elect("n2", 1, "n1", "n3")
    log.elect("n1", 3)

    assert codes(log) == [(UNELECTED, "n1", 3)]
    copied_before = {node: replace(LOGS[node], ends_ns=13 * S_NS) for node in ALL}
    assert codes(log, logs=copied_before) == []
    died_before = {node: replace(each, ended=True) for node, each in copied_before.items()}
    assert codes(log, logs=died_before) == [(UNELECTED, "n1", 3)]


@pytest.mark.parametrize("hole", [{"holes": 1}, {"disk": 1}])
def test_where_segments_are_missing_a_vote_may_have_been_there(hole: dict[str, int]):
    assert codes(unelected(**hole)) == []


def test_whose_log_was_not_given_may_have_voted():
    log = Log()
    log.elect("n2", 1, "n1")
    log.elect("n1", 3)
    given = {node: LOGS[node] for node in ("n1", "n2")}
    five = frozenset({"n4", "n5"})

    assert codes(log, logs=given, absent=frozenset({"n3"})) == []
    assert codes(log, logs=given) == [(UNELECTED, "n1", 3)]
    assert codes(unelected(), absent=five) == []


@pytest.mark.parametrize("behind", [(), (4,)])
def test_a_disk_that_is_newer_than_the_election_proves_nothing(behind: tuple[int, ...]):
    """n2's was wiped: with it went its vote in term 3; on the new one it heard of that term."""
    log = Log()
    log.elect("n3", 1, "n1")
    log.elect("n1", 3)
    log.votes("n2", 3, None)
    for term in behind:
        log.votes("n2", term, "n3")
    began = replace(LOGS["n2"], begins_ns=14 * S_NS + S_NS // 2)

    assert codes(log, logs={**LOGS, "n2": began}) == []
    assert codes(log) == [(UNELECTED, "n1", 3)]


def test_who_the_members_are_decides_what_a_majority_is():
    def members(*voters: str, index: int = 1, committed: bool = True) -> Members:
        return Members([Config(index, frozenset(voters), committed)])

    assert codes(unelected(), members=members("n1")) == [(UNELECTED, "n2", 4)]
    assert codes(unelected(), members=members(*ALL)) == [(UNELECTED, "n1", 3)]
    # What comes behind its last entry does not count for that leader.
    both = Members([Config(0, frozenset(ALL)), Config(2, frozenset({"n1"}))])
    assert codes(unelected(), members=both) == [(UNELECTED, "n1", 3)]
    perhaps = Members([Config(0, frozenset(ALL)), Config(1, frozenset({"n1"}), committed=False)])
    assert codes(unelected(), members=perhaps) == []
    given_up = Members([Config(0, frozenset(ALL))], [(3, frozenset({"n2", "n3"}))])
    assert codes(unelected(), members=given_up) == [(UNELECTED, "n2", 4)]
