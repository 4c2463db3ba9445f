"""Ranges held by a consumer, against a map of positions."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quorate.holdings import Holdings, add_range, merged

spans = st.tuples(st.integers(1, 40), st.integers(0, 12))
steps = st.lists(st.tuples(st.booleans(), spans), max_size=40)


@given(steps)
def test_ranges_hold_what_a_map_would(steps: list[tuple[bool, tuple[int, int]]]):
    holdings, twin = Holdings(), dict[int, int]()
    for token, (adds, (first, length)) in enumerate(steps, 1):
        last = first + length
        # Every third token is an old one again, as after a change of leader.
        token = token if token % 3 else max(1, token // 2)
        if adds:
            news = holdings.add(first, last, token)
            fresh = [p for p in range(first, last + 1) if twin.get(p, 0) < token]
            assert [p for a, b in news for p in range(a, b + 1)] == fresh
            twin.update(dict.fromkeys(fresh, token))
        else:
            holdings.remove(first, last, token)
            for position in range(first, last + 1):
                if twin.get(position, 0) <= token:
                    twin.pop(position, None)
        rows = holdings.rows()
        assert {p: t for a, b, t in rows for p in range(a, b + 1)} == twin
        assert all(a[1] < b[0] for a, b in pairwise(rows))


@given(st.lists(spans, max_size=20))
def test_gathered_ranges_are_merged(gathered: list[tuple[int, int]]):
    ranges: list[list[int]] = []
    for first, length in gathered:
        add_range(ranges, first, first + length)
    result = merged(ranges)

    positions = {p for first, length in gathered for p in range(first, first + length + 1)}
    assert {p for first, last in result for p in range(first, last + 1)} == positions
    assert all(a[1] < b[0] for a, b in pairwise(result))
