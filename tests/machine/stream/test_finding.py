"""A consumer that wants few of many messages finds what it would find by looking at each."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.commands import DeleteMessage
from cluster.machine.stream import finding, retained
from tests.machine.stream.streams import STREAM, Streams


@given(st.integers(0, 1 << 32))
def test_it_finds_what_is_next(seed: int):
    random = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "LOOKED_AT_MAX", random.choice([1, 3, 10]))
        patch.setattr(finding, "ASKED_ONE_BY_ONE", random.choice([0, 1, 2]))
        patch.setattr(finding, "ASKED_FOR", random.choice([0, 1]))
        s = Streams(copies=False)
        s.consumer(filter_subject="k.*", max_ack_pending=-1)
        for _ in range(40):
            step(s, random)
            first, count = random.randint(1, s.stream.state().last_seq + 1), random.randint(0, 50)
            known = s.stream.retained
            some = range(first, first + count)
            assert list(known.ids_of(first, count)) == [known.id_at(each) for each in some]
        s.machine.invariants()


def step(s: Streams, random: Random) -> None:
    dice = random.random()
    if dice < 0.5:
        kinds = random.choices(["k", "x", "y"], [1, 3, 1], k=random.randint(1, 30))
        s.publish(*(f"{kind}.{random.randint(0, 5)}" for kind in kinds))
    elif dice < 0.6:
        s.apply(DeleteMessage(STREAM, random.randint(1, s.stream.state().last_seq + 1)))
    elif dice < 0.65:
        s.apply(s.purge(f"k.{random.randint(0, 5)}"))
    elif dice < 0.67:
        s.apply(s.purge())
    else:
        cursor = s.of().cursor
        wanted = [at for at, name in s.held().items() if at >= cursor and name[0] == "k"]
        assert s.of().info().pending == len(wanted)
        assert s.fetch(3) == wanted[:3]


def test_little_that_is_left_takes_little_room():
    s = Streams(copies=False)
    count = retained.SEGMENT * 3
    for start in range(0, count, 1024):
        s.stored(*(f"k.{at}" for at in range(start, start + 1024)))
    s.consumer(filter_subject="k.*")
    kept = [5, 4_100, 4_101, 4_200, count]
    for first, last in zip([0, *kept], [*kept, count + 1], strict=True):
        if last - first > 1:
            for at in range(first + 1, last):
                s.apply(DeleteMessage(STREAM, at))
    assert list(s.held()) == kept
    assert s.stream.retained.live_end(4_100, 9_999) == 4_101
    assert s.fetch(3) == [5, 4_100, 4_101]
    known = s.stream.retained
    assert list(known.ids_of(4_099, 3)) == [0, known.id_at(4_100), known.id_at(4_101)]
    s.machine.invariants()
    s.copies = True
    s.stored("z")
    assert s.fetch() == [4_200, count]
    s.apply(DeleteMessage(STREAM, 4_101))
    last = s.stream.last_of_each((b"k.*",), 4_199, 10)
    assert [each.sequence for each in last] == [5, 4_100]
    assert s.stream.seq_at(s.now_ms) == 5
