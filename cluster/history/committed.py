"""The committed entries of one group out of a node's folders, also while the node writes to them.

Files may vanish at any moment, since the cleaner drops segments and snapshots, and the newest
segment may end in half a record. Nothing here is believed for being in a file: an entry counts when
a commit that is known reaches it, and its hash follows on the hash of the snapshot that the reading
began with. A record that is damaged is passed over; what is missing then is said.

Of large sealed segments the heads may be read in their place (`cluster.log.heads`). They do not
say which records are damaged. Who finds one on the way begins anew without heads.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cluster.log import LogCorrupt, UnsupportedFormat
from cluster.log import format as fmt
from cluster.log.heads import read_heads, tag_bytes
from cluster.log.index import Tail
from cluster.log.reader import READ_ONLY
from cluster.log.replay import Replay
from cluster.log.segment import Segment
from cluster.log.snapshots import BIRTH, Snapshot, decode_mark, decode_snapshot
from cluster.seams import Disk, File

#: Files that stay open, so that the node may drop them while they are read here.
OPEN_MAX: Final = 512
#: Entries that lie close to each other are read together: so many bytes, over gaps up to this.
READ_BYTES: Final = 1 << 20
GAP_BYTES: Final = 16 << 10
_OFTEN: Final = (fmt.KIND_ENTRY, fmt.KIND_COMMIT, fmt.KIND_SYNCED, fmt.KIND_NOTE)
#: No file header is longer.
HEAD_BYTES: Final = 4_096
#: Entries that may be missing between others; a log with more of them begins behind these.
MISSING_MAX: Final = 1_000_000


class Vanished(Exception):
    """The node dropped a file that is needed: what to read is to be chosen anew."""


class NotAsNoted(Exception):
    """A record is not what the heads of its segment say: the segments themselves are to be read."""


class Base(NamedTuple):
    """Where reading can begin: behind the entry of a snapshot, or before the first entry."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    path: str | None = None  # None: there is no snapshot, and none is needed


NOTHING: Final = Base(BIRTH.index)


class BaseState(NamedTuple):
    """What is there at a base. Without a snapshot: nothing has happened."""

    base: Base
    snapshot: Snapshot | None


class CommittedEntry(NamedTuple):
    """A committed one."""

    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    term: int
    command: bytes  # as given to the journal: a byte for the type, then the entry


class _Segment(NamedTuple):
    path: str
    number: int
    created_ns: int
    header: int
    salt: int


