"""Builds whose links break their promise, each on its own."""
# They reach into the links on purpose.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable
from typing import Any

from chaos.builds.build import Build, Change
from cluster.types import GroupId, NodeId
from node.links import shovels
from node.links.federation import arriving
from node.links.link import Link
from node.links.moving import AckMode, Destination, Item, Source
from node.links.shovel_amqp import AmqpConsumer, AmqpPublisher
from node.links.supervisor import LinkSupervisor

#: Of the messages of a shovel.
LATE_SHARE = 0.1
LATE_S = 0.05
#: So long messages are at one end alone, or at both: whoever dies then shows what is broken.
BETWEEN_S = 0.2


class _Later:
    """A destination that takes its time, and keeps the order."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    async def publish(self, item: Item) -> None:
        await asyncio.sleep(BETWEEN_S)
        await self._destination.publish(item)


def _settle_first(honest: Callable[..., Any]) -> Callable[..., Any]:
    async def move(
        link: Link, source: Source, destination: Destination, mode: AckMode, *, under_way_max: int
    ) -> None:
        """Whatever mode it is told."""
        late = _Later(destination)
        await honest(link, source, late, "no-ack", under_way_max=under_way_max)

    return move


def _another_identity(honest: Callable[..., None]) -> Callable[..., None]:
    def init(self: AmqpConsumer, *about: Any) -> None:
        honest(self, *about)
        self._origin = secrets.token_hex(8)

    return init


def _settle_later(honest: Callable[..., Any]) -> Callable[..., Any]:
    async def settle(self: AmqpConsumer, tag: Any) -> None:
        await asyncio.sleep(BETWEEN_S)
        await honest(self, tag)

    return settle


def _some_late(honest: Callable[..., Any]) -> Callable[..., Any]:
    dice = random.Random()

    async def publish(self: AmqpPublisher, item: Item) -> None:
        if dice.random() < LATE_SHARE:
            await asyncio.sleep(LATE_S)
        await honest(self, item)

    return publish


def _first_owner_only(_: Callable[..., bool]) -> Callable[..., bool]:
    first: dict[GroupId, NodeId] = {}

    def owns(self: LinkSupervisor, anchor: GroupId) -> bool:
        leader = self._cluster.leader_of(anchor)
        return (
            leader is not None and first.setdefault(anchor, leader) == leader == self._cluster.node
        )

    return owns


SETTLED_TOO_SOON = Build(
    "settled-too-soon",
    "A link acknowledges what it takes before it has arrived.",
    tuple(Change(module, "move", _settle_first) for module in (shovels, arriving)),
)
ANOTHER_IDENTITY = Build(
    "another-identity",
    "A shovel that connects again gives a message that comes again another id.",
    (
        Change(AmqpConsumer, "__init__", _another_identity),
        Change(AmqpConsumer, "settle", _settle_later),
    ),
)
LEFT_ALONE = Build(
    "left-alone",
    "A link is begun by the node that first owns it, and by no other.",
    (Change(LinkSupervisor, "_owns", _first_owner_only),),
)
OUT_OF_TURN = Build(
    "out-of-turn",
    "A shovel sends some messages after those that came behind them.",
    (Change(AmqpPublisher, "publish", _some_late),),
)
