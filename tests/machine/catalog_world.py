"""A catalog with a log of its own, for tests: commands at growing indexes, checked after each."""

from __future__ import annotations

from typing import Any

from cluster.catalog.reconcile import commands_for, queues_to_compare
from cluster.machine import QueueMachine
from cluster.machine import commands as c
from cluster.machine.catalog import CatalogMachine
from cluster.machine.effects import Applied
from cluster.machine.replies import Ok, Refused
from cluster.types import GroupId, Stamp

MEMBERS = ["n1", "n2", "n3"]


class Book:
    def __init__(self, default_groups: int = 1) -> None:
        self.machine = CatalogMachine()
        self.index = 0
        for number in range(1, default_groups + 1):
            self.apply(c.CreateGroup(f"default-{number}", MEMBERS, True))

    def apply(self, command: Any) -> Applied:
        self.index += 1
        applied = self.machine.apply(Stamp(self.index, 1, 0), command)
        self.machine.invariants()
        return applied

    def does(self, command: Any, count: int = 1) -> Applied:
        """It is done, and was about so many things."""
        applied = self.apply(command)
        assert applied.reply == Ok(count)
        return applied

    def refuses(self, command: Any, code: str) -> str:
        """It is refused with this code and changes nothing. Why it is."""
        before = self.machine.digest()
        reply = self.apply(command).reply
        assert isinstance(reply, Refused)
        assert reply.code == code
        assert self.machine.digest() == before
        return reply.reason

    def queue(self, name: str, arguments: dict[str, Any] | None = None, vhost: str = "/") -> None:
        reply = self.apply(c.DeclareQueue(vhost, name, arguments or {})).reply
        assert not isinstance(reply, Refused), reply

    def exchange(self, name: str, kind: str = "fanout", *, auto_delete: bool = False) -> None:
        self.does(c.DeclareExchange("/", name, kind, auto_delete=auto_delete))

    def bind(self, source: str, queue: str, key: str = "") -> None:
        self.does(c.Bind("/", source, "queue", queue, key))

    def chain(self, source: str, destination: str) -> None:
        self.does(c.Bind("/", source, "exchange", destination, ""))

    def names(self, vhost: str = "/") -> list[str]:
        """Of the exchanges that somebody declared."""
        found = [info.name for info in self.machine.exchanges(vhost)]
        return [name for name in found if name and not name.startswith("amq.")]

    def reopened(self) -> CatalogMachine:
        copy = CatalogMachine()
        copy.restore(self.machine.snapshot())
        copy.invariants()
        assert copy.digest() == self.machine.digest()
        return copy


class ComparedGroup:
    """A group, number 1, that is compared with copies of the catalog."""

    def __init__(self, version: int = 5) -> None:
        self.machine = QueueMachine(version)
        self.index = 0

    def apply(self, command: Any) -> Any:
        """The reply; a copy from a snapshot answers the same, and is in the same state then."""
        self.index += 1
        copy = QueueMachine()
        copy.restore(self.machine.snapshot())
        stamp = Stamp(self.index, 1, 0)
        reply = self.machine.apply(stamp, command).reply
        assert copy.apply(stamp, command).reply == reply
        assert copy.snapshot() == self.machine.snapshot() == b"".join(copy.snapshot_pieces())
        assert copy.digest() == self.machine.digest()
        return reply

    def to_do(self, catalog: CatalogMachine) -> list[c.Command]:
        known = catalog, self.machine, GroupId(1)
        return commands_for(*known, queues_to_compare(*known))
