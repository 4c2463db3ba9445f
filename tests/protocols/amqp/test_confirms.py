"""Publisher confirms: every publish has exactly one outcome, told in as few frames as can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.protocols.amqp.publishes import Confirms, ConfirmTracker, Outcome


def ack(tag: int, *, multiple: bool = False) -> Outcome:
    return Outcome(tag, multiple=multiple, refused=False)


def nack(tag: int) -> Outcome:
    return Outcome(tag, multiple=False, refused=True)


def decided(confirms: Confirms, first: int, last: int, *refused: tuple[int, int]) -> None:
    tracker = ConfirmTracker(first, last, 1)
    assert tracker.answered(refused, 0)
    confirms.decided(tracker)


def test_publishes_are_numbered_from_one():
    confirms = Confirms()
    assert [confirms.number(3), confirms.number(1), confirms.last] == [1, 4, 4]


def test_all_that_is_decided_at_once_is_one_frame():
    confirms = Confirms()
    confirms.number(5)
    decided(confirms, 1, 3)
    decided(confirms, 4, 5)
    assert confirms.take() == [ack(5, multiple=True)]
    assert confirms.open == 0


def test_one_publish_is_confirmed_without_multiple():
    confirms = Confirms()
    confirms.number(1)
    decided(confirms, 1, 1)
    assert confirms.take() == [ack(1)]


def test_what_overtakes_an_open_publish_is_confirmed_by_itself():
    confirms = Confirms()
    confirms.number(4)
    decided(confirms, 2, 3)
    assert confirms.take() == [ack(2), ack(3)]
    decided(confirms, 1, 1)
    assert confirms.take() == [ack(1)]
    decided(confirms, 4, 4)
    assert confirms.take() == [ack(4)]


def test_a_refused_publish_is_told_before_the_confirms_around_it():
    confirms = Confirms()
    confirms.number(4)
    decided(confirms, 1, 4, (1, 1))
    assert confirms.take() == [nack(2), ack(4, multiple=True)]


def test_a_refused_last_publish_is_not_named_by_the_confirm():
    confirms = Confirms()
    confirms.number(3)
    decided(confirms, 1, 3, (1, 2))
    assert confirms.take() == [nack(2), nack(3), ack(1)]


def test_a_publish_to_several_queues_waits_for_all_of_them():
    tracker = ConfirmTracker(5, 6, 2)
    assert not tracker.answered([(11, 11)], 10)
    assert tracker.answered((), 0)
    assert tracker.refused == {6}


def test_ranges_of_other_publishes_in_the_same_batch_do_not_count():
    tracker = ConfirmTracker(1, 2, 1)
    tracker.answered([(0, 3), (6, 9)], 4)
    assert tracker.refused is None


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    data=st.data(),
)
def test_every_publish_has_one_outcome_whatever_the_order(sizes: list[int], data: st.DataObject):
    """Against a plain set of open tags, as a client keeps it."""
    confirms = Confirms()
    trackers: list[ConfirmTracker] = []
    for size in sizes:
        first = confirms.number(size)
        trackers.append(ConfirmTracker(first, first + size - 1, 1))
    is_open = set(range(1, confirms.last + 1))
    wanted = dict.fromkeys(is_open, True)
    told: dict[int, bool] = {}
    for tracker in data.draw(st.permutations(trackers)):
        refused = data.draw(st.sets(st.integers(0, tracker.last - tracker.first)))
        for offset in refused:
            wanted[tracker.first + offset] = False
        tracker.answered([(offset, offset) for offset in sorted(refused)], 0)
        confirms.decided(tracker)
        if data.draw(st.booleans()) or tracker is trackers[-1]:
            _tell(confirms, is_open, told)
    _tell(confirms, is_open, told)
    assert told == wanted
    assert not is_open
    assert confirms.open == 0


def _tell(confirms: Confirms, is_open: set[int], told: dict[int, bool]) -> None:
    for tag, multiple, refused in confirms.take():
        assert tag in is_open, "a frame names a publish that is open"
        tags = {each for each in is_open if each <= tag} if multiple else {tag}
        is_open -= tags
        told.update(dict.fromkeys(tags, not refused))
