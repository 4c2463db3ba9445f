"""Settings of queues come from copies of the catalog, some of which lag behind: what was worked out
from an older one changes nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.replies import Ok
from cluster.types import AS_OF_NOTHING, QueueId, Stamp, first_term_of
from tests.machine.catalog_world import Book, ComparedGroup

QUEUE = QueueId(1)


class Group(ComparedGroup):
    """One that holds the queue, and whose leaders look at copies of the catalog."""

    def reconcile(self, catalog: CatalogMachine) -> c.Command:
        """What was to be done; it is done."""
        [command] = self.to_do(catalog)
        assert isinstance(self.apply(command), Ok)
        assert self.to_do(catalog) == []
        return command

    def most(self) -> Any:
        """Messages that the queue may hold."""
        kind = self.machine.find(QUEUE)
        assert kind is not None
        config = kind.identity.config
        return config.max_length if config.stream is None else config.stream["max_msgs"]


class Catalog(Book):
    """Of one queue, or stream, with a limit that changes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.apply(c.UpgradeMachine(5))
        self.is_stream = kind == "stream"
        self.queue("q", self.arguments(2) if self.is_stream else {})
        if not self.is_stream:
            self.limit(2)

    def arguments(self, most: int) -> dict[str, Any]:
        config = {"name": "q", "subjects": ["q"], "max_msgs": most}
        return {"x-queue-type": "stream", "x-stream": config}

    def limit(self, most: int) -> None:
        if self.is_stream:
            self.does(c.ChangeQueue("/", "q", self.arguments(most)))
            return
        value = {"pattern": "", "definition": {"max-length": most}}
        assert isinstance(self.apply(c.PutEntry("policies", ["/", "p"], value)).reply, Ok)


both = pytest.mark.parametrize("kind", ["queue", "stream"])


@both
def test_what_a_lagging_copy_says_is_not_proposed(kind: str) -> None:
    catalog, group = Catalog(kind), Group()
    group.reconcile(catalog.machine)
    behind = catalog.reopened()
    catalog.limit(9)
    group.reconcile(catalog.machine)

    assert group.to_do(behind) == []


@both
def test_what_a_lagging_copy_said_is_not_applied_behind_what_is_newer(kind: str) -> None:
    """It was proposed before the newer settings were applied."""
    catalog, group = Catalog(kind), Group()
    group.reconcile(catalog.machine)
    catalog.limit(5)
    behind = catalog.reopened()
    catalog.limit(9)
    [stale] = group.to_do(behind)
    group.reconcile(catalog.machine)

    assert group.apply(stale) == Ok()
    assert group.most() == 9
    catalog.limit(7)
    group.reconcile(catalog.machine)
    assert group.most() == 7


@both
def test_a_queue_that_was_made_by_a_lagging_copy_is_changed_by_any_newer_one(kind: str) -> None:
    catalog, group = Catalog(kind), Group()
    behind = catalog.reopened()
    catalog.limit(9)
    group.reconcile(behind)
    group.reconcile(catalog.machine)
    assert group.most() == 9


@both
def test_a_catalog_that_lost_its_last_entries_still_changes_queues(kind: str) -> None:
    """It goes on at a lower index, in a higher term."""
    catalog, group = Catalog(kind), Group()
    recovered = catalog.reopened()
    for most in (5, 6, 9):
        catalog.limit(most)
    group.reconcile(catalog.machine)
    index, term = catalog.index - 1, first_term_of(1)
    recovered.apply(Stamp(index, term, 0), c.Barrier())

    group.reconcile(recovered)
    assert group.most() == 2


@both
def test_before_version_5_the_last_command_counts(kind: str) -> None:
    """As it does of all that was written before commands said of when they are."""
    catalog, group = Catalog(kind), Group(version=4)
    behind = catalog.reopened()
    catalog.limit(9)
    group.reconcile(catalog.machine)
    group.reconcile(behind)
    assert group.most() == 2

    found = group.machine.find(QUEUE)
    assert found is not None
    assert found.identity.as_of == AS_OF_NOTHING
    group.apply(c.UpgradeMachine(5))
    group.reconcile(catalog.machine)
    assert group.to_do(behind) == []
