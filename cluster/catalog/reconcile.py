"""What is still to be done so that the groups agree with the catalog, and the catalog with the
groups about what was deleted in them. Pure: reads two machines, returns commands.

Level-triggered on purpose: nothing here depends on having seen a change happen, so a lost effect, a
crash between two steps or a change of leader costs a second at most and never leaves a queue half
made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.machine import QueueMachine
from cluster.machine.arguments import SHARD_OF, SPLIT_QUEUE
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_tables import NodeInfo, QueueInfo
from cluster.machine.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    NodeDown,
    NodeUp,
    QueueConfig,
    RemoveQueue,
    UpdateQueue,
)
from cluster.machine.identity import QueueIdentity
from cluster.peers.peers import PeerState
from cluster.types import TRANSIENT_GROUPS, GroupId, NodeId, QueueId


def effective_config(
    catalog: CatalogMachine, info: QueueInfo, declared: QueueConfig
) -> QueueConfig:
    """The declared settings, policies included; the dead-letter queue resolved when the default
    exchange leads to one of the same group.

    Then a dead letter moves within one log entry; otherwise it travels through the outbox, and a
    node finds out where another exchange leads.
    """
    if declared.dead_letter_exchange != "" or declared.dead_letter_routing_key is None:
        return declared
    target = catalog.queue(info.vhost, declared.dead_letter_routing_key)
    if target is None or target.group != info.group:
        return declared
    return replace(declared, dead_letter_queue=target.queue)


def create_command(
    catalog: CatalogMachine, info: QueueInfo, declared: QueueConfig, *, new: bool = False
) -> CreateQueue:
    config = effective_config(catalog, info, declared)
    return CreateQueue(info.queue, info.vhost, info.name, config, catalog.as_of, new)


def queues_to_compare(
    catalog: CatalogMachine, machine: QueueMachine, group: GroupId
) -> list[QueueId]:
    """All that the catalog or the group knows; what is to be dropped comes last."""
    wanted = dict.fromkeys(info.queue for info in catalog.queues_of(group))
    held = [*machine.queues(), *machine.fenced()]
    return [*wanted, *(queue for queue in held if queue not in wanted)]


def commands_for(
    catalog: CatalogMachine, machine: QueueMachine, group: GroupId, queues: Iterable[QueueId]
) -> list[Command]:
    """Make, change and drop these queues of one group so that they are what the catalog says. A
    `RemoveQueue` is for the catalog: whoever deleted the queue in the group has not come so far.
    It is not made again, for its positions would begin at 1 under an id of which others know how
    far they have read it. What a recovery lost of the catalog was perhaps not deleted, see
    `lost_queues`; but a transient queue is nobody's then.
    """
    commands: list[Command] = []
    fenced = set(machine.fenced())
    # A queue numbered above what this copy of the catalog has given out is newer than the copy.
    known = catalog.next_queue_id
    for queue in queues:
        info, kind = catalog.queue_by_id(queue), machine.find(queue)
        if info is None or info.group != group:
            kept = kind is not None and group < TRANSIENT_GROUPS and catalog.has_lost(queue)
            if (kind is not None or queue in fenced) and queue < known and not kept:
                commands.append(DeleteQueue(queue, as_of=catalog.as_of))
            continue
        declared = catalog.config_of(queue)
        assert declared is not None, "every queue of the catalog has settings"
        if kind is None:
            if machine.is_fenced(queue, info.vhost, info.name):
                commands.append(RemoveQueue(info.vhost, info.name, queue))
            elif not is_leaving(catalog, info):
                commands.append(create_command(catalog, info, declared))
            continue
        config = effective_config(catalog, info, declared)
        made = kind.identity.config
        if made is config:
            continue
        if made.group_key != config.group_key:
            # It stays as it was made, before there were any, when such an argument said nothing.
            config = replace(config, group_key=made.group_key)
        if made != config and not kind.identity.is_stale(catalog.as_of):
            commands.append(UpdateQueue(queue, config, catalog.as_of))
    return commands


def lost_queues(catalog: CatalogMachine, machine: QueueMachine) -> Iterator[QueueIdentity]:
    """Of the group, and unknown to the catalog since that lost its end with a majority. They keep
    what they hold until somebody declares them again.
    """
    queues: list[QueueId] = machine.queues() if catalog.lost_ids else []
    for first, last in catalog.lost_ids:
        for queue in queues[bisect_left(queues, first) : bisect_right(queues, last)]:
            kind = machine.find(queue)
            if kind is not None:
                yield kind.identity


def is_leaving(catalog: CatalogMachine, info: QueueInfo) -> bool:
    """A shard of a queue that is joined again: made anew when it was removed from its group, and
    not from the catalog yet, it would take messages that are lost with it.
    """
    whole: Any = info.arguments.get(SHARD_OF)
    if type(whole) is not str:
        return False
    match catalog.entry("parameters", (SPLIT_QUEUE, info.vhost, whole)):
        case {"value": {"shards": [*names], "joining": True}}:
            return info.name in names
        case _:
            return False


def liveness_commands(
    peers: Mapping[NodeId, PeerState], nodes: Sequence[NodeInfo]
) -> list[Command]:
    """What a new leader tells its group about every node: sessions live and die with these.

    Of those that were removed too: an earlier leader may not have been heard.
    """
    commands = [removed(info) for info in nodes if info.state == "removed"]
    for node, state in sorted(peers.items()):
        if state.up:
            commands.append(NodeUp(node, state.incarnation))
        elif state.incarnation:
            commands.append(NodeDown(node, state.incarnation, state.gone))
    return commands


def removed(info: NodeInfo) -> Command:
    """Its sessions end, whoever heard of its process last."""
    return NodeDown(info.node, info.incarnation, gone=True)
