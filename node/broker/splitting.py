"""Splitting a queue over shards, and joining it again: what is done in the catalog. Each step may
be repeated, so whoever was cut off begins again.
"""

from __future__ import annotations

from itertools import cycle, islice
from shlex import quote
from typing import Any

from cluster.catalog.placement import preferred_leader
from cluster.machine import replies as codes
from cluster.machine.arguments import QUEUE_GROUP
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import DeclareQueue, DropEntry, PutEntry
from node.broker.broker import Broker
from node.errors import Refused, reply_of
from node.routing.shards import (
    COMPONENT,
    SHARD_OF,
    SHARDS_MAX,
    Split,
    parse_split,
    shards_of,
    split_of,
)


def check_split(name: str, value: Any) -> Split:
    """Of a parameter. Raises Refused."""
    try:
        return parse_split(value)
    except ValueError as error:
        raise Refused(codes.BAD_ARGUMENT, f"{COMPONENT} {name}: {error}") from error


class Splitting:
    """One per node."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def split(self, info: QueueInfo, count: int) -> tuple[QueueInfo, ...]:
        """The queue's shards, in groups that different nodes lead; its messages are still where
        they were. What is done already is left as it is. Raises Refused.
        """
        catalog, cluster = self._broker.cluster.catalog_machine, self._broker.cluster
        if info.stream is not None or info.exclusive or info.node is not None:
            raise Refused(codes.BAD_ARGUMENT, "only a replicated queue can be split")
        named = f"queue '{info.name}' in vhost '{info.vhost}'"
        if SHARD_OF in info.arguments:
            whole = info.arguments[SHARD_OF]
            raise Refused(codes.BAD_ARGUMENT, f"{named} is a shard of '{whole}' itself")
        if info.auto_delete or catalog.config_for(info).expires_ms is not None:
            raise Refused(
                codes.BAD_ARGUMENT,
                f"{named} goes when nobody uses it (auto-delete, x-expires or a policy), and its"
                " shards would go or stay by themselves: only one that stays can be split",
            )
        if not 2 <= count <= SHARDS_MAX:
            raise Refused(codes.BAD_ARGUMENT, f"shards must be from 2 to {SHARDS_MAX}")
        known = split_of(catalog, info)
        if known is not None and (known.joining or len(known.shards) != count):
            what = "is being joined" if known.joining else f"is split over {len(known.shards)}"
            raise Refused(
                codes.IN_USE, f"{named} {what}: `quorate queue join {quote(info.name)}` first"
            )
        names = [f"{info.name}.{number}" for number in range(1, count + 1)]
        there = {name: catalog.queue(info.vhost, name) for name in names}
        for name, each in there.items():  # before the first one is made
            if each is not None and each.arguments.get(SHARD_OF) != info.name:
                raise Refused(
                    codes.IN_USE,
                    f"a shard of {named} would be called '{name}', and another queue has that"
                    " name: move its"
                    " messages to a queue with another name and delete it, then split again",
                )
        arguments = {name: each for name, each in info.arguments.items() if name != QUEUE_GROUP}
        for name, group in zip(names, islice(cycle(self._groups()), count), strict=True):
            if there[name] is None:
                given = {**arguments, QUEUE_GROUP: group, SHARD_OF: info.name}
                reply_of(await cluster.names.declare(DeclareQueue(info.vhost, name, given)))
        if known is None:
            value = {"shards": names, "joining": False}
            await self._put(info, value)
        return shards_of(catalog, info)

    def _groups(self) -> list[str]:
        """The default groups, such that neighbours are to be led by different nodes."""
        by_leader: dict[str, list[str]] = {}
        for group in self._broker.cluster.catalog_machine.groups():
            if group.default:
                leader = preferred_leader(group.id, group.members)
                by_leader.setdefault(leader, []).append(group.name)
        ordered: list[str] = []
        while any(by_leader.values()):
            ordered += [names.pop(0) for names in by_leader.values() if names]
        if not ordered:
            raise Refused(codes.NO_GROUP, "the default groups are not made yet: try again")
        return ordered

    async def join(self, info: QueueInfo) -> tuple[QueueInfo, ...]:
        """The shards that are left, to which nothing is published. Without any it is one queue."""
        catalog = self._broker.cluster.catalog_machine
        known = split_of(catalog, info)
        if known is None:
            return ()
        if not known.joining:
            await self._put(info, {"shards": list(known.shards), "joining": True})
        left = shards_of(catalog, info)
        if not left:
            key = (COMPONENT, info.vhost, info.name)
            reply_of(await self._broker.cluster.change(DropEntry("parameters", key)))
        return left

    async def _put(self, info: QueueInfo, value: dict[str, Any]) -> None:
        key = (COMPONENT, info.vhost, info.name)
        reply_of(await self._broker.cluster.change(PutEntry("parameters", key, {"value": value})))
