"""That a queue is split, and over what, is one entry of the catalog. What nodes decide by their
copies of it may come late: all orders of what several of them have decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.arguments import SHARD_OF, SPLIT_QUEUE
from cluster.machine.replies import IN_USE, Ok, Refused
from node.routing.shards import shards_of, split_of
from tests.machine.catalog_world import Book

KEY = ("parameters", (SPLIT_QUEUE, "/", "q"))


class Catalog(Book):
    def __init__(self, version: int = 5) -> None:
        super().__init__()
        self.apply(c.UpgradeMachine(version))
        self.queue("q")

    def put(self, count: int, *, joining: bool = False) -> Any:
        names = [f"q.{number}" for number in range(1, count + 1)]
        value = {"value": {"shards": names, "joining": joining}}
        return self.apply(c.PutEntry(*KEY, value)).reply

    def drop(self) -> Any:
        return self.apply(c.DropEntry(*KEY)).reply

    def make(self, number: int) -> None:
        self.queue(f"q.{number}", {SHARD_OF: "q"})

    def remove(self, number: int) -> None:
        self.apply(c.RemoveQueue("/", f"q.{number}"))


def split(catalog: Catalog, count: int) -> Iterator[None]:
    """As `Splitting.split` does it, by a copy of the catalog from before the first step."""
    whole = catalog.machine.queue("/", "q")
    assert whole is not None
    known = split_of(catalog.machine, whole)
    if known is not None:
        return
    yield
    for number in range(1, count + 1):
        catalog.make(number)
        yield
    catalog.put(count)


def join(catalog: Catalog) -> Iterator[None]:
    """As the command does it, again and again; shards that are empty go."""
    whole = catalog.machine.queue("/", "q")
    assert whole is not None
    while known := split_of(catalog.machine, whole):
        yield
        catalog.put(len(known.shards), joining=True)
        yield
        for shard in shards_of(catalog.machine, whole):
            catalog.apply(c.RemoveQueue("/", shard.name))
            yield
        if not shards_of(catalog.machine, whole):
            yield
            catalog.drop()
            return


def orders(first: int, second: int) -> Iterator[list[int]]:
    """Of so many steps of the one and of the other."""
    for places in combinations(range(first + second), first):
        yield [0 if place in places else 1 for place in range(first + second)]


def published_to(catalog: Catalog) -> set[str]:
    whole = catalog.machine.queue("/", "q")
    assert whole is not None
    known = split_of(catalog.machine, whole)
    if known is None or known.joining:
        return set()
    return {info.name for info in shards_of(catalog.machine, whole)}


@pytest.mark.parametrize("counts", [(2, 3), (3, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("joined", [False, True], ids=["split twice", "and joined"])
def test_what_is_in_a_shard_is_found_whoever_splits_and_joins_at_once(
    counts: tuple[int, int], joined: bool
) -> None:
    """A shard that may hold messages, since it was published to and nobody emptied it, is one of
    those that the queue is split over: so it is consumed, and emptied when it is joined.
    """
    for order in orders(2 + counts[0], 2 + counts[1]):
        catalog = Catalog()
        steps = [split(catalog, count) for count in counts]
        if joined:
            steps[0] = _one_after_the_other(catalog, counts[0])
        held: set[str] = set()
        for which in [*order, *[0, 1] * 12]:
            next(steps[which], None)
            held |= published_to(catalog)
            held = {name for name in held if catalog.machine.queue("/", name) is not None}
            assert held <= named(catalog), order


def _one_after_the_other(catalog: Catalog, count: int) -> Iterator[None]:
    yield from split(catalog, count)
    yield
    yield from join(catalog)


def named(catalog: Catalog) -> set[str]:
    whole = catalog.machine.queue("/", "q")
    assert whole is not None
    return {info.name for info in shards_of(catalog.machine, whole)}


def refused(reply: Any) -> bool:
    return isinstance(reply, Refused) and reply.code == IN_USE


def test_while_a_shard_is_there_it_is_not_split_otherwise_nor_published_to_again() -> None:
    catalog = Catalog()
    for number in (1, 2, 3):
        catalog.make(number)
    assert catalog.put(2) == Ok(1)
    assert refused(catalog.put(3))
    assert refused(catalog.drop())
    assert catalog.put(2) == Ok(0)
    assert catalog.put(2, joining=True) == Ok(0)
    assert refused(catalog.put(2))
    catalog.remove(1)
    assert refused(catalog.put(3, joining=True))
    assert refused(catalog.drop())
    catalog.remove(2)
    assert catalog.put(3) == Ok(0)
    catalog.remove(3)
    assert catalog.drop() == Ok(1)


def test_a_late_end_of_an_earlier_join_does_not_undo_the_next_split() -> None:
    """Its shards hold messages already."""
    catalog = Catalog()
    catalog.make(1)
    catalog.put(1)
    assert refused(catalog.drop())
    catalog.put(1, joining=True)
    assert refused(catalog.drop())


def test_queues_that_are_named_and_no_shards_do_not_count() -> None:
    catalog = Catalog()
    catalog.queue("q.1")
    assert catalog.put(1) == Ok(1)
    assert catalog.put(2) == Ok(0)
    assert catalog.drop() == Ok(1)


def test_before_version_5_the_last_word_counts() -> None:
    catalog = Catalog(4)
    catalog.make(1)
    catalog.put(1)
    assert catalog.put(2) == Ok(0)
    assert catalog.drop() == Ok(1)
