"""Messages taken from a queue that this node leads, for a request that came to any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cluster.machine.commands import Command, Discard, Ranges, Return, Settle
from cluster.machine.replies import NO_QUEUE
from cluster.types import ConsumerKey, QueueId
from node.errors import Refused
from node.management.context import Services
from node.outgoing import Batch

LEASE_MS = 30_000

#: What becomes of the messages that were taken.
ACK_MODES = (
    "ack_requeue_true",
    "reject_requeue_true",
    "ack_requeue_false",
    "reject_requeue_false",
)

#: body, meta, redelivered, delivery count, deaths
Row = Sequence[Any]


async def take_here(services: Services, fields: Sequence[Any]) -> list[Any]:
    """[how many are still ready, rows]. Fields: queue, how many, and what becomes of them."""
    queue, count, mode = QueueId(fields[0]), int(fields[1]), str(fields[2])
    info = services.catalog.queue_by_id(queue)
    if info is None:
        raise Refused(NO_QUEUE, f"there is no queue {queue}")
    session = await services.sessions.lend(info.group, LEASE_MS)
    try:
        consumer, ready, batches = await services.broker.get(
            info, session, count=count, auto_settle=False
        )
        if batches:
            command = _decision(mode, queue, consumer, [_range(batch) for batch in batches])
            await services.broker.ask(info.group, command)
        return [ready, [row for batch in batches for row in _rows(batch)]]
    finally:
        services.sessions.take_back(info.group, session)


def _decision(mode: str, queue: QueueId, consumer: ConsumerKey, ranges: Ranges) -> Command:
    match mode:
        case "ack_requeue_true":
            return Return(queue, consumer, ranges, failed=False, delay_ms=0)
        case "reject_requeue_true":
            return Return(queue, consumer, ranges, failed=True)
        case "reject_requeue_false":
            return Discard(queue, consumer, ranges)
        case _:
            return Settle(queue, consumer, ranges)


def _range(batch: Batch) -> tuple[int, int]:
    return batch.first, batch.first + len(batch.bodies) - 1


def _rows(batch: Batch) -> list[Row]:
    shared: Any = batch.meta
    metas = cast("list[Any]", shared) if type(shared) is list else None
    return [
        [
            body,
            shared if metas is None else metas[offset],
            batch.acquired_count > 0,
            batch.delivery_count,
            batch.deaths,
        ]
        for offset, body in enumerate(batch.bodies)
    ]
