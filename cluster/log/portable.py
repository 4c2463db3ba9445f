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
from cluster.seams import Clock, Disk, File

#: What is read of a file at a time.
READ_BYTES: Final = 1 << 20
OPEN_MAX: Final = 64
ADVICE: Final = "This backup cannot be trusted: take another one; nothing was changed"
BACKUP: Final = fmt.KIND_NAMES[fmt.KIND_BACKUP]


class Encoder:
    """The bytes of one file: `head`, then records."""

    def __init__(self, identity: fmt.LogIdentity, clock: Clock) -> None:
        times = clock.wall_ns(), clock.monotonic_ns()
        self.head = fmt.encode_file_header(1, *times, bytes(16), identity)
        self._salt = fmt.decode_file_header(self.head, "").salt
        self._clock = clock

    def record(self, kind: int, group: int, index: int, term: int, payload: bytes) -> bytes:
        times = self._clock.wall_ns(), self._clock.monotonic_ns()
        return fmt.encode_record(self._salt, kind, group, index, term, *times, payload)


def scan(path: str) -> Iterator[Record]:
    """Its records, one after the other. LogCorrupt: what is wrong, and where."""
    file = READ_ONLY.open(path)
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
            yield _record(path, at, data, offset)
            at = stop
    finally:
        file.close()


class RecordFiles:
    """Single records of many files, which stay open."""

    def __init__(self, *, disk: Disk | None = None) -> None:
        self._disk = disk or READ_ONLY
        self._open: dict[str, tuple[File, int]] = {}

    def record(self, path: str, offset: int) -> Record:
        """One that was seen to be good before."""
        known = self._open.get(path)
        if known is None:
            if len(self._open) >= OPEN_MAX:
                self.close()
            file = self._disk.open(path)
            known = self._open[path] = file, _header(file.read(0, 4096), path).salt
        file, salt = known
        data = file.read(offset, fmt.RECORD_HEADER)
        length = int.from_bytes(data[:4], "little")
        data += file.read(offset + len(data), length)
        if not fmt.record_is_valid(data, 0, salt):
            raise LogCorrupt(path, offset, describe(data, 0), ADVICE)
        return _record(path, offset, data, 0)

    def close(self) -> None:
        for file, _ in self._open.values():
            file.close()
        self._open.clear()


def _record(path: str, at: int, data: bytes, offset: int) -> Record:
    length, _, kind, _, group, index, term, wall_ns, mono_ns = fmt.RECORD.unpack_from(data, offset)
    name = fmt.KIND_NAMES.get(kind, f"kind-{kind}")
    start = offset + fmt.RECORD_HEADER
    payload = data[start : start + length]
    return Record(path, at, name, group, index, term, wall_ns, mono_ns, payload)


def _header(data: bytes, path: str) -> fmt.FileHeader:
    try:
        return fmt.decode_file_header(data, path)
    except LogCorrupt as error:
        raise LogCorrupt(path, error.offset, error.reason, ADVICE) from None