class GroupLog:
    """What the folders say of one group, or the newest segments in them. `applied`: the node says
    that it has applied so much. `heads`: read them in place of segments, where there are any.

    Vanished: a file was dropped while they were looked through.
    """

    def __init__(
        self,
        folders: Sequence[str],
        group: int,
        *,
        applied: int = 0,
        newest: int | None = None,
        heads: bool = False,
        disk: Disk = READ_ONLY,
    ) -> None:
        self.group = group
        self._by_heads = heads
        self._noted = set[int]()  # segments of which only the heads were read
        self._disk = disk
        self.damage: list[str] = []  # file:offset of records that were passed over
        self.node = self.cluster = ""
        self._files: dict[str, File] = {}
        self._segments: list[_Segment] = []
        self._breaks: array[int] = array("I")  # segments before which some are missing
        self._commits: array[int] = array("Q")  # ascending, each where it was first noted
        self._commit_segments: array[int] = array("I")
        self._commit_ns: array[int] = array("Q")
        self._replay = Replay()
        self.is_all = True  # no segment was left out
        names = self._all_names(folders)
        snapshots = self._all_snapshots(folders)
        try:
            self._look(folders, newest)
        except Vanished:
            self.close()
            raise
        self.committed = max(self._replay.commit, self._replay.mark.index, applied)
        known = [NOTHING, *(Base(*each) for each in snapshots if each[0] <= self.committed)]
        self._tail = _tail(self._replay, [base.index for base in known], self.committed)
        #: Where the log can be read from: to its end without a gap, oldest first. When there is no
        #: such one: the newest that there is.
        self.bases = [base for base in known if self._reaches(base)]
        self.whole = bool(self.bases)
        if not self.bases:
            if self._all_names(folders) != names:
                self.close()
                raise Vanished("what was seen is older in parts than in others")
            self.bases = known[-1:]

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # --- what there is ----------------------------------------------------------------------------

    def load(self, base: Base) -> BaseState | None:
        """None: its file is damaged; that base is none any more. Vanished: a newer one took its
        place.
        """
        if base.path is None:
            return BaseState(base, None)
        try:
            group, snapshot, _ = decode_snapshot(self._read(base.path), base.path)
            if (group, snapshot.index) != (self.group, base.index):
                raise LogCorrupt(base.path, 0, "it is another one than its name says")
        except (LogCorrupt, UnsupportedFormat) as error:
            if base in self.bases:
                self.bases.remove(base)
                self.damage.append(f"{base.path}:{error.offset}")
            return None
        return BaseState(base, snapshot)

    def _reaches(self, base: Base) -> bool:
        slot = base.index + 1 - self._tail.first
        if base.index == self.committed > NOTHING.index:
            return True
        return 0 <= slot < len(self._tail) and 0 not in self._tail.lengths[slot:]

    def written_ns(self, index: int) -> int | None:
        """When this node wrote it first, by its clock. None: only a later copy is there."""
        slot = self._tail.slot(index)
        found = None if slot is None else self._entry(slot)
        return None if found is None else found[2]

    def committed_ns(self, index: int) -> int | None:
        """When this node noted that it is committed. None: the log does not say."""
        at, slot = bisect_left(self._commits, index), self._tail.slot(index)
        if slot is None or at == len(self._commits):
            return None
        first, last = self._tail.segments[slot], self._commit_segments[at]
        # An earlier note may have been in a segment that is missing.
        if first > last or any(first < each <= last for each in self._breaks):
            return None
        return self._commit_ns[at]

    # --- reading ----------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The newest committed entry that is there."""
        return self._tail.first + len(self._tail) - 1

    def reach(self, index: int) -> int:
        """The last of the entries that go on from this one without a gap."""
        tail = self._tail
        try:
            return tail.first + tail.lengths.index(0, max(index + 1 - tail.first, 0)) - 1
        except ValueError:
            return self.last

    def entries(self, state: BaseState) -> Iterator[CommittedEntry]:
        """The committed ones behind it, in order, as long as each follows on the one before.
        Vanished: a file is gone. NotAsNoted.
        """
        digest = fmt.NO_HASH if state.snapshot is None else state.snapshot.hash
        header, start = fmt.RECORD_HEADER, fmt.RECORD_HEADER + fmt.HASH_BYTES
        for index, term, data, at, end in self._from(state.base.index + 1):
            command = data[at + start : end]
            digest = fmt.chain(digest, term, command)
            if digest != data[at + header : at + start]:
                if self._noted:
                    raise NotAsNoted(f"entry {index} does not follow")
                return
            yield CommittedEntry(index, term, command)

    def between(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Index and command of those from `first` to `last`, whole but perhaps of another leader's
        log: it is not looked at whether they follow on each other. Vanished, NotAsNoted.
        """
        start = fmt.RECORD_HEADER + fmt.HASH_BYTES
        for index, _, data, at, end in self._from(first, last, checked=True):
            yield index, data[at + start : end]

    def _from(
        self, first: int, last: int | None = None, *, checked: bool = False
    ) -> Iterator[tuple[int, int, bytes, int, int]]:
        """Index, term, and where the record is in which bytes; up to the first that is missing.
        `checked`: also their checksums, if that was not done before.
        """
        tail, header, group, extend = self._tail, fmt.RECORD_HEADER, self.group, fmt.extend
        unpack = fmt.RECORD.unpack_from
        slot, count = first - tail.first, len(tail)
        if last is not None:
            count = min(count, last + 1 - tail.first)
        while 0 <= slot < count and tail.lengths[slot]:
            stop = self._together(slot, count)
            segment, start = tail.segments[slot], tail.offsets[slot]
            check, salt = checked and segment in self._noted, self._segments[segment].salt
            size = tail.offsets[stop - 1] + header + tail.lengths[stop - 1] - start
            data = self._read_at(segment, start, size)
            size = len(data)
            for each in range(slot, stop):
                at, index, term = tail.offsets[each] - start, tail.first + each, tail.terms[each]
                end = at + header + tail.lengths[each]
                if end > size:
                    sound = False
                else:
                    _, crc, _, _, its_group, its_index, its_term, _, _ = unpack(data, at)
                    sound = its_index == index and its_group == group and its_term == term
                    if check and extend(extend(salt, data[at : at + 4]), data[at + 8 : end]) != crc:
                        sound = False
                if not sound:
                    if self._noted:
                        raise NotAsNoted(f"entry {index}")
                    return
                yield index, term, data, at, end
            slot = stop

    def _together(self, slot: int, count: int) -> int:
        """Behind the last of the slots that are read with this one."""
        tail, header = self._tail, fmt.RECORD_HEADER
        segments, offsets, lengths = tail.segments, tail.offsets, tail.lengths
        segment, start = segments[slot], offsets[slot]
        end = start + header + lengths[slot]
        slot += 1
        while slot < count and segments[slot] == segment and lengths[slot]:
            at = offsets[slot]
            behind = at + header + lengths[slot]
            if not end <= at <= end + GAP_BYTES or behind - start > READ_BYTES:
                break
            end = behind
            slot += 1
        return slot

    def _entry(self, slot: int) -> tuple[bytes, CommittedEntry, int | None] | None:
        """With its hash, and when it was written. None: it is missing."""
        tail = self._tail
        place, index, term = tail.place(slot), tail.first + slot, tail.terms[slot]
        if not place.length:
            return None
        data = self._read_at(place.segment, place.offset, fmt.RECORD_HEADER + place.length)
        if not fmt.record_is_valid(data, 0, self._segments[place.segment].salt):
            return None
        _, _, kind, _, group, its_index, its_term, wall_ns, _ = fmt.RECORD.unpack_from(data)
        if (group, its_index, its_term) != (self.group, index, term):
            return None
        start = fmt.RECORD_HEADER + fmt.HASH_BYTES
        entry = CommittedEntry(index, term, data[start:])
        return data[fmt.RECORD_HEADER : start], entry, wall_ns if kind == fmt.KIND_ENTRY else None

    def _read_at(self, segment: int, offset: int, size: int) -> bytes:
        path = self._segments[segment].path
        file = self._files.get(path)
        return self._read(path, size, offset) if file is None else file.read(offset, size)

    def _read(self, path: str, size: int | None = None, offset: int = 0) -> bytes:
        file = self._open(path)
        try:
            return file.read(offset, file.size() if size is None else size)
        finally:
            file.close()

    def _open(self, path: str) -> File:
        try:
            return self._disk.open(path)
        except FileNotFoundError as error:
            raise Vanished(path) from error

    # --- looking through --------------------------------------------------------------------------

    def _look(self, folders: Sequence[str], newest: int | None) -> None:
        found = self._found(folders)
        if newest is not None and len(found) > newest:
            found, self.is_all = found[-newest:], False
        for place, segment in enumerate(found):
            before = self._segments[-1].number if self._segments else segment.number - 1
            if segment.number != before + 1:
                self._breaks.append(place)
            self._segments.append(segment)
            self._scan(place, segment)

    def _found(self, folders: Sequence[str]) -> list[_Segment]:
        """The segments of all folders in the order in which they were written, each once."""
        found: dict[tuple[int, int], _Segment] = {}
        for folder in folders:
            for name in self._names(folder):
                if fmt.segment_number(name) is None:
                    continue
                path = f"{folder}/{name}"
                try:
                    head = fmt.decode_file_header(self._read(path, HEAD_BYTES), path)
                except Vanished:
                    continue
                except (LogCorrupt, UnsupportedFormat) as error:
                    self.damage.append(f"{path}:{error.offset}")
                    continue
                self.node, self.cluster = head.identity.node, head.identity.cluster
                key = head.wall_ns, head.number
                found.setdefault(
                    key, _Segment(path, head.number, head.wall_ns, head.size, head.salt)
                )
        return [segment for _, segment in sorted(found.items())]

    def _names(self, folder: str) -> list[str]:
        return self._disk.list_dir(folder) if self._disk.exists(folder) else []

    def _all_names(self, folders: Sequence[str]) -> list[list[str]]:
        return [self._names(each) + self._names(f"{each}/snapshots") for each in folders]

    def _all_snapshots(self, folders: Sequence[str]) -> list[tuple[int, str]]:
        """Index and path, ascending."""
        found: dict[int, str] = {}
        for folder in folders:
            for name in self._names(f"{folder}/snapshots"):
                group, _, index = name.removesuffix(".snap").partition("-")
                if name.endswith(".snap") and group == str(self.group) and index.isdecimal():
                    found.setdefault(int(index), f"{folder}/snapshots/{name}")
        return sorted(found.items())

    def _scan(self, place: int, segment: _Segment) -> None:
        """Note where entries of the group lie."""
        file = self._open(segment.path)
        kept = False
        try:
            heads = self._heads(segment, file) if self._by_heads else None
            if heads is not None:
                self._noted.add(place)
                found = self._look_at_heads(place, heads)
            else:
                found = self._look_through(place, segment, file.read(0, file.size()))
            kept = found and len(self._files) < OPEN_MAX
        finally:
            if not kept:
                file.close()
        if kept:
            self._files[segment.path] = file

    def _heads(self, segment: _Segment, file: File) -> Segment | None:
        """None: it has none. That of an archive has another name, and no heads."""
        path, size = segment.path, file.size()
        found = Segment(
            segment.number, path, file, segment.salt, segment.header, size, size, segment.created_ns
        )
        return found if read_heads(self._disk, found) else None

    def _look_at_heads(self, place: int, segment: Segment) -> bool:
        """As `_look_through`."""
        group, replay, tags = self.group, self._replay, segment.tags
        header, at, tag, any_entries = fmt.RECORD_HEADER, segment.start, 0, False
        entry, commit, synced, note = _OFTEN
        put = replay.run.append
        heads = fmt.COVERED.iter_unpack(segment.heads)
        for length, kind, _, its_group, index, term, wall_ns, _ in heads:
            if kind == entry:
                if its_group == group:
                    if index != replay.next:
                        replay.jump(index)
                        put = replay.run.append
                    replay.next = index + 1
                    put(place, at, length, term)
                    any_entries = True
                tag += 1
            elif kind == synced:
                tag += length
            elif kind == commit:
                if its_group == group:
                    self._commit(place, index, wall_ns)
            else:
                size = tag_bytes(kind, length)
                if its_group == group and kind < note and kind != fmt.KIND_INSTALLED:
                    if kind == fmt.KIND_LIVE:
                        replay.scattered.put(index, place, at, length, term)
                        any_entries = True
                    elif kind == fmt.KIND_GROUP_REMOVED:
                        self._forget()
                        replay = self._replay
                    else:
                        payload = bytes(tags[tag : tag + size])
                        self._state(place, kind, (index, term, wall_ns), payload)
                    put = replay.run.append
                tag += size
            at += header + length
        return any_entries

    def _look_through(self, place: int, segment: _Segment, data: bytes) -> bool:
        """Has it entries of the group?"""
        group, replay = self.group, self._replay
        unpack, header, marker = fmt.RECORD.unpack_from, fmt.RECORD_HEADER, fmt.MARKER
        at, end, any_entries = segment.header, len(data), False
        while at + header <= end:
            length, _, kind, mark, its_group, index, term, wall_ns, _ = unpack(data, at)
            stop = at + header + length
            if mark != marker or stop > end:
                at = self._behind(segment, data, at)
                continue
            if its_group == group and kind < fmt.KIND_NOTE and kind != fmt.KIND_SYNCED:
                if not fmt.record_is_valid(data, at, segment.salt):
                    at = self._behind(segment, data, at)
                    continue
                if kind == fmt.KIND_ENTRY:
                    if index != replay.next:
                        replay.jump(index)
                    replay.next = index + 1
                    replay.run.append(place, at, length, term)
                    any_entries = True
                elif kind == fmt.KIND_LIVE:
                    replay.scattered.put(index, place, at, length, term)
                    any_entries = True
                elif kind == fmt.KIND_GROUP_REMOVED:
                    self._forget()
                    replay = self._replay
                elif kind != fmt.KIND_INSTALLED:
                    self._state(place, kind, (index, term, wall_ns), data[at + header : stop])
            at = stop
        return any_entries

    def _behind(self, segment: _Segment, data: bytes, at: int) -> int:
        """The next record behind a bad one. There is none behind half a record at the end."""
        following = fmt.find_record(data, at + 1, segment.salt)
        if following is None or following == -1:
            return len(data)
        self.damage.append(f"{segment.path}:{at}")
        return following

    def _forget(self) -> None:
        self._replay = Replay()
        del self._commits[:], self._commit_segments[:], self._commit_ns[:]

    def _state(self, place: int, kind: int, what: tuple[int, int, int], payload: bytes) -> None:
        index, term, wall_ns = what
        replay = self._replay
        if kind == fmt.KIND_SNAPSHOT:
            mark = decode_mark(index, term, payload)
            if mark.flags & fmt.MARK_RESETS:
                # It was installed: what was not known to be committed then may never have been.
                replay.cut(max(replay.commit, replay.mark.index) + 1)
        if kind == fmt.KIND_COMMIT:
            self._commit(place, index, wall_ns)
        else:
            replay.state(kind, index, term, payload)

    def _commit(self, place: int, index: int, wall_ns: int) -> None:
        self._replay.commit = index
        if not self._commits or index > self._commits[-1]:
            self._commits.append(index)
            self._commit_segments.append(place)
            self._commit_ns.append(wall_ns)


def _tail(replay: Replay, bases: Sequence[int], committed: int) -> Tail:
    """Where each entry lies, from the first that any of these bases can go on with up to the last
    that is there. Those that are missing have no length.
    """
    run, scattered = replay.run, replay.scattered
    # A message that nobody settles keeps its entry, far below all others: they are no row.
    room = 2 * (len(run) + len(scattered)) + MISSING_MAX
    first = min((base + 1 for base in bases if committed - base <= room), default=run.first)
    tail = Tail(first)
    count = max(committed + 1 - tail.first, 0)
    for name in ("segments", "offsets", "lengths", "terms"):
        column: array[int] = getattr(tail, name)
        column.frombytes(bytes(column.itemsize * count))
        skipped = max(tail.first - run.first, 0)
        start = run.first + skipped - tail.first
        part: array[int] = getattr(run, name)[skipped : skipped + max(count - start, 0)]
        column[start : start + len(part)] = part
    for slot, index in enumerate(scattered.indexes):
        at = index - tail.first
        if 0 <= at < count and (not tail.lengths[at] or tail.place(at) < scattered.place(slot)):
            tail.move(at, *scattered.place(slot)[:2])
            tail.lengths[at], tail.terms[at] = scattered.lengths[slot], scattered.terms[slot]
    while len(tail) and not tail.lengths[-1]:
        tail.delete(len(tail) - 1, len(tail))
    return tail
