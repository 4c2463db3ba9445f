"""What every node must know to find a queue: nodes, groups and queues by name.

One more state machine like the queue machine, in a group of its own of which every node is a
member, so that each routes from its own copy. It is a set of tables and a clause for each command;
users, permissions, exchanges, bindings and policies are further tables beside these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import cbor2

from cluster.machine.arguments import (
    DEDICATED,
    QUEUE_GROUP,
    ArgumentError,
    inequivalence,
    is_short_text,
    parse_arguments,
)
from cluster.machine.catalog_tables import (
    GroupInfo,
    Groups,
    NodeInfo,
    Nodes,
    QueueInfo,
    Queues,
    Table,
)
from cluster.machine.commands import (
    Barrier,
    CreateGroup,
    DeclareQueue,
    QueueConfig,
    RegisterNode,
    RemoveQueue,
    Tick,
    UpgradeMachine,
)
from cluster.machine.effects import Applied, Effect, GroupCreated, QueueDeclared, QueueRemoved
from cluster.machine.replies import (
    BAD_ARGUMENT,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_GROUP,
    UNKNOWN_COMMAND,
    Declared,
    Ok,
    Refused,
)
from cluster.types import GroupId, NodeId, QueueId, Stamp

__all__ = ["CatalogMachine", "GroupInfo", "NodeInfo", "QueueInfo"]

#: The newest behaviour this code has.
VERSION_MAX = 1

#: Each costs every node memory and, a group, some work every heartbeat.
QUEUES_MAX = 100_000
GROUPS_MAX = 4_000
MEMBERS_MAX = 99

#: Users share a queue's dedicated group by naming it, but cannot make one under such a name.
DEDICATED_PREFIX = f"{DEDICATED}-"


class CatalogMachine:
    """Pure: the same commands with the same stamps give the same tables on every node."""

    def __init__(self) -> None:
        self.version = 1
        self.next_queue_id = QueueId(1)  # ids are never used twice, or a late command hits another
        self._nodes = Nodes()
        self._groups = Groups()
        self._queues = Queues()
        self._tables: dict[str, Table] = {
            "nodes": self._nodes,
            "groups": self._groups,
            "queues": self._queues,
        }
        self._clauses: dict[type[Any], Callable[[Any], Applied]] = {
            RegisterNode: self._register_node,
            CreateGroup: self._create_group,
            DeclareQueue: self._declare_queue,
            RemoveQueue: self._remove_queue,
            UpgradeMachine: self._upgrade,
            Barrier: _nothing,
            Tick: _nothing,
        }

    # --- commands ---------------------------------------------------------------------------------

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        """Total: every command, also one it does not know, is answered and never raised about."""
        clause = self._clauses.get(cast("type[Any]", type(command)))
        if clause is None:
            name = getattr(command, "tag", type(command).__name__)
            return _refused(UNKNOWN_COMMAND, f"the catalog does not know the command {name}")
        return clause(command)

    def _register_node(self, command: RegisterNode) -> Applied:
        if not _is_name(command.node):
            return _refused(BAD_ARGUMENT, "a node's id must be non-empty text of at most 255 bytes")
        if not all(_is_name(kind) and _is_name(at) for kind, at in command.addresses.items()):
            return _refused(BAD_ARGUMENT, "addresses must map a kind to 'host:port', both text")
        known = self._nodes.by_id.get(command.node)
        if known is not None and command.incarnation < known.incarnation:
            return _refused(
                BAD_ARGUMENT,
                f"node {command.node} registered with incarnation {known.incarnation} already;"
                f" {command.incarnation} is older",
            )
        self._nodes.put(NodeInfo(command.node, command.incarnation, dict(command.addresses)))
        return Applied(Ok(1))

    def _create_group(self, command: CreateGroup) -> Applied:
        if not _is_name(command.name) or command.name == DEDICATED:
            return _refused(
                BAD_ARGUMENT,
                f"a group's name must be non-empty text of at most 255 bytes, not '{DEDICATED}'",
            )
        if command.name in self._groups.by_name:
            return Applied(Ok(0))
        refusal = self._refusal_of(command.members)
        if refusal is not None:
            return Applied(refusal)
        group = self._make_group(command.name, command.members, default=command.default)
        return Applied(Ok(1), [_created(group)])

    def _declare_queue(self, command: DeclareQueue) -> Applied:
        vhost, name = command.vhost, command.name
        if not _is_name(vhost) or not _is_name(name):
            return _refused(
                BAD_ARGUMENT, "vhost and queue name must be non-empty text of at most 255 bytes"
            )
        config = parse_arguments(command.arguments)
        if isinstance(config, ArgumentError):
            return _refused(config.code, config.reason)
        existing = self._queues.by_name.get((vhost, name))
        if existing is not None:
            reason = inequivalence(existing.arguments, command.arguments, vhost=vhost, name=name)
            if reason is not None:
                return _refused(INEQUIVALENT, reason)
            return Applied(Declared(existing.queue, existing.group, created=False))
        if len(self._queues) >= QUEUES_MAX:
            return _refused(LIMIT_REACHED, f"the cluster holds {QUEUES_MAX} queues, its limit")
        group, effects = self._group_for(command)
        if isinstance(group, Refused):
            return Applied(group)
        queue = self.next_queue_id
        self.next_queue_id = QueueId(queue + 1)
        info = QueueInfo(queue, group.id, vhost, name, dict(command.arguments))
        self._queues.put(info, config)
        declared = QueueDeclared(queue, group.id)
        return Applied(Declared(queue, group.id, created=True), [*effects, declared])

    def _remove_queue(self, command: RemoveQueue) -> Applied:
        """Ok(0) when there is none, so that asking again after an unknown outcome is harmless."""
        info = self._queues.by_name.get((command.vhost, command.name))
        if info is None:
            return Applied(Ok(0))
        self._queues.remove(info)
        return Applied(Ok(1), [QueueRemoved(info.queue, info.group)])

    def _upgrade(self, command: UpgradeMachine) -> Applied:
        if not self.version <= command.to <= VERSION_MAX:
            return _refused(
                BAD_ARGUMENT,
                f"machine version {command.to} is not between {self.version} and {VERSION_MAX}",
            )
        self.version = command.to
        return Applied(Ok())

    # --- groups for queues ------------------------------------------------------------------------

    def _group_for(self, command: DeclareQueue) -> tuple[GroupInfo | Refused, Sequence[Effect]]:
        """The group in which a new queue goes, made when it must be."""
        wanted = command.group
        if wanted is None:
            wanted = cast("str | None", command.arguments.get(QUEUE_GROUP))
        if wanted is None:
            return self._least_loaded(), ()
        if not _is_name(wanted):
            return Refused(BAD_ARGUMENT, "a group's name must be text of at most 255 bytes"), ()
        if wanted == DEDICATED:
            return self._dedicated(command.members)
        existing = self._groups.by_name.get(wanted)
        if existing is not None:
            return existing, ()
        if wanted.startswith(DEDICATED_PREFIX):
            reason = f"no group {wanted!r}: names that start with {DEDICATED_PREFIX!r} are reserved"
            return Refused(BAD_ARGUMENT, reason), ()
        refusal = self._refusal_of(command.members)
        if refusal is not None:
            return refusal, ()
        assert command.members is not None
        group = self._make_group(wanted, command.members, default=False)
        return group, [_created(group)]

    def _least_loaded(self) -> GroupInfo | Refused:
        defaults = [group for group in self._groups.all() if group.default]
        if not defaults:
            return Refused(NO_GROUP, "the default groups are not made yet; try again in a moment")
        return min(defaults, key=lambda group: (self._queues.count_of(group.id), group.id))

    def _dedicated(
        self, members: Sequence[NodeId] | None
    ) -> tuple[GroupInfo | Refused, Sequence[Effect]]:
        """A group for one queue: one that its queue left behind, or a new one."""
        refusal = self._refusal_of(members, making=False)
        if refusal is not None:
            return refusal, ()
        assert members is not None
        for group in self._groups.all():
            if (
                group.name.startswith(DEDICATED_PREFIX)
                and self._queues.count_of(group.id) == 0
                and set(group.members) == set(members)
            ):
                return group, ()
        refusal = self._refusal_of(members)
        if refusal is not None:
            return refusal, ()
        name = f"{DEDICATED_PREFIX}{self._groups.next_id}"
        group = self._make_group(name, members, default=False)
        return group, [_created(group)]

    def _refusal_of(self, members: Any, *, making: bool = True) -> Refused | None:
        if members is None:
            return Refused(NO_GROUP, "no such group, and no members were given to make it with")
        names = list(cast("Iterable[Any]", members))
        if not all(_is_name(node) for node in names) or len(set(names)) != len(names):
            return Refused(BAD_ARGUMENT, "members must be different node ids")
        if not 1 <= len(names) <= MEMBERS_MAX:
            return Refused(BAD_ARGUMENT, f"a group has from 1 to {MEMBERS_MAX} members")
        if making and len(self._groups) >= GROUPS_MAX:
            return Refused(LIMIT_REACHED, f"the cluster holds {GROUPS_MAX} groups, its limit")
        return None

    def _make_group(self, name: str, members: Sequence[NodeId], *, default: bool) -> GroupInfo:
        group = GroupInfo(self._groups.next_id, name, tuple(members), default)
        self._groups.put(group)
        return group

    # --- reading ----------------------------------------------------------------------------------

    def node(self, node: NodeId) -> NodeInfo | None:
        return self._nodes.by_id.get(node)

    def nodes(self) -> list[NodeInfo]:
        return self._nodes.all()

    def group(self, group: GroupId) -> GroupInfo | None:
        return self._groups.by_id.get(group)

    def group_named(self, name: str) -> GroupInfo | None:
        return self._groups.by_name.get(name)

    def groups(self) -> list[GroupInfo]:
        return self._groups.all()

    def queue(self, vhost: str, name: str) -> QueueInfo | None:
        return self._queues.by_name.get((vhost, name))

    def queue_by_id(self, queue: QueueId) -> QueueInfo | None:
        return self._queues.by_id.get(queue)

    def queues(self) -> list[QueueInfo]:
        return self._queues.all()

    def queues_of(self, group: GroupId) -> list[QueueInfo]:
        return self._queues.of_group(group)

    def config_of(self, queue: QueueId) -> QueueConfig | None:
        """The effective settings: today the arguments alone."""
        return self._queues.configs.get(queue)

    # --- the rest of a machine --------------------------------------------------------------------

    def on_leader(self) -> Sequence[Effect]:
        """All that its leader may still have to see to; doing any of it again is harmless."""
        effects: list[Effect] = [_created(group) for group in self._groups.all()]
        effects += [QueueDeclared(info.queue, info.group) for info in self._queues.all()]
        return effects

    def snapshot(self) -> bytes:
        tables = {name: table.dump() for name, table in self._tables.items()}
        state = {"version": self.version, "next_queue_id": self.next_queue_id, "tables": tables}
        return cbor2.dumps(state, canonical=True)

    def restore(self, data: bytes) -> None:
        """A table that the snapshot lacks is empty: it was written before there was one."""
        state = cast("dict[str, Any]", cbor2.loads(data))
        if state["version"] > VERSION_MAX:
            raise ValueError(
                f"the catalog's snapshot has version {state['version']}, this program knows"
                f" {VERSION_MAX}: run the newer program"
            )
        self.version = state["version"]
        self.next_queue_id = QueueId(state["next_queue_id"])
        for name, table in self._tables.items():
            table.load(state["tables"].get(name, []))

    def digest(self) -> bytes:
        return hashlib.blake2b(self.snapshot(), digest_size=16).digest()

    def live_indexes(self) -> list[tuple[int, int]]:
        return []

    def next_due_ms(self) -> int | None:
        return None

    def overview(self) -> dict[str, Any]:
        return {
            "type": "catalog",
            "version": self.version,
            **{name: len(table) for name, table in self._tables.items()},
        }

    def invariants(self) -> None:
        groups, queues = self._groups, self._queues
        assert sorted(groups.by_id) == list(range(1, len(groups) + 1)), "group ids are dense"
        assert len(groups.by_name) == len(groups.by_id)
        assert len(queues.by_name) == len(queues.by_id)
        assert queues.by_id.keys() == queues.configs.keys()
        counted = sum(queues.count_of(group) for group in groups.by_id)
        assert counted == len(queues), "every queue is in exactly one existing group"
        for queue, info in queues.by_id.items():
            assert info.queue == queue < self.next_queue_id
            assert queues.by_name[info.vhost, info.name] is info


def _nothing(_: Any) -> Applied:
    return Applied(Ok())


def _created(group: GroupInfo) -> GroupCreated:
    return GroupCreated(group.id, group.name, group.members)


def _refused(code: str, reason: str) -> Applied:
    return Applied(Refused(code, reason))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value != "" and is_short_text(value)
