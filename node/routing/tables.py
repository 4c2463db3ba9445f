"""The bindings of one exchange, arranged so that a message finds those that match it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.machine.catalog_routing import (
    DOWNSTREAM_NAME,
    DOWNSTREAM_VHOST,
    FEDERATION_UPSTREAM,
    MAX_HOPS,
)
from cluster.machine.catalog_tables import BindingInfo, ExchangeInfo
from node.routing.federation import may_forward
from node.routing.hashing import Shares, hash_of, mixed, weight_of
from node.routing.headers import matcher
from node.routing.topic import TopicTrie


@dataclass(slots=True)
class RoutedMessage:
    """What routing may look at. Only what is looked at is decoded, and then it is noted."""

    key: str
    headers: Callable[[], Mapping[str, Any]]
    property_of: Callable[[str], object]
    beyond_key: bool = False  # the answer depends on more than the key
    by_chance: bool = False  # it may be another for the next message

    def header(self) -> Mapping[str, Any]:
        self.beyond_key = True
        return self.headers()

    def property(self, name: str) -> object:
        self.beyond_key = True
        return self.property_of(name)


class BindingMatcher(Protocol):
    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]: ...


def arranged(exchange: ExchangeInfo, bindings: Sequence[BindingInfo]) -> BindingMatcher:
    """By the type of the exchange; a type from a later version routes nowhere."""
    make = _TYPES.get(exchange.routes_as)
    return _Fanout(exchange, ()) if make is None else make(exchange, bindings)


class _Direct:
    def __init__(self, _: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._by_key: dict[str, list[BindingInfo]] = {}
        for binding in bindings:
            self._by_key.setdefault(binding.key, []).append(binding)

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        return self._by_key.get(message.key, ())


class _Fanout:
    def __init__(self, _: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._all = bindings

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        return self._all


class _FederationUpstream:
    """A fanout to the queue of a downstream cluster, of what has not been there."""

    def __init__(self, exchange: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._arguments = exchange.arguments
        self._all = bindings

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        arguments = self._arguments
        goes = may_forward(
            message.header(),
            hops_max=arguments[MAX_HOPS],
            cluster=arguments.get(DOWNSTREAM_NAME),
            vhost=arguments.get(DOWNSTREAM_VHOST),
        )
        return self._all if goes else ()


class _Topic:
    def __init__(self, _: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._trie: TopicTrie[BindingInfo] = TopicTrie()
        for binding in bindings:
            self._trie.add(binding.key, binding)

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        return self._trie.matching(message.key)


class _Headers:
    def __init__(self, _: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._matchers = [(matcher(binding.arguments), binding) for binding in bindings]

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        headers = message.header()
        return [binding for matches, binding in self._matchers if matches(headers)]


class _ConsistentHash:
    """The binding key is the weight; the hash is of the routing key, a header or a property."""

    def __init__(self, exchange: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._header = _text(exchange.arguments.get("hash-header"))
        self._property = _text(exchange.arguments.get("hash-property"))
        self._shares = Shares(
            (f"{binding.kind} {weight} {binding.destination}", weight, binding)
            for binding in bindings
            if (weight := weight_of(binding.key)) > 0
        )

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        if self._header is not None:
            hashed = message.header().get(self._header)
        elif self._property is not None:
            hashed = message.property(self._property)
        else:
            hashed = message.key
        picked = self._shares.pick("" if hashed is None else str(hashed))
        return () if picked is None else (picked,)


class _Modulus:
    """Any of the bindings, by the hash of the routing key; what they say does not matter."""

    def __init__(self, _: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._all = sorted(bindings, key=lambda each: (each.kind, each.destination, each.key))

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        if not self._all:
            return ()
        return (self._all[hash_of(message.key) % len(self._all)],)


class _Random:
    """Any of the bindings, another one each time."""

    def __init__(self, exchange: ExchangeInfo, bindings: Sequence[BindingInfo]) -> None:
        self._all = bindings
        self._drawn = hash_of(f"{exchange.vhost} {exchange.name}")

    def matching(self, message: RoutedMessage) -> Iterable[BindingInfo]:
        message.beyond_key = message.by_chance = True
        if not self._all:
            return ()
        # No dice: a run that is simulated routes the same when it is repeated.
        self._drawn += 1
        return (self._all[mixed(self._drawn) % len(self._all)],)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_TYPES: dict[str, Callable[[ExchangeInfo, Sequence[BindingInfo]], BindingMatcher]] = {
    "direct": _Direct,
    "fanout": _Fanout,
    "topic": _Topic,
    "headers": _Headers,
    "x-consistent-hash": _ConsistentHash,
    "x-modulus-hash": _Modulus,
    "x-random": _Random,
    FEDERATION_UPSTREAM: _FederationUpstream,
}
