"""The log of one group, over the node's shared write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import cbor2

from cluster.log import format as fmt
from cluster.log.errors import SnapshotRefused
from cluster.log.index import HotTail, Place, Sparse, Tail
from cluster.log.replay import Replay
from cluster.log.snapshots import BIRTH, Ranges, Snapshot, SnapshotMark, SnapshotStore
from cluster.log.wal import Wal
from cluster.machine.runs import ranges_of

#: One read off the event loop brings so much of what is wanted, if one entry has not more...
FETCH_BYTES_MAX = 1 << 20
#: ...and up to this of what follows: a backlog is read in order.
READ_AHEAD_BYTES = 256 << 10


class Install(NamedTuple):
    """A snapshot being received, and the live entries that came with it so far."""

    snapshot: Snapshot
    staged: dict[int, tuple[Place, int]]


LogEntry = tuple[bytes, int, int]  # data, index, term


class Journal:
    """Entries, hard state and snapshots of one group. Indexes are Raft indexes; the base is the
    snapshot's.
    """

    def __init__(self, group: int, wal: Wal, store: SnapshotStore, hot: HotTail) -> None:
        self.group = group
        self.base_index = BIRTH.index  # entry 1 is the no-op that every log starts with
        self.base_term = BIRTH.term
        self.base_hash = BIRTH.hash
        self.last_index = BIRTH.index
        self.last_term = BIRTH.term
        self.last_hash = BIRTH.hash
        self.synced_index = BIRTH.index  # what a crash cannot take
        self.written_index = BIRTH.index
        self.syncing_index = BIRTH.index
        self.current_term = 0
        self.voted_for: str | None = None
        self.votes_suspended = (
            False  # what was promised here is lost, so this copy counts for nothing
        )
        #: Members by order of a person, whatever entries say; empty: that is over; None: no record
        #: of it is in the log.
        self.forced: bytes | None = None
        #: The state is not that of the other copies; None: no record of it is in the log.
        self.diverged: bool | None = None
        self.commit_index = BIRTH.index
        self.mark = BIRTH
        self.tail = Tail(BIRTH.index + 1)
        self.old = Sparse()  # live entries at or below the base
        self.install: Install | None = None
        self.removed = False
        self.mark_again = False  # the mark on disk is not the one in use
        self.memberships: list[tuple[int, bytes]] = []  # above the base, as recovery found them
        self._wal = wal
        self._store = store
        self._hot = hot
        self._hot_data: dict[int, bytes] = {}
        self._saving = False

    def adopt(
        self, replay: Replay, snapshot: Snapshot | None, mark: SnapshotMark, tail: Tail, old: Sparse
    ) -> None:
        """Take over what recovery found."""
        if snapshot is not None:
            self.base_index, self.base_term, self.base_hash = (
                snapshot.index,
                snapshot.term,
                snapshot.hash,
            )
        self.mark, self.tail, self.old = mark, tail, old
        self._wal.account(tail, 0, len(tail), 1)
        self._wal.account(old, 0, len(old), 1)
        self._set_last()
        self.written_index = self.syncing_index = self.synced_index = self.last_index
        self.current_term, self.voted_for = replay.term, replay.voted_for
        self.votes_suspended = replay.votes_suspended
        self.forced = replay.forced
        self.diverged = replay.diverged
        self.commit_index = min(max(replay.commit, self.base_index), self.last_index)
        for index in sorted(replay.memberships):
            data = self.read(index) if index > self.base_index else None
            if data is not None and data[:1] == fmt.MEMBERSHIP:
                self.memberships.append((index, data))

    # Entries

    def add(self, data: bytes, index: int, term: int) -> None:
        """Append an entry; it is buffered until the log writes."""
        assert index == self.last_index + 1, (
            f"group {self.group}: entry {index} after {self.last_index}"
        )
        assert not self.removed
        wal = self._wal
        if type(data) is not bytes:
            data = bytes(data)
        digest = fmt.chain(self.last_hash, term, data)
        offset = wal.append(fmt.KIND_ENTRY, self.group, index, term, digest, data)
        length = fmt.HASH_BYTES + len(data)
        active = wal.active
        active.live_bytes += fmt.RECORD_HEADER + length
        self.tail.append(active.number, offset, length, term)
        self.last_index = index
        self.last_term = term
        self.last_hash = digest
        wal.touched.add(self)
        self._hot.keep(self._hot_data, index, data)

    def truncate_from(self, index: int) -> None:
        """Drop the entries from `index` on: they conflict with the leader's."""
        assert self.base_index < index, (
            f"group {self.group}: {index} is not above the base {self.base_index}"
        )
        if index > self.last_index:
            return
        wal, tail = self._wal, self.tail
        wal.append(fmt.KIND_TRUNCATE, self.group, index, self.last_term, b"")
        wal.active.resets.add(self.group)
        self._release(tail, index - tail.first, len(tail))
        tail.delete(index - tail.first, len(tail))
        for gone in range(index, self.last_index + 1):
            self._hot_data.pop(gone, None)
        self._set_last()
        self.written_index = min(self.written_index, self.last_index)
        self.syncing_index = min(self.syncing_index, self.last_index)
        self.synced_index = min(self.synced_index, self.last_index)

    def _set_last(self) -> None:
        tail = self.tail
        if len(tail):
            self.last_index = tail.first + len(tail) - 1
            self.last_term = tail.terms[-1]
            self.last_hash = self._wal.read(tail.place(-1))[: fmt.HASH_BYTES]
        else:
            self.last_index, self.last_term, self.last_hash = (
                self.base_index,
                self.base_term,
                self.base_hash,
            )

    def _release(self, columns: Tail | Sparse, start: int, stop: int) -> None:
        self._wal.account(columns, start, stop, -1)

    def term_at(self, index: int) -> int | None:
        if index == self.base_index:
            return self.base_term
        slot = self.tail.slot(index)
        return None if slot is None else self.tail.terms[slot]

    def hash_at(self, index: int) -> bytes | None:
        if index == self.base_index:
            return self.base_hash
        if index == self.last_index:
            return self.last_hash
        place = self._place(index)
        digest = None if place is None else self._wal.read(place)[: fmt.HASH_BYTES]
        return None if digest == fmt.NO_HASH else digest

    def located(self, index: int) -> tuple[Tail | Sparse, int] | None:
        """Columns and slot of an entry that is there."""
        for columns in (self.tail, self.old):
            slot = columns.slot(index)
            if slot is not None:
                return columns, slot
        return None

    def _place(self, index: int) -> Place | None:
        slot = self.tail.slot(index)
        if slot is not None:
            return self.tail.place(slot)
        slot = self.old.slot(index)
        return None if slot is None else self.old.place(slot)

    def holds(self, index: int) -> bool:
        """Whether `read` would find it."""
        return self._place(index) is not None

    def in_memory(self, index: int) -> bytes | None:
        """The data at `index` if that takes no read."""
        return self._hot_data.get(index) if self.holds(index) else None

    def near(self, first: int, last: int) -> list[tuple[int, Place]]:
        """The entry `first`, which is there, and those behind it that the same read should bring:
        what is wanted up to `last`, and some more for readers that go on.
        """
        columns = self.tail if first >= self.tail.first else self.old
        slot = columns.slot(first)
        assert slot is not None, f"group {self.group}: there is no entry {first}"
        indexes = self.old.indexes if columns is self.old else None
        found = list[tuple[int, Place]]()
        start = before = columns.place(slot)
        for at in range(slot, len(columns)):
            place = columns.place(at)
            index = self.tail.first + at if indexes is None else indexes[at]
            size = place.offset - start.offset + fmt.RECORD_HEADER + place.length
            room = FETCH_BYTES_MAX if index <= last else READ_AHEAD_BYTES
            # Another leader's entry may yet take the place of one that is not committed.
            if found and (
                place.segment != start.segment
                or place.offset <= before.offset
                or size > room
                or index > self.commit_index
            ):
                break
            found.append((index, place))
            before = place
        return found

    async def fetch(self, near: Sequence[tuple[int, Place]]) -> list[tuple[int, bytes]]:
        """Commands of what `near` found, read off the event loop."""
        payloads = await self._wal.fetch([place for _, place in near])
        found = zip(near, payloads, strict=True)
        return [(index, payload[fmt.HASH_BYTES :]) for (index, _), payload in found]

    def read(self, index: int) -> bytes | None:
        """The data at `index`, also below the base while it is live."""
        place = self._place(index)
        if place is None:
            return None
        data = self._hot_data.get(index)
        return self._wal.read(place)[fmt.HASH_BYTES :] if data is None else data

    def entries(
        self, first: int, count: int | None = None, max_bytes: int | None = None
    ) -> list[LogEntry]:
        """Entries from `first` on, at least one if there is any; at the base stands a no-op."""
        if first < self.base_index:
            return []
        result = list[LogEntry]()
        stop = self.last_index + 1 if count is None else min(first + count, self.last_index + 1)
        room = -1 if max_bytes is None else max_bytes
        tail, hot = self.tail, self._hot_data
        for index in range(first, stop):
            if index == self.base_index:
                result.append((fmt.NO_OP, index, self.base_term))
                continue
            slot = index - tail.first
            data = hot.get(index)
            if data is None:
                data = self._wal.read(tail.place(slot))[fmt.HASH_BYTES :]
            if room >= 0 and result and len(data) > room:
                break
            if room >= 0:
                room = max(0, room - len(data))
            result.append((data, index, tail.terms[slot]))
        return result

    # Hard state

    def set_term(self, term: int, voted_for: str | None) -> None:
        """Term and vote; they must be synced before anyone hears of them."""
        if (term, voted_for) != (self.current_term, self.voted_for):
            self.current_term, self.voted_for = term, voted_for
            self._write_hard_state()

    def set_votes_suspended(self, votes_suspended: bool) -> None:
        """No restart ends it: only who knows that what was promised helps nobody any more."""
        if votes_suspended != self.votes_suspended:
            self.votes_suspended = votes_suspended
            self._write_hard_state()

    def _write_hard_state(self) -> None:
        payload = [self.voted_for, True] if self.votes_suspended else [self.voted_for]
        self._wal.append(
            fmt.KIND_HARD_STATE, self.group, 0, self.current_term, cbor2.dumps(payload)
        )

    def force(self, members: bytes) -> None:
        """Override what entries say about members, until this is called with nothing."""
        if members != (self.forced or b""):
            self._write_forced(members)

    def force_from(self, term: int, members: bytes) -> None:
        """From this term on, in which nothing is promised yet. The first record says all of it, so
        a torn write leaves all of it or nothing.
        """
        self.current_term, self.voted_for, self.votes_suspended = term, None, False
        self._write_forced(members)
        self._write_hard_state()

    def _write_forced(self, members: bytes) -> None:
        self.forced = members
        self._wal.append(fmt.KIND_FORCED, self.group, 0, self.current_term, members)

    def diverge(self, diverged: bool) -> None:
        """Restarts do not mend what came of the log, least of all from a snapshot of it."""
        if diverged != bool(self.diverged):
            self._write_diverged(diverged)

    def _write_diverged(self, diverged: bool) -> None:
        self.diverged = diverged
        payload = b"\x01" if diverged else b""
        self._wal.append(fmt.KIND_DIVERGED, self.group, self.last_index, self.current_term, payload)

    def set_commit(self, index: int) -> None:
        """Remembered when convenient: it may be older after a crash."""
        if index != self.commit_index:
            self.commit_index = index
            self._wal.append(fmt.KIND_COMMIT, self.group, index, self.current_term, b"")

    def repeat_state(self) -> None:
        """Write all state once more, so that older records of it, and of what it voids, can go."""
        wal, group = self._wal, self.group
        wal.append(fmt.KIND_GROUP_CREATED, group, 0, 0, b"")
        self._write_hard_state()
        if self.forced is not None:  # also that it is over: an older record may stay
            self._write_forced(self.forced)
        if self.diverged is not None:  # as well
            self._write_diverged(self.diverged)
        wal.append(fmt.KIND_COMMIT, group, self.commit_index, self.current_term, b"")
        wal.append(
            fmt.KIND_SNAPSHOT, group, self.mark.index, self.mark.term, self.mark.repeated().payload
        )
        wal.append(fmt.KIND_TRUNCATE, group, self.last_index + 1, self.last_term, b"")
        wal.active.resets.add(group)

    # Snapshots

    async def save_snapshot(self, index: int, term: int, data: bytes, live: Ranges) -> None:
        """Keep the state after `index`; then the entries up to it are dropped, except those in
        `live`.
        """
        if not self.base_index < index <= self.last_index or self.term_at(index) != term:
            raise SnapshotRefused(
                f"group {self.group}: no entry {index} of term {term} above the base"
            )
        if self._saving or self.install is not None:
            raise SnapshotRefused(f"group {self.group}: another snapshot is under way")
        digest = self.hash_at(index)
        assert digest is not None
        self._saving = True
        try:
            snapshot = Snapshot(index, term, digest, data, ranges_of(self._present(index, live)))
            crc = await self._store.write(self.group, snapshot)
            if self.removed:
                return
            if self.base_index >= index or self.hash_at(index) != digest:
                raise SnapshotRefused(f"group {self.group}: entry {index} was replaced meanwhile")
            self._write_mark(SnapshotMark(index, term, digest, crc))
            self._wal.write()
            await self._wal.sync()
            if not self.removed and self.mark.index == index:
                self._move_base(snapshot)
                self._store.prune_group(self.group, self.mark)
        finally:
            self._saving = False

    def _present(self, base: int, live: Ranges) -> list[int]:
        """The indexes of `live` up to `base` that this journal can read."""
        found = list[int]()
        for first, last in live:
            found += self.old.indexes[slice(*self.old.span(first, last))]
            found += range(max(first, self.tail.first), min(last, base, self.last_index) + 1)
        return found

    def _write_mark(self, mark: SnapshotMark) -> None:
        self._wal.append(fmt.KIND_SNAPSHOT, self.group, mark.index, mark.term, mark.payload)
        self._wal.active.resets.add(self.group)
        self.mark = mark

    def _move_base(self, snapshot: Snapshot) -> None:
        tail, old = self.tail, self.old
        kept = Sparse()
        seen_old = seen_tail = 0  # slots before these are kept or released
        count = snapshot.index - tail.first + 1
        for first, last in snapshot.live:
            start, stop = old.span(first, last)
            self._release(old, seen_old, start)
            kept.indexes.extend(old.indexes[start:stop])
            kept.take(old, start, stop)
            seen_old = max(seen_old, stop)
            start, stop = max(first - tail.first, 0), min(last - tail.first + 1, count)
            if start < stop:
                self._release(tail, seen_tail, start)
                kept.indexes.extend(range(tail.first + start, tail.first + stop))
                kept.take(tail, start, stop)
                seen_tail = stop
        self._release(old, seen_old, len(old))
        self._release(tail, seen_tail, count)
        tail.delete(0, count)
        tail.first += count
        self.old = kept
        self.base_index, self.base_term, self.base_hash = (
            snapshot.index,
            snapshot.term,
            snapshot.hash,
        )
        self.commit_index = max(self.commit_index, snapshot.index)

    def prune_snapshots(self) -> None:
        """Of the older ones only as many stay as the store keeps now."""
        if not self._saving and self.install is None:
            self._store.prune_group(self.group, self.mark)

    @property
    def snapshot_bytes(self) -> int:
        """Size of the newest one; 0: there is none."""
        return self._store.bytes.get(self.group, 0)

    def bytes_up_to(self, index: int) -> int:
        """Of all entries up to `index` that the log holds."""
        tail, old = self.tail, self.old
        count = max(0, min(index + 1 - tail.first, len(tail)))
        total = sum(tail.lengths[:count]) + sum(old.lengths)
        return total + fmt.RECORD_HEADER * (count + len(old))

    def bytes_within(self, live: Ranges) -> int:
        """Of those in the ranges."""
        tail, old = self.tail, self.old
        total = count = 0
        for first, last in live:
            start, stop = old.span(first, last)
            total += sum(old.lengths[start:stop])
            count += stop - start
            start, stop = max(first - tail.first, 0), min(last - tail.first + 1, len(tail))
            if start < stop:
                total += sum(tail.lengths[start:stop])
                count += stop - start
        return total + fmt.RECORD_HEADER * count

    def load_snapshot(self) -> Snapshot | None:
        """The one at the base; None when there is none yet."""
        if self.base_index == BIRTH.index:
            return None
        # While a newer one is being saved, the mark is ahead of the base.
        crc = self.mark.crc if self.mark.index == self.base_index else None
        return self._store.load(self.group, self.base_index, crc)[0]

    # Install: a snapshot and its live entries received from the leader

    def begin_install(
        self,
        index: int,
        term: int,
        hash: bytes,  # noqa: A002 -- what it is called everywhere
        data: bytes,
        live: Ranges,
    ) -> None:
        """Start to receive a snapshot; whatever was received of another one is forgotten."""
        if index <= self.base_index:
            raise SnapshotRefused(f"group {self.group}: the base is at {self.base_index} already")
        self.abort_install()
        self.install = Install(Snapshot(index, term, hash, data, list(live)), {})

    def add_live(
        self,
        index: int,
        term: int,
        data: bytes,
        hash: bytes = fmt.NO_HASH,  # noqa: A002
    ) -> None:
        """One entry that the snapshot needs; without its hash no reader can compare it."""
        assert self.install is not None, "no install was begun"
        assert len(hash) == fmt.HASH_BYTES
        wal = self._wal
        offset = wal.append(fmt.KIND_INSTALLED, self.group, index, term, hash, bytes(data))
        place = Place(wal.active.number, offset, len(hash) + len(data))
        self._forget_staged(index)
        self.install.staged[index] = (place, term)
        wal.hold(place)

    def _forget_staged(self, index: int) -> None:
        assert self.install is not None
        if index in self.install.staged:
            self._wal.release(self.install.staged.pop(index)[0])

    def abort_install(self) -> None:
        """Forget an unfinished install; the journal is as it was."""
        if self.install is not None:
            for index in list(self.install.staged):
                self._forget_staged(index)
            self.install = None

    def missing_live(self) -> list[tuple[int, int]]:
        """Ranges of the begun install that have not arrived yet."""
        assert self.install is not None
        staged = self.install.staged
        spans = self.install.snapshot.live
        return ranges_of(
            [i for first, last in spans for i in range(first, last + 1) if i not in staged]
        )

    async def finish_install(self) -> None:
        """Replace everything by what was received. Until this returns a crash brings the old state
        back.
        """
        install = self.install
        assert install is not None, "no install was begun"
        snapshot = install.snapshot
        if missing := self.missing_live():
            raise SnapshotRefused(
                f"group {self.group}: live entries {missing[:3]} have not arrived"
            )
        crc = await self._store.write(self.group, snapshot)
        if self.removed:
            return
        if self.install is not install or self.base_index >= snapshot.index:
            raise SnapshotRefused(f"group {self.group}: another snapshot came first")
        flags = fmt.MARK_RESETS | fmt.MARK_INSTALLED
        self._write_mark(SnapshotMark(snapshot.index, snapshot.term, snapshot.hash, crc, flags))
        self._replace(install)
        self._wal.write()
        await self._wal.sync()
        self._store.prune_group(self.group, self.mark)

    def _replace(self, install: Install) -> None:
        # At once with the mark, so that no entry can come between; nothing is acknowledged before
        # it is synced.
        self._release_all()
        self._hot_data.clear()
        self.install = None
        snapshot = install.snapshot
        self.base_index, self.base_term, self.base_hash = (
            snapshot.index,
            snapshot.term,
            snapshot.hash,
        )
        self.tail, self.old = Tail(snapshot.index + 1), Sparse()
        wanted = {i for first, last in snapshot.live for i in range(first, last + 1)}
        for index, (place, term) in sorted(install.staged.items()):
            if index in wanted:
                self.old.put(index, place, term)
            else:
                self._wal.release(place)
        self._set_last()
        self.commit_index = max(self.commit_index, snapshot.index)
        self.written_index = self.syncing_index = self.synced_index = 0
        self._wal.touched.add(self)

    def _release_all(self) -> None:
        self._release(self.tail, 0, len(self.tail))
        self._release(self.old, 0, len(self.old))

    def remove(self) -> None:
        """The group leaves this node."""
        self.abort_install()
        self._wal.append(fmt.KIND_GROUP_REMOVED, self.group, 0, 0, b"")
        self._wal.active.resets.add(self.group)
        self._release_all()
        self._hot_data.clear()
        self.removed = True


def indexes_in(journal: Journal, segment: int) -> list[int]:
    """Of the journal's entries that lie in that segment, ascending."""
    old, tail = journal.old, journal.tail
    found = [old.indexes[slot] for slot in old.positions_in(segment)]
    return found + [tail.first + slot for slot in tail.positions_in(segment)]
