"""What `nats stream backup` writes to a file: a stream as bytes that `nats stream restore` brings
back. Pure.

NATS's command decompresses what it is sent, to show how far it is. So the file is one of S2's, of
which every part after its first bytes is a chunk that a reader of S2 passes over: a kind that it
does not know, with three bytes of length. In ours are a mark, a checksum, and a frame: CBOR,
compressed. Frames are a head, batches of messages, consumers, and an end without which the file is
no whole one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.machine.commands import Ranges
from node.messages.nats_headers import is_block
from node.messages.subjects import is_literal, is_subject

#: 1: without ids; of consumers it did not tell how often each message was delivered.
FORM: Final = 2
IDENTIFIERS: Final = (b"\xff\x06\x00\x00S2sTwO", b"\xff\x06\x00\x00sNaPpY")
#: A kind of chunk that S2's readers pass over.
KIND: Final = 0x80
MARK: Final = b"quorate1"
#: Of a chunk's content, and of a frame.
CHUNK_BYTES_MAX: Final = (1 << 24) - 1
FRAME_BYTES_MAX: Final = 16 << 20

_HEAD_BYTES: Final = 4
_CHECK_BYTES: Final = 4


class BadArchive(Exception):
    """Its text says why."""


class Message(NamedTuple):
    sequence: int
    stored_ms: int
    subject: bytes  # empty: AMQP's clients published it under none
    header: bytes  # a block, or empty
    body: bytes


class ConsumerState(NamedTuple):
    """Of a consumer, when the backup was made: see `RestoreConsumer`."""

    config: dict[str, Any]  # as clients are shown it
    cursor: int  # 0: it begins as its configuration says
    delivered: tuple[int, int, int]
    floor: tuple[int, int, int]
    held: Sequence[tuple[int, int, int, int]]
    picked: Ranges
    exhausted: Ranges


class Head(NamedTuple):
    name: str


class Ids(NamedTuple):
    """Of messages, those within the window."""

    rows: Sequence[tuple[str, int, int]]  # (id, sequence, stored ms), oldest first


class End(NamedTuple):
    last: int  # sequence that was given last
    last_ms: int  # when
    messages: int  # how many
    consumers: Sequence[ConsumerState]
    last_id: str = ""  # of the message stored last


Frame = Head | list[Message] | Ids | End


def head_of(name: str) -> bytes:
    return IDENTIFIERS[0] + _chunk(["head", FORM, name])


def messages_of(messages: Sequence[Message]) -> bytes:
    """BadArchive: they are too large."""
    return _chunk(["messages", [list(each) for each in messages]])


def ids_of(ids: Ids) -> bytes:
    return _chunk(["ids", [list(row) for row in ids.rows]])


def end_of(end: End) -> bytes:
    return _chunk(["end", *end[:3], [list(each) for each in end.consumers], end.last_id])


def _chunk(frame: Any) -> bytes:
    data = pack(frame)
    packed = zlib.compress(data, 1)
    content = MARK + zlib.crc32(packed).to_bytes(_CHECK_BYTES, "little") + packed
    if len(data) > FRAME_BYTES_MAX or len(content) > CHUNK_BYTES_MAX:
        raise BadArchive(f"a message is larger than {FRAME_BYTES_MAX} bytes")
    return bytes([KIND]) + len(content).to_bytes(3, "little") + content


class ArchiveReader:
    """Bytes in, frames out. After BadArchive nothing more is read."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._begun = False

    @property
    def is_cut(self) -> bool:
        """What came last is not complete."""
        return bool(self._data)

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._data += data
        if not self._begun:
            if len(self._data) < len(IDENTIFIERS[0]):
                return
            if bytes(self._data[: len(IDENTIFIERS[0])]) not in IDENTIFIERS:
                raise BadArchive("it is no backup of a stream")
            del self._data[: len(IDENTIFIERS[0])]
            self._begun = True
        while len(self._data) >= _HEAD_BYTES:
            if self._data[0] != KIND:
                raise BadArchive(
                    "it is a backup that nats-server made, whose files cannot be read here: let a"
                    " shovel from that server fill the stream"
                )
            size = _HEAD_BYTES + int.from_bytes(self._data[1:4], "little")
            if len(self._data) < size:
                return
            content = bytes(self._data[_HEAD_BYTES:size])
            del self._data[:size]
            yield _frame_in(content)


