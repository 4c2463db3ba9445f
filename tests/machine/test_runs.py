from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.runs import RangeMap, joined, ranges_of

SPAN = 60
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "cut", "cut_all", "take", "assign"]),
        st.integers(1, SPAN),
        st.integers(0, 12),
        st.integers(0, 2),
    ),
    max_size=80,
)


def as_dict(ranges: RangeMap[int]) -> dict[int, int]:
    return {p: value for first, last, value in ranges for p in range(first, last + 1)}


@given(steps)
def test_a_range_map_is_a_dictionary_of_positions(script: list[tuple[str, int, int, int]]):
    ranges: RangeMap[int] = RangeMap()
    twin: dict[int, int] = {}
    for action, first, length, value in script:
        last = first + length
        here = range(first, last + 1)
        if action == "put":
            if any(position in twin for position in here):
                continue
            ranges.put(first, last, value)
            twin.update(dict.fromkeys(here, value))
        elif action == "cut":
            removed = {p: v for a, b, v in ranges.cut(first, last) for p in range(a, b + 1)}
            assert removed == {p: twin.pop(p) for p in here if p in twin}
        elif action == "cut_all":
            cuts = [(p, p + value) for p in range(first, SPAN, length + value + 2)]
            ranges.cut_all(cuts)
            for start, end in cuts:
                for position in range(start, end + 1):
                    twin.pop(position, None)
        elif action == "assign":
            ranges.assign(first, last, value or None)
            for position in here:
                twin.pop(position, None)
                if value:
                    twin[position] = value
        elif twin:
            taken = ranges.take(length + 1)
            lowest = min(twin)
            assert taken[0] == lowest
            for position in range(taken[0], taken[1] + 1):
                del twin[position]
            assert taken[1] - taken[0] <= length
        ranges.invariants()
        assert as_dict(ranges) == twin
        assert ranges.count == len(twin)
        assert ranges.missing(first, last) == next((p for p in here if p not in twin), None)
        assert ranges.get(first) == twin.get(first)
        assert (first in ranges) == (first in twin)
        assert {p for a, b, _ in ranges.ranges_from(first) for p in range(a, b + 1)} == {
            p for p in twin if p >= first
        }
        parts = [(p, v) for a, b, v in ranges.segments(first, last) for p in range(a, b + 1)]
        assert parts == [(p, twin.get(p)) for p in here]


@given(st.permutations(range(1, 30)), st.permutations(range(1, 30)))
def test_equal_contents_have_equal_columns_whatever_the_way(one: list[int], other: list[int]):
    first, second = RangeMap[int](), RangeMap[int]()
    for position in one:
        first.put(position, position, position // 7)
    for position in other:
        second.put(position, position, position // 7)

    assert first.dump() == second.dump()


def test_many_returns_at_the_head_move_little():
    ranges: RangeMap[None] = RangeMap()
    for position in range(1, 20_001):
        ranges.put(2 * position, 2 * position, None)
    taken = [ranges.take(1) for _ in range(5_000)]
    for first, last in reversed(taken):
        ranges.put(first, last, None)
    for position in range(1, 1_000, 2):
        ranges.put(position, position, None)

    ranges.invariants()
    assert ranges.head == (1, 1_000)
    assert ranges.count == 20_500


def test_a_million_neighbours_are_one_range():
    ranges: RangeMap[None] = RangeMap()
    for first in range(1, 1_000_001, 1_000):
        ranges.put(first, first + 999, None)

    assert ranges.range_count == 1
    assert ranges.missing(1, 1_000_000) is None


@given(st.sets(st.integers(0, SPAN)))
def test_ranges_of_positions_hold_these_and_do_not_touch(positions: set[int]):
    ranges = ranges_of(sorted(positions))

    assert {p for first, last in ranges for p in range(first, last + 1)} == positions
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


@given(st.lists(st.tuples(st.integers(0, SPAN), st.integers(0, 9))))
def test_joined_ranges_hold_the_same_and_do_not_touch(pieces: list[tuple[int, int]]):
    ranges = sorted((first, first + length) for first, length in pieces)

    positions = {p for first, last in ranges for p in range(first, last + 1)}
    assert joined(ranges) == ranges_of(sorted(positions))
