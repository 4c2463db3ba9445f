"""Messages taken from a queue that this node leads, for a request that came to any node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from cluster.machine.commands import Discard, Ranges, Return, Settle
from cluster.machine.replies import NO_QUEUE
from cluster.types import ConsumerKey, LargeBody, QueueId
from node.dispatch.outgoing import MessageBatch
from node.errors import Refused, error_of
from node.management.services import ManagementServices

LEASE_MS = 30_000

#: What becomes of the messages that were taken.
ACK_MODES = (
    "ack_requeue_true",
    "reject_requeue_true",
    "ack_requeue_false",
    "reject_requeue_false",
)

#: body (how a large one begins), meta, redelivered, delivery count, deaths, size of the body
Row = Sequence[Any]


async def take_here(services: ManagementServices, fields: Sequence[Any]) -> list[Any]:
    """[how many are still ready, rows]. Fields: queue, how many, and what becomes of them. They are
    shown although nobody knows what became of them: they may be gone, and nobody else shows them.
    """
    queue, count, mode = QueueId(fields[0]), int(fields[1]), str(fields[2])
    of_release_0_2 = len(fields) == 3  # asked by a node that would not understand longer rows
    shown = -1 if of_release_0_2 else int(fields[3])
    info = services.catalog.queue_by_id(queue)
    if info is None:
        raise Refused(NO_QUEUE, f"there is no queue {queue}")
    session = await services.sessions.lend(info.group, LEASE_MS)
    try:
        consumer, ready, batches = await services.broker.get(
            info, session, count=count, auto_settle=False
        )
        wanted = [_range(batch) for batch in batches]
        token = max([batch.token for batch in batches], default=0)
        settle_retry = services.broker.settle_retry
        large = [b.bodies[0] for b in batches if isinstance(b.bodies[0], LargeBody)]
        if any(not 0 <= min(shown, len(body)) <= len(body.head) for body in large):
            unseen = Return(queue, consumer, wanted, token=token, unsent=True)
            settle_retry.settle(info.group, unseen, by_client=False)
            raise Refused(
                "message_too_large",
                f"a message of {len(large[0])} bytes is not shown whole: consume it by AMQP, or"
                f" set `truncate` to {len(large[0].head)} or less",
            )
        if batches:
            decision = _decision(mode, queue, consumer, wanted, token)
            outcome = await settle_retry.ask(info.group, decision)
            if outcome.kind == "refused":
                raise error_of(outcome)
        rows = [row for batch in batches for row in _rows(batch)]
        return [ready, [row[:-1] for row in rows] if of_release_0_2 else rows]
    finally:
        services.sessions.take_back(info.group, session)


def _decision(
    mode: str, queue: QueueId, consumer: ConsumerKey, ranges: Ranges, token: int
) -> Settle | Return | Discard:
    match mode:
        case "ack_requeue_true":
            return Return(queue, consumer, ranges, failed=False, delay_ms=0, token=token)
        case "reject_requeue_true":
            return Return(queue, consumer, ranges, failed=True, token=token)
        case "reject_requeue_false":
            return Discard(queue, consumer, ranges, token)
        case _:
            return Settle(queue, consumer, ranges, token)


def _range(batch: MessageBatch) -> tuple[int, int]:
    return batch.first, batch.first + len(batch.bodies) - 1


def _rows(batch: MessageBatch) -> list[Row]:
    shared: Any = batch.meta
    metas = cast("list[Any]", shared) if type(shared) is list else None
    return [
        [
            body.head if isinstance(body, LargeBody) else body,
            shared if metas is None else metas[offset],
            batch.acquired_count > 0,
            batch.delivery_count,
            batch.deaths,
            len(body),
        ]
        for offset, body in enumerate(batch.bodies)
    ]
