"""What is next for an outbox, by which of its letters can go."""

from __future__ import annotations

import pytest

from cluster.machine.dead_letter_look import (
    LAST_NUMBER,
    AllWait,
    Empty,
    Go,
    Look,
    Next,
    PutOff,
    Send,
)
from cluster.machine.effects import DeadLetter


def letter(number: int, *, put_off: bool = False) -> DeadLetter:
    return DeadLetter(number, 1, number, [], "", None, 0, put_off)


def looked(front: str, put_off: str = "", at_once: int = 4, size: int = 1) -> tuple[Next, int]:
    """`g` can go and `w` waits, numbered from 1 on; those put off from 101 on. And how many were
    looked at.
    """
    look, count = Look(at_once, 10), 0
    letters = [(letter(number), way) for number, way in enumerate(front, 1)]
    letters += [(letter(number, put_off=True), way) for number, way in enumerate(put_off, 101)]
    for each, way in letters:
        count += 1
        if not look.add(each, size if way == "g" else None):
            break
    return look.next(), count


@pytest.mark.parametrize(
    ("front", "put_off", "found"),
    [
        ("", "", Empty()),
        # Those at the front go, as many as do together, up to the first that waits.
        ("g", "", Go(1)),
        ("ggwg", "", Go(2)),
        ("ggggg", "", Go(4)),
        ("gg", "gg", Go(2)),
        # Nothing is written as long as all wait.
        ("www", "", AllWait()),
        ("wwwwwwww", "ww", AllWait()),
        ("", "ww", AllWait()),
        # Who waits in front of one that can go is put off, with all behind the front.
        ("wwg", "", PutOff([(1, 2), (4, LAST_NUMBER)], True)),
        ("wgwg", "", PutOff([(1, 1), (3, 3), (5, LAST_NUMBER)], True)),
        ("wwwwg", "", PutOff([(1, 4), (5, LAST_NUMBER)], False)),
        ("wgwww", "", PutOff([(1, 1), (3, 4), (5, LAST_NUMBER)], False)),
        ("w", "wg", PutOff([(1, 1), (2, LAST_NUMBER)], True)),
        # What was put off goes when nobody is at the front.
        ("", "g", Send([(101, 101)])),
        ("", "wgwg", Send([(102, 102), (104, 104)])),
        ("", "ggggg", Send([(101, 104)])),
    ],
)
def test_what_is_next(front: str, put_off: str, found: Next):
    assert looked(front, put_off)[0] == found


@pytest.mark.parametrize(
    ("front", "put_off", "size", "found"),
    [
        ("ggg", "", 5, Go(2)),
        ("ggg", "", 11, Go(1)),  # one always goes
        ("", "ggg", 5, Send([(101, 102)])),
        ("", "ggg", 11, Send([(101, 101)])),
    ],
)
def test_no_more_go_together_than_so_many_bytes(front: str, put_off: str, size: int, found: Next):
    assert looked(front, put_off, size=size)[0] == found


@pytest.mark.parametrize(
    ("front", "put_off", "count"),
    [
        ("ggwwww", "", 3),
        ("ggggggg", "", 5),
        ("wgwwwwww", "", 5),  # the rest of the front is known, and what is behind is put off
        ("wwwwwwwg", "ww", 9),
        ("g", "wwww", 2),
    ],
)
def test_no_letter_is_looked_at_that_changes_nothing(front: str, put_off: str, count: int):
    assert looked(front, put_off)[1] == count


def test_of_those_put_off_all_wait_up_to_the_first_that_can_go():
    look = Look(4, 10)
    for number, size in ((1, None), (2, None), (3, 1), (4, None)):
        look.add(letter(number, put_off=True), size)

    assert look.wait_to == letter(2, put_off=True)
