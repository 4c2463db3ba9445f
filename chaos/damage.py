"""What damage does to the files of a node that is down: a bit flips, or the end of one is gone.

Where, is decided here, for simulated and for real disks; each changes its own files.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from chaos.faults import Damage
from cluster.log import LogCorrupt
from cluster.log import format as fmt

#: What is cut off the end of a log: more than a record or two, less than a sync writes under load.
CUT_BYTES_MIN = 100
CUT_BYTES_MAX = 900

Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Wound:
    """One change of one file."""

    path: str
    named: int  # the offset that the node should name
    at: int  # the byte of which a bit flips, or the first one that is gone
    bit: int | None  # None: it ends there

    @property
    def place(self) -> str:
        return f"{self.path}:{self.named}"


def choose(kind: Damage, logs: Files, snapshots: Files, dice: random.Random) -> Wound | None:
    """`logs`: segments from the oldest on. None: there is nothing yet to damage so."""
    match kind:
        case "log_bit":
            return _log_bit(logs, dice)
        case "snapshot_bit":
            return _snapshot_bit(snapshots, dice)
        case "log_end":
            return _log_end(logs, dice)


def _log_bit(logs: Files, dice: random.Random) -> Wound | None:
    """In a record after which the log says that it was safe: no crash can explain that."""
    safe: list[tuple[str, int, int]] = []
    for path, data in logs.items():
        spans, synced = _records(data, path)
        safe += [(path, start, end) for start, end in spans if end <= synced]
    if not safe:
        return None
    path, start, end = dice.choice(safe)
    return Wound(path, start, dice.randrange(start, end), dice.randrange(8))


def _records(data: bytes, path: str) -> tuple[list[tuple[int, int]], int]:
    """Where the records of a segment are, and up to where it says that it was synced."""
    spans: list[tuple[int, int]] = []
    synced = 0
    try:
        header = fmt.decode_file_header(data, path)
    except LogCorrupt:  # it was cut short by a full disk or a lack of power
        return spans, synced
    at = header.size
    while fmt.record_is_valid(data, at, header.salt):
        length, _, kind, *_ = fmt.RECORD.unpack_from(data, at)
        end = at + fmt.RECORD_HEADER + length
        spans.append((at, end))
        if kind == fmt.KIND_SYNCED:
            number, offset = fmt.decode_synced(data[at + fmt.RECORD_HEADER : end])
            synced = max(synced, offset if number == header.number else 0)
        at = end
    return spans, synced


def _snapshot_bit(snapshots: Files, dice: random.Random) -> Wound | None:
    found = [path for path, data in snapshots.items() if data]
    if not found:
        return None
    path = dice.choice(found)
    offset = dice.randrange(len(snapshots[path]))
    return Wound(path, offset, offset, dice.randrange(8))


def _log_end(logs: Files, dice: random.Random) -> Wound | None:
    """The newest segment that has anything in it loses its end."""
    for path, data in reversed([*logs.items()]):
        spans, _ = _records(data, path)
        room = len(data) - (spans[0][0] if spans else len(data))
        if room > CUT_BYTES_MIN:
            left = len(data) - dice.randint(CUT_BYTES_MIN, min(CUT_BYTES_MAX, room))
            return Wound(path, left, left, None)
    return None
