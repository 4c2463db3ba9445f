"""Several things changed in the catalog as one: all of them or none."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine, did_something
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.replies import (
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_EXCHANGE,
    NO_VHOST,
    UNKNOWN_COMMAND,
    Ok,
    Refused,
)
from cluster.types import Stamp
from tests.machine.catalog_world import Book
from tests.machine.test_catalog_model import NAMES, VHOSTS, any_command

STEPS = [
    c.PutEntry("vhosts", ["v"], {}),
    c.PutEntry("users", ["ann"], {}),
    c.PutEntry("permissions", ["ann", "v"], {"configure": "", "write": "", "read": ".*"}),
    c.DeclareQueue("v", "q", {"x-max-length": 3}),
    c.DeclareExchange("v", "e", "topic"),
    c.Bind("v", "e", "queue", "q", "a.#"),
]


def book() -> Book:
    made = Book()
    made.does(c.UpgradeMachine(3), 0)
    return made


def test_all_of_it_is_done_and_counted():
    world = book()

    applied = world.apply(c.ChangeCatalog(STEPS))

    assert applied.reply == Ok(6)
    assert [type(effect).__name__ for effect in applied.effects] == ["QueueDeclared"]
    assert world.machine.queue("v", "q") is not None
    assert len(world.machine.bindings("v")) == 1
    assert world.apply(c.ChangeCatalog(STEPS)).reply == Ok(0)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (c.Bind("v", "nowhere", "queue", "q", ""), NO_EXCHANGE),
        (c.DeclareQueue("v", "q", {"x-max-length": 4}), INEQUIVALENT),
        (c.PutEntry("permissions", ["ann", "w"], {}), "bad_argument"),
        (c.DeclareQueue("w", "q", {}), NO_VHOST),
        (c.Tick(), UNKNOWN_COMMAND),
    ],
)
@pytest.mark.parametrize("place", [4, 6])
def test_one_that_is_refused_leaves_all_undone(bad: Any, code: str, place: int):
    world = book()
    steps = [*STEPS[:place], bad, *STEPS[place:]]

    world.refuses(c.ChangeCatalog(steps), code)

    reply = world.apply(c.ChangeCatalog(steps)).reply
    assert isinstance(reply, Refused)
    assert reply.detail == (None if code == UNKNOWN_COMMAND else place)
    assert world.machine.entry("vhosts", ("v",)) is None


def test_a_limit_that_is_part_of_it_holds_for_the_rest():
    limit = c.PutEntry("vhost_limits", ["/"], {"max-queues": 1})
    queues = [c.DeclareQueue("/", name, {}) for name in "ab"]
    book().refuses(c.ChangeCatalog([limit, *queues]), LIMIT_REACHED)


def test_before_version_3_it_is_not_known():
    world = Book()
    world.does(c.UpgradeMachine(2), 0)
    world.refuses(c.ChangeCatalog(STEPS), UNKNOWN_COMMAND)


@pytest.mark.parametrize("seed", range(20))
def test_it_does_what_its_steps_do_one_by_one(seed: int):
    random = Random(seed)
    whole, single = book(), book()
    for _ in range(40):
        steps: list[Any] = []
        while len(steps) < 4:
            command = any_command(random)
            if isinstance(command, CatalogStep):
                steps.append(command)
            else:
                assert whole.apply(command) == single.apply(command)
        before = single.machine.snapshot()
        replies = [single.apply(step).reply for step in steps]
        refused = [n for n, reply in enumerate(replies) if isinstance(reply, Refused)]
        if refused:
            single.machine.restore(before)
        reply = whole.apply(c.ChangeCatalog(steps)).reply
        if isinstance(reply, Refused):
            assert reply.detail == refused[0]
        else:
            assert reply == Ok(sum(map(did_something, replies)))
        assert whole.machine.snapshot() == single.machine.snapshot()


@pytest.mark.parametrize("seed", range(10))
def test_a_copy_and_what_it_was_made_of_go_their_own_ways(seed: int):
    random = Random(seed)
    world = book()
    for _ in range(100):
        world.apply(any_command(random))
    before = world.machine.snapshot()
    copy: CatalogMachine = world.machine.copy()
    assert copy.snapshot() == before
    for number in range(100):
        copy.apply(Stamp(number, 1, 0), any_command(random))
        copy.invariants()
    assert world.machine.snapshot() == before
    world.machine.invariants()
    for machine in (world.machine, copy):
        for vhost in VHOSTS:
            every = machine.bindings(vhost)
            for name in NAMES:
                assert machine.bindings_from(vhost, name) == [b for b in every if b.source == name]
                for kind in ("queue", "exchange"):
                    assert machine.bindings_to(vhost, kind, name) == [
                        b for b in every if (b.kind, b.destination) == (kind, name)
                    ]
