"""From an exchange and a key to queues, by this node's copy of the catalog.

An exchange that finds no destination of its own passes the message to its alternate exchange with
the same key (C13). Each exchange is visited once, so bindings and alternates may form circles.
What depends on the key alone is remembered until anything in the vhost changes.

Copies of a message are more keys of it: direct and topic exchanges look at all of them, wherever
they are on the way, and all others at its own alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from cluster.machine.catalog_tables import BindingInfo, ExchangeInfo, QueueInfo
from node.routing.hashing import Shares
from node.routing.shards import key_of, taking
from node.routing.tables import BindingMatcher, RoutedMessage, arranged

#: Remembered answers a vhost, and vhosts with remembered answers: beyond that, all begin anew.
ROUTES_MAX = 4096
VHOSTS_MAX = 1024

ALTERNATE = "alternate-exchange"
#: Exchanges of these types look at the keys of copies, too.
BY_KEYS = frozenset({"direct", "topic"})


class RoutingCatalog(Protocol):
    """What routing reads of the catalog."""

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None: ...
    def queue(self, vhost: str, name: str) -> QueueInfo | None: ...
    def bindings_from(self, vhost: str, exchange: str) -> Sequence[BindingInfo]: ...
    def routing_version(self, vhost: str) -> int: ...
    def entry(self, table: str, key: tuple[str, ...]) -> Mapping[str, Any] | None: ...
    def entries(self, table: str) -> Mapping[tuple[str, ...], Mapping[str, Any]]: ...
    def policy_for(
        self, vhost: str, name: str, what: Literal["queues", "exchanges"]
    ) -> tuple[str, Mapping[str, Any]] | None: ...


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message goes. No queue: it is unroutable."""

    exchange: ExchangeInfo
    queues: tuple[QueueInfo, ...]  # distinct
    by_chance: bool = False  # the next message may go elsewhere
    by_topic: bool = False  # users may have permissions on its keys
    beyond_key: bool = False  # another message of the same key may go elsewhere


@dataclass(slots=True)
class _Known:
    """What was found out about a vhost at one version of it."""

    version: int
    routes: dict[tuple[str, str], Route] = field(default_factory=dict[tuple[str, str], Route])
    # Bindings stay arranged as long as they are the same ones, whatever else changes in the vhost.
    arranged: dict[str, tuple[ExchangeInfo, Sequence[BindingInfo], BindingMatcher]] = field(
        default_factory=dict[str, tuple[ExchangeInfo, Sequence[BindingInfo], BindingMatcher]]
    )
    checked: set[str] = field(default_factory=set[str])  # arranged ones found right at this version
    split: dict[str, Shares[QueueInfo]] | None = None  # queues that are, at this version


def _no_property(_: str) -> None: ...


