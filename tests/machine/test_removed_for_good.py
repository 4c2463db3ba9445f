"""A shard is removed, while copies of the catalog lag behind and publishers send again what they
have no answer for. All short orders of the steps, on the machines themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cluster.machine import commands as c
from cluster.machine.arguments import SHARD_OF
from cluster.machine.catalog import CatalogMachine
from cluster.machine.replies import NO_QUEUE, Enqueued, Ok
from cluster.types import QueueId
from tests.machine.catalog_world import Book, ComparedGroup

SHARD = QueueId(1)
#: As `quorate queue join` does it, by its queue: of a shard that is empty.
DELETE = c.DeleteQueue(SHARD, if_empty=True, if_settled=True, fence=True)
REMOVE = c.RemoveQueue("/", "q.1", SHARD)
PUBLISH = c.Enqueue(SHARD, "p", 1, [b"x"])


class World:
    """A catalog, what it was at every moment, and a group with the shard."""

    def __init__(self) -> None:
        self.book = Book()
        self.book.apply(c.UpgradeMachine(5))
        self.book.queue("q.1", {SHARD_OF: "q"})
        self.group = ComparedGroup()
        self.copies = [self.book.machine.snapshot()]
        self.waiting: list[c.Command] = []  # what leaders proposed, and is not in the log yet
        self.confirmed = self.deleted = False
        self.compare(0)
        self.apply(0)

    def compare(self, copy: int) -> bool:
        """As a leader with this copy of the catalog; is there anything to do?"""
        catalog = CatalogMachine()
        catalog.restore(self.copies[copy])
        found = [each for each in self.group.to_do(catalog) if each not in self.waiting]
        self.waiting += found
        return bool(found)

    def apply(self, place: int) -> None:
        command = self.waiting.pop(place)
        if isinstance(command, c.RemoveQueue):
            self.remove(command)
        else:
            self.group.apply(command)

    def remove(self, command: c.RemoveQueue) -> None:
        self.book.apply(command)
        self.copies.append(self.book.machine.snapshot())

    def delete(self) -> None:
        """One that is gone already was deleted by a command whose answer was lost."""
        reply = self.group.apply(DELETE)
        self.deleted |= isinstance(reply, Ok) or reply.code == NO_QUEUE

    def publish(self) -> None:
        self.confirmed |= isinstance(self.group.apply(PUBLISH), Enqueued)

    @property
    def lost(self) -> bool:
        view = self.group.machine.queue(SHARD)
        return self.confirmed and (view is None or view.ready_count == 0)


def done(steps: tuple[Any, ...]) -> World | None:
    """None: the last one changes nothing, or cannot be."""
    world = World()
    for step in steps:
        before = world.group.machine.digest(), len(world.copies)
        match step:
            case ("compare", copy):
                if copy >= len(world.copies) or not world.compare(copy):
                    return None
                continue
            case ("apply", place):
                if place >= len(world.waiting):
                    return None
                world.apply(place)
                continue
            case "publish":
                world.publish()
            case "delete":
                world.delete()
            case "remove" if world.deleted:
                world.remove(REMOVE)
            case _:
                return None
        if before == (world.group.machine.digest(), len(world.copies)):
            return None
    return world


STEPS: list[Any] = [
    *("publish", "delete", "remove"),
    *(("compare", 0), ("compare", 1), ("apply", 0), ("apply", 1)),
]


def orders(most: int) -> Iterator[tuple[tuple[Any, ...], World]]:
    """Those of so many steps at most each of which does something."""
    reached: list[tuple[Any, ...]] = [()]
    for _ in range(most):
        longer = [(*steps, step) for steps in reached for step in STEPS]
        reached = []
        seen: set[Any] = set()
        for steps in longer:
            world = done(steps)
            if world is None:
                continue
            state = world.group.machine.digest(), len(world.copies), repr(world.waiting)
            if (*state, world.confirmed) not in seen:
                seen.add((*state, world.confirmed))
                reached.append(steps)
                yield steps, world


def test_what_was_confirmed_by_a_shard_does_not_go_with_it() -> None:
    """Its deleter found it empty, and nothing is in it later."""
    count = 0
    for steps, world in orders(9):
        count += 1
        assert not world.lost, steps
    assert count > 100
