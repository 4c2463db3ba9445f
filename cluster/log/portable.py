"""Records of one group in a file of their own, written and read as a stream: a backup.

The file is a segment as docs/log-format.md has it, but of one group, from its snapshot on, and of
any size. Nothing in it may be wrong: it was written at one go, so it has no torn end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cluster.log import format as fmt
from cluster.log.damage import describe
from cluster.log.errors import LogCorrupt
from cluster.log.reader import READ_ONLY, Record
from cluster.seams import Clock, Disk

#: What is read of a file at a time.
READ_BYTES: Final = 1 << 20
ADVICE: Final = "This backup cannot be trusted: take another one; nothing was changed"
BACKUP: Final = fmt.KIND_NAMES[fmt.KIND_BACKUP]


class Encoder:
    """The bytes of one file: `head`, then records."""

    def __init__(self, identity: fmt.Identity, clock: Clock) -> None:
        times = clock.wall_ns(), clock.monotonic_ns()
        self.head = fmt.encode_file_header(1, *times, bytes(16), identity)
        self._salt = fmt.decode_file_header(self.head, "").salt
        self._clock = clock

    def record(self, kind: int, group: int, index: int, term: int, payload: bytes) -> bytes:
        times = self._clock.wall_ns(), self._clock.monotonic_ns()
        return fmt.encode_record(self._salt, kind, group, index, term, *times, payload)


def scan(path: str, *, disk: Disk | None = None) -> Iterator[Record]:
    """Its records, one after the other. LogCorrupt: what is wrong, and where."""
    file = (disk or READ_ONLY).open(path)
    try:
        size = file.size()
        header = _header(file.read(0, 4096), path)
        at, data, start = header.size, b"", 0
        while at < size:
            if at + fmt.RECORD_HEADER > start + len(data):
                data, start = file.read(at, READ_BYTES), at
            length = int.from_bytes(data[at - start : at - start + 4], "little")
            stop = at + fmt.RECORD_HEADER + length
            if stop <= size and stop > start + len(data):
                data, start = file.read(at, max(READ_BYTES, stop - at)), at
            offset = at - start
            if not fmt.record_is_valid(data, offset, header.salt):
                raise LogCorrupt(path, at, describe(data, offset), ADVICE)
            _, _, kind, _, group, index, term, wall_ns, mono_ns = fmt.RECORD.unpack_from(
                data, offset
            )
            name = fmt.KIND_NAMES.get(kind, f"kind-{kind}")
            payload = data[offset + fmt.RECORD_HEADER : stop - start]
            yield Record(path, at, name, group, index, term, wall_ns, mono_ns, payload)
            at = stop
    finally:
        file.close()


def read_at(path: str, offset: int, *, disk: Disk | None = None) -> bytes:
    """The payload of the record there, which was seen to be good before."""
    file = (disk or READ_ONLY).open(path)
    try:
        salt = _header(file.read(0, 4096), path).salt
        length = int.from_bytes(file.read(offset, 4), "little")
        data = file.read(offset, fmt.RECORD_HEADER + length)
    finally:
        file.close()
    if not fmt.record_is_valid(data, 0, salt):
        raise LogCorrupt(path, offset, describe(data, 0), ADVICE)
    return data[fmt.RECORD_HEADER :]


def _header(data: bytes, path: str) -> fmt.FileHeader:
    try:
        return fmt.decode_file_header(data, path)
    except LogCorrupt as error:
        raise LogCorrupt(path, error.offset, error.reason, ADVICE) from None
