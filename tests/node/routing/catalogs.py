"""A catalog of exchanges, queues and bindings for tests of routing: plain lists, searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.machine.catalog_tables import BindingInfo, ExchangeInfo, QueueInfo
from cluster.types import GroupId, QueueId

VHOST = "/"


class FakeCatalog:
    def __init__(self) -> None:
        self.version = 1
        self.exchanges: dict[str, ExchangeInfo] = {}
        self.queues: dict[str, QueueInfo] = {}
        self.bound: list[BindingInfo] = []
        self.policies: dict[str, dict[str, Any]] = {}
        self.parameters: dict[tuple[str, ...], dict[str, Any]] = {}
        self.make("", "direct")

    @property
    def applied(self) -> int:
        return self.version

    def make(self, name: str, kind: str, **arguments: Any) -> None:
        named = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.exchanges[name] = ExchangeInfo(VHOST, name, kind, True, False, False, named)
        self.version += 1

    def add_queue(self, *names: str) -> None:
        for name in names:
            number = QueueId(len(self.queues) + 1)
            self.queues[name] = QueueInfo(number, GroupId(1), VHOST, name, {})
        self.version += 1

    def bind(
        self, source: str, destination: str, key: str = "", kind: Any = "queue", **args: Any
    ) -> None:
        named = {key.replace("_", "-"): value for key, value in args.items()}
        self.bound.append(BindingInfo(VHOST, source, kind, destination, key, named))
        self.version += 1

    def remove_queue(self, name: str) -> None:
        del self.queues[name]
        self.bound = [b for b in self.bound if (b.kind, b.destination) != ("queue", name)]
        self.version += 1

    # --- what the router reads --------------------------------------------------------------------

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None:
        return self.exchanges.get(name) if vhost == VHOST else None

    def queue(self, vhost: str, name: str) -> QueueInfo | None:
        return self.queues.get(name) if vhost == VHOST else None

    def bindings_from(self, vhost: str, exchange: str) -> Sequence[BindingInfo]:
        return [binding for binding in self.bound if binding.source == exchange]

    def routing_version(self, vhost: str) -> int:
        return self.version

    def entry(self, table: str, key: tuple[str, ...]) -> Mapping[str, Any] | None:
        return self.entries(table).get(key)

    def entries(self, table: str) -> Mapping[tuple[str, ...], Mapping[str, Any]]:
        assert table == "parameters"
        return self.parameters

    def split(self, name: str, *shards: str, joining: bool = False) -> None:
        value = {"shards": list(shards), "joining": joining}
        self.parameters["split-queue", VHOST, name] = {"value": value}
        self.version += 1

    def policy_for(self, vhost: str, name: str, what: str) -> tuple[str, Mapping[str, Any]] | None:
        definition = self.policies.get(name)
        return None if definition is None else ("policy", {"definition": definition})
