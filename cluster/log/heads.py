"""What a start needs of a sealed segment, in a file beside it, so that the segment itself need not
be read: the headers of its records, and of their payloads what recovery looks at.

It counts only if it is whole and of just this segment; else the segment is read as if there were
none. So it need not be synced. What it stands for is verified afterwards (`Cleaner.verify`),
and whenever a record is read.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final

from cluster.log import format as fmt
from cluster.log.segment import Segment
from cluster.seams import Disk

MAGIC: Final = b"QUORIDX\n"
VERSION: Final = 1
#: A smaller segment is read about as fast.
SEGMENT_BYTES_MIN: Final = 4 << 20
#: magic, version, crc32c of what is behind it, from the segment's salt on
_START: Final = struct.Struct("<8sII")
#: number and size of the segment, bytes of the heads
_ABOUT: Final = struct.Struct("<QQQ")
#: A record's header without the checksum, and of that the length of the payload.
_HEAD_BYTES: Final = fmt.COVERED.size
_LENGTH: Final = struct.Struct(f"<I{_HEAD_BYTES - 4}x")


def heads_path(segment_path: str) -> str:
    return segment_path.removesuffix(fmt.SEGMENT_SUFFIX) + fmt.HEADS_SUFFIX


def tag_of(kind: int, payload: bytes) -> bytes:
    """What recovery looks at in a payload: of an entry its first byte, of state all of it."""
    if kind in fmt.BODY_KINDS:
        return payload[fmt.HASH_BYTES : fmt.HASH_BYTES + 1] or b"\0"
    return payload if fmt.is_state(kind) else b""


def tag_bytes(kind: int, length: int) -> int:
    """Of a payload of that length."""
    if kind in fmt.BODY_KINDS:
        return 1
    return length if fmt.is_state(kind) else 0


def write_heads(disk: Disk, segment: Segment) -> None:
    """Without them a start takes longer, and that is all: what the disk says is passed over."""
    heads = segment.heads
    path = heads_path(segment.path)
    lengths = sum(length for (length,) in _LENGTH.iter_unpack(heads))
    records = len(heads) // _HEAD_BYTES
    if segment.start + records * fmt.RECORD_HEADER + lengths != segment.size:
        return
    about = _ABOUT.pack(segment.number, segment.size, len(heads))
    crc = segment.salt
    for part in (about, heads, segment.tags):
        crc = fmt.extend(crc, bytes(part))
    with suppress(OSError):
        if disk.exists(path):
            disk.remove(path)
        file = disk.open(path, create=True)
        try:
            file.append([_START.pack(MAGIC, VERSION, crc), about, heads, segment.tags])
        finally:
            file.close()


def read_heads(disk: Disk, segment: Segment) -> bool:
    """Fill in those of a sealed segment. False: there are none that count."""
    try:
        file = disk.open(heads_path(segment.path))
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
    except OSError:  # most often there are none
        return False
    if len(data) < _START.size + _ABOUT.size:
        return False
    magic, version, crc = _START.unpack_from(data)
    number, size, heads_bytes = _ABOUT.unpack_from(data, _START.size)
    if (magic, version, number, size) != (
        MAGIC,
        VERSION,
        segment.number,
        segment.size,
    ) or fmt.extend(segment.salt, data[_START.size :]) != crc:
        return False
    at = _START.size + _ABOUT.size
    segment.heads = bytearray(data[at : at + heads_bytes])
    segment.tags = bytearray(data[at + heads_bytes :])
    segment.unverified = segment.start
    return True
