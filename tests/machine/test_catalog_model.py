"""The catalog against a twin that keeps no index, over any commands, cut and restored anywhere."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.replies import Declared, Ok, Refused
from cluster.types import Stamp
from tests.machine.catalog_world import Book

VHOSTS = ("/", "/", "/", "v")
NAMES = ("a", "b", "c")
SEEDS = range(30)


def any_command(random: Random) -> Any:
    """One of those that find what others made: few names, so that they meet."""
    pick = random.choice
    vhost, name, other, node = pick(VHOSTS), pick(NAMES), pick(NAMES), pick(["n1", "n2"])
    kind = pick(["queue", "exchange"])
    ends = (vhost, name, kind, other, pick(["", "k"]), pick([{}, {}, {"n": 1}, {"n": True}]))
    some = random.randrange(100)
    if some < 15:
        return c.DeclareExchange(vhost, name, "topic", some < 7, some % 2 == 0)
    if some < 25:
        return c.DeclareQueue(vhost, name, {})
    if some < 35:
        return c.DeclareQueue(
            vhost,
            name,
            {},
            durable=False,
            node=node,
            incarnation=pick([1, 2]),
            exclusive=some < 28,
            owner=pick(["c1", "c2"]),
        )
    if some < 72:
        return c.Bind(*ends)
    if some < 82:
        return c.Unbind(*ends)
    limits = {"max-queues": pick([-1, 1])}
    policy = {"pattern": name, "definition": {"max-length": pick([1, 2])}}
    return pick(
        [
            c.RegisterNode(node, pick([1, 1, 1, 2])),
            c.ForgetNode(node, pick([0, 1, 2])),
            c.ForgetVolatile(pick([0, 1, 2])),
            c.RemoveQueue(vhost, name),
            c.RemoveQueue(vhost, name),
            c.DeleteExchange(vhost, name, pick([True, False])),
            c.DeleteExchange(vhost, name),
            c.PutEntry("vhosts", ["v"], {}),
            c.PutEntry("vhosts", ["v"], {}),
            c.DropEntry("vhosts", [pick(["v", "v", "/"])]) if pick([0, 1]) else c.Tick(),
            c.PutEntry("vhosts", ["/"], {}),
            c.PutEntry("vhost_limits", [vhost], limits if pick([0, 1]) else {}),
            c.PutEntry("policies", [vhost, other], policy),
        ]
    )


anything: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.just("\ud800")
    | st.just("x" * 300)
    | st.builds(object),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=4,
)
texts = st.sampled_from(["", "/", "a", "amq.topic", "queue", "topic", "\ud800", "x" * 300])
maps = st.dictionaries(
    st.sampled_from(["x-match", "pattern", "definition", "value", "alternate-exchange"])
    | st.integers(),
    anything,
    max_size=3,
)
tables = st.sampled_from(["vhosts", "users", "permissions", "policies", "parameters", "no"])
hostile: st.SearchStrategy[Any] = st.one_of(
    st.builds(c.DeclareQueue, texts, texts, maps, node=texts, owner=texts, exclusive=st.booleans()),
    st.builds(c.DeclareExchange, texts, texts, texts, arguments=maps),
    st.builds(c.DeleteExchange, texts, texts),
    st.builds(c.Bind, texts, texts, texts, texts, texts, maps),
    st.builds(c.Unbind, texts, texts, texts, texts, texts, maps),
    st.builds(c.PutEntry, tables, st.lists(anything, max_size=3), maps),
    st.builds(c.DropEntry, tables, st.lists(anything, max_size=3)),
    st.builds(c.ForgetNode, texts, st.integers()),
    st.builds(c.ForgetVolatile, st.integers()),
)


class Twin:
    """What is there, as plain lists: every rule by looking at all of it."""

    def __init__(self) -> None:
        self.vhosts = ["/"]
        self.queues: dict[tuple[str, str], c.DeclareQueue] = {}
        self.exchanges: dict[tuple[str, str], c.DeclareExchange] = {}
        self.bindings: list[c.Bind] = []

    def told(self, command: Any, reply: Any) -> None:
        """The machine said that it did this."""
        match command:
            case c.DeclareQueue():
                if isinstance(reply, Declared) and reply.created:
                    self.queues[command.vhost, command.name] = command
            case c.RemoveQueue():
                self._drop_queues([(command.vhost, command.name)])
            case c.RegisterNode():
                self._forget(command.node, command.incarnation - 1)
            case c.ForgetNode():
                self._forget(command.node, command.incarnation)
            case c.DeclareExchange():
                self.exchanges.setdefault((command.vhost, command.name), command)
            case c.DeleteExchange():
                self._drop_exchanges([(command.vhost, command.name)])
            case c.ForgetVolatile() if reply.count:
                self._drop_exchanges([at for at, e in self.exchanges.items() if not e.durable])
            case c.Bind() if reply.count:
                self.bindings.append(command)
            case c.Unbind() if reply.count:
                self._unbind(lambda each: _same(each, command))
            case c.PutEntry("vhosts") if reply.count:
                self.vhosts.append(command.key[0])
            case c.DropEntry("vhosts") if reply.count:
                vhost = command.key[0]
                self.vhosts.remove(vhost)
                self.queues = {at: q for at, q in self.queues.items() if at[0] != vhost}
                self.exchanges = {at: e for at, e in self.exchanges.items() if at[0] != vhost}
                self.bindings = [b for b in self.bindings if b.vhost != vhost]
            case _:
                pass

    def _forget(self, node: str, incarnation: int) -> None:
        mine = [(at, q) for at, q in self.queues.items() if q.node == node]
        self._drop_queues([at for at, q in mine if q.incarnation <= incarnation])

    def _drop_queues(self, gone: list[tuple[str, str]]) -> None:
        self.queues = {at: q for at, q in self.queues.items() if at not in gone}
        self._unbind(lambda b: b.kind == "queue" and (b.vhost, b.destination) in gone)

    def _drop_exchanges(self, gone: list[tuple[str, str]]) -> None:
        self.exchanges = {at: e for at, e in self.exchanges.items() if at not in gone}
        self._unbind(
            lambda b: (
                (b.vhost, b.source) in gone
                or (b.kind == "exchange" and (b.vhost, b.destination) in gone)
            )
        )

    def _unbind(self, is_gone: Any) -> None:
        """And all that follows, round after round."""
        lost = {(b.vhost, b.source) for b in self.bindings if is_gone(b)}
        self.bindings = [b for b in self.bindings if not is_gone(b)]
        lost -= {(b.vhost, b.source) for b in self.bindings}
        bare = [at for at in lost if at in self.exchanges and self.exchanges[at].auto_delete]
        if bare:
            self._drop_exchanges(bare)


def _same(first: c.Bind, second: c.Unbind) -> bool:
    return all(
        repr(getattr(first, name)) == repr(getattr(second, name))
        for name in ("vhost", "source", "kind", "destination", "key", "arguments")
    )


def check(machine: CatalogMachine, twin: Twin) -> None:
    assert {key[0] for key in machine.entries("vhosts")} == set(twin.vhosts)
    assert {(q.vhost, q.name) for q in machine.queues()} == twin.queues.keys()
    declared = {(e.vhost, e.name) for e in machine.exchanges() if len(e.name) == 1}
    assert declared == twin.exchanges.keys()
    shown = [(b.vhost, b.source, b.kind, b.destination, b.key) for b in machine.bindings()]
    assert shown == [(b.vhost, b.source, b.kind, b.destination, b.key) for b in twin.bindings]
    for vhost in ("/", "v"):
        for name in ("a", "b", "c", "amq.topic"):
            found = [b for b in machine.bindings(vhost) if b.source == name]
            assert machine.bindings_from(vhost, name) == found
            for kind in ("queue", "exchange"):
                found = [
                    b for b in machine.bindings(vhost) if (b.kind, b.destination) == (kind, name)
                ]
                assert machine.bindings_to(vhost, kind, name) == found


def routing(machine: CatalogMachine) -> Any:
    """All that a route depends on."""
    queues = [(info.vhost, info.name) for info in machine.queues()]
    return machine.exchanges(), machine.bindings(), queues, machine.entries("policies")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_catalog_holds_what_its_twin_does(seed: int):
    random = Random(seed)
    book, twin = Book(), Twin()
    for _ in range(300):
        command = any_command(random)
        before = book.machine.digest()
        versions = [book.machine.routing_version(vhost) for vhost in ("/", "v")]
        routes = routing(book.machine)
        reply = book.apply(command).reply
        if isinstance(reply, Refused):
            assert book.machine.digest() == before
        else:
            twin.told(command, reply)
        check(book.machine, twin)
        if routing(book.machine) != routes:
            assert versions != [book.machine.routing_version(vhost) for vhost in ("/", "v")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_anywhere_and_the_tail_equal_the_whole_log(seed: int):
    random = Random(seed)
    book = Book()
    copies: list[CatalogMachine] = []
    for number in range(200):
        if number % 25 == seed % 25:
            copies.append(book.reopened())
        command = any_command(random)
        applied = book.apply(command)
        for copy in copies:
            assert copy.apply(Stamp(book.index, 1, 0), command) == applied
    for copy in copies:
        copy.invariants()
        assert copy.snapshot() == book.machine.snapshot()
        assert copy.on_leader() == book.machine.on_leader()
        assert routing(copy) == routing(book.machine)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 20), st.lists(hostile, max_size=12))
def test_no_command_whatever_it_holds_makes_it_raise(seed: int, script: list[Any]):
    random = Random(seed)
    book = Book()
    book.does(c.RegisterNode("a", 0))
    for _ in range(30):
        book.apply(any_command(random))
    for command in script:
        before = book.machine.digest()
        reply = book.apply(command).reply
        assert isinstance(reply, Ok | Declared | Refused)
        if isinstance(reply, Refused):
            assert book.machine.digest() == before
    book.reopened()
