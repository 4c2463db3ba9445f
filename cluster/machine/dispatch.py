"""Which consumer gets which message. Decided inside `apply`, so that every replica knows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cluster.machine.consumers import Consumer, Hold
from cluster.machine.deadletters import EXPIRED
from cluster.machine.disposal import dead_letter, forget, judge
from cluster.machine.effects import Deliver
from cluster.machine.marks import NO_MARK
from cluster.machine.replies import Chunk
from cluster.machine.turn import Turn
from cluster.types import made

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

#: Up to so many ready messages are dealt out one by one; more are shared in ranges, so that a batch
#: stays a batch.
DEAL_SINGLY_MAX = 16
#: One command hands out no more chunks than these; the rest waits for the next one, or a Tick.
CHUNKS_AT_ONCE_MAX = 4_096


def hand_out(queue: Queue, turn: Turn) -> None:
    """Serve consumers until nothing is ready or nobody has room."""
    ready, consumers = queue.ready, queue.consumers
    delivered: dict[int, tuple[Consumer, list[Chunk]]] = {}
    left = CHUNKS_AT_ONCE_MAX
    ring: deque[Consumer] | None = None
    share = turns = 0
    while ready.count and left > 0:
        serving = consumers.serving()
        if serving is None:
            break
        if serving is not ring or turns == 0:
            turns = len(serving)
            ring = serving
            share = -(-ready.count // turns)
            if turns > 1 and ready.count <= DEAL_SINGLY_MAX:
                share = 1
        turns -= 1
        consumer = serving[0]
        limit = consumer.room
        if limit > share:
            limit = share
        chunks = take(queue, turn, consumer, limit, left)
        left -= len(chunks)
        if not chunks:
            continue  # what was ready had expired
        consumers.served(serving)
        known = delivered.get(consumer.key)
        if known is None:
            delivered[consumer.key] = (consumer, chunks)
        else:
            known[1].extend(chunks)
    for consumer, chunks in delivered.values():
        turn.effects.append(
            Deliver(queue.id, consumer.key, consumer.session, chunks, consumer.windowed)
        )


def take(
    queue: Queue, turn: Turn, consumer: Consumer, limit: int, left: int = CHUNKS_AT_ONCE_MAX
) -> list[Chunk]:
    """Give the consumer the next messages, at most `limit` in at most `left` chunks, under one
    fencing token.
    """
    ready, store = queue.ready, queue.store
    token = queue.new_token(turn)
    due_ms = queue.due_of(consumer, turn.now_ms)
    hold = made(Hold, (token, due_ms))
    chunks: list[Chunk] = []
    while limit > 0 and left > 0 and ready.count:
        here = limit
        expired = False
        if limit > left:
            first = ready.top.head[0]
            here = min(limit, store.reach(first, left) - first + 1)
        if queue.may_expire:
            first, last = ready.top.head
            expired, end = judge(queue, first, min(last, first + here - 1), turn.now_ms - 1)
            here = end - first + 1
        first, last = ready.take(here)
        queue.waiting_bytes -= store.bytes_of(first, last)
        if expired:
            dead_letter(queue, turn, first, last, EXPIRED)
            continue
        limit -= last - first + 1
        taken = chunks_of(queue, first, last, token)
        left -= len(taken)
        chunks += taken
        if queue.witness is not None:
            queue.witness.delivered(queue, consumer, taken)
        if consumer.auto_settle:
            forget(queue, first, last)
            queue.seen = max(queue.seen, last)
        else:
            consumer.held.put(first, last, hold)
            if consumer.windowed:
                consumer.ahead.put(first, last, token)
            queue.unsettled_count += last - first + 1
    if chunks and not consumer.auto_settle:
        queue.expect_by(consumer, due_ms)
    return chunks


def chunks_of(queue: Queue, first: int, last: int, token: int) -> list[Chunk]:
    """These live messages as they are delivered: one chunk an entry and set of counts."""
    if not queue.marks.count:
        return [
            Chunk(piece.first, piece.bodies, token, 0, 0)
            for piece in queue.store.pieces(first, last)
        ]
    chunks: list[Chunk] = []
    for start, end, mark in queue.marks.segments(first, last):
        mark = mark or NO_MARK
        chunks += [
            Chunk(piece.first, piece.bodies, token, mark.failed, mark.acquired, mark.deaths)
            for piece in queue.store.pieces(start, end)
        ]
    return chunks


def held_chunks(queue: Queue, consumer: Consumer) -> Sequence[Chunk]:
    """All that is in flight with a consumer, as it was delivered, and in that order."""
    if not queue.config.max_priority or not queue.marks.count:
        return [
            chunk
            for first, last, hold in consumer.held
            for chunk in chunks_of(queue, first, last, hold.token)
        ]
    ordered: list[tuple[int, int, Chunk]] = []
    for first, last, hold in consumer.held:
        for start, end, mark in queue.marks.segments(first, last):
            priority = queue.capped(mark.priority) if mark else 0
            ordered += [
                (hold.token, -priority, chunk) for chunk in chunks_of(queue, start, end, hold.token)
            ]
    # What one decision handed out was taken by priority; within one it is in order already.
    ordered.sort(key=lambda each: each[:2])
    return [chunk for _, _, chunk in ordered]
