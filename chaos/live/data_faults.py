"""What decay does to the files of a node that is down: a bit flips, or the end of one is gone."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from chaos.faults import Damage
from cluster.log.damage import decode_synced
from cluster.log.format import FILE_HEADER_MIN, RECORD_HEADER
from cluster.log.reader import records, segments

#: What is cut off: more than a record or two, less than a sync writes under load.
CUT_BYTES_MIN = 100
CUT_BYTES_MAX = 900


def damage(data: Path, kind: Damage, dice: random.Random) -> str | None:
    """Damage one file of this data folder. "FILE:OFFSET", where the node should see it; None: it
    has nothing yet that could be damaged so.
    """
    if not data.is_dir():
        return None
    match kind:
        case "log_bit":
            return _flip_log_bit(data, dice)
        case "log_end":
            return _cut_log_end(data, dice)
        case "snapshot_bit":
            return _flip_snapshot_bit(data / "snapshots", dice)


def _flip_log_bit(log: Path, dice: random.Random) -> str | None:
    """A bit of a record after which the log says that it was safe: no crash can explain that."""
    found: list[_Span] = []
    synced: dict[str, int] = {}
    paths = {segment.number: segment.path for segment in segments(str(log))}
    for segment in segments(str(log)):
        for record in records(segment.path, last=segment.last):
            if record.kind == "synced":
                number, offset = decode_synced(record.payload)
                if number in paths:
                    synced[paths[number]] = max(synced.get(paths[number], 0), offset)
            end = record.offset + RECORD_HEADER + len(record.payload)
            found.append(_Span(record.file, record.offset, end, record.kind))
    safe = [each for each in found if each.end <= synced.get(each.file, 0)]
    if not safe:
        return None
    record = dice.choice([each for each in safe if each.kind == "entry"] or safe)
    _flip(Path(record.file), dice.randrange(record.offset, record.end), dice)
    return f"{record.file}:{record.offset}"


class _Span(NamedTuple):
    """Where a record is."""

    file: str
    offset: int
    end: int
    kind: str


def _flip_snapshot_bit(folder: Path, dice: random.Random) -> str | None:
    """A bit in the newest snapshot of one group."""
    newest: dict[str, tuple[int, Path]] = {}
    for file in _files(folder, "*.snap"):
        group, _, index = file.stem.partition("-")
        newest[group] = max(newest.get(group, (0, file)), (int(index), file))
    if not newest:
        return None
    _, file = newest[dice.choice(sorted(newest))]
    size = file.stat().st_size
    offset = dice.randrange(size // 4, size - size // 4)
    _flip(file, offset, dice)
    return f"{file}:{offset}"


def _cut_log_end(log: Path, dice: random.Random) -> str | None:
    """The newest segment that has anything in it loses its end."""
    for segment in reversed(segments(str(log))):
        size = os.path.getsize(segment.path)
        first = min((record.offset for record in records(segment.path)), default=FILE_HEADER_MIN)
        if size - first > CUT_BYTES_MIN:
            left = size - dice.randint(CUT_BYTES_MIN, min(CUT_BYTES_MAX, size - first))
            os.truncate(segment.path, left)
            return f"{segment.path}:{left}"
    return None


def _files(folder: Path, pattern: str) -> Iterable[Path]:
    return sorted(folder.glob(pattern)) if folder.is_dir() else ()


def _flip(file: Path, offset: int, dice: random.Random) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1 << dice.randrange(8)]))
