"""Snapshot files: `GROUP-INDEX.snap`, complete and synced before the log speaks of them."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import cbor2

from cluster.log import format as fmt
from cluster.log.errors import LogCorrupt, SnapshotRefused, UnsupportedFormat
from cluster.log.wal import Wal

SNAPSHOT_MAGIC: Final = b"QUORSNP\n"
SNAPSHOT_VERSION: Final = 1
#: Kept per group: the current one, and the one before in case the current one's file decays.
SNAPSHOTS_KEPT: Final = 2
#: A snapshot is written where it leaves so much free: the log itself must go on.
SPARE_BYTES: Final = 256 << 10

#: magic, version, reserved, crc32c, group, reserved, index, term, hash, wall ns, ranges, data
#: length
_HEADER: Final = struct.Struct("<8sHHIIIQQ16sQQQ")
_RANGE: Final = struct.Struct("<QQ")
_CRC_AT: Final = 12

Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a group's machine after `index`, and which entries up to there still hold needed
    bodies.
    """

    index: int
    term: int
    hash: bytes
    data: bytes
    live: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SnapshotMark:
    """What a snapshot mark says: which snapshot counts. Index 1 means that there is none."""

    index: int
    term: int
    hash: bytes
    crc: int
    flags: int = 0

    @property
    def payload(self) -> bytes:
        return cbor2.dumps([self.flags, self.hash, self.crc])

    @property
    def installed(self) -> bool:
        return bool(self.flags & fmt.MARK_INSTALLED)

    def repeated(self) -> SnapshotMark:
        """The same, written again later: it must not void what came since."""
        return SnapshotMark(
            self.index, self.term, self.hash, self.crc, self.flags & ~fmt.MARK_RESETS
        )


BIRTH: Final = SnapshotMark(1, 0, fmt.NO_HASH, 0)


def decode_mark(index: int, term: int, payload: bytes) -> SnapshotMark:
    flags, digest, crc = cbor2.loads(payload)
    return SnapshotMark(index, term, digest, crc, flags)


def encode_snapshot(group: int, snapshot: Snapshot, wall_ns: int) -> tuple[bytes, int]:
    """The file, and its checksum."""
    body = b"".join(_RANGE.pack(*span) for span in snapshot.live) + snapshot.data
    fields = (
        group,
        0,
        snapshot.index,
        snapshot.term,
        snapshot.hash,
        wall_ns,
        len(snapshot.live),
        len(snapshot.data),
    )

    def header(crc: int) -> bytes:
        return _HEADER.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, 0, crc, *fields)

    crc = fmt.extend(fmt.checksum(header(0)), body)
    return header(crc) + body, crc


def decode_snapshot(data: bytes, file: str) -> tuple[int, Snapshot, int]:
    """(group, snapshot, checksum); raises LogCorrupt or UnsupportedFormat."""
    if len(data) < _HEADER.size:
        raise LogCorrupt(file, 0, "the snapshot is cut short")
    magic, version, _, crc, group, _, index, term, digest, _, ranges, size = _HEADER.unpack_from(
        data
    )
    if magic != SNAPSHOT_MAGIC:
        raise LogCorrupt(file, 0, "not a snapshot: wrong magic bytes")
    if fmt.checksum(data[:_CRC_AT] + bytes(4) + data[_CRC_AT + 4 :]) != crc:
        raise LogCorrupt(file, 0, "the snapshot's checksum is wrong")
    if version > SNAPSHOT_VERSION:
        raise UnsupportedFormat(
            file, 8, f"snapshot format {version}, this release knows up to {SNAPSHOT_VERSION}"
        )
    start = _HEADER.size + ranges * _RANGE.size
    if start + size != len(data):
        raise LogCorrupt(file, 0, "the snapshot's length is wrong")
    live = [(first, last) for first, last in _RANGE.iter_unpack(data[_HEADER.size : start])]
    return group, Snapshot(index, term, digest, data[start:], live), crc


def written_ns(data: bytes) -> int:
    """By the wall clock of the node that wrote this snapshot."""
    return _HEADER.unpack_from(data)[9]


