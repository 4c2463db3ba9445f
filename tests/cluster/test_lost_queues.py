"""Queues that a group has, and that the catalog lost with a majority."""

from __future__ import annotations

from cluster.catalog.reconcile import commands_for, lost_queues
from cluster.machine import QueueMachine
from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.types import TRANSIENT_GROUPS, GroupId, NodeId, QueueId, Stamp, first_term_of
from tests.testkit.calls import calls_of


def catalog_of(count: int) -> CatalogMachine:
    """So many queues were declared before it lost its end."""
    catalog = CatalogMachine()
    declared = [c.DeclareQueue("/", f"q{number}", {}) for number in range(1, count + 1)]
    made = [c.UpgradeMachine(5), c.CreateGroup("default-1", [NodeId("n1")], True), *declared]
    for index, command in enumerate(made, start=1):
        catalog.apply(Stamp(index, 1, 0), command)
    catalog.apply(Stamp(len(made) + 1, first_term_of(1), 0), c.Barrier())
    assert catalog.next_queue_id > count
    return catalog


def group_of(count: int) -> QueueMachine:
    machine = QueueMachine()
    made = [c.CreateQueue(QueueId(n), "/", f"q{n}", c.QueueConfig()) for n in range(1, count + 1)]
    for index, command in enumerate([c.UpgradeMachine(5), *made], start=1):
        machine.apply(Stamp(index, 1, 0), command)
    return machine


def test_what_was_declared_after_the_copy_that_is_left_is_found() -> None:
    names = [lost.name for lost in lost_queues(catalog_of(4), group_of(6))]
    assert names == ["q5", "q6"]


def test_not_every_queue_is_looked_at_when_one_is_declared() -> None:
    """Each declare of a new name asks, as long as the cluster lives."""
    catalog, machine = catalog_of(1_000), group_of(1_000)
    assert not list(lost_queues(catalog, machine))
    assert calls_of(lambda: list(lost_queues(catalog, machine))) < 100


def test_transient_ones_go_since_nobody_can_declare_them_again() -> None:
    """Their node stayed up over the recovery."""
    catalog, machine = catalog_of(1), group_of(2)
    lost = QueueId(2)
    assert not commands_for(catalog, machine, GroupId(1), [lost])
    (command,) = commands_for(catalog, machine, GroupId(TRANSIENT_GROUPS + 1), [lost])
    assert command == c.DeleteQueue(lost, as_of=catalog.as_of)
