"""What a client said, as the reader gives it."""

from __future__ import annotations

from typing import NamedTuple

from pamqp import base

from node.broker.bodies import NewBody
from node.messages.properties import asks


class Publish(NamedTuple):
    """Consecutive messages of one channel with equal flags, each with an item in all lists."""

    channel: int
    mandatory: bool
    immediate: bool
    asks: int  # flags of those of their properties that may concern the broker: the same in all
    wheres: list[bytes]  # short strings exchange and routing key, as on the wire; both are UTF-8
    metas: list[bytes]  # the same, and properties as on the wire, well formed down to the headers
    bodies: list[NewBody]  # one that is in pieces is alone


def publish_of(
    channel: int,
    where: bytes,
    properties: bytes,
    bodies: list[NewBody],
    *,
    mandatory: bool = False,
    immediate: bool = False,
) -> Publish:
    """Messages that differ in their bodies alone."""
    count = len(bodies)
    metas = [where + properties] * count
    return Publish(channel, mandatory, immediate, asks(properties), [where] * count, metas, bodies)


class ContentTooLarge(NamedTuple):
    """A message whose body is over the limit. It is skipped; what follows is read as usual."""

    channel: int
    size_bytes: int
    limit_bytes: int


class Acks(NamedTuple):
    """Consecutive basic.ack of one channel: (first, last) of each run of tags. `multiple` up to
    a tag is (0, tag), and (0, 0) is everything. A single ack of tag 0, which names nothing, comes
    as a `Method`.
    """

    channel: int
    ranges: list[tuple[int, int]]


class Method(NamedTuple):
    """Every other method."""

    channel: int
    method: base.Frame


class Heartbeat(NamedTuple):
    """The client is there."""


ChannelEvent = Publish | Acks | Method | ContentTooLarge
Event = ChannelEvent | Heartbeat
