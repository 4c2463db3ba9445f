"""Queues and the groups that hold them: declared, removed, and gone with the node that had them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from cluster.machine.arguments import (
    DEDICATED,
    QUEUE_GROUP,
    QUEUE_TYPE,
    STREAM,
    STREAMS_SINCE,
    ArgumentError,
    compared,
    inequivalence,
    parse_arguments,
    unlike,
)
from cluster.machine.catalog_members import wrong_members
from cluster.machine.catalog_routing import Routing, no_vhost
from cluster.machine.catalog_streams import overlapping
from cluster.machine.catalog_tables import (
    Entries,
    GroupInfo,
    Groups,
    NodeInfo,
    Nodes,
    QueueInfo,
    Queues,
)
from cluster.machine.checks import is_name, shown
from cluster.machine.commands import (
    ChangeQueue,
    CreateGroup,
    DeclareQueue,
    ForgetNode,
    QueueConfig,
    RegisterNode,
    RemoveQueue,
)
from cluster.machine.effects import Applied, Effect, GroupCreated, QueueDeclared, QueueRemoved
from cluster.machine.policies import Policies
from cluster.machine.replies import (
    BAD_ARGUMENT,
    EXCLUSIVE_OWNER,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_GROUP,
    NO_NODE,
    NO_QUEUE,
    Declared,
    Ok,
    Refused,
)
from cluster.machine.versions import MACHINE_VERSION
from cluster.types import GroupId, NodeId, QueueId

#: Each costs every node memory and, a group, some work every heartbeat.
QUEUES_MAX = 100_000
GROUPS_MAX = 4_000
#: More queues than are declared while a copy of the catalog lags behind.
LOST_MAX: Final = 1_000_000_000

#: Users share a queue's dedicated group by naming it, but cannot make one under such a name.
DEDICATED_PREFIX = f"{DEDICATED}-"


class Placing:
    """Nodes, groups and queues: what is declared where."""

    def __init__(
        self,
        nodes: Nodes,
        groups: Groups,
        queues: Queues,
        entries: Entries,
        routing: Routing,
        policies: Policies,
        version: Callable[[], int],
    ) -> None:
        self._nodes = nodes
        self._groups = groups
        self._queues = queues
        self._entries = entries
        self._routing = routing
        self._policies = policies
        self._version = version  # of the machine
        self.next_queue_id = QueueId(1)  # ids are never used twice, or a late command hits another
        self.lost_ids: list[tuple[int, int]] = []  # that may be of queues which groups have yet

    # --- nodes ------------------------------------------------------------------------------------

    def register_node(self, command: RegisterNode) -> Applied:
        if not is_name(command.node):
            return _refused(BAD_ARGUMENT, "a node's id must be non-empty text of at most 255 bytes")
        if not all(is_name(kind) and is_name(at) for kind, at in command.addresses.items()):
            return _refused(BAD_ARGUMENT, "addresses must map a kind to 'host:port', both text")
        known = self._nodes.by_id.get(command.node)
        if known is not None and command.incarnation < known.incarnation:
            return _refused(
                BAD_ARGUMENT,
                f"node {command.node} registered with incarnation {known.incarnation} already;"
                f" {command.incarnation} is older",
            )
        if known is not None and known.state == "removed":
            return _refused(
                NO_NODE,
                f"node {command.node} was removed from the cluster; `quorate node add` lets it in",
            )
        number = len(self._nodes) + 1 if known is None else known.number
        state = "member" if known is None else known.state
        info = NodeInfo(command.node, command.incarnation, dict(command.addresses), number, state)
        self._nodes.put(info)
        return Applied(Ok(1), self.forget(info, command.incarnation - 1))

    def forget_node(self, command: ForgetNode) -> Applied:
        info = self._nodes.by_id.get(command.node)
        effects = [] if info is None else self.forget(info, command.incarnation)
        return Applied(Ok(len(effects)), effects)

    def forget(self, node: NodeInfo, incarnation: int) -> list[Effect]:
        """Drop what processes of the node had, up to this one."""
        return [
            self.remove(info)
            for info in self._queues.of_group(node.transient_group)
            if info.incarnation <= incarnation
        ]

    # --- groups -----------------------------------------------------------------------------------

    def create_group(self, command: CreateGroup) -> Applied:
        if not is_name(command.name) or command.name == DEDICATED:
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
        return Applied(Ok(1), [created(group)])

    # --- queues -----------------------------------------------------------------------------------

    def declare_queue(self, command: DeclareQueue) -> Applied:
        vhost, name = command.vhost, command.name
        if not is_name(vhost) or not is_name(name):
            return _refused(
                BAD_ARGUMENT, "vhost and queue name must be non-empty text of at most 255 bytes"
            )
        config = parse_arguments(command.arguments, self._version())
        if isinstance(config, ArgumentError):
            return _refused(config.code, config.reason)
        if not self._routing.known(vhost):
            return Applied(no_vhost(vhost))
        existing = self._queues.by_name.get((vhost, name))
        if existing is not None:
            refusal = difference(existing, command, self._version())
            return Applied(refusal or Declared(existing.queue, existing.group, created=False))
        refusal = self._wrong_new(command, config)
        if refusal is not None:
            return Applied(refusal)
        group, effects = self._group_for(command)
        if isinstance(group, Refused):
            return Applied(group)
        queue = self._id_for(command)
        self._queues.put(
            QueueInfo(
                queue,
                group,
                vhost,
                name,
                dict(command.arguments),
                command.durable,
                command.auto_delete,
                command.exclusive,
                command.node,
                command.incarnation if command.node is not None else 0,
                command.owner if command.exclusive else None,
            )
        )
        self._routing.changed(vhost)
        declared = QueueDeclared(queue, group)
        return Applied(Declared(queue, group, created=True), [*effects, declared])

    def lose_end(self) -> None:
        """The log goes on from an earlier moment. What was declared after it is not known here any
        more, but its group may have it.
        """
        lost = self.next_queue_id
        self.next_queue_id = QueueId(lost + LOST_MAX)
        self.lost_ids.append((lost, lost + LOST_MAX - 1))

    def has_lost(self, queue: int) -> bool:
        return any(first <= queue <= last for first, last in self.lost_ids)

    def _id_for(self, command: DeclareQueue) -> QueueId:
        """Its own, once, if it was lost; else a new one."""
        queue = command.queue
        if type(queue) is not int or not self.has_lost(queue):
            self.next_queue_id = QueueId(self.next_queue_id + 1)
            return QueueId(self.next_queue_id - 1)
        parts = [
            part
            for first, last in self.lost_ids
            for part in ((first, min(last, queue - 1)), (max(first, queue + 1), last))
        ]
        self.lost_ids = [(first, last) for first, last in dict.fromkeys(parts) if first <= last]
        return QueueId(queue)

    def change_queue(self, command: ChangeQueue) -> Applied:
        info = self._queues.by_name.get((command.vhost, command.name))
        if self._version() < STREAMS_SINCE or info is None or info.stream is None:
            return _refused(NO_QUEUE, f"there is no stream {shown(command.name)}: create it first")
        if command.queue not in (None, info.queue):
            return _refused(NO_QUEUE, f"stream {info.name} was deleted, and made again since")
        config = parse_arguments(command.arguments, self._version())
        if isinstance(config, ArgumentError):
            return _refused(config.code, config.reason)
        if config.stream is None:
            return _refused(BAD_ARGUMENT, f"stream {info.name} cannot become a queue")
        near = self._queues.streams_near(info.vhost, config.stream)
        refusal = overlapping(config.stream, [each for each in near if each is not info])
        if refusal is not None:
            return Applied(refusal)
        self._queues.put(replace(info, arguments=dict(command.arguments)))
        self._policies.forget_queue(info)
        self._routing.changed(info.vhost)
        return Applied(Ok(1), [QueueDeclared(info.queue, info.group)])

    def _wrong_new(self, command: DeclareQueue, config: QueueConfig) -> Refused | None:
        if command.exclusive and not is_name(command.owner):
            return Refused(BAD_ARGUMENT, "an exclusive queue needs the connection that owns it")
        if config.type == STREAM:
            if command.node is not None or command.auto_delete:
                return Refused(
                    BAD_ARGUMENT, "a stream is durable, of no connection, and stays until deleted"
                )
            near = self._queues.streams_near(command.vhost, config.stream)
            refusal = overlapping(config.stream, near)
            if refusal is not None:
                return refusal
        if len(self._queues) >= QUEUES_MAX:
            return Refused(LIMIT_REACHED, f"the cluster holds {QUEUES_MAX} queues, its limit")
        limits = self._entries.find("vhost_limits", command.vhost) or {}
        limit: int = limits.get("max-queues", -1)
        if 0 <= limit <= self._queues.count_of_vhost(command.vhost):
            return Refused(
                LIMIT_REACHED,
                f"cannot declare {queue_text(command.vhost, command.name)}:"
                f" queue limit in vhost '{command.vhost}' ({limit}) is reached",
            )
        return None

    def remove_queue(self, command: RemoveQueue) -> Applied:
        """Naming the queue makes asking again after an unknown outcome harmless."""
        info = self._queues.by_name.get((command.vhost, command.name))
        if info is None or command.queue not in (None, info.queue):
            return Applied(Ok(0))
        if command.arguments not in (None, info.arguments):
            return Applied(Ok(0))
        return Applied(Ok(1), [self.remove(info)])

    def remove(self, info: QueueInfo) -> Effect:
        self._queues.remove(info)
        self._policies.forget_queue(info)
        self._routing.queue_removed(info.vhost, info.name)
        return QueueRemoved(info.queue, info.group)

    # --- groups for queues ------------------------------------------------------------------------

    def _group_for(self, command: DeclareQueue) -> tuple[GroupId | Refused, Sequence[Effect]]:
        """The group in which a new queue goes, made when it must be."""
        if command.node is not None:
            return self._transient_group(command.node, command.incarnation), ()
        group, effects = self._replicated_group(command)
        return (group if isinstance(group, Refused) else group.id), effects

    def _transient_group(self, node: NodeId, incarnation: int) -> GroupId | Refused:
        info = self._nodes.by_id.get(node)
        if info is None or info.incarnation != incarnation:
            reason = f"node {shown(node)} is not registered with incarnation {incarnation}"
            return Refused(NO_GROUP, f"{reason}; try again in a moment")
        return info.transient_group

    def _replicated_group(
        self, command: DeclareQueue
    ) -> tuple[GroupInfo | Refused, Sequence[Effect]]:
        wanted = command.group
        if wanted is None:
            wanted = cast("str | None", command.arguments.get(QUEUE_GROUP))
        if wanted is None:
            return self._least_loaded(), ()
        if not is_name(wanted):
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
        return group, [created(group)]

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
        return group, [created(group)]

    def _refusal_of(self, members: Any, *, making: bool = True) -> Refused | None:
        if members is None:
            return Refused(NO_GROUP, "no such group, and no members were given to make it with")
        refusal = wrong_members(members)
        if refusal is not None:
            return refusal
        if making and len(self._groups) >= GROUPS_MAX:
            return Refused(LIMIT_REACHED, f"the cluster holds {GROUPS_MAX} groups, its limit")
        for node in members if making else ():
            info = self._nodes.by_id.get(node)
            if info is not None and info.state != "member":
                return Refused(NO_NODE, f"node {node} is being removed, or was; try again")
        return None

    def _make_group(self, name: str, members: Sequence[NodeId], *, default: bool) -> GroupInfo:
        homes = tuple(members)
        group = GroupInfo(self._groups.next_id, name, homes, default, homes, homes)
        self._groups.put(group)
        return group


def created(group: GroupInfo) -> GroupCreated:
    return GroupCreated(group.id, group.name, group.members)


def queue_text(vhost: str, name: str) -> str:
    return f"queue '{name}' in vhost '{vhost}'"


def difference(
    existing: QueueInfo, command: DeclareQueue, version: int = MACHINE_VERSION
) -> Refused | None:
    """Why the queue of this name is not the one that is declared."""
    thing = queue_text(existing.vhost, existing.name)
    if existing.owner != (command.owner if command.exclusive else None):
        return Refused(
            EXCLUSIVE_OWNER,
            f"cannot obtain exclusive access to locked {thing}. It could be originally declared on"
            " another connection or the exclusive property value does not match that of the"
            " original declaration.",
        )
    reason = (
        unlike(QUEUE_TYPE, _type_of(existing.arguments), _type_of(command.arguments), thing)
        or unlike("durable", existing.durable, command.durable, thing)
        or unlike("auto_delete", existing.auto_delete, command.auto_delete, thing)
        or inequivalence(existing.arguments, command.arguments, thing, compared(version))
    )
    return None if reason is None else Refused(INEQUIVALENT, reason)


def _type_of(arguments: Mapping[str, Any]) -> str:
    return STREAM if arguments.get(QUEUE_TYPE) == STREAM else "queue"


def _refused(code: str, reason: str) -> Applied:
    return Applied(Refused(code, reason))
