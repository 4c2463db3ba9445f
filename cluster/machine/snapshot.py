"""State as plain data that CBOR can hold, and as bytes: positions only, no bodies.

Equal states give equal bytes: columns are packed without what history left in them, and maps are
written in the order of their keys or, where the order is state, in that order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import cbor2

from cluster.machine.commands import QueueConfig
from cluster.machine.interface import Removed
from cluster.machine.marks import Mark
from cluster.machine.runs import RangeMap
from cluster.machine.store import pack, unpack

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

FORMAT_VERSION = 1
#: CBOR: what stands before a number over 23.
BYTE_FOLLOWS = 24
#: Rows of a long list that are encoded at once: below a millisecond.
PIECE_ROWS = 500


class UnsupportedSnapshot(Exception):
    """The bytes are no snapshot of a format that this version reads."""


def written_under(data: bytes) -> int | None:
    """The machine version of a snapshot, without reading more of it; None: of a later format."""
    if len(data) < 4 or data[1] != FORMAT_VERSION:
        return None
    short, long = data[2], data[3]
    return short if short < BYTE_FOLLOWS else long if short == BYTE_FOLLOWS else None


def encode(data: Sequence[Any]) -> bytes:
    return cbor2.dumps([FORMAT_VERSION, *data], canonical=True)


def pieces(state: Sequence[Any]) -> Iterator[bytes]:
    """The bytes of `encode(state)` one after the other, none of which takes long to make. `state`
    is a copy: the machine may go on meanwhile.
    """
    version, now_ms, sessions, queues, *transactions = state
    yield _head(1 + len(state)) + cbor2.dumps(FORMAT_VERSION)
    yield from map(cbor2.dumps, (version, now_ms))
    yield from _pieces(sessions, depth=1)
    yield from _pieces(queues, depth=3)  # the list, a queue, its state, what that is made of
    for each in transactions:
        yield from _pieces(each, depth=1)


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    """Lists down to this depth begin with a head of their own, rows of longer ones come in runs."""
    if type(value) is not list:
        yield cbor2.dumps(value, canonical=True)
        return
    items = cast("list[Any]", value)
    yield _head(len(items))
    if depth:
        for item in items:
            yield from _pieces(item, depth - 1)
        return
    for start in range(0, len(items), PIECE_ROWS):
        run = items[start : start + PIECE_ROWS]
        yield cbor2.dumps(run, canonical=True)[len(_head(len(run))) :]


def _head(count: int) -> bytes:
    """Of a CBOR list."""
    if count < BYTE_FOLLOWS:
        return bytes((0x80 | count,))
    size = next(size for size in (1, 2, 4, 8) if count < 1 << (8 * size))
    return bytes((0x98 + size.bit_length() - 1,)) + count.to_bytes(size, "big")


def decode(data: bytes) -> list[Any]:
    try:
        value = cbor2.loads(data)
    except cbor2.CBORDecodeError as error:
        raise UnsupportedSnapshot("the bytes are no CBOR") from error
    if not isinstance(value, list) or not value:
        raise UnsupportedSnapshot("the bytes are no snapshot of a queue machine")
    version, *rest = cast("list[Any]", value)
    if version != FORMAT_VERSION:
        raise UnsupportedSnapshot(
            f"the snapshot has format {version}, this program reads {FORMAT_VERSION}:"
            " run the version that wrote it, or a later one"
        )
    return rest


def dump_config(config: QueueConfig) -> dict[str, Any]:
    """Only what differs from the defaults."""
    return {
        field.name: value
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) != field.default
    }


def load_config(data: dict[str, Any]) -> QueueConfig:
    return QueueConfig(**data)


def dump_removed(removed: dict[str, Removed]) -> list[Any]:
    return [[reason, *counts] for reason, counts in sorted(removed.items())]


def load_removed(rows: Sequence[Any]) -> dict[str, Removed]:
    return {reason: Removed(*counts) for reason, *counts in rows}


def dump_queue(queue: Queue) -> list[Any]:
    return [queue.store.dump(), *_dump_rest(queue, queue.dedup_ids.dump())]


def digest_queue(queue: Queue) -> list[Any]:
    """All that tells two states apart, without the columns of the store."""
    ids = queue.dedup_ids
    dedup_ids = ids.fingerprint() if queue.version >= 2 else ids.dump()
    return [queue.store.fingerprint(), *_dump_rest(queue, dedup_ids)]


def _dump_rest(queue: Queue, dedup_ids: list[Any]) -> list[Any]:
    levels: list[Any] = []
    for priority, level in queue.ready.levels():
        firsts, lasts, _ = level.dump()
        levels.append([priority, pack(firsts), pack(lasts)])
    firsts, lasts, marks = queue.marks.dump()
    row = [
        levels,
        [pack(firsts), pack(lasts), [list(mark) for mark in marks]],
        [list(delay) for delay in sorted(queue.delayed)],
        queue.consumers.dump(queue.version),
        queue.publishers.dump(),
        dedup_ids,
        queue.outbox.dump(),
        queue.paused,
        queue.last_token,
        None if queue.is_used else queue.unused_since_ms,
        queue.told_ms,
        queue.waiting_bytes,
        queue.had_consumer,
    ]
    if queue.version >= 2:
        row += [queue.seen, dump_removed(queue.removed)]
    if queue.version >= 3:
        row.append(queue.uploads.dump())
    return row


def load_queue(queue: Queue, data: Sequence[Any]) -> None:
    """Fill a queue that was just made."""
    (
        store,
        levels,
        marks,
        delayed,
        consumers,
        publishers,
        dedup_ids,
        outbox,
        queue.paused,
        queue.last_token,
        unused_since_ms,
        queue.told_ms,
        queue.waiting_bytes,
        *later,
    ) = data
    # Older snapshots know of no queue for which it matters.
    queue.had_consumer = bool(later and later[0])
    if queue.version >= 2:
        queue.seen = later[1]
        queue.removed = load_removed(later[2])
    if queue.version >= 3:
        queue.uploads.load(later[3])
    queue.unused_since_ms = unused_since_ms or 0
    queue.store.load(store)
    for priority, firsts, lasts in levels:
        level: RangeMap[None] = RangeMap()
        column = unpack("q", firsts)
        level.load(column, unpack("q", lasts), [None] * len(column))
        queue.ready.restore_level(priority, level)
    firsts, lasts, values = marks
    queue.marks.load(unpack("q", firsts), unpack("q", lasts), [Mark(*value) for value in values])
    queue.delayed = [(ready_at_ms, first, last) for ready_at_ms, first, last in delayed]
    queue.delayed_count = sum(last - first + 1 for _, first, last in queue.delayed)
    queue.consumers.load(
        consumers, queue.id, queue.version, delivery_limit=queue.config.delivery_limit
    )
    queue.publishers.load(publishers)
    queue.dedup_ids.load(dedup_ids)
    queue.outbox.load(outbox)
    queue.unsettled_count = sum(c.held.count for c in queue.consumers.by_key.values())


def _count_waiting_bytes(queue: Queue) -> int:
    waiting = [(first, last) for _, first, last in queue.ready]
    waiting += [(first, last) for _, first, last in queue.delayed]
    return sum(queue.store.bytes_of(first, last) for first, last in waiting)


def check_queue(queue: Queue) -> None:
    """Asserts what must hold between commands."""
    queue.store.invariants()
    queue.ready.invariants()
    queue.marks.invariants()
    queue.consumers.invariants()
    queue.publishers.invariants()
    queue.outbox.invariants()
    queue.uploads.invariants()
    places = [(first, last, "ready") for _, first, last in queue.ready]
    places += [(first, last, "delayed") for _, first, last in queue.delayed]
    places += [(parcel.first, parcel.last, "outbox") for parcel in queue.outbox.parcels]
    for consumer in queue.consumers.by_key.values():
        places += [(first, last, "unsettled") for first, last, _ in consumer.held]
    places.sort()
    end = 0
    for first, last, place in places:
        assert first > end, f"a message is {place} and somewhere else"
        end = last
    count = sum(last - first + 1 for first, last, _ in places)
    assert count == queue.store.count, "a message is nowhere, or settled and somewhere"
    size = sum(queue.store.bytes_of(first, last) for first, last, _ in places)
    assert size == queue.store.bytes, "bytes miscounted"
    assert _count_waiting_bytes(queue) == queue.waiting_bytes, "waiting bytes miscounted"
    unsettled = sum(consumer.held.count for consumer in queue.consumers.by_key.values())
    assert unsettled == queue.unsettled_count, "unsettled messages miscounted"
    alive: RangeMap[None] = RangeMap()
    for first, last, place in places:
        if place != "outbox":
            alive.put(first, last, None)
    for first, last, _ in queue.marks:
        assert alive.missing(first, last) is None, "a message that is gone is still marked"
    config = queue.config
    if config.overflow == "drop-head":
        assert config.max_length is None or queue.waiting_count <= config.max_length, "too many"
        assert config.max_length_bytes is None or queue.waiting_bytes <= config.max_length_bytes, (
            "too many bytes"
        )
    for priority, level in queue.ready.levels():
        for first, last, _ in level:
            for _, _, mark in queue.marks.segments(first, last):
                expected = queue.capped(mark.priority) if mark else 0
                assert expected == priority, "ready at a wrong priority"
