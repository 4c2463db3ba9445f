"""A queue that was deleted in its group is not made again under its id while the catalog has it."""

from __future__ import annotations

from typing import Any

from cluster.catalog.reconcile import lost_queues
from cluster.machine import QueueMachine
from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_queues import LOST_MAX
from cluster.machine.founding import queue_ids
from cluster.machine.replies import NO_QUEUE, Ok, Refused
from cluster.types import QueueId, Stamp, first_term_of
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


def recovered(book: Book) -> tuple[CatalogMachine, Stamp]:
    """As it goes on in the next era, after the first command."""
    catalog = book.reopened()
    stamp = Stamp(book.index + 1, first_term_of(1), 0)
    catalog.apply(stamp, c.Barrier())
    catalog.invariants()
    return catalog, stamp


def test_what_a_recovered_catalog_lost_stays_in_its_group_and_its_id_is_given_to_it_alone() -> None:
    book, group = Book(), ComparedGroup()
    book.apply(c.UpgradeMachine(5))
    book.queue("q")
    [create] = group.to_do(book.machine)
    group.apply(create)
    lost = QueueId(QUEUE + 1)
    group.apply(c.CreateQueue(lost, "/", "lost", c.QueueConfig()))

    catalog, stamp = recovered(book)
    assert group.to_do(catalog) == []
    assert [queue.name for queue in lost_queues(catalog, group.machine)] == ["lost"]
    ids: list[int] = []
    for name, queue in (("a", None), ("lost", lost), ("b", lost), ("c", QueueId(1)), ("d", None)):
        trial = catalog.copy()
        for each in (catalog, trial):
            reply: Any = each.apply(stamp, c.DeclareQueue("/", name, {}, queue=queue)).reply
        catalog.invariants()
        assert trial.digest() == catalog.digest()
        ids.append(reply.queue)
        reopened = CatalogMachine()
        reopened.restore(catalog.snapshot())
        assert reopened.digest() == catalog.digest()
    assert ids[1] == lost
    assert len({*ids, QUEUE}) == 6
    assert min(ids[0], *ids[2:]) > LOST_MAX
    assert not list(lost_queues(catalog, group.machine))
    known = catalog.queue("/", "lost")
    assert known is not None
    catalog.apply(stamp, c.RemoveQueue("/", "lost"))
    assert c.DeleteQueue(lost, as_of=catalog.as_of) in group.to_do(catalog)


def test_before_version_5_ids_go_on_after_a_recovery() -> None:
    book = Book()
    book.apply(c.UpgradeMachine(4))
    book.queue("q")
    catalog, _ = recovered(book)
    assert catalog.next_queue_id == QUEUE + 1
