"""What a client said, as the reader gives it."""

from __future__ import annotations

from typing import NamedTuple

from pamqp import base

from node.broker.bodies import NewBody


class Publish(NamedTuple):
    """Consecutive messages of one channel with equal routing, flags and properties."""

    channel: int
    where: bytes  # short strings exchange and routing key, as on the wire; both are UTF-8
    mandatory: bool
    immediate: bool
    properties: bytes  # flags and list, as on the wire; well formed down to the table of headers
    bodies: list[NewBody]  # one that is in pieces is alone


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


Event = Publish | ContentTooLarge | Acks | Method | Heartbeat
