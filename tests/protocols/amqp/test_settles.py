"""Delivery tags of a channel: what is open under which tag, against a plain dictionary."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.amqp.deliveries import Taken, Unacked, UnknownTag


def tags(taken: list[Taken[str]]) -> list[int]:
    return [part.tag + n for part in taken for n in range(part.last - part.first + 1)]


def opened() -> Unacked[str]:
    """5 to 8 open, as in the guide's example."""
    unacked: Unacked[str] = Unacked()
    unacked.number(4)
    assert unacked.add("c", 100, 4, 9) == 5
    return unacked


def test_multiple_takes_all_up_to_the_tag():
    unacked = opened()
    assert unacked.take_up_to(8) == [Taken("c", 100, 103, 5, 9)]
    assert unacked.count == 0


def test_without_multiple_the_earlier_ones_stay_open():
    unacked = opened()
    assert unacked.take(8, 8) == ([Taken("c", 103, 103, 8, 9)], None)
    assert unacked.count == 3
    assert tags(unacked.take_up_to(0)) == [5, 6, 7]


def test_tag_zero_with_multiple_is_everything_even_nothing():
    unacked = opened()
    assert tags(unacked.take_up_to(0)) == [5, 6, 7, 8]
    assert unacked.take_up_to(0) == []


@pytest.mark.parametrize("tag", [4, 9, 0, 2**63 - 1])
def test_a_tag_that_is_not_open_is_unknown(tag: int):
    assert opened().take(tag, tag) == ([], tag)


@pytest.mark.parametrize("tag", [4, 9])
def test_a_multiple_that_covers_nothing_open_or_was_never_given_is_unknown(tag: int):
    with pytest.raises(UnknownTag, match=f"unknown delivery tag {tag}"):
        opened().take_up_to(tag)


def test_what_is_acked_twice_is_unknown_the_second_time():
    unacked = opened()
    unacked.take(6, 6)
    assert unacked.take(5, 7) == ([Taken("c", 100, 100, 5, 9)], 6)


def test_a_rolled_back_settle_is_open_again_under_its_tags():
    unacked = opened()
    taken, _ = unacked.take(6, 7)
    unacked.put_back(taken)
    assert unacked.count == 4
    assert tags(unacked.take_up_to(8)) == [5, 6, 7, 8]


@given(data=st.data())
def test_any_order_of_deliveries_and_settles_agrees_with_a_dictionary(data: st.DataObject):
    unacked: Unacked[str] = Unacked()
    twin: dict[int, tuple[str, int]] = {}
    next_tag, position = 1, 1
    for _ in range(data.draw(st.integers(1, 30))):
        tag = data.draw(st.integers(0, next_tag + 1))
        match data.draw(st.sampled_from(["deliver", "no ack", "one", "multiple"])):
            case "deliver":
                count = data.draw(st.integers(1, 5))
                consumer = data.draw(st.sampled_from("ab"))
                assert unacked.add(consumer, position, count, position) == next_tag
                for n in range(count):
                    twin[next_tag + n] = (consumer, position + n)
                next_tag += count
                position += count
            case "no ack":
                next_tag += 1
                assert unacked.number(1) == next_tag - 1
            case "one":
                taken, unknown = unacked.take(tag, tag)
                assert unknown == (None if tag in twin else tag)
                assert _spread(taken) == ([twin.pop(tag)] if tag in twin else [])
            case _:
                covered = [each for each in sorted(twin) if not tag or each <= tag]
                if tag and (tag >= next_tag or not covered):
                    with pytest.raises(UnknownTag):
                        unacked.take_up_to(tag)
                else:
                    assert _spread(unacked.take_up_to(tag)) == [twin.pop(c) for c in covered]
        assert unacked.count == len(twin)


def _spread(taken: list[Taken[str]]) -> list[tuple[str, int]]:
    return [(part.consumer, at) for part in taken for at in range(part.first, part.last + 1)]
