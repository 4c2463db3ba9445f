"""What happens to the disk of a machine whose process is down: it is replaced, copied, put back, or
bytes on it change.
"""

from __future__ import annotations

import random
from copy import deepcopy

from chaos.faults import Damage
from chaos.simulator.disk import Directory, Inode, Platter
from cluster.log import format as fmt
from cluster.log.damage import decode_synced

#: What is cut off the end of a log: more than a record or two, less than a sync writes under load.
CUT_BYTES_MIN = 100
CUT_BYTES_MAX = 900

Directories = dict[str, Directory]


def wipe(platter: Platter) -> None:
    platter.directories = {"": Directory()}


def copy(platter: Platter) -> Directories:
    """As `cp -a` after the process ended: what the page cache holds."""
    _write_back(platter)
    return deepcopy(platter.directories)


def restore(platter: Platter, kept: Directories) -> None:
    platter.directories = deepcopy(kept)


def damage(platter: Platter, folder: str, kind: Damage, dice: random.Random) -> str | None:
    """Where; None: there was nothing to damage."""
    _write_back(platter)
    match kind:
        case "log_bit":
            return _flip_log_bit(_files(platter, folder, ".log"), dice)
        case "snapshot_bit":
            return _flip_snapshot_bit(_files(platter, f"{folder}/snapshots", ".snap"), dice)
        case "log_end":
            return _cut_log_end(_files(platter, folder, ".log"), dice)


def _write_back(platter: Platter) -> None:
    """The kernel outlived the process: all of it reaches the disk sooner or later."""
    for directory in platter.directories.values():
        directory.make_durable(directory.changes)
        for inode in directory.names.values():
            if inode is not None:
                inode.make_durable(inode.changes)


def _files(platter: Platter, folder: str, suffix: str) -> dict[str, Inode]:
    directory = platter.directories.get(folder, Directory())
    return {
        f"{folder}/{name}": inode
        for name, inode in sorted(directory.names.items())
        if inode is not None and name.endswith(suffix)
    }


def _flip(inode: Inode, offset: int, dice: random.Random) -> None:
    inode.cached[offset] ^= 1 << dice.randrange(8)
    inode.durable[:] = inode.cached


def _flip_log_bit(segments: dict[str, Inode], dice: random.Random) -> str | None:
    """In a record after which the log says that it was safe: no crash can explain that."""
    safe: list[tuple[str, int, int]] = []
    for path, inode in segments.items():
        spans, synced = _records(bytes(inode.cached), path)
        safe += [(path, start, end) for start, end in spans if end <= synced]
    if not safe:
        return None
    path, start, end = dice.choice(safe)
    _flip(segments[path], dice.randrange(start, end), dice)
    return f"{path}:{start}"


def _records(data: bytes, path: str) -> tuple[list[tuple[int, int]], int]:
    """Where the records of a segment are, and up to where it says that it was synced."""
    spans: list[tuple[int, int]] = []
    synced = 0
    if len(data) < fmt.FILE_HEADER_MIN:
        return spans, synced
    header = fmt.decode_file_header(data, path)
    at = header.size
    while fmt.record_is_valid(data, at, header.salt):
        length, _, kind, *_ = fmt.RECORD.unpack_from(data, at)
        end = at + fmt.RECORD_HEADER + length
        spans.append((at, end))
        if kind == fmt.KIND_SYNCED:
            number, offset = decode_synced(data[at + fmt.RECORD_HEADER : end])
            synced = max(synced, offset if number == header.number else 0)
        at = end
    return spans, synced


def _flip_snapshot_bit(snapshots: dict[str, Inode], dice: random.Random) -> str | None:
    found = [path for path, inode in snapshots.items() if inode.cached]
    if not found:
        return None
    path = dice.choice(found)
    offset = dice.randrange(len(snapshots[path].cached))
    _flip(snapshots[path], offset, dice)
    return f"{path}:{offset}"


def _cut_log_end(segments: dict[str, Inode], dice: random.Random) -> str | None:
    for path, inode in reversed(segments.items()):
        spans, _ = _records(bytes(inode.cached), path)
        room = len(inode.cached) - (spans[0][0] if spans else len(inode.cached))
        if room > CUT_BYTES_MIN:
            left = len(inode.cached) - dice.randint(CUT_BYTES_MIN, min(CUT_BYTES_MAX, room))
            inode.truncate(left)
            inode.make_durable(inode.changes)
            return f"{path}:{left}"
    return None
