"""When something happens to a queue by itself: deadlines, expiry of messages and of the queue.

Every queue knows a time before which nothing is due. It may be too early, as deadlines are met all
the time and nobody updates it then; it is never too late. Looking when nothing is due changes
nothing, so replicas may look at different times and stay equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.machine.disposal import head_expiry_ms
from cluster.machine.effects import ConsumerEnded, QueueExpired
from cluster.machine.turn import Turn

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

#: The effect QueueExpired is repeated after this, should the catalog not have heard it.
EXPIRY_REPEAT_MS = 10_000


def meet_deadlines(queue: Queue, turn: Turn) -> None:
    """What is due now and is not a message's own affair."""
    now_ms = turn.now_ms
    queue.uploads.forget_idle(now_ms)
    for consumer in list(queue.consumers.by_key.values()):
        if not consumer.due_ms or consumer.due_ms > now_ms:
            continue
        consumer.due_ms = consumer.earliest_due()
        if not consumer.due_ms or consumer.due_ms > now_ms:
            continue
        if consumer.key in queue.consumers.by_key:  # not ended with its session a moment ago
            turn.effects.append(ConsumerEnded(queue.id, consumer.key, consumer.session, "timeout"))
            turn.group.timed_out(turn, consumer.session)
    expires_at_ms = queue_expiry_ms(queue)
    if expires_at_ms is not None and expires_at_ms <= now_ms:
        queue.told_ms = now_ms
        turn.effects.append(QueueExpired(queue.id))


def queue_expiry_ms(queue: Queue) -> int | None:
    """When the queue is to be dropped, or to be reported once more."""
    idle_ms = 0 if queue.is_left else queue.config.expires_ms
    if idle_ms is None or queue.is_used:
        return None
    if queue.told_ms is not None:
        return queue.told_ms + EXPIRY_REPEAT_MS
    return queue.unused_since_ms + idle_ms


def look_ahead(queue: Queue, now_ms: int) -> None:
    """See to it that somebody looks when the next message or the queue itself is due."""
    if queue.ready.count:
        if queue.may_expire:
            at_ms = head_expiry_ms(queue)
            if at_ms is not None:
                queue.wake_at(at_ms)
        if not queue.paused and queue.consumers.serving() is not None:
            queue.wake_at(now_ms)  # there was more than one command may hand out
    if queue.config.expires_ms is not None or queue.is_left:
        at_ms = queue_expiry_ms(queue)
        if at_ms is not None:
            queue.wake_at(at_ms)


def plan_anew(queue: Queue, now_ms: int) -> None:
    """Work out the earliest time from everything that can be due."""
    queue.due_ms = None
    look_ahead(queue, now_ms)
    if queue.delayed:
        queue.wake_at(queue.delayed[0][0])
    if (at_ms := queue.uploads.due_ms) is not None:
        queue.wake_at(at_ms)
    for consumer in queue.consumers.by_key.values():
        if consumer.due_ms:
            queue.wake_at(consumer.due_ms)
