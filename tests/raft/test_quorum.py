"""The arithmetic of majorities, as tables; and the rules that it rests on, for all small cases."""

from __future__ import annotations

import itertools
import math

import pytest

from cluster.raft.quorum import agreed, majority, reached, votes_needed


@pytest.mark.parametrize(
    ("voters", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)]
)
def test_a_majority_is_more_than_half(voters: int, quorum: int) -> None:
    assert majority(voters) == quorum


@pytest.mark.parametrize("voters", range(1, 7))
def test_majorities_before_and_after_a_voter_comes_share_a_member(voters: int) -> None:
    before, after = range(voters), range(voters + 1)
    for one in itertools.combinations(before, majority(voters)):
        for other in itertools.combinations(before, majority(voters)):
            assert set(one) & set(other)
        for other in itertools.combinations(after, majority(voters + 1)):
            assert set(one) & set(other)


@pytest.mark.parametrize(
    ("voters", "forced", "needed"),
    [(1, False, 1), (3, False, 2), (5, False, 3), (1, True, 1), (2, True, 2), (3, True, 3)],
)
def test_survivors_of_a_lost_majority_need_all_of_them(
    voters: int, forced: bool, needed: int
) -> None:
    assert votes_needed(voters, forced=forced) == needed


@pytest.mark.parametrize(
    ("matches", "committed"),
    [
        ([7], 7),
        ([7, 0], 0),  # of two both are needed
        ([7, 6], 6),
        ([9, 7, 0], 7),
        ([0, 7, 9], 7),
        ([9, 0, 0], 0),  # the leader's own disk alone
        ([0, 8, 8], 8),  # the leader's own disk is the slowest
        ([9, 8, 7, 6], 7),  # of four three
        ([9, 8, 7, 6, 5], 7),
        ([9, 9, 0, 0, 0], 0),
        ([5, 5, 5, 5, 5, 5, 9], 5),
    ],
)
def test_what_is_on_a_majority_of_disks_is_committed(matches: list[int], committed: int) -> None:
    assert reached(matches, majority(len(matches))) == committed


@pytest.mark.parametrize("voters", range(1, 6))
def test_reached_is_the_highest_value_that_so_many_have(voters: int) -> None:
    for values in itertools.product(range(4), repeat=voters):
        for quorum in range(1, voters + 1):
            slow = max(v for v in range(4) if sum(each >= v for each in values) >= quorum)
            assert reached(values, quorum) == slow


@pytest.mark.parametrize(
    ("heard", "leads_on"),
    [
        ([math.inf], True),
        ([math.inf, 3.0], False),
        ([math.inf, 5.0, 3.0], True),
        ([math.inf, 4.0, 3.0], False),  # to the moment is too late
        ([math.inf, 9.0, 3.0, 3.0, 3.0], False),
        ([math.inf, 9.0, 4.5, 3.0, 3.0], True),
        ([9.0, 9.0, 3.0, 3.0], False),  # no voter itself, of four
    ],
)
def test_a_leader_that_a_majority_answered_after_4_leads_on(
    heard: list[float], leads_on: bool
) -> None:
    assert (reached(heard, majority(len(heard))) > 4.0) is leads_on


@pytest.mark.parametrize(
    ("said", "quorum", "right"),
    [
        ({"a": 2, "b": 1}, 2, "a"),
        ({"b": 1, "a": 2}, 2, "a"),
        ({"a": 1, "b": 1}, 2, None),
        ({"a": 2, "b": 2}, 3, None),
        ({}, 1, None),
    ],
)
def test_what_a_majority_says_is_agreed(
    said: dict[str, int], quorum: int, right: str | None
) -> None:
    assert agreed(said, quorum) == right
