"""Is a bad record the torn end of a crash, or damage to what was safely stored?

A crash loses bytes that were never synced: the file ends early, or sectors in the unsynced part
read as zeros. Nothing else can happen to a file that only grows, so everything else is corruption.
"""

from __future__ import annotations

import struct

from cluster.log.format import (
    KIND_SYNCED,
    MARKER,
    MARKER_AT,
    RECORD,
    RECORD_HEADER,
    decode_synced,
    extend,
    find_record,
    has_hole,
    record_is_valid,
)


def describe(data: bytes, at: int) -> str:
    """What is wrong with the record at `at`, for people."""
    if at + RECORD_HEADER > len(data):
        return "a record header is cut short"
    length = int.from_bytes(data[at : at + 4], "little")
    if data[at + MARKER_AT : at + MARKER_AT + 3] != MARKER:
        return "no record starts here"
    if at + RECORD_HEADER + length > len(data):
        return f"a record of {length} bytes is cut short"
    return "the record's checksum is wrong"


def judge(data: bytes, at: int, salt: int, number: int) -> str | None:
    """None: the last segment's bytes from `at` on are a torn tail. Otherwise why they are
    corruption.
    """
    what = describe(data, at)
    following = find_record(data, at + 1, salt)
    if following == -1:
        return f"{what}, and what follows cannot be searched"
    if following is not None:
        if _known_synced(data, following, salt, number) > at:
            return f"{what}, in data that was synced"
        if not has_hole(data, at, following):
            return f"{what}, but a valid record follows at {following}"
        return None
    if at + RECORD_HEADER > len(data):
        return None
    length = int.from_bytes(data[at : at + 4], "little")
    if at + RECORD_HEADER + length <= len(data):
        return None if has_hole(data, at, len(data)) else what
    if _valid_but_for_length(data, at, salt):
        return "the length of the last record is wrong"
    return None


def _known_synced(data: bytes, at: int, salt: int, number: int) -> int:
    """The furthest offset of this segment that a valid record from `at` on says is synced."""
    known = 0
    while True:
        if not record_is_valid(data, at, salt):
            following = find_record(data, at + 1, salt)
            if following is None or following == -1:
                return known
            at = following
        length, _, kind, *_ = RECORD.unpack_from(data, at)
        stop = at + RECORD_HEADER + length
        if kind == KIND_SYNCED:
            segment, offset = decode_synced(data[at + RECORD_HEADER : stop])
            known = max(known, offset if segment == number else 0)
        at = stop


def _valid_but_for_length(data: bytes, at: int, salt: int) -> bool:
    length = struct.pack("<I", len(data) - at - RECORD_HEADER)
    crc = int.from_bytes(data[at + 4 : at + 8], "little")
    return extend(extend(salt, length), data[at + 8 :]) == crc
