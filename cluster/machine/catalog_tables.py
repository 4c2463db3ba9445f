"""The tables of the catalog: what each holds, how it is found, and its rows for a snapshot.

A table is dictionaries and nothing else. It keeps its own indexes right; the rules about what may
be written are the machine's. `dump` gives rows in a fixed order: equal tables give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import cbor2

from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog_commands import DestinationKind
from cluster.machine.stream.settings import subjects_of
from cluster.machine.subject_tree import SubjectTree
from cluster.machine.versions import VERSIONS
from cluster.types import TRANSIENT_GROUPS, GroupId, NodeId, QueueId

NodeState = Literal["member", "leaving", "removed"]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as it registered itself at its last start."""

    node: NodeId
    incarnation: int
    addresses: Mapping[str, str]  # as it registered: endpoints, and VERSIONS
    number: int = 0  # dense, from 1, in the order of first registration
    state: NodeState = "member"  # leaving: others take its places; removed: only its name is known

    @property
    def endpoints(self) -> dict[str, str]:
        """ "peer", "http", "amqp" -> "host:port"."""
        return {kind: at for kind, at in self.addresses.items() if kind != VERSIONS}

    @property
    def versions(self) -> str:
        """What its process can run: see `cluster.machine.versions`."""
        return self.addresses.get(VERSIONS, "")

    @property
    def transient_group(self) -> GroupId:
        return GroupId(TRANSIENT_GROUPS + self.number)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    id: GroupId
    name: str
    members: Sequence[NodeId]  # that shall hold it
    default: bool  # unnamed queues are spread over the default ones
    founders: Sequence[NodeId] = ()  # the members that its log begins with
    held: Sequence[NodeId] = ()  # that have a copy, as its leader said...
    held_at: int = 0  # ...by this entry of its own log
    moves: int = 0  # how often other members were wanted
    held_era: int = 0  # of the entry at `held_at`: see `cluster/raft/configuration.py`

    @property
    def homes(self) -> set[NodeId]:
        """Where a copy is, or shall be."""
        return {*self.members, *self.held}

    def is_newer(self, era: int, index: int, known: Iterable[NodeId]) -> bool:
        """Whether members by that entry of the group's log come after those of `held`. The log of
        who survived a lost majority may be shorter; then it does if whoever held the group is
        `known`, as lost or as a member. If not, the survivor did not know who holds it now.
        """
        if era > self.held_era and index <= self.held_at:
            return {*self.held} <= {*known}
        return (era, index) > (self.held_era, self.held_at)

    def is_past(self, node: NodeId, era: int, index: int, lost: Iterable[NodeId]) -> bool:
        """Whether the copy there, which knows the members by that entry of its log, counts no more.
        One that knows of newer ones does: what it acknowledged since then might be needed.
        """
        return node not in self.homes and not self.is_newer(era, index, lost)


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

    @property
    def stream(self) -> Mapping[str, Any] | None:
        """JetStream's configuration, if it is a stream."""
        arguments = self.arguments
        return arguments[STREAM_CONFIG] if arguments.get(QUEUE_TYPE) == STREAM else None


