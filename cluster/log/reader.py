"""Reads the files of a log without a node: for `quorate log dump`, Spark and tests.

It never raises over damage: a record of kind `corrupt` says where and what, and reading goes on
behind it. A torn end of the last segment, which every crash may leave, is a record of kind `torn`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import cbor2

from cluster.log import format as fmt
from cluster.log.damage import describe, judge
from cluster.log.disk import RealDisk
from cluster.log.errors import LogCorrupt, UnsupportedFormat
from cluster.log.snapshots import Snapshot, decode_mark, decode_snapshot
from cluster.seams import Disk

CORRUPT: Final = "corrupt"
TORN: Final = "torn"


#: Hashes remembered per group; a truncate that goes back further leaves one link unverified.
CHAIN_WINDOW: Final = 200_000


#: Records found at a time.
RUN_RECORDS: Final = 1_000

READ_ONLY: Final = RealDisk(read_only=True)


class Record(NamedTuple):
    """One record. Of kinds `corrupt` and `torn` the payload is the reason, in UTF-8."""

    file: str
    offset: int
    kind: str
    group: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    term: int
    wall_ns: int
    mono_ns: int
    payload: bytes

    @property
    def hash(self) -> bytes | None:
        """The chain hash of an entry; None when it is not known, or this is no entry."""
        if self.kind not in BODIES or self.payload[: fmt.HASH_BYTES] == fmt.NO_HASH:
            return None
        return self.payload[: fmt.HASH_BYTES]

    @property
    def command(self) -> bytes | None:
        """The data of an entry, as given to the journal."""
        return self.payload[fmt.HASH_BYTES :] if self.kind in BODIES else None


DIGEST: Final = fmt.KIND_NAMES[fmt.KIND_DIGEST]
BODIES: Final = frozenset(fmt.KIND_NAMES[kind] for kind in fmt.BODY_KINDS)


class SegmentFile(NamedTuple):
    """A segment in a folder; `last` in a log folder is the one that a crash may have torn."""

    path: str
    number: int
    last: bool


def _damage(file: str, offset: int, kind: str, reason: str) -> Record:
    return Record(file, offset, kind, 0, 0, 0, 0, 0, reason.encode())


def segments(directory: str, *, disk: Disk | None = None) -> list[SegmentFile]:
    """The segments of a log folder or an archive, in order."""
    disk = disk or READ_ONLY
    named = [(fmt.segment_number(name), name) for name in disk.list_dir(directory)]
    found = sorted((number, name) for number, name in named if number is not None)
    paths = [(number, f"{directory}/{name}") for number, name in found]
    last = len(paths) - 1
    while last > 0 and _is_empty(disk, paths[last][1]):
        last -= 1
    return [SegmentFile(path, number, at >= last) for at, (number, path) in enumerate(paths)]


def _is_empty(disk: Disk, path: str) -> bool:
    header = read_header(path, disk=disk)
    return isinstance(header, Record) or header.size == _size(disk, path)


def _size(disk: Disk, path: str) -> int:
    file = disk.open(path)
    try:
        return file.size()
    finally:
        file.close()


def _content(disk: Disk, path: str, size: int | None = None) -> bytes:
    file = disk.open(path)
    try:
        return file.read(0, file.size() if size is None else size)
    finally:
        file.close()


def read_header(path: str, *, disk: Disk | None = None) -> fmt.FileHeader | Record:
    """The header of a segment, or what is wrong with it."""
    try:
        return fmt.decode_file_header(_content(disk or READ_ONLY, path, 4096), path)
    except (LogCorrupt, UnsupportedFormat) as error:
        return _damage(path, error.offset, CORRUPT, error.reason)


def records(path: str, *, last: bool = False, disk: Disk | None = None) -> Iterator[Record]:
    """The records of one segment, checksums verified; `last` allows it a torn end."""
    data = _content(disk or READ_ONLY, path)
    header = header_of(data, path, last=last)
    if isinstance(header, Record):
        yield header
        return
    unpack, names = fmt.RECORD.unpack_from, fmt.KIND_NAMES
    for run in runs(data, header, path, last=last, count=RUN_RECORDS):
        if isinstance(run, Record):
            yield run
            continue
        for at, stop in pairwise(run):
            _, _, kind, _, group, index, term, wall_ns, mono_ns = unpack(data, at)
            name = names.get(kind) or f"kind-{kind}"
            payload = data[at + fmt.RECORD_HEADER : stop]
            yield Record(path, at, name, group, index, term, wall_ns, mono_ns, payload)


def header_of(data: bytes, path: str, *, last: bool) -> fmt.FileHeader | Record:
    """The header at the begin of a segment, or what is wrong with it."""
    try:
        return fmt.decode_file_header(data, path)
    except (LogCorrupt, UnsupportedFormat) as error:
        unborn = last and fmt.MARKER not in data and len(data) <= 4096
        return _damage(path, error.offset, TORN if unborn else CORRUPT, error.reason)


def runs(
    data: bytes,
    header: fmt.FileHeader,
    path: str,
    *,
    last: bool,
    count: int,
    start: int | None = None,
) -> Iterator[list[int] | Record]:
    """A segment in pieces: where up to `count` sound records in a row start, and last where they
    end; between these what is damaged. Begins at the record at `start`, or the first one.
    """
    at = header.size if start is None else start
    while at < len(data):
        run = fmt.sound_records(data, at, header.salt, count)
        if len(run) > 1:
            yield run
        at = run[-1]
        if len(run) > count or at == len(data):
            continue
        reason = judge(data, at, header.salt, header.number) if last else describe(data, at)
        if reason is None:
            yield _damage(path, at, TORN, describe(data, at))
            return
        yield _damage(path, at, CORRUPT, reason)
        following = fmt.find_record(data, at + 1, header.salt)
        if following is None or following == -1:
            return
        at = following


class Chains:
    """Verifies the hash chain of every group, over records given in log order."""

    def __init__(self) -> None:
        self._hashes: dict[int, dict[int, bytes]] = {}

    def skip(self) -> None:
        """Segments were dropped here: what comes need not follow on what was."""
        self._hashes.clear()

    def check(self, record: Record) -> str | None:
        """What is wrong with this record's place in its chain, if anything."""
        kind, index = record.kind, record.index
        hashes = self._hashes.setdefault(record.group, {})
        if len(hashes) > CHAIN_WINDOW:
            for old in list(hashes)[: CHAIN_WINDOW // 2]:
                del hashes[old]
        if kind == "entry":
            digest = record.payload[: fmt.HASH_BYTES]
            previous = hashes.get(index - 1)
            hashes[index] = digest
            if previous is None:
                return None  # what was before it is dropped
            command = record.payload[fmt.HASH_BYTES :]
            return (
                None if fmt.chain(previous, record.term, command) == digest else "hash chain broken"
            )
        if kind == "snapshot":
            mark = decode_mark(index, record.term, record.payload)
            hashes[index] = mark.hash
        elif kind == "live-entry" and record.hash is not None:
            hashes[index] = record.hash
        elif kind == "group-removed":
            del self._hashes[record.group]
        return None


def read(directory: str, *, disk: Disk | None = None) -> Iterator[Record]:
    """All records of a folder in log order; checksums, chains, lengths and snapshots verified."""
    disk = disk or READ_ONLY
    files, chains = segments(directory, disk=disk), Chains()
    synced = dict[int, tuple[int, Record]]()
    ends = dict[int, tuple[str, int]]()
    for file in files:
        if file.number - 1 not in ends:
            chains.skip()
        end = 0
        for record in records(file.path, last=file.last, disk=disk):
            yield record
            if record.kind == "synced":
                number, offset = fmt.decode_synced(record.payload)
                synced[number] = (max(offset, synced.get(number, (0, record))[0]), record)
            if record.kind not in (CORRUPT, TORN):
                end = record.offset + fmt.RECORD_HEADER + len(record.payload)
                if (wrong := chains.check(record)) is not None:
                    yield _damage(record.file, record.offset, CORRUPT, wrong)
        ends[file.number] = (file.path, end)
    for number, (offset, _) in synced.items():
        path, end = ends.get(number, ("", offset))
        if 0 < end < offset:
            yield _damage(path, end, CORRUPT, f"synced data is missing: it reached to {offset}")
    if disk.exists(f"{directory}/snapshots"):
        for name in disk.list_dir(f"{directory}/snapshots"):
            if name.endswith(".snap"):
                found = read_snapshot(f"{directory}/snapshots/{name}", disk=disk)
                if isinstance(found, Record):
                    yield found


def read_snapshot(path: str, *, disk: Disk | None = None) -> tuple[int, Snapshot] | Record:
    """Group and snapshot, or what is wrong with the file."""
    try:
        group, snapshot, _ = decode_snapshot(_content(disk or READ_ONLY, path), path)
    except (LogCorrupt, UnsupportedFormat) as error:
        return _damage(path, error.offset, CORRUPT, error.reason)
    return group, snapshot


def detail(record: Record) -> object:
    """The payload of a record that is no entry, decoded if it is CBOR."""
    if record.kind in (CORRUPT, TORN):
        return record.payload.decode()
    return decoded(record.kind, record.payload)


def decoded(kind: str, payload: bytes) -> object:
    """The payload of a sound record that is no entry, decoded if it is CBOR."""
    if not payload or kind in BODIES:
        return None
    if kind == DIGEST:
        return payload  # every other one looks like CBOR by chance
    try:
        return cbor2.loads(payload)
    except Exception:  # noqa: BLE001  # whatever the bytes of a note are, reading goes on
        return payload


def name_of(path: str) -> str:
    return os.path.basename(path)
