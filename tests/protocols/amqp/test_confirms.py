"""Publisher confirms: every publish has exactly one outcome, told in as few frames as can be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.amqp.publishes import ConfirmOutcome, Confirms


def ack(tag: int, *, multiple: bool = False) -> ConfirmOutcome:
    return ConfirmOutcome(tag, multiple=multiple, refused=False)


def nack(tag: int) -> ConfirmOutcome:
    return ConfirmOutcome(tag, multiple=False, refused=True)


def numbered(count: int) -> Confirms:
    confirms = Confirms()
    confirms.number(count)
    return confirms


def test_publishes_are_numbered_from_one():
    confirms = Confirms()
    assert [*confirms.number(3), *confirms.number(1), confirms.last] == [1, 2, 3, 4, 4]


def test_all_that_is_decided_at_once_is_one_frame():
    confirms = numbered(5)
    assert confirms.answered(range(1, 4)) + confirms.answered([4, 5]) == 5
    assert confirms.take() == [ack(5, multiple=True)]
    assert confirms.open == 0


def test_publishes_that_went_to_several_queues_in_turn_are_one_frame_too():
    confirms = numbered(6)
    confirms.answered([2, 5])
    confirms.answered([1, 4])
    confirms.answered([3, 6])
    assert confirms.take() == [ack(6, multiple=True)]


def test_one_publish_is_confirmed_without_multiple():
    confirms = numbered(1)
    confirms.answered([1])
    assert confirms.take() == [ack(1)]


@pytest.mark.parametrize("tags", [[2, 3], [2, 4]])
def test_what_overtakes_an_open_publish_is_confirmed_by_itself(tags: list[int]):
    confirms = numbered(4)
    confirms.answered(tags)
    assert confirms.take() == [ack(tag) for tag in tags]
    assert confirms.open == 2
    confirms.answered([1])
    assert confirms.take() == [ack(1)]
    [left] = {3, 4} - set(tags)
    confirms.answered([left])
    assert confirms.take() == [ack(left)]
    assert confirms.open == 0


def test_a_refused_publish_is_told_before_the_confirms_around_it():
    confirms = numbered(4)
    assert confirms.answered([1, 2, 3, 4], [(1, 1)]) == 3
    assert confirms.take() == [nack(2), ack(4, multiple=True)]


def test_a_refused_last_publish_is_not_named_by_the_confirm():
    confirms = numbered(3)
    assert confirms.answered([1, 2, 3], [(1, 2)]) == 1
    assert confirms.take() == [nack(2), nack(3), ack(1)]


def test_what_a_queue_refuses_is_named_by_its_place_among_those_that_went_there():
    confirms = numbered(6)
    confirms.answered([1, 3, 5], [(1, 2)])
    confirms.answered([2, 4, 6])
    assert confirms.take() == [nack(3), nack(5), ack(6, multiple=True)]


def test_a_publish_to_several_queues_waits_for_all_of_them():
    confirms = numbered(3)
    confirms.share([2, 3], 2)
    assert confirms.answered([1, 2, 3], [(2, 2)]) == 1
    assert confirms.take() == [ack(1)]
    assert confirms.answered([2, 3]) == 1
    assert confirms.take() == [nack(3), ack(2)]


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    data=st.data(),
)
def test_every_publish_has_one_outcome_whatever_the_order(sizes: list[int], data: st.DataObject):
    """Against a plain set of open tags, as a client keeps it. Some went to two queues."""
    confirms = Confirms()
    answers: list[Sequence[int]] = []
    is_open = set[int]()
    for size in sizes:
        tags = confirms.number(size)
        is_open |= set(tags)
        cut = data.draw(st.sets(st.sampled_from(tags)))
        answers += [part for part in (sorted(cut), sorted(set(tags) - cut)) if part]
        shared = data.draw(st.sets(st.sampled_from(tags)))
        if shared:
            confirms.share(shared, 2)
            answers.append(sorted(shared))
    wanted = dict.fromkeys(is_open, True)
    told: dict[int, bool] = {}
    confirmed = 0
    for tags in data.draw(st.permutations(answers)):
        refused = data.draw(st.sets(st.integers(0, len(tags) - 1)))
        for place in refused:
            wanted[tags[place]] = False
        confirmed += confirms.answered(tags, [(place, place) for place in sorted(refused)])
        if data.draw(st.booleans()):
            _tell(confirms, is_open, told)
    _tell(confirms, is_open, told)
    assert told == wanted
    assert confirmed == sum(wanted.values())
    assert not is_open
    assert confirms.open == 0


def _tell(confirms: Confirms, is_open: set[int], told: dict[int, bool]) -> None:
    for tag, multiple, refused in confirms.take():
        assert tag in is_open, "a frame names a publish that is open"
        tags = {each for each in is_open if each <= tag} if multiple else {tag}
        is_open -= tags
        told.update(dict.fromkeys(tags, not refused))
