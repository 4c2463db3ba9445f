"""From files to state, before the node takes part in anything: every record is read and verified.
Of large sealed segments only their heads are (`cluster.log.heads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.log import format as fmt
from cluster.log.damage import describe, judge
from cluster.log.errors import LogCorrupt, UnsupportedFormat, WrongIdentity
from cluster.log.heads import read_heads, tag_bytes, tag_of
from cluster.log.index import Sparse, Tail
from cluster.log.replay import Replay
from cluster.log.segment import Segment
from cluster.log.snapshots import BIRTH, Snapshot, SnapshotMark, SnapshotStore
from cluster.log.wal import Wal
from cluster.seams import File

#: No file header is longer: names of node and cluster are short.
FILE_HEADER_MAX = 4096


@dataclass(slots=True)
class Recovered:
    """What the folder holds."""

    replays: dict[int, Replay] = field(default_factory=dict[int, Replay])
    next_number: int = 1
    records: int = 0
    cut_bytes: int = 0  # of a torn tail
    synced: dict[int, int] = field(
        default_factory=dict[int, int]
    )  # by segment: how far it is known synced
    forced: set[int] = field(default_factory=set[int])  # groups with a record of forced members
    diverged: set[int] = field(default_factory=set[int])  # the same of this


@dataclass(slots=True)
class RecoveryProgress:
    """How far the reading has come, for those that wait."""

    segments: int = 0
    read: int = 0


async def recover(
    wal: Wal, identity: fmt.LogIdentity, progress: RecoveryProgress | None = None
) -> Recovered:
    """Read all segments into `wal.segments`. None is changed on disk unless all of them are good;
    their heads are no part of them.
    """
    disk, found = wal.disk, Recovered()
    names = [(fmt.segment_number(name), name) for name in disk.list_dir(wal.directory)]
    numbers = sorted(number for number, _ in names if number is not None)
    unfinished = list[str]()
    copies = [f"{wal.directory}/{name}" for _, name in names if _is_left_over(name, set(numbers))]
    for number in numbers:
        path = f"{wal.directory}/{fmt.segment_name(number)}"
        file = disk.open(path)
        header = _header(file, path, last=number == numbers[-1])
        if header is None:
            unfinished.append(path)
            continue
        if header.identity != identity:
            its = header.identity
            raise WrongIdentity(
                path,
                f"it belongs to node {its.node!r} of cluster {its.cluster!r},"
                f" this is node {identity.node!r} of cluster {identity.cluster!r}",
            )
        if header.number != number:
            raise LogCorrupt(path, 16, f"the file says it is segment {header.number}")
        size = file.size()
        wal.segments[number] = Segment(
            number, path, file, header.salt, header.size, size, size, header.wall_ns, sealed=True
        )
        if size == header.size:
            unfinished.append(path)
        else:
            unfinished.clear()
    last = max((n for n, s in wal.segments.items() if s.path not in unfinished), default=0)
    if progress is not None:
        progress.segments = len(wal.segments)
    for number, segment in wal.segments.items():
        if progress is not None:
            await asyncio.sleep(0)
        known = number < last and read_heads(disk, segment)
        if not known:
            found.cut_bytes += _verify(segment, last=number == last)
        _replay(segment, found)
        if known or number > last:
            segment.heads, segment.tags = bytearray(), bytearray()
        elif number < last:
            wal.keep_heads(segment)
        if progress is not None:
            progress.read += 1
    for number, offset in found.synced.items():
        segment = wal.segments.get(number)
        if segment is not None and segment.size < offset:
            raise LogCorrupt(
                segment.path, segment.size, f"synced data is missing: it reached to {offset}"
            )
    found.next_number = max(numbers, default=0) + 1
    await _repair(wal, found, last, unfinished + copies)
    return found


def _is_left_over(name: str, numbers: set[int | None]) -> bool:
    """Of a segment that the cleaner was writing, or of one that is gone."""
    base = name.removesuffix(fmt.UNFINISHED_SUFFIX)
    if base != name:
        return fmt.segment_number(base) is not None
    base = name.removesuffix(fmt.HEADS_SUFFIX)
    number = fmt.segment_number(base + fmt.SEGMENT_SUFFIX) if base != name else None
    return number is not None and number not in numbers


def _header(file: File, path: str, *, last: bool) -> fmt.FileHeader | None:
    """None: the file was being created when the power failed."""
    data = file.read(0, FILE_HEADER_MAX)
    try:
        return fmt.decode_file_header(data, path)
    except LogCorrupt:
        size = int.from_bytes(data[10:12], "little")
        torn = (
            len(data) < fmt.FILE_HEADER_MIN or size > len(data) or fmt.has_hole(data, 0, len(data))
        )
        if last and torn and fmt.MARKER not in data:
            return None
        raise


async def _repair(wal: Wal, found: Recovered, last: int, unfinished: list[str]) -> None:
    disk = wal.disk
    if last:
        segment = wal.segments[last]
        if found.cut_bytes:
            segment.file.truncate(segment.size)
        # A process that was killed leaves written bytes that only the page cache has.
        await segment.file.sync()
        segment.synced = segment.size
        wal.keep_heads(segment)
    for number in list(wal.segments):
        if wal.segments[number].path in unfinished:
            wal.segments.pop(number).file.close()
    for path in unfinished:
        disk.remove(path)
    await disk.sync_dir(wal.directory)


def _verify(segment: Segment, *, last: bool) -> int:
    """Read the segment, and note the heads of its records; how many bytes of a torn tail do not
    count.
    """
    data = segment.file.read(0, segment.size)
    end = _scan(data, segment)
    cut = segment.size - end
    if cut:
        number, salt = segment.number, segment.salt
        reason = judge(data, end, salt, number) if last else describe(data, end)
        if reason is not None:
            raise LogCorrupt(segment.path, end, reason)
        segment.size = end
    return cut


def _scan(data: bytes, segment: Segment) -> int:
    """The offset of the first bad record, or the end."""
    salt, heads, tags = segment.salt, segment.heads, segment.tags
    unpack, extend, header, marker = (
        fmt.RECORD.unpack_from,
        fmt.extend,
        fmt.RECORD_HEADER,
        fmt.MARKER,
    )
    what = header + fmt.HASH_BYTES
    at, end = segment.start, len(data)
    while at + header <= end:
        length, crc, kind, mark, *_ = unpack(data, at)
        stop = at + header + length
        first = data[at : at + 4]
        if stop > end or mark != marker or extend(extend(salt, first), data[at + 8 : stop]) != crc:
            break
        heads += fmt.covered_of(data[at : at + header])
        if kind == 1:  # KIND_ENTRY
            tags += data[at + what : at + what + 1] if length > fmt.HASH_BYTES else b"\0"
        else:
            tags += tag_of(kind, data[at + header : stop])
        at = stop
    return at


def _replay(segment: Segment, found: Recovered) -> None:
    """What its records add up to, by their heads."""
    number, tags, header = segment.number, segment.tags, fmt.RECORD_HEADER
    (membership,) = fmt.MEMBERSHIP
    replays = found.replays
    group, replay = -1, Replay()
    run = replay.run
    put_segment, put_offset, put_length, put_term = _appenders(run)
    at, tag, wall = segment.start, 0, 0
    for length, kind, _, its_group, index, term, wall_ns, _ in fmt.COVERED.iter_unpack(
        segment.heads
    ):
        wall = wall_ns
        if its_group != group:
            group = its_group
            segment.groups.add(group)
            replay = replays.get(group) or Replay()
            if kind == 1:  # KIND_ENTRY; notes make no group
                replays[group] = replay
            run = replay.run
            put_segment, put_offset, put_length, put_term = _appenders(run)
        if kind == 1:  # KIND_ENTRY
            if index != replay.next:
                replay.jump(index)
                run = replay.run
                put_segment, put_offset, put_length, put_term = _appenders(run)
            replay.next = index + 1
            put_segment(number)
            put_offset(at)
            put_length(length)
            put_term(term)
            if tags[tag] == membership:
                replay.memberships.add(index)
            tag += 1
        else:
            size = tag_bytes(kind, length)
            what = index, term, at, length
            _other(found, replay, segment, kind, group, what, bytes(tags[tag : tag + size]))
            tag += size
            group = -1
        at += header + length
    segment.last_wall_ns = wall
    found.records += len(segment.heads) // fmt.COVERED.size


def _appenders(run: Tail) -> tuple[Callable[[int], None], ...]:
    return run.segments.append, run.offsets.append, run.lengths.append, run.terms.append


def _other(
    found: Recovered,
    replay: Replay,
    segment: Segment,
    kind: int,
    group: int,
    what: tuple[int, int, int, int],
    payload: bytes,
) -> None:
    """`payload`: its tag."""
    index, term, at, length = what
    if kind == fmt.KIND_DIVERGED:
        replay.diverged = bool(payload)
        found.diverged.add(group)
    if kind >= fmt.KIND_NOTE:
        return
    if kind == fmt.KIND_SYNCED:
        number, offset = fmt.decode_synced(payload)
        found.synced[number] = max(found.synced.get(number, 0), offset)
        return
    if kind not in fmt.KIND_NAMES:
        raise UnsupportedFormat(
            segment.path, at, f"a record of kind {kind}, which this release does not know"
        )
    if kind in (fmt.KIND_TRUNCATE, fmt.KIND_SNAPSHOT, fmt.KIND_GROUP_REMOVED):
        segment.resets.add(group)
    if kind == fmt.KIND_GROUP_REMOVED:
        found.replays.pop(group, None)
        return
    found.replays[group] = replay
    if kind == fmt.KIND_FORCED:
        found.forced.add(group)
    if kind == fmt.KIND_LIVE:
        replay.scattered.put(index, segment.number, at, length, term)
        if payload == fmt.MEMBERSHIP:
            replay.memberships.add(index)
    elif kind == fmt.KIND_INSTALLED:
        replay.staged.put(index, segment.number, at, length, term)
    else:
        replay.state(kind, index, term, payload)


@dataclass(slots=True)
class GroupState:
    """What a journal starts from."""

    snapshot: Snapshot | None
    mark: SnapshotMark
    tail: Tail
    old: Sparse
    fell_back: bool = False


def assemble(wal: Wal, store: SnapshotStore, group: int, replay: Replay) -> GroupState:
    """Put snapshot and entries together; raises LogCorrupt when something is missing."""
    mark = replay.mark
    if mark.index == BIRTH.index:
        return _fit(wal, group, replay, None, mark)
    try:
        snapshot, _ = store.load(group, mark.index, mark.crc)
    except LogCorrupt:
        state = None if mark.installed else _fall_back(wal, store, group, replay)
        if state is None:
            raise
        store.set_aside(group, mark.index)
        return state
    return _fit(wal, group, replay, snapshot, mark)


def _fit(
    wal: Wal, group: int, replay: Replay, snapshot: Snapshot | None, mark: SnapshotMark
) -> GroupState:
    tail, gap = replay.above(mark.index)
    if gap is not None:
        raise LogCorrupt(wal.directory, 0, f"group {group}: entry {gap} is missing")
    old, gap = replay.below(snapshot.live if snapshot is not None else [])
    if gap is not None:
        raise LogCorrupt(wal.directory, 0, f"group {group}: live entry {gap} is missing")
    return GroupState(snapshot, mark, tail, old)


def _fall_back(wal: Wal, store: SnapshotStore, group: int, replay: Replay) -> GroupState | None:
    """An older snapshot, if the log holds every entry between it and the damaged one."""
    damaged = replay.mark
    for index in reversed(store.indexes().get(group, [])):
        if index >= damaged.index:
            continue
        try:
            snapshot, crc = store.load(group, index)
            state = _fit(
                wal, group, replay, snapshot, SnapshotMark(index, snapshot.term, snapshot.hash, crc)
            )
        except LogCorrupt:
            continue
        # What lies between may be leftovers of another history: only the chain proves that it is
        # ours.
        digest = snapshot.hash
        for slot in range(min(damaged.index - index, len(state.tail))):
            payload = wal.read(state.tail.place(slot))
            digest = fmt.chain(digest, state.tail.terms[slot], payload[fmt.HASH_BYTES :])
        if digest == damaged.hash:
            state.fell_back = True
            return state
    return None
