"""A queue that was deleted in its group is not made again under its id while the catalog has it."""

from __future__ import annotations

from typing import Any

from cluster.machine import QueueMachine
from cluster.machine import commands as c
from cluster.machine.founding import queue_ids
from cluster.machine.replies import NO_QUEUE, Ok, Refused
from cluster.types import QueueId
from tests.machine.catalog_world import Book, ComparedGroup

QUEUE = QueueId(1)
DELETE = c.DeleteQueue(QUEUE, fence=True)


def made(version: int = 5) -> tuple[Book, ComparedGroup]:
    """A queue in the catalog and in its group."""
    book, group = Book(), ComparedGroup(version)
    book.queue("q")
    [create] = group.to_do(book.machine)
    assert group.apply(create) == Ok(1)
    assert group.to_do(book.machine) == []
    return book, group


def refused(reply: Any) -> bool:
    return isinstance(reply, Refused) and reply.code == NO_QUEUE


def create(name: str = "q") -> c.CreateQueue:
    return c.CreateQueue(QUEUE, "/", name, c.QueueConfig())


def test_a_deletion_that_ended_half_way_is_finished_in_the_catalog() -> None:
    book, group = made()
    assert group.apply(DELETE) == Ok(0)

    assert refused(group.apply(create()))
    [removal] = group.to_do(book.machine)
    assert removal == c.RemoveQueue("/", "q", QUEUE)
    book.does(removal)
    assert refused(group.apply(create()))
    [forget] = group.to_do(book.machine)
    assert forget == c.DeleteQueue(QUEUE, as_of=book.machine.as_of)
    assert refused(group.apply(forget))
    assert group.machine.fenced() == group.to_do(book.machine) == []


def test_of_a_fence_that_was_dropped_nothing_is_left_in_the_state() -> None:
    _, group = made()
    group.apply(c.DeleteQueue(QUEUE))
    before = group.machine.digest()
    group.apply(create())
    group.apply(DELETE)
    assert group.machine.digest() != before
    group.apply(c.DeleteQueue(QUEUE))
    assert group.machine.digest() == before


def test_a_deletion_that_is_asked_again_keeps_the_fence_and_makes_none() -> None:
    _, group = made()
    group.apply(DELETE)
    assert refused(group.apply(DELETE))
    assert group.machine.fenced() == [QUEUE]
    group.apply(c.DeleteQueue(QUEUE))
    assert refused(group.apply(DELETE))
    assert group.machine.fenced() == []


def test_a_deletion_that_is_refused_fences_nothing() -> None:
    book, group = made()
    group.apply(c.Enqueue(QUEUE, None, 0, [b"x"]))
    assert isinstance(group.apply(c.DeleteQueue(QUEUE, if_empty=True, fence=True)), Refused)
    assert group.machine.fenced() == group.to_do(book.machine) == []


def test_a_copy_of_the_catalog_from_before_the_queue_leaves_the_fence() -> None:
    _, group = made()
    group.apply(DELETE)
    assert group.to_do(Book().machine) == []
    assert group.machine.fenced() == [QUEUE]


def test_an_id_that_a_catalog_gave_again_after_a_loss_is_made() -> None:
    _, group = made()
    group.apply(DELETE)
    lost = Book()
    lost.queue("other")
    [command] = group.to_do(lost.machine)
    assert group.apply(command) == Ok(1)
    assert group.machine.fenced() == group.to_do(lost.machine) == []


def test_no_recovery_gives_an_id_that_is_fenced_to_another_queue() -> None:
    _, group = made()
    group.apply(create())
    group.apply(DELETE)
    assert queue_ids([group.machine.snapshot(), QueueMachine().snapshot()]) == {QUEUE}


def test_without_a_fence_and_before_version_5_the_queue_is_made_again() -> None:
    """As logs of before are read."""
    for version, delete in ((5, c.DeleteQueue(QUEUE)), (4, DELETE)):
        book, group = made(version)
        assert group.apply(delete) == Ok(0)
        [again] = group.to_do(book.machine)
        assert isinstance(again, c.CreateQueue)
        assert group.apply(again) == Ok(1)
