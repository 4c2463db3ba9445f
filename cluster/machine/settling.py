"""What a consumer does with the messages it holds: settle, return, discard, extend.

Each command is done for all of its messages or for none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.machine.commands import Discard, Extend, Handed, Ranges, Return, Settle
from cluster.machine.consumers import Consumer, Hold
from cluster.machine.deadletters import DELIVERY_LIMIT, REJECTED
from cluster.machine.disposal import dead_letter, forget
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.replies import (
    BAD_ARGUMENT,
    NO_CONSUMER,
    UNKNOWN_DELIVERY,
    Ok,
    Refused,
    Reply,
)
from cluster.machine.turn import Turn
from cluster.types import ConsumerKey

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

SPAN_MS_MAX = 1 << 40


def settle(queue: Queue, turn: Turn, command: Settle) -> Reply:
    consumer = _meant(queue, command)
    if isinstance(consumer, Refused):
        return consumer
    held = consumer.held
    before = held.count
    for first, last in command.ranges:
        held.cut(first, last)
        if consumer.windowed:
            consumer.ahead.cut(first, last)
        if queue.witness is not None:
            queue.witness.settled(queue, consumer, first, last)
        forget(queue, first, last)
        if last > queue.seen:
            queue.seen = last
    count = before - held.count
    queue.unsettled_count -= count
    queue.freed(turn, consumer)
    return Ok(count)


def give_back(queue: Queue, turn: Turn, command: Return) -> Reply:
    delay_ms = command.delay_ms
    if delay_ms is not None and not 0 <= delay_ms <= SPAN_MS_MAX:
        return Refused(BAD_ARGUMENT, "delay_ms is a number of milliseconds, 0 or more")
    consumer = _meant(queue, command)
    if isinstance(consumer, Refused):
        return consumer
    count = 0
    for first, last in command.ranges:
        count += last - first + 1
        consumer.held.cut(first, last)
        if consumer.windowed:
            consumer.ahead.cut(first, last)
        take_back(
            queue,
            turn,
            consumer,
            (first, last),
            failed=command.failed,
            asked=True,
            sent=turn.version < 2 or not command.unsent,
            delay_ms=delay_ms,
        )
    queue.freed(turn, consumer)
    return Ok(count)


def discard(queue: Queue, turn: Turn, command: Discard) -> Reply:
    consumer = _meant(queue, command)
    if isinstance(consumer, Refused):
        return consumer
    count = 0
    for first, last in command.ranges:
        count += last - first + 1
        consumer.held.cut(first, last)
        if consumer.windowed:
            consumer.ahead.cut(first, last)
        queue.unsettled_count -= last - first + 1
        queue.seen = max(queue.seen, last)
        dead_letter(queue, turn, first, last, REJECTED)
    queue.freed(turn, consumer)
    return Ok(count)


def extend(queue: Queue, turn: Turn, command: Extend) -> Reply:
    timeout_ms = command.timeout_ms
    if timeout_ms is not None and not 0 <= timeout_ms <= SPAN_MS_MAX:
        return Refused(BAD_ARGUMENT, "timeout_ms is a number of milliseconds, 0 or more")
    consumer = _holder(queue, command.consumer, command.ranges)
    if isinstance(consumer, Refused):
        return consumer
    due_ms = queue.due_of(consumer, turn.now_ms, timeout_ms)
    count = 0
    for first, last in command.ranges:
        for start, end, hold in consumer.held.cut(first, last):
            consumer.held.put(start, end, Hold(hold.token, due_ms))
            count += end - start + 1
    if count:
        queue.expect_by(consumer, due_ms)
    return Ok(count)


def lacks(
    queue: Queue, key: ConsumerKey, ranges: Ranges, token: int | None = None
) -> Refused | None:
    """Why the consumer could not settle these now; None: it could."""
    found = _holder(queue, key, ranges)
    if isinstance(found, Refused):
        return found
    return None if token is None else _newer(found, ranges, token)


def _meant(queue: Queue, command: Settle | Return | Discard) -> Consumer | Refused:
    """The consumer, when it holds every one of these deliveries, and no later ones instead."""
    consumer = _holder(queue, command.consumer, command.ranges)
    if command.token is None or isinstance(consumer, Refused):
        return consumer
    return _newer(consumer, command.ranges, command.token) or consumer


def _holder(queue: Queue, key: ConsumerKey, ranges: Ranges) -> Consumer | Refused:
    """The consumer, when it holds every one of these positions."""
    consumer = queue.consumers.by_key.get(key)
    if consumer is None:
        return no_consumer(queue, key)
    before = 0
    for first, last in ranges:
        if not before < first <= last:
            return Refused(
                BAD_ARGUMENT,
                "ranges are [first, last], from 1 on, ascending, and do not overlap",
                [first, last],
            )
        unknown = consumer.held.missing(first, last)
        if unknown is not None:
            return Refused(
                UNKNOWN_DELIVERY,
                f"consumer {key} does not hold message {unknown} of queue {queue.name}:"
                " it was settled, returned or never delivered to it",
                unknown,
            )
        before = last
    return consumer


def no_consumer(queue: Queue, key: ConsumerKey) -> Refused:
    return Refused(NO_CONSUMER, f"queue {queue.name} has no consumer {key}: subscribe first")


def _newer(consumer: Consumer, ranges: Ranges, token: int) -> Refused | None:
    """The refusal when one of them was delivered again since."""
    for first, last in ranges:
        for start, _, hold in consumer.held.pieces(first, last):
            if hold.token > token:
                return Refused(
                    UNKNOWN_DELIVERY,
                    f"message {start} was delivered again, with token {hold.token}:"
                    f" what had token {token} was returned before",
                    start,
                )
    return None


def take_back(
    queue: Queue,
    turn: Turn,
    consumer: Consumer,
    messages: tuple[int, int],
    *,
    failed: bool,
    asked: bool,
    sent: bool,
    delay_ms: int | None,
) -> None:
    """These are in the consumer's hands no more. What was not `sent` is as new, unless clients may
    have seen messages behind it: then nobody may take its next delivery for one in order.
    """
    first, last = messages
    if sent:
        fresh = last + 1
        queue.seen = max(queue.seen, last)
    else:
        fresh = max(first, queue.seen_up_to() + 1)
    if first < fresh:
        end = min(last, fresh - 1)
        failed = failed and sent
        if queue.witness is not None:
            queue.witness.returned(queue, consumer, first, end, failed=failed, asked=asked)
        returned(queue, turn, first, end, failed=failed, delay_ms=delay_ms if sent else 0)
    if fresh <= last:
        if queue.witness is not None:
            queue.witness.returned(
                queue, consumer, fresh, last, failed=False, asked=asked, sent=False
            )
        queue.unsettled_count -= last - fresh + 1
        queue.waiting_bytes += queue.store.bytes_of(fresh, last)
        queue.make_ready(fresh, last)


def returned(
    queue: Queue, turn: Turn, first: int, last: int, *, failed: bool, delay_ms: int | None
) -> None:
    """Back to where they came from (B08), unless they failed too often or shall wait.

    They are in no consumer's hands any more, but still counted as unsettled.
    """
    queue.unsettled_count -= last - first + 1
    limit = queue.config.delivery_limit
    for start, end, old in queue.marks.segments(first, last):
        mark = old or NO_MARK
        mark = mark._replace(acquired=mark.acquired + 1, failed=mark.failed + failed)
        queue.marks.assign(start, end, mark)
        if limit is not None and mark.failed > limit:
            dead_letter(queue, turn, start, end, DELIVERY_LIMIT)
            continue
        queue.waiting_bytes += queue.store.bytes_of(start, end)
        wait_ms = _retry_delay_ms(queue, mark, failed) if delay_ms is None else delay_ms
        if wait_ms:
            queue.delay(start, end, turn.now_ms + wait_ms)
        else:
            queue.ready.add(start, end, queue.capped(mark.priority))


def handed(queue: Queue, command: Handed) -> Reply:
    """The network took these: there is room for more. Of other deliveries nothing is said."""
    consumer = queue.consumers.by_key.get(command.consumer)
    if consumer is None:
        return no_consumer(queue, command.consumer)
    ahead = consumer.ahead
    before = ahead.count
    for first, last, token in command.deliveries:
        for start, end, of_token in ahead.pieces(first, last):
            if of_token == token:
                ahead.cut(start, end)
    queue.consumers.offer(consumer)
    return Ok(before - ahead.count)


def _retry_delay_ms(queue: Queue, mark: Mark, failed: bool) -> int:
    """Linear in the failures: min, twice min, ... up to max."""
    config = queue.config
    kind = config.delayed_retry_type
    if kind == "all" or kind == ("failed" if failed else "returned"):
        return min(config.delayed_retry_min_ms * max(1, mark.failed), config.delayed_retry_max_ms)
    return 0