class SnapshotStore:
    """The folder of snapshots of a node."""

    def __init__(self, wal: Wal) -> None:
        self.directory = f"{wal.directory}/snapshots"
        #: When the newest snapshot of each group was written here, as far as one was seen.
        self.written_ns: dict[int, int] = {}
        #: Size of each group's newest one, as far as it was seen.
        self.bytes: dict[int, int] = {}
        self.kept = SNAPSHOTS_KEPT
        self._wal = wal

    def path(self, group: int, index: int) -> str:
        return f"{self.directory}/{group}-{index}.snap"

    async def write(self, group: int, snapshot: Snapshot) -> int:
        """On stable storage under its final name when this returns; its checksum. SnapshotRefused:
        there is no room for it.
        """
        wall_ns = self._wal.clock.wall_ns()
        data, crc = encode_snapshot(group, snapshot, wall_ns)
        path, disk = self.path(group, snapshot.index), self._wal.disk
        no_room = SnapshotRefused(f"group {group}: no room for {len(data)} bytes")
        if disk.free_bytes(self.directory) < len(data) + SPARE_BYTES:
            raise no_room
        if disk.exists(path):
            # A former life of the group left it: its removal must be safe before the file is
            # replaced.
            self._wal.write()
            await self._wal.sync()
        try:
            if disk.exists(path + ".tmp"):
                disk.remove(path + ".tmp")
            file = disk.open(path + ".tmp", create=True)
            try:
                try:
                    file.append([data])
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        raise
                    disk.remove(path + ".tmp")
                    raise no_room from error
                await file.sync()
            finally:
                file.close()
            disk.rename(path + ".tmp", path)
            await disk.sync_dir(self.directory)
        except OSError as error:
            raise self._wal.fail("snapshot", path, error) from error
        self.written_ns[group] = wall_ns
        self.bytes[group] = len(data)
        return crc

    def load(self, group: int, index: int, crc: int | None = None) -> tuple[Snapshot, int]:
        """And its checksum. Raises LogCorrupt when it is missing, damaged or not the one with that
        checksum.
        """
        path = self.path(group, index)
        try:
            file = self._wal.disk.open(path)
        except FileNotFoundError as error:
            raise LogCorrupt(path, 0, "the snapshot is missing") from error
        try:
            data = file.read(0, file.size())
        finally:
            file.close()
        its_group, snapshot, its_crc = decode_snapshot(data, path)
        if its_group != group or snapshot.index != index or crc not in (None, its_crc):
            raise LogCorrupt(path, 0, "the file holds another snapshot than the log says")
        self.bytes[group] = len(data)
        self.written_ns[group] = max(written_ns(data), self.written_ns.get(group, 0))
        return snapshot, its_crc

    def indexes(self) -> dict[int, list[int]]:
        """Of the snapshots in the folder, by group, ascending."""
        found = dict[int, list[int]]()
        for name in self._wal.disk.list_dir(self.directory):
            group, _, index = name.removesuffix(".snap").partition("-")
            if name.endswith(".snap") and group.isdigit() and index.isdigit():
                found.setdefault(int(group), []).append(int(index))
        return {group: sorted(indexes) for group, indexes in found.items()}

    def set_aside(self, group: int, index: int) -> None:
        """Keep a damaged one for people to look at; it is a snapshot no more."""
        path = self.path(group, index)
        if self._wal.disk.exists(path):
            self._wal.disk.rename(path, path + ".corrupt")

    def prune(self, marks: dict[int, SnapshotMark]) -> None:
        """Remove half-written files, and the snapshots that no mark speaks of."""
        for name in self._wal.disk.list_dir(self.directory):
            if name.endswith(".tmp"):
                self._wal.disk.remove(f"{self.directory}/{name}")
        for group, indexes in self.indexes().items():
            self._prune(group, marks.get(group, BIRTH), indexes)

    def prune_group(self, group: int, mark: SnapshotMark) -> None:
        """Keep the marked snapshot of the group and the one before it."""
        self._prune(group, mark, self.indexes().get(group, []))

    def _prune(self, group: int, mark: SnapshotMark, indexes: list[int]) -> None:
        kept = [index for index in indexes if index <= mark.index][-self.kept :]
        for index in indexes:
            if index not in kept:
                self._wal.disk.remove(self.path(group, index))
