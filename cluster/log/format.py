"""The bytes of a segment: file header, record header, kinds and checksums (docs/log-format.md)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import cbor2
import google_crc32c

from cluster.codec.entries import written_under
from cluster.log.errors import LogCorrupt, UnsupportedFormat

FORMAT_VERSION: Final = 1

SEGMENT_MAGIC: Final = b"QUORLOG\n"
SEGMENT_SUFFIX: Final = ".log"
#: Of what is beside a segment: `cluster.log.heads`.
HEADS_SUFFIX: Final = ".idx"
#: Behind the name of a file that is not complete yet.
UNFINISHED_SUFFIX: Final = ".tmp"
_SEGMENT_NAME: Final = re.compile(r"(\d{12})(-\d{20})?\.log")

#: magic, version, header length, crc32c, number, wall ns, mono ns, boot id, node length, cluster
#: length
_FILE_HEADER: Final = struct.Struct("<8sHHIQQQ16sHH")
FILE_HEADER_MIN: Final = _FILE_HEADER.size
_CRC_AT: Final = 12

#: length, crc32c, kind, marker, group, index, term, wall ns, mono ns
RECORD: Final = struct.Struct("<IIB3sIQQQQ")
RECORD_HEADER: Final = RECORD.size
#: The same without the checksum: what the checksum covers besides the payload.
COVERED: Final = struct.Struct("<IB3sIQQQQ")
#: length, crc32c, marker
_START: Final = struct.Struct("<IIx3s")
#: In every record header, so that a reader finds the next record behind a damaged one. 0xf5 is in
#: no UTF-8 text.
MARKER: Final = b"\xf5Qr"
KIND_AT: Final = 8
MARKER_AT: Final = 9

HASH_BYTES: Final = 16
#: The hash before the first entry; as the hash of a live entry it means "not known".
NO_HASH: Final = bytes(HASH_BYTES)

#: Of a longer entry the chain has length and checksum in the place of the bytes: hashing them
#: was a fifth of what a body of 64 KiB cost a node. So in entries of this machine version on.
CHAINED_WHOLE_BYTES_MAX: Final = 4096
CHAINS_SUMS_SINCE: Final = 3

#: The first byte of an entry's data: commands; a no-op, which also stands at a base, whose own
#: entry may be gone; and one that says who the members are.
REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"
MEMBERSHIP: Final = b"\x02"

KIND_ENTRY: Final = 1
KIND_HARD_STATE: Final = 2
KIND_COMMIT: Final = 3
KIND_TRUNCATE: Final = 4
KIND_SNAPSHOT: Final = 5
KIND_GROUP_CREATED: Final = 6
KIND_GROUP_REMOVED: Final = 7
KIND_LIVE: Final = 8
KIND_INSTALLED: Final = 9
KIND_SYNCED: Final = 10
KIND_FORCED: Final = 11
#: From here on: kinds that replication does not need. A reader skips those it does not know.
KIND_NOTE: Final = 32
KIND_ROLE: Final = 32
KIND_LINK_UP: Final = 33
KIND_LINK_DOWN: Final = 34
KIND_ROUND: Final = 35
KIND_CLOCK: Final = 36
KIND_DIGEST: Final = 37
KIND_GIVEN_UP: Final = 38
KIND_BACKUP: Final = 39
KIND_STOPPED: Final = 40
KIND_STARTED: Final = 41
KIND_SETTINGS: Final = 42
KIND_ALARM: Final = 43
KIND_PUBLISHERS: Final = 44
KIND_FAILED: Final = 45
KIND_ARCHIVE: Final = 46
KIND_STALL: Final = 47
KIND_SKIPPED: Final = 48
#: Read by replication, too; a note, so that releases that do not know it pass over it.
KIND_DIVERGED: Final = 49

KIND_NAMES: Final = {
    KIND_ENTRY: "entry",
    KIND_HARD_STATE: "hard-state",
    KIND_COMMIT: "commit",
    KIND_TRUNCATE: "truncate",
    KIND_SNAPSHOT: "snapshot",
    KIND_GROUP_CREATED: "group-created",
    KIND_GROUP_REMOVED: "group-removed",
    KIND_LIVE: "live-entry",
    KIND_INSTALLED: "installed-entry",
    KIND_SYNCED: "synced",
    KIND_FORCED: "forced-members",
    KIND_ROLE: "role",
    KIND_LINK_UP: "link-up",
    KIND_LINK_DOWN: "link-down",
    KIND_ROUND: "round",
    KIND_CLOCK: "clock",
    KIND_DIGEST: "digest",
    KIND_GIVEN_UP: "given-up",
    KIND_BACKUP: "backup",
    KIND_STOPPED: "stopped",
    KIND_STARTED: "started",
    KIND_SETTINGS: "settings",
    KIND_ALARM: "alarm",
    KIND_PUBLISHERS: "publishers",
    KIND_FAILED: "failed",
    KIND_ARCHIVE: "archive",
    KIND_STALL: "stall",
    KIND_SKIPPED: "skipped",
    KIND_DIVERGED: "diverged",
}
#: Kinds whose payload is a chain hash followed by an entry's data.
BODY_KINDS: Final = frozenset({KIND_ENTRY, KIND_LIVE, KIND_INSTALLED})

#: Of a snapshot mark: everything above it is void; no older snapshot may stand in for it.
MARK_RESETS: Final = 1
MARK_INSTALLED: Final = 2

#: How much checksumming the search behind a damaged record may cost.
SEARCH_BYTES_MAX: Final = 8 << 30
SECTOR: Final = 512

#: (checksum so far, bytes) -> checksum; takes nothing but bytes, and a kilobyte in 0.1 us.
extend: Callable[[int, bytes], int] = google_crc32c.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_PACK_TERM: Final = struct.Struct("<Q").pack
_PACK_SUM: Final = struct.Struct("<QI").pack


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Whose log it is."""

    node: str
    cluster: str