class Router:
    """One per node."""

    def __init__(self, catalog: RoutingCatalog) -> None:
        self._catalog = catalog
        self._vhosts: dict[str, _Known] = {}
        self._drawn = 0

    def route(
        self,
        vhost: str,
        exchange: str,
        key: str,
        headers: Callable[[], Mapping[str, Any]],
        property_of: Callable[[str], object] = _no_property,
        copies: Sequence[str] = (),
        *,
        steady: bool = False,
        otherwise: str | None = None,
    ) -> Route | None:
        """None: there is no such exchange. Headers and properties are asked for only when an
        exchange on the way decides by them. `copies`: more keys of the message. `steady`: it may be
        routed again, and is not to get to another shard of a queue then. `otherwise`: as of
        `shard`.
        """
        version = self._catalog.routing_version(vhost)
        known = self._vhosts.get(vhost)
        if known is not None and known.version == version and not copies:
            found = known.routes.get((exchange, key))
            if found is not None:
                return found
        info = self._catalog.exchange(vhost, exchange)
        if info is None:
            return None
        known = self._known(vhost)
        message = RoutedMessage(key, headers, property_of)
        queues = tuple(self._walk(known, info, message, copies))
        if split := self._split(known, vhost):
            queues = tuple(
                [self._shard(split, each, message, steady, otherwise) for each in queues]
            )
        by_topic, beyond_key = info.routes_as == "topic", message.beyond_key
        route = Route(info, queues, message.by_chance, by_topic, beyond_key)
        if not beyond_key and not copies:
            if len(known.routes) >= ROUTES_MAX:
                known.routes.clear()
            known.routes[exchange, key] = route
        return route

    def is_split(self, queue: QueueInfo) -> bool:
        """What is published to it goes to its shards."""
        return queue.name in self._split(self._known(queue.vhost), queue.vhost)

    def shard(
        self,
        queue: QueueInfo,
        key: str | None,
        headers: Callable[[], Mapping[str, Any]],
        otherwise: str | None = None,
    ) -> QueueInfo:
        """The queue, or that of its shards to which a message goes that is published to it under
        this key, or under its name alone. `otherwise` decides where nothing of the message does.
        """
        split = self._split(self._known(queue.vhost), queue.vhost)
        message = RoutedMessage(queue.name if key is None else key, headers, _no_property)
        return self._shard(split, queue, message, steady=False, otherwise=otherwise)

    def _known(self, vhost: str) -> _Known:
        """Of the virtual host as it is now."""
        version = self._catalog.routing_version(vhost)
        known = self._vhosts.get(vhost)
        if known is None:
            if len(self._vhosts) >= VHOSTS_MAX:
                self._vhosts.clear()
            known = self._vhosts[vhost] = _Known(version)
        elif known.version != version:
            known.version = version
            known.routes.clear()
            known.checked.clear()
            known.split = None
        return known

    def _split(self, known: _Known, vhost: str) -> Mapping[str, Shares[QueueInfo]]:
        """Queues that are, by name."""
        if known.split is None:
            shards = taking(self._catalog, vhost)
            known.split = {
                name: Shares((each.name, 1, each) for each in some) for name, some in shards.items()
            }
        return known.split

    def _shard(
        self,
        split: Mapping[str, Shares[QueueInfo]],
        queue: QueueInfo,
        message: RoutedMessage,
        steady: bool,
        otherwise: str | None = None,
    ) -> QueueInfo:
        """The queue, or that of its shards to which the message goes."""
        shares = split.get(queue.name)
        if shares is None:
            return queue
        key = key_of(queue, message.key, message.header)
        if key is None:
            message.by_chance = message.beyond_key = True
            if steady:
                return queue
            if otherwise is not None:
                return shares.pick(otherwise) or queue
            # No dice: a run that is simulated routes the same when it is repeated.
            self._drawn += 1
            key = str(self._drawn)
        return shares.pick(key) or queue

    def _walk(
        self, known: _Known, start: ExchangeInfo, message: RoutedMessage, copies: Sequence[str]
    ) -> list[QueueInfo]:
        catalog, vhost = self._catalog, start.vhost
        queues: dict[str, QueueInfo] = {}
        if start.name == "":
            for key in (message.key, *copies):
                if (named := catalog.queue(vhost, key)) is not None:
                    queues[key] = named
            return list(queues.values())
        seen = {start.name}
        waiting = [start]
        for exchange in waiting:  # grows meanwhile
            onward: list[str] = []
            stuck = True
            for binding in self._matching(known, exchange, message, copies):
                if binding.kind == "exchange":
                    onward.append(binding.destination)
                    stuck = False
                elif binding.destination in queues:
                    stuck = False
                elif (queue := catalog.queue(vhost, binding.destination)) is not None:
                    queues[binding.destination] = queue
                    stuck = False
            if stuck and (alternate := self.alternate_of(exchange)) is not None:
                onward.append(alternate)
            for name in onward:
                info = None if name in seen else catalog.exchange(vhost, name)
                if info is not None:
                    seen.add(name)
                    waiting.append(info)
        return list(queues.values())

    def _matching(
        self, known: _Known, exchange: ExchangeInfo, message: RoutedMessage, copies: Sequence[str]
    ) -> Iterable[BindingInfo]:
        bindings = self._bindings(known, exchange)
        if not copies or exchange.routes_as not in BY_KEYS:
            return bindings.matching(message)
        each = [message, *[replace(message, key=key) for key in copies]]
        return [binding for one in each for binding in bindings.matching(one)]

    def _bindings(self, known: _Known, exchange: ExchangeInfo) -> BindingMatcher:
        name = exchange.name
        present = known.arranged.get(name)
        if present is not None and name in known.checked:
            return present[2]
        bindings = self._catalog.bindings_from(exchange.vhost, name)
        if present is None or present[0] != exchange or list(present[1]) != list(bindings):
            if len(known.arranged) >= ROUTES_MAX:
                known.arranged.clear()
            copy = tuple(bindings)
            present = exchange, copy, arranged(exchange, copy)
            known.arranged[name] = present
        known.checked.add(name)
        return present[2]

    def alternate_of(self, exchange: ExchangeInfo) -> str | None:
        """Where it passes on what it cannot route: its argument, else its policy."""
        own = exchange.arguments.get(ALTERNATE)
        if own is None:
            policy = self._catalog.policy_for(exchange.vhost, exchange.name, "exchanges")
            own = None if policy is None else policy[1]["definition"].get(ALTERNATE)
        return own if isinstance(own, str) else None