def _frame_in(content: bytes) -> Frame:
    start = len(MARK) + _CHECK_BYTES
    if not content.startswith(MARK):
        raise BadArchive("it is a backup that a later release made")
    packed = content[start:]
    if zlib.crc32(packed).to_bytes(_CHECK_BYTES, "little") != content[len(MARK) : start]:
        raise BadArchive("a checksum is wrong: the file is damaged")
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(packed, FRAME_BYTES_MAX + 1)
        if len(data) > FRAME_BYTES_MAX or opened.unconsumed_tail:
            raise BadArchive(f"a frame has more than {FRAME_BYTES_MAX} bytes")
        return _frame(unpack(data))
    except (zlib.error, CodecError, ValueError, TypeError) as error:
        raise BadArchive(f"a frame cannot be read: {error}") from None


def _frame(value: Any) -> Frame:
    given = _list(value)
    match given:
        case ["head", int(form), str(name)]:
            if not 1 <= form <= FORM:
                raise BadArchive("it is a backup that a later release made")
            return Head(name)
        case ["messages", rows]:
            return [_message(_list(row)) for row in _list(rows)]
        case ["ids", rows]:
            return Ids([_id(_list(row)) for row in _list(rows)])
        case ["end", int(last), int(last_ms), int(messages), rows, *more] if len(more) < 2:
            consumers = [_consumer(_list(row)) for row in _list(rows)]
            return End(last, last_ms, messages, consumers, *map(_text, more))
        case _:
            raise BadArchive("a frame is none that is known")


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise BadArchive("a frame is malformed")
    return cast("list[Any]", value)


def _message(row: list[Any]) -> Message:
    match row:
        case [int(sequence), int(stored_ms), bytes(subject), bytes(header), bytes(body)] if (
            not subject or (is_subject(subject) and is_literal(subject))
        ) and (not header or (is_block(header) and header.endswith(b"\r\n\r\n"))):
            return Message(sequence, stored_ms, subject, header, body)
        case _:
            raise BadArchive("a message is malformed")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BadArchive("an id is malformed")
    return value


def _id(row: list[Any]) -> tuple[str, int, int]:
    match row:
        case [str(message_id), int(sequence), int(stored_ms)]:
            return message_id, sequence, stored_ms
        case _:
            raise BadArchive("an id is malformed")


def _consumer(row: list[Any]) -> ConsumerState:
    config = cast("dict[str, Any]", row[0]) if row and isinstance(row[0], dict) else None
    match row[1:]:
        case [int(floor), int(delivered), int(), held, bool(picked)] if config is not None:  # 1
            rows = [(*pair, 0, 1) for pair in _rows(held, 2)]
            last = max([delivered, floor, *(row[1] for row in rows)])
            cursor = 0 if picked else last + 1
            given, below = (last, last, 0), (floor, floor, 0)
            return ConsumerState(config, cursor, given, below, rows, (), ())
        case [int(cursor), delivered, floor, held, picked, exhausted] if config is not None:
            (given,), (below,) = _rows([delivered], 3), _rows([floor], 3)
            parts = _rows(held, 4), _rows(picked, 2), _rows(exhausted, 2)
            return ConsumerState(config, cursor, given, below, *parts)
        case _:
            raise BadArchive("a consumer is malformed")


def _rows(value: Any, size: int) -> list[Any]:
    """Of so many numbers each."""
    found = [tuple(_list(row)) for row in _list(value)]
    if any(len(row) != size or not all(type(each) is int for each in row) for row in found):
        raise BadArchive("a consumer is malformed")
    return found