@dataclass(frozen=True, slots=True)
class ExchangeInfo:
    vhost: str
    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]

    @property
    def routes_as(self) -> str:
        """The type by which it routes: one that delays says so in an argument."""
        return self.arguments["x-delayed-type"] if self.type == "x-delayed-message" else self.type


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

    def adopt(self, other: Any) -> None:
        """The same rows as another table of its class, which are shared: a row never changes."""
        ...

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

    def adopt(self, other: Nodes) -> None:
        self.by_id = dict(other.by_id)

    def dump(self) -> list[Any]:
        return [
            [info.node, info.incarnation, dict(info.addresses), info.number, info.state]
            for info in self.all()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        """Rows of before nodes were numbered get numbers in the order of their ids."""
        self.by_id = {}
        for place, (node, incarnation, addresses, *later) in enumerate(rows, start=1):
            self.put(NodeInfo(NodeId(node), incarnation, addresses, *(later or [place])))

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

    def adopt(self, other: Groups) -> None:
        self.by_id = dict(other.by_id)
        self.by_name = dict(other.by_name)

    def dump(self) -> list[Any]:
        return [
            [
                info.id,
                info.name,
                list(info.members),
                info.default,
                list(info.founders),
                list(info.held),
                info.held_at,
                info.moves,
                *([info.held_era] if info.held_era else ()),  # none before machine version 5
            ]
            for info in self.all()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        self.by_id = {}
        self.by_name = {}
        for group, name, members, default, *later in rows:
            founders, held, *numbers = later or (members, members)
            places = tuple(members), default, tuple(founders), tuple(held), *numbers
            self.put(GroupInfo(GroupId(group), name, *places))

    def __len__(self) -> int:
        return len(self.by_id)


class Queues:
    """Queues by id and by (vhost, name), and which of them each group and each vhost holds."""

    def __init__(self) -> None:
        self.by_id: dict[QueueId, QueueInfo] = {}
        self.by_name: dict[tuple[str, str], QueueInfo] = {}
        self._of_group: dict[GroupId, dict[QueueId, None]] = {}
        self._of_vhost: dict[str, dict[QueueId, None]] = {}
        self._streams: dict[str, dict[QueueId, None]] = {}  # those of a vhost
        self._subjects: dict[str, SubjectTree] = {}  # of a vhost's streams, once somebody asks

    def put(self, info: QueueInfo) -> None:
        """Or in the place of what had its id."""
        subjects = self._subjects.get(info.vhost)
        if subjects is not None:
            former = self.by_id.get(info.queue)
            if former is not None:
                subjects.remove(info.queue, subjects_of(former.stream))
            subjects.put(info.queue, subjects_of(info.stream))
        if info.stream is not None:
            self._streams.setdefault(info.vhost, {})[info.queue] = None
        self.by_id[info.queue] = info
        self.by_name[info.vhost, info.name] = info
        self._of_group.setdefault(info.group, {})[info.queue] = None
        self._of_vhost.setdefault(info.vhost, {})[info.queue] = None

    def remove(self, info: QueueInfo) -> None:
        del self.by_id[info.queue]
        del self.by_name[info.vhost, info.name]
        del self._of_group[info.group][info.queue]
        del self._of_vhost[info.vhost][info.queue]
        if info.stream is not None:
            del self._streams[info.vhost][info.queue]
            if info.vhost in self._subjects:
                self._subjects[info.vhost].remove(info.queue, subjects_of(info.stream))

    def all(self) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self.by_id)]

    def of_group(self, group: GroupId) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self._of_group.get(group, ()))]

    def count_of(self, group: GroupId) -> int:
        return len(self._of_group.get(group, ()))

    def of_vhost(self, vhost: str) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self._of_vhost.get(vhost, ()))]

    def count_of_vhost(self, vhost: str) -> int:
        return len(self._of_vhost.get(vhost, ()))

    def streams(self, vhost: str) -> list[QueueInfo]:
        return [self.by_id[queue] for queue in sorted(self._streams.get(vhost, ()))]

    def stream_of(self, vhost: str, subject: bytes) -> QueueInfo | None:
        """The one that stores what is published to the subject, which has no wildcards."""
        queue = self.subjects_in(vhost).stream_of(subject)
        return None if queue is None else self.by_id[queue]

    def streams_near(self, vhost: str, config: Mapping[str, Any] | None) -> list[QueueInfo]:
        """Those with a subject that a stream so configured has, too."""
        subjects = self.subjects_in(vhost)
        near = set[QueueId]().union(*map(subjects.near, subjects_of(config)))
        return [self.by_id[queue] for queue in sorted(near)]

    def subjects_in(self, vhost: str) -> SubjectTree:
        found = self._subjects.get(vhost)
        if found is None:
            found = self._subjects[vhost] = SubjectTree()
            for info in self.streams(vhost):
                found.put(info.queue, subjects_of(info.stream))
        return found

    def adopt(self, other: Queues) -> None:
        self.by_id = dict(other.by_id)
        self.by_name = dict(other.by_name)
        self._of_group = {group: dict(held) for group, held in other._of_group.items()}
        self._of_vhost = {vhost: dict(held) for vhost, held in other._of_vhost.items()}
        self._streams = {vhost: dict(held) for vhost, held in other._streams.items()}
        self._subjects = {}

    def dump(self) -> list[Any]:
        return [
            [
                info.queue,
                info.group,
                info.vhost,
                info.name,
                dict(info.arguments),
                info.durable,
                info.auto_delete,
                info.exclusive,
                info.node,
                info.incarnation,
                info.owner,
            ]
            for info in self.all()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        """Short rows are of before there was more to say of a queue than its arguments."""
        self.by_id = {}
        self.by_name = {}
        self._of_group = {}
        self._of_vhost = {}
        self._streams = {}
        self._subjects = {}
        for row in rows:
            self.put(QueueInfo(*row))

    def __len__(self) -> int:
        return len(self.by_id)


class Exchanges:
    """Exchanges by vhost and name, in the order in which they were declared."""

    def __init__(self) -> None:
        self.by_vhost: dict[str, dict[str, ExchangeInfo]] = {}
        self._count = 0

    def find(self, vhost: str, name: str) -> ExchangeInfo | None:
        named = self.by_vhost.get(vhost)
        return None if named is None else named.get(name)

    def put(self, info: ExchangeInfo) -> None:
        self.by_vhost.setdefault(info.vhost, {})[info.name] = info
        self._count += 1

    def remove(self, info: ExchangeInfo) -> None:
        named = self.by_vhost[info.vhost]
        del named[info.name]
        if not named:
            del self.by_vhost[info.vhost]
        self._count -= 1

    def of_vhost(self, vhost: str) -> list[ExchangeInfo]:
        return list(self.by_vhost.get(vhost, {}).values())

    def all(self) -> list[ExchangeInfo]:
        return [info for named in self.by_vhost.values() for info in named.values()]

    def adopt(self, other: Exchanges) -> None:
        self.by_vhost = {vhost: dict(named) for vhost, named in other.by_vhost.items()}
        self._count = other._count

    def dump(self) -> list[Any]:
        return [
            [
                info.vhost,
                info.name,
                info.type,
                info.durable,
                info.auto_delete,
                info.internal,
                dict(info.arguments),
            ]
            for info in self.all()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        self.by_vhost = {}
        self._count = 0
        for row in rows:
            self.put(ExchangeInfo(*row))

    def __len__(self) -> int:
        return self._count


#: All of a binding is its identity. Arguments count as bytes: 1, 1.0 and true are three.
_Identity = tuple[str, str, str, str, str, bytes]


def _identity(info: BindingInfo) -> _Identity:
    arguments = cbor2.dumps(info.arguments, canonical=True)
    return (info.vhost, info.source, info.kind, info.destination, info.key, arguments)


class Bindings:
    """Bindings by their two ends, in the order in which they were made."""

    def __init__(self) -> None:
        self._all: dict[_Identity, BindingInfo] = {}
        self._from: dict[tuple[str, str], dict[_Identity, BindingInfo]] = {}
        self._to: dict[tuple[str, str, str], dict[_Identity, BindingInfo]] = {}

    def put(self, info: BindingInfo) -> bool:
        """False: it was there."""
        identity = _identity(info)
        if identity in self._all:
            return False
        self._all[identity] = info
        self._from.setdefault((info.vhost, info.source), {})[identity] = info
        self._to.setdefault((info.vhost, info.kind, info.destination), {})[identity] = info
        return True

    def remove(self, info: BindingInfo) -> bool:
        """False: there was none."""
        identity = _identity(info)
        if self._all.pop(identity, None) is None:
            return False
        source, target = (info.vhost, info.source), (info.vhost, info.kind, info.destination)
        del self._from[source][identity]
        if not self._from[source]:
            del self._from[source]
        del self._to[target][identity]
        if not self._to[target]:
            del self._to[target]
        return True

    def __contains__(self, info: BindingInfo) -> bool:
        return _identity(info) in self._all

    def of_source(self, vhost: str, source: str) -> list[BindingInfo]:
        return list(self._from.get((vhost, source), {}).values())

    def has_source(self, vhost: str, source: str) -> bool:
        return (vhost, source) in self._from

    def of_destination(self, vhost: str, kind: DestinationKind, name: str) -> list[BindingInfo]:
        return list(self._to.get((vhost, kind, name), {}).values())

    def all(self) -> list[BindingInfo]:
        return list(self._all.values())

    def adopt(self, other: Bindings) -> None:
        self._all = dict(other._all)
        self._from = {end: dict(bound) for end, bound in other._from.items()}
        self._to = {end: dict(bound) for end, bound in other._to.items()}

    def dump(self) -> list[Any]:
        return [
            [
                info.vhost,
                info.source,
                info.kind,
                info.destination,
                info.key,
                dict(info.arguments),
            ]
            for info in self._all.values()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        self._all = {}
        self._from = {}
        self._to = {}
        for row in rows:
            self.put(BindingInfo(*row))

    def __len__(self) -> int:
        return len(self._all)


EntryKey = tuple[str, ...]


class Entries:
    """What administrators say: the entries of every table by their keys."""

    def __init__(self, tables: Sequence[str]) -> None:
        self.by_table: dict[str, dict[EntryKey, Mapping[str, Any]]] = {name: {} for name in tables}

    def find(self, table: str, *key: str) -> Mapping[str, Any] | None:
        return self.by_table[table].get(key)

    def adopt(self, other: Entries) -> None:
        for table, entries in self.by_table.items():
            entries.clear()
            entries.update(other.by_table[table])

    def dump(self) -> list[Any]:
        return [
            [table, list(key), dict(value)]
            for table, entries in self.by_table.items()
            for key, value in entries.items()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        for entries in self.by_table.values():
            entries.clear()
        for table, key, value in rows:
            self.by_table[table][tuple(key)] = value

    def __len__(self) -> int:
        return sum(map(len, self.by_table.values()))
