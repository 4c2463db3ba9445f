from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.store import Store


@dataclass
class Body:
    index: int
    offset: int
    size: int
    time: int


batches = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=60)
picks = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 6)), max_size=120)


@given(batches, picks)
def test_a_store_is_a_dictionary_of_positions(
    batches: list[list[int]], picks: list[tuple[int, int]]
):
    store = Store()
    twin: dict[int, Body] = {}
    picked = iter(picks)
    for number, sizes in enumerate(batches, 1):
        index, time = number * 2, 1_000 + number
        first = store.append(len(sizes), index, number, sizes, time)
        for nth, size in enumerate(sizes):
            twin[first + nth] = Body(index, number + nth, size, time)
        for _ in range(2):
            pick = next(picked, None)
            if pick is None or not twin:
                continue
            live = sorted(twin)
            start = live[pick[0] % len(live)]
            end = start
            while end + 1 in twin and end - start + 1 < pick[1]:
                end += 1
            assert store.bytes_of(start, end) == sum(twin[p].size for p in range(start, end + 1))
            store.release(start, end)
            for position in range(start, end + 1):
                del twin[position]
        check(store, twin)
        copy = Store()
        copy.load(store.dump())
        check(copy, twin)
        assert copy.dump() == store.dump()


def check(store: Store, twin: dict[int, Body]) -> None:
    store.invariants()
    assert store.count == len(twin)
    assert store.bytes == sum(body.size for body in twin.values())
    for position, body in twin.items():
        (piece,) = store.pieces(position, position)
        assert piece.bodies == (body.index, body.offset, 1)
        assert piece.enqueued_ms == store.time_of(position) == body.time
        assert store.sizes_of(position, position) == [body.size]
    indexes = {body.index for body in twin.values()}
    assert {i for a, b in store.live_indexes() for i in range(a, b + 1)} == indexes


def test_what_is_released_is_forgotten_wherever_it_was():
    store = Store()
    for index in range(1, 10_001):
        store.append(1, index, 0, [100], index)
    for position in range(2, 10_001):
        store.release(position, position)

    assert store.live_indexes() == [(1, 1)]
    assert len(store.dump()[5][0]) == 8
    assert sum(column.buffer_info()[1] for column in store._columns()) < 7 * 200
