"""How messages leave a queue otherwise than by being settled: expired, over a limit, refused.

Each function is given messages that are already in none of ready, unsettled and delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.machine.commands import DeadLettersMoved
from cluster.machine.deadletters import (
    DELIVERY_LIMIT,
    EXPIRED,
    MAXLEN,
    PURGED,
    Deaths,
    died,
    is_cycle,
)
from cluster.machine.effects import DeadLettersReady, DeliveryLimitReached
from cluster.machine.interface import Removed
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.replies import Ok, Reply
from cluster.machine.turn import Turn

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

SIZES_AT_ONCE = 1_024
NOTHING_REMOVED = Removed()


def forget(queue: Queue, first: int, last: int) -> None:
    """These messages are done with."""
    if queue.marks.count:
        queue.marks.cut(first, last)
    queue.store.release(first, last)


def count_removed(queue: Queue, turn: Turn, reason: str, count: int, *, goes: bool) -> None:
    """These left otherwise than settled. `goes`: to a dead-letter target."""
    turn.group.died(reason, count, goes=goes)
    if turn.version >= 2:
        removed = queue.removed
        removed[reason] = removed.get(reason, NOTHING_REMOVED).and_also(count, goes=goes)


def dead_letter(queue: Queue, turn: Turn, first: int, last: int, reason: str) -> None:
    """To the target in this group at once, into the outbox for another group, or nowhere (C19).

    A target in this group that has no room, and does not make any, gets it by the outbox too.
    """
    config = queue.config
    target = None
    if config.dead_letter_queue is not None:
        target = turn.group.find(config.dead_letter_queue)
    exchange = config.dead_letter_exchange
    goes_on = target is not None or exchange is not None
    if reason == DELIVERY_LIMIT:
        turn.effects.append(DeliveryLimitReached(queue.id, last - first + 1))
    if not goes_on:
        count_removed(queue, turn, reason, last - first + 1, goes=False)
        if queue.witness is not None:
            queue.witness.died(queue, first, last, reason, goes=False)
        forget(queue, first, last)
        return
    for start, end, mark in queue.marks.segments(first, last):
        mark = mark or NO_MARK
        deaths = died(
            mark.deaths,
            queue=queue.name,
            reason=reason,
            now_ms=turn.now_ms,
            ttl_ms=mark.ttl_ms,
            to=(exchange, config.dead_letter_routing_key),
        )
        ends = target is not None and is_cycle(deaths, target.name)
        count_removed(queue, turn, reason, end - start + 1, goes=not ends)
        if queue.witness is not None:
            queue.witness.died(queue, start, end, reason, goes=not ends)
        if target is None:
            _post(queue, turn, start, end, deaths, mark)
            continue
        if ends:
            forget(queue, start, end)
            continue
        turn.touch(target.id)
        for piece in queue.store.pieces(start, end):
            sizes = queue.store.sizes_of(piece.first, piece.last)
            # Behind those that wait already, so that they stay in order.
            waits = queue.outbox.count or not target.takes_all(len(sizes), sizes)
            if waits and exchange is not None:
                _post(queue, turn, piece.first, piece.last, deaths, mark)
                continue
            target.take_dead_letters(
                turn,
                index=piece.bodies.index,
                offset=piece.bodies.offset,
                sizes=sizes,
                priority=mark.priority,
                deaths=deaths,
                parts={
                    position - piece.first: indexes
                    for position, indexes in queue.store.parts_of(piece.first, piece.last).items()
                },
            )
            forget(queue, piece.first, piece.last)


def _post(queue: Queue, turn: Turn, first: int, last: int, deaths: Deaths, mark: Mark) -> None:
    """Into the outbox: a node carries it from there."""
    config = queue.config
    if not queue.outbox.count:
        turn.effects.append(DeadLettersReady(queue.id))
    queue.marks.cut(first, last)
    to = (config.dead_letter_exchange or "", config.dead_letter_routing_key)
    number = turn.number_after(queue.outbox.next - 1)
    queue.outbox.add(number, first, last, deaths, to, mark.priority)


def sweep(queue: Queue, turn: Turn, *, inclusive: bool) -> None:
    """Remove what has expired at the head of each priority (C14, C15).

    A message whose time ends at this very instant may still be delivered: so a TTL of 0 means "now
    or never" (C17). After the deliveries it is swept too: `inclusive`.
    """
    ready = queue.ready
    now_ms = turn.now_ms if inclusive else turn.now_ms - 1
    for priority in ready.priorities():
        while ready.has(priority):
            first, last = ready.head(priority)
            expired, end = judge(queue, first, last, now_ms)
            if not expired:
                break
            while first <= end:
                first, stop = ready.take_at(priority, end - first + 1)
                queue.waiting_bytes -= queue.store.bytes_of(first, stop)
                dead_letter(queue, turn, first, stop, EXPIRED)
                first = stop + 1


def judge(queue: Queue, first: int, last: int, now_ms: int) -> tuple[bool, int]:
    """Has the message at `first` expired, and up to which position is the answer the same?"""
    ttl_ms = queue.config.message_ttl_ms
    store = queue.store
    verdict: bool | None = None
    for start, end, mark in queue.marks.segments(first, last):
        own_ms = mark.expires_at_ms if mark else None
        born_ms = mark.born_ms if mark else None
        position = start
        while position <= end:
            if ttl_ms is None:
                expired, stop = False, end
            elif born_ms is not None:
                expired, stop = born_ms + ttl_ms <= now_ms, end
            else:
                expired = store.time_of(position) + ttl_ms <= now_ms
                stop = min(end, store.run_end(position)) if expired else end
            if own_ms is not None and own_ms <= now_ms:
                expired = True
            if verdict is None:
                verdict = expired
            elif verdict != expired:
                return verdict, position - 1
            position = stop + 1
    return bool(verdict), last


def head_expiry_ms(queue: Queue) -> int | None:
    """When the first of the messages at the heads expires."""
    ttl_ms = queue.config.message_ttl_ms
    if ttl_ms is None and not queue.marks.count:
        return None
    earliest: int | None = None
    for priority in queue.ready.priorities():
        at_ms = expires_at_ms(queue, queue.ready.head(priority)[0])
        if at_ms is not None and (earliest is None or at_ms < earliest):
            earliest = at_ms
    return earliest


def expires_at_ms(queue: Queue, position: int) -> int | None:
    """The smaller one of both TTLs wins (C16)."""
    mark = queue.marks.get(position) or NO_MARK
    ttl_ms = queue.config.message_ttl_ms
    if ttl_ms is None:
        return mark.expires_at_ms
    born_ms = queue.store.time_of(position) if mark.born_ms is None else mark.born_ms
    if mark.expires_at_ms is None:
        return born_ms + ttl_ms
    return min(born_ms + ttl_ms, mark.expires_at_ms)


def drop_over_limit(queue: Queue, turn: Turn) -> None:
    """Overflow `drop-head`: the messages that would be delivered next make room for new ones."""
    config = queue.config
    count_max, bytes_max = config.max_length, config.max_length_bytes
    while True:
        over = 0 if count_max is None else queue.waiting_count - count_max
        if over > 0:
            first, last = queue.take_head(over)
        elif bytes_max is not None and queue.waiting_bytes > bytes_max:
            first, last = queue.take_head_bytes(queue.waiting_bytes - bytes_max, SIZES_AT_ONCE)
        else:
            return
        dead_letter(queue, turn, first, last, MAXLEN)


def purge(queue: Queue, turn: Turn) -> Reply:
    """All that waits."""
    count = queue.waiting_count
    if count:
        count_removed(queue, turn, PURGED, count, goes=False)
    while queue.waiting_count:
        first, last = queue.take_head(queue.waiting_count)
        if queue.witness is not None:
            queue.witness.purged(queue, first, last)
        forget(queue, first, last)
    return Ok(count)


def dead_letters_moved(queue: Queue, command: DeadLettersMoved) -> Reply:
    moved = queue.outbox.moved(command.number)
    for first, last in moved:
        if queue.witness is not None:
            queue.witness.moved(queue, first, last)
        forget(queue, first, last)
    return Ok(sum(last - first + 1 for first, last in moved))