@dataclass(frozen=True, slots=True)
class FileHeader:
    """First bytes of a segment. Monotonic times compare only between segments of one boot."""

    version: int
    number: int
    wall_ns: int
    mono_ns: int
    boot: bytes
    identity: LogIdentity
    size: int  # bytes of the header itself: the first record's offset
    salt: int  # the header's checksum; every record's checksum starts from it


def is_state(kind: int) -> bool:
    """Of no entry, and read by replication."""
    return kind not in BODY_KINDS and (kind < KIND_NOTE or kind == KIND_DIVERGED)


def segment_name(number: int) -> str:
    return f"{number:012d}{SEGMENT_SUFFIX}"


def archive_name(number: int, created_ns: int) -> str:
    """In an archive numbers may repeat: a node rebuilt from its peers starts at 1 again."""
    return f"{number:012d}-{created_ns:020d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int | None:
    """Of a segment in a log folder or an archive; None for any other file."""
    found = _SEGMENT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def checksum(data: bytes) -> int:
    return extend(0, data)


def chain(previous: bytes, term: int, data: bytes) -> bytes:
    """Hash of an entry and of all before it: equal hashes, equal logs."""
    state = blake2b(previous + _PACK_TERM(term), digest_size=HASH_BYTES)
    large = len(data) > CHAINED_WHOLE_BYTES_MAX
    if large and data[:1] == REGULAR and written_under(data, 1) >= CHAINS_SUMS_SINCE:
        state.update(_PACK_SUM(len(data), extend(0, bytes(data))))
    else:
        state.update(data)
    return state.digest()


