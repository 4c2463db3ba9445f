"""Numbers of transfers between groups: one number is one thing, in every history of a log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.context import COUNT_BITS, number_after, span

Log = list[int]  # the terms of the entries that give a number


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.data())
def test_histories_that_part_never_give_one_number_to_two_entries(terms: Log, data: st.DataObject):
    """Entries of one term are of one leader, so logs that part have other terms from there on."""
    first = sorted(terms)
    kept = data.draw(st.integers(0, len(first)))
    before = first[kept - 1] if kept else 0
    # A survivor may hold, and later commit, what a leader of any term between left there alone.
    free = [term for term in range(before, 12) if term not in first[kept:]]
    second = first[:kept] + sorted(data.draw(st.lists(st.sampled_from(free), max_size=30)))

    one, two = (numbers(log) for log in (first, second))

    assert one[:kept] == two[:kept]
    assert set(one[kept:]).isdisjoint(two[kept:])


def numbers(log: Log) -> list[int]:
    given: list[int] = []
    for term in log:
        given.append(number_after(given[-1] if given else 0, term))
    assert given == sorted(set(given)), "they grow"
    return given


def test_what_was_given_is_counted_over_terms_and_over_the_end_of_the_count():
    last = 7  # of version 1
    first = last + 1
    for count, term in enumerate((1, 1, 3, 3, 1 << 20), start=1):
        last = number_after(last, term)
        assert last >> COUNT_BITS == term
        assert span(first, last + 1) == count
    full = (3 << COUNT_BITS) | ((1 << COUNT_BITS) - 1)
    assert number_after(full, 3) == 4 << COUNT_BITS
    assert span(full, number_after(full, 3) + 1) == 2
    assert number_after(number_after(full, 3), 3) == (4 << COUNT_BITS) + 1
