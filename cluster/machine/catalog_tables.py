"""The tables of the catalog: what each holds, how it is found, and its rows for a snapshot.

A table is dictionaries and nothing else. It keeps its own indexes right; the rules about what may
be written are the machine's. `dump` gives rows in a fixed order: equal tables give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.machine.arguments import ArgumentError, parse_arguments
from cluster.machine.commands import DestinationKind, QueueConfig
from cluster.types import GroupId, NodeId, QueueId


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as it registered itself at its last start."""

    node: NodeId
    incarnation: int
    addresses: Mapping[str, str]  # "peer", "http", "amqp" -> "host:port"
    number: int = 0  # dense, from 1, in the order of first registration


@dataclass(frozen=True, slots=True)
class GroupInfo:
    id: GroupId
    name: str
    members: Sequence[NodeId]
    default: bool  # unnamed queues are spread over the default ones


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """Where a queue lives and what it was declared with."""

    queue: QueueId
    group: GroupId
    vhost: str
    name: str
    arguments: Mapping[str, Any]
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    node: NodeId | None = None  # a transient queue: the only node that has it; None: replicated
    incarnation: int = 0  # of that node's process
    owner: str | None = None  # exclusive: the client connection that may use it


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BindingInfo:
    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    key: str
    arguments: Mapping[str, Any]


class Table(Protocol):
    """What the machine needs of every table, whatever is in it."""

    def dump(self) -> list[Any]: ...
    def load(self, rows: Iterable[Any]) -> None: ...
    def __len__(self) -> int: ...


class Nodes:
    """Nodes by id."""

    def __init__(self) -> None:
        self.by_id: dict[NodeId, NodeInfo] = {}

    def put(self, info: NodeInfo) -> None:
        self.by_id[info.node] = info

    def all(self) -> list[NodeInfo]:
        return [self.by_id[node] for node in sorted(self.by_id)]

    def dump(self) -> list[Any]:
        return [[info.node, info.incarnation, dict(info.addresses)] for info in self.all()]

    def load(self, rows: Iterable[Any]) -> None:
        self.by_id = {}
        for node, incarnation, addresses in rows:
            self.put(NodeInfo(NodeId(node), incarnation, addresses))

    def __len__(self) -> int:
        return len(self.by_id)


class Groups:
    """Groups by id and by name, numbered densely from 1 (0 is the catalog itself)."""

    def __init__(self) -> None:
        self.by_id: dict[GroupId, GroupInfo] = {}
        self.by_name: dict[str, GroupInfo] = {}

    @property
    def next_id(self) -> GroupId:
        # Groups are never removed, so their number is also the last id.
        return GroupId(len(self.by_id) + 1)

    def put(self, info: GroupInfo) -> None:
        self.by_id[info.id] = info
        self.by_name[info.name] = info

    def all(self) -> list[GroupInfo]:
        return [self.by_id[group] for group in sorted(self.by_id)]

    def dump(self) -> list[Any]:
        return [[info.id, info.name, list(info.members), info.default] for info in self.all()]

    def load(self, rows: Iterable[Any]) -> None:
        self.by_id = {}
        self.by_name = {}
        for group, name, members, default in rows:
            self.put(GroupInfo(GroupId(group), name, tuple(members), default))

    def __len__(self) -> int:
        return len(self.by_id)


class Queues:
    """Queues by id and by (vhost, name), and which of them each group holds."""

    def __init__(self) -> None:
        self.by_id: dict[QueueId, QueueInfo] = {}
        self.by_name: dict[tuple[str, str], QueueInfo] = {}
        self.configs: dict[QueueId, QueueConfig] = {}
        self._of_group: dict[GroupId, dict[QueueId, None]] = {}

    def put(self, info: QueueInfo, config: QueueConfig) -> None:
        self.by_id[info.queue] = info
        self.by_name[info.vhost, info.name] = info
        self.configs[info.queue] = config
        self._of_group.setdefault(info.group, {})[info.queue] = None

    def remove(self, info: QueueInfo) -> None:
        del self.by_id[info.queue]
        del self.by_name[info.vhost, info.name]
        del self.configs[info.queue]
        del self._of_group[info.group][info.queue]

    def all(self) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self.by_id)]

    def of_group(self, group: GroupId) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self._of_group.get(group, ()))]

    def count_of(self, group: GroupId) -> int:
        return len(self._of_group.get(group, ()))

    def dump(self) -> list[Any]:
        return [
            [info.queue, info.group, info.vhost, info.name, dict(info.arguments)]
            for info in self.all()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        self.by_id = {}
        self.by_name = {}
        self.configs = {}
        self._of_group = {}
        for queue, group, vhost, name, arguments in rows:
            config = parse_arguments(arguments)
            assert not isinstance(config, ArgumentError), "only what parses is ever stored"
            self.put(QueueInfo(QueueId(queue), GroupId(group), vhost, name, arguments), config)

    def __len__(self) -> int:
        return len(self.by_id)
