"""A group's state as bytes: CBOR of the plain data that its parts make of themselves.

Positions only, no bodies. Equal states give equal bytes: columns are packed without what history
left in them, and maps are written in the order of their keys or, where the order is state, in that
order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, cast

import cbor2

from cluster.machine.commands import QueueConfig

FORMAT_VERSION = 1
#: CBOR: what stands before a number over 23.
BYTE_FOLLOWS = 24
#: Rows of a long list that are encoded at once: below a millisecond.
PIECE_ROWS = 500
#: What a small row holds, lists in it included, and what counts as one of these.
SMALL_ITEMS_MAX = 200
ITEM_BYTES = 8


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


def encode_row(row: Sequence[Any]) -> bytes:
    return cbor2.dumps(row, canonical=True)


def is_large(row: Sequence[Any]) -> bool:
    """Its bytes are not worth to be kept, and may take long to make."""
    left = SMALL_ITEMS_MAX
    lists: list[Sequence[Any]] = [row]
    while lists:
        items = lists.pop()
        left -= len(items)
        for item in items:
            if type(item) is list:
                lists.append(cast("list[Any]", item))
            elif type(item) is bytes:
                left -= len(item) // ITEM_BYTES
        if left < 0:
            return True
    return False


def pieces(state: Sequence[Any]) -> Iterator[bytes]:
    """The bytes of `encode(state)` one after the other, none of which takes long to make. `state`
    is a copy: the machine may go on meanwhile. Queues may be encoded already.
    """
    version, now_ms, sessions, queues, *transactions = state
    yield _head(1 + len(state)) + cbor2.dumps(FORMAT_VERSION)
    yield from map(cbor2.dumps, (version, now_ms))
    yield from _pieces(sessions, depth=1)
    yield from _queue_pieces(queues)
    for each in transactions:
        yield from _pieces(each, depth=1)


def _queue_pieces(queues: Sequence[Any]) -> Iterator[bytes]:
    yield _head(len(queues))
    for is_encoded, run in groupby(queues, key=lambda queue: type(queue) is bytes):
        if is_encoded:
            while some := b"".join(islice(run, PIECE_ROWS)):
                yield some
        else:
            for queue in run:
                yield from _pieces(queue, depth=2)  # a queue, its state, what that is made of


def _pieces(value: Any, depth: int) -> Iterator[bytes]:
    """Lists down to this depth begin with a head of their own, rows of longer ones come in runs."""
    if type(value) is not list:
        yield cbor2.dumps(value, canonical=True)
        return
    items = cast("list[Any]", value)
    yield _head(len(items))
    if depth or (len(items) <= PIECE_ROWS and any(map(_is_long, items))):
        for item in items:
            yield from _pieces(item, max(0, depth - 1))
        return
    for start in range(0, len(items), PIECE_ROWS):
        run = items[start : start + PIECE_ROWS]
        yield cbor2.dumps(run, canonical=True)[len(_head(len(run))) :]


def _is_long(value: Any) -> bool:
    return type(value) is list and len(cast("list[Any]", value)) > PIECE_ROWS


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
