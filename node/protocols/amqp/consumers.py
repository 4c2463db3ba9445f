"""Consumers of a channel, and what is done with batches of their deliveries: pure helpers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from cluster.machine.catalog import QueueInfo
from cluster.types import ConsumerKey
from node.message import on_wire
from node.outgoing import Batch
from node.protocols.amqp.deaths import marked

Verdict = Literal["ack", "requeue", "discard"]


NO_KEY = ConsumerKey(0)
SINGLE_ACTIVE = "x-single-active-consumer"


@dataclass(slots=True, eq=False)
class Consumer:
    """One that consumes, or a get (no tag): where its deliveries are settled."""

    tag: str
    info: QueueInfo
    key: ConsumerKey = NO_KEY  # until the broker has registered it
    no_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    prefetch: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    cancelled: bool = False
    timeout_ms: int | None = None
    cancel_on_failover: bool = False
    silent: bool = False  # the client wants no consume-ok
    fenced: bool = field(init=False)  # its deliveries carry their tokens
    wire_tag: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.fenced = self.info.arguments.get(SINGLE_ACTIVE) is True
        self.wire_tag = self.tag.encode()


def runs(batch: Batch, queue: str, *, fenced: bool = False) -> list[tuple[int, int, bytes, bytes]]:
    """(start, end, where, properties) of neighbours that look the same to a client."""
    count = len(batch.bodies)
    metas = _metas(batch)
    plain = not batch.deaths and not batch.delivery_count and not fenced
    token = batch.token if fenced else None
    runs: list[tuple[int, int, bytes, bytes]] = []
    start = 0
    while start < count:
        end = start + 1 if metas is not None else count
        if metas is not None:
            while end < count and metas[end] == metas[start]:
                end += 1
        where, properties = on_wire(batch.meta if metas is None else metas[start], queue)
        if not plain:
            where, properties = marked(where, properties, batch.deaths, batch.delivery_count, token)
        runs.append((start, end, where, properties))
        start = end
    return runs


def cut(batch: Batch, count: int) -> tuple[Batch, Batch]:
    metas = _metas(batch)
    first = batch._replace(
        bodies=batch.bodies[:count], meta=batch.meta if metas is None else metas[:count]
    )
    rest = batch._replace(
        first=batch.first + count,
        bodies=batch.bodies[count:],
        meta=batch.meta if metas is None else metas[count:],
    )
    return first, rest


def _metas(batch: Batch) -> list[Any] | None:
    """One a body, or None: all have the same."""
    meta: Any = batch.meta
    return cast("list[Any]", meta) if type(meta) is list else None
