"""Queues that are split: one name, whose messages several queues share.

What is published to such a queue goes to one of its shards: by its routing key, so that all of one
key are in one queue. What comes by the default exchange has the queue's name for a key, and goes to
any. The queue itself stays one: it has the bindings and the name, and whoever is sent to it by
another way than a key (a native publisher, a dead letter) is served by it.

That a queue is split is a parameter of the catalog, as shovels are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any, Final, NamedTuple, Protocol, cast

from cluster.machine.arguments import GROUP_KEY, SHARD_OF
from cluster.machine.arguments import SPLIT_QUEUE as COMPONENT
from cluster.machine.catalog_tables import QueueInfo
from cluster.machine.commands import ROUTING_KEY

SHARDS_MAX: Final = 64


class Split(NamedTuple):
    """How a queue is split."""

    shards: tuple[str, ...]  # names of queues
    joining: bool = False  # nothing is published to them any more


class SplitCatalog(Protocol):
    """What is asked of the catalog."""

    def entry(self, table: str, key: tuple[str, ...]) -> Mapping[str, Any] | None: ...
    def entries(self, table: str) -> Mapping[tuple[str, ...], Mapping[str, Any]]: ...
    def queue(self, vhost: str, name: str) -> QueueInfo | None: ...


def parse_split(value: Any) -> Split:
    """ValueError: what is wrong with it."""
    match value:
        case {"shards": list(), **rest} if rest.keys() <= {"joining"}:
            names = cast("list[Any]", value["shards"])
        case _:
            raise ValueError('a split queue is {"shards": [names of queues], "joining": false}')
    if not 1 <= len(names) <= SHARDS_MAX or not all(type(name) is str and name for name in names):
        raise ValueError(f"shards must be names of queues, from 1 to {SHARDS_MAX}")
    if len(set(names)) < len(names):
        raise ValueError("a queue is named twice among the shards")
    joining = rest.get("joining", False)
    if type(joining) is not bool:
        raise ValueError("joining must be true or false")
    return Split(tuple(names), joining)


def split_of(catalog: SplitCatalog, info: QueueInfo) -> Split | None:
    """None: it is one queue, as others are."""
    return _parsed(catalog.entry("parameters", (COMPONENT, info.vhost, info.name)))


def shards_of(catalog: SplitCatalog, info: QueueInfo) -> tuple[QueueInfo, ...]:
    """Those of its shards that there are, also while it is joined again; none: it is not split."""
    split = split_of(catalog, info)
    return () if split is None else _found(catalog, info.vhost, split)


def whole_of(catalog: SplitCatalog, info: QueueInfo) -> QueueInfo | None:
    """The queue of which it is a shard: that says so, too."""
    name: Any = info.arguments.get(SHARD_OF)
    whole = catalog.queue(info.vhost, name) if type(name) is str else None
    split = None if whole is None else split_of(catalog, whole)
    return whole if split is not None and info.name in split.shards else None


def undeletable(catalog: SplitCatalog, info: QueueInfo) -> str | None:
    """What it is, and what is to be done before it may be deleted; None: it may."""
    named = f"queue '{info.name}' in vhost '{info.vhost}'"
    if split_of(catalog, info) is not None:
        return f"{named} is split: join it first (quorate queue join {quote(info.name)})"
    whole = whole_of(catalog, info)
    split = None if whole is None else split_of(catalog, whole)
    if whole is None or split is None or split.joining:
        return None
    join = f"quorate queue join {quote(whole.name)}"
    return f"{named} is a shard of queue '{whole.name}': join that ({join}), and it goes"


def taking(catalog: SplitCatalog, vhost: str) -> dict[str, tuple[QueueInfo, ...]]:
    """Of each split queue of the virtual host the shards to which is published."""
    found: dict[str, tuple[QueueInfo, ...]] = {}
    for (component, of_vhost, name), entry in catalog.entries("parameters").items():
        if component != COMPONENT or of_vhost != vhost:
            continue
        split = _parsed(entry)
        if split is not None and not split.joining:
            shards = _found(catalog, vhost, split)
            if shards:
                found[name] = shards
    return found


def key_of(info: QueueInfo, key: str, headers: Callable[[], Mapping[str, Any]]) -> str | None:
    """What decides on the shard: the message's group, where the queue has message groups, else its
    routing key. None: nothing does, as when that is the queue's name.
    """
    name = info.arguments.get(GROUP_KEY)
    if name is None or name == ROUTING_KEY:
        return None if key == info.name else key
    value = headers().get(name)
    return None if value is None or value == "" else str(value)


def _parsed(entry: Mapping[str, Any] | None) -> Split | None:
    if entry is None:
        return None
    try:
        return parse_split(entry.get("value"))
    except ValueError:
        return None  # of a later release: it is served as one queue


def _found(catalog: SplitCatalog, vhost: str, split: Split) -> tuple[QueueInfo, ...]:
    found: Sequence[QueueInfo | None] = [catalog.queue(vhost, name) for name in split.shards]
    return tuple([info for info in found if info is not None and info.stream is None])
