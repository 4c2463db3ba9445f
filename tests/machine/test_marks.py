from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.marks import Mark, Marks

SPAN = 60
DEATHS = [{"queue": "q", "reason": "expired", "count": 1}]
values = st.sampled_from(
    [Mark(priority=1), Mark(ttl_ms=0), Mark(ttl_ms=1, expires_at_ms=7), Mark(deaths=DEATHS)]
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "cut", "cut_all", "assign"]),
        st.integers(1, SPAN),
        st.integers(0, 12),
        values,
    ),
    max_size=60,
)


def asked() -> Marks:
    """Of these a sum is kept from now on."""
    marks = Marks()
    marks.fingerprint()
    return marks


def loaded(marks: Marks) -> Marks:
    copy = Marks()
    copy.load(*marks.dump())
    return copy


@given(steps)
def test_the_sum_follows_from_the_content_alone(script: list[tuple[str, int, int, Mark]]):
    marks = asked()
    for action, first, length, value in script:
        last = first + length
        if action == "put":
            if not marks.pieces(first, last):
                marks.put(first, last, value)
        elif action == "cut":
            marks.cut(first, last)
        elif action == "cut_all":
            marks.cut_all([(at, at) for at in range(first, SPAN, 2 + length % 3)])
        else:
            marks.assign(first, last, value if length % 4 else None)
        marks.invariants()
    assert marks.fingerprint() == loaded(marks).fingerprint()


@given(st.permutations(range(1, 30)), st.permutations(range(1, 30)))
def test_equal_content_has_equal_sums_whatever_the_way(one: list[int], other: list[int]):
    first, second, third = asked(), asked(), asked()
    for marks, order in ((first, one), (second, other)):
        for position in order:
            marks.put(position, position, Mark(priority=position // 7))
    for priority in range(5):
        low, high = max(1, 7 * priority), min(29, 7 * priority + 6)
        third.put(low, high, Mark(priority=priority))

    assert first.fingerprint() == second.fingerprint() == third.fingerprint()


@given(st.tuples(*[st.lists(values, min_size=8, max_size=8)] * 2))
def test_other_content_has_another_sum(both: tuple[list[Mark], list[Mark]]):
    sums: list[list[object]] = []
    for content in both:
        marks = asked()
        for position, value in enumerate(content, 1):
            marks.put(position, position, value)
        sums.append(marks.fingerprint())
    assert (sums[0] == sums[1]) == (both[0] == both[1])


def test_every_field_and_every_place_counts():
    others = [
        Mark(priority=1),
        Mark(ttl_ms=0),
        Mark(born_ms=0),
        Mark(expires_at_ms=0),
        Mark(acquired=1),
        Mark(failed=1),
        Mark(deaths=DEATHS),
        Mark(wish_ms=0),
        Mark(priority=2),
        Mark(deaths=[{**DEATHS[0], "count": 2}]),
    ]
    sums: set[bytes] = set()
    for value in others:
        for places in ([(1, 1)], [(2, 2)], [(1, 4)], [(1, 1), (4, 4)], [(2, 3)]):
            marks = asked()
            for first, last in places:
                marks.put(first, last, value)
            sums.add(marks.fingerprint()[1])
    assert len(sums) == 5 * len(others)