def encode_file_header(
    number: int, wall_ns: int, mono_ns: int, boot: bytes, identity: LogIdentity
) -> bytes:
    node, cluster = identity.node.encode(), identity.cluster.encode()
    size = -(-(FILE_HEADER_MIN + len(node) + len(cluster)) // 16) * 16
    fields = (number, wall_ns, mono_ns, boot, len(node), len(cluster))

    def packed(crc: int) -> bytes:
        head = _FILE_HEADER.pack(SEGMENT_MAGIC, FORMAT_VERSION, size, crc, *fields)
        return (head + node + cluster).ljust(size, b"\0")

    return packed(checksum(packed(0)))


def decode_file_header(data: bytes, file: str) -> FileHeader:
    """Raises LogCorrupt or UnsupportedFormat. Magic, version, length and checksum never move
    between versions.
    """
    if len(data) < FILE_HEADER_MIN:
        raise LogCorrupt(file, 0, "the file header is cut short")
    magic, version, size, crc, number, wall_ns, mono_ns, boot, node, cluster = (
        _FILE_HEADER.unpack_from(data)
    )
    if magic != SEGMENT_MAGIC:
        raise LogCorrupt(file, 0, "not a log segment: wrong magic bytes")
    if not FILE_HEADER_MIN <= size <= len(data):
        raise LogCorrupt(file, 10, "the file header's length is wrong")
    if checksum(data[:_CRC_AT] + bytes(4) + data[_CRC_AT + 4 : size]) != crc:
        raise LogCorrupt(file, 0, "the file header's checksum is wrong")
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            file, 8, f"format {version}, this release knows up to {FORMAT_VERSION}"
        )
    names = data[FILE_HEADER_MIN : FILE_HEADER_MIN + node + cluster]
    identity = LogIdentity(names[:node].decode(), names[node:].decode())
    return FileHeader(version, number, wall_ns, mono_ns, boot, identity, size, crc)


def encode_record(
    salt: int,
    kind: int,
    group: int,
    index: int,
    term: int,
    wall_ns: int,
    mono_ns: int,
    payload: bytes,
) -> bytes:
    covered = COVERED.pack(len(payload), kind, MARKER, group, index, term, wall_ns, mono_ns)
    crc = extend(extend(salt, covered), payload)
    return covered[:4] + crc.to_bytes(4, "little") + covered[4:] + payload


def covered_of(record: bytes) -> bytes:
    """Its header without the checksum."""
    return record[:4] + record[8:RECORD_HEADER]


def record_is_valid(data: bytes, at: int, salt: int) -> bool:
    """Whether a whole, undamaged record starts at `at`."""
    if at + RECORD_HEADER > len(data) or data[at + MARKER_AT : at + MARKER_AT + 3] != MARKER:
        return False
    length, crc = struct.unpack_from("<II", data, at)
    stop = at + RECORD_HEADER + length
    return stop <= len(data) and extend(extend(salt, data[at : at + 4]), data[at + 8 : stop]) == crc


def sound_records(data: bytes, at: int, salt: int, count: int) -> list[int]:
    """Where the records from `at` on start, up to `count` of them, and last where they end: at the
    first one that is not valid, if not before.
    """
    starts, end = [at], len(data)
    add, unpack, marker, header = starts.append, _START.unpack_from, MARKER, RECORD_HEADER
    covered = dict[int, int]()  # by length: the checksum begins with it
    for _ in range(count):
        if at + header > end:
            break
        length, crc, found = unpack(data, at)
        stop = at + header + length
        if found != marker or stop > end:
            break
        begun = covered.get(length)
        if begun is None:
            begun = covered[length] = extend(salt, data[at : at + 4])
        if extend(begun, data[at + 8 : stop]) != crc:
            break
        at = stop
        add(at)
    return starts


def find_record(data: bytes, start: int, salt: int) -> int | None:
    """Offset of the first valid record at or after `start`; -1 when the search became too
    expensive.
    """
    spent = 0
    found = data.find(MARKER, start + MARKER_AT)
    while found != -1:
        at = found - MARKER_AT
        if record_is_valid(data, at, salt):
            return at
        spent += min(int.from_bytes(data[at : at + 4], "little"), len(data) - at)
        if spent > SEARCH_BYTES_MAX:
            return -1
        found = data.find(MARKER, found + 1)
    return None


def has_hole(data: bytes, start: int, stop: int) -> bool:
    """Whether a sector in there was never written: it reads as zeros."""
    at = start
    while at < stop:
        end = min(at - at % SECTOR + SECTOR, stop)
        if data.count(0, at, end) == end - at:
            return True
        at = end
    return False


def encode_synced(number: int, offset: int) -> bytes:
    """What a record of this kind says: the segment is on disk up to there."""
    return cbor2.dumps([number, offset])


def decode_synced(payload: bytes) -> tuple[int, int]:
    number, offset = cbor2.loads(payload)
    return number, offset
