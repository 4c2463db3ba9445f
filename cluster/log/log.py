"""The log of a node: one write-ahead log for all groups, a journal for each."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from cluster.codec.cbor import pack
from cluster.log import format as fmt
from cluster.log.cleaner import Cleaner
from cluster.log.errors import FatalDiskError, LogError
from cluster.log.heads import SEGMENT_BYTES_MIN
from cluster.log.index import HotTail
from cluster.log.journal import Journal
from cluster.log.recovery import Recovered, RecoveryProgress, assemble, recover
from cluster.log.snapshots import BIRTH, SNAPSHOTS_KEPT, SnapshotStore
from cluster.log.space import Space, measured
from cluster.log.wal import SLOW_SYNC_S, Wal
from cluster.seams import Clock, Disk


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What an operator may set."""

    segment_bytes: int = 64 << 20
    retain_bytes: int = 0  # dead segments are kept up to this much in all
    retain_hours: float = 0  # or for this long
    archive_dir: str | None = None  # sealed segments are copied there
    hot_bytes: int = 32 << 20  # newest entries kept in memory, over all groups
    #: Below this much free space publishes are refused; None: what suits the volume.
    min_free_bytes: int | None = None
    #: Sealed segments of this size get a file by which a start knows them without reading them.
    heads_bytes_min: int = SEGMENT_BYTES_MIN


#: The volume is looked at after this much was written at most: a share of what is free until
#: publishers have to wait, and no less than the other.
LOOK_PARTS = 8
LOOK_BYTES_MIN = 256 << 10
#: Under pressure the active segment is sealed too when so much of it, and most of it, is dead.
ROLL_BYTES_MIN = 256 << 10
ROUND_NOTE_NS = 1_000_000_000
#: Of what a start did not read, verified by one call.
VERIFY_BYTES = 8 << 20


class Log:
    """See the module. One event loop owns it; only syncs happen elsewhere."""

    def __init__(self, wal: Wal, options: LogOptions) -> None:
        self.wal = wal
        self.options = options
        self.store = SnapshotStore(wal)
        self.recovered_records = 0
        self.cut_bytes = 0
        self.journals: dict[int, Journal] = {}
        self._hot = HotTail(options.hot_bytes)
        self._maintaining = False
        # Since the last note: counters at that time, syncs, the longest of them.
        self._forced = set[int]()  # groups with a record of forced members, also of a former life
        self._diverged = set[int]()  # the same of this
        self._noted = (0, 0)
        #: Called when publishers have to wait from now on, or need not any more.
        self.on_space: Callable[[], object] = lambda: None
        self._space = Space(0, 0, 0, refuse_publishes=False)
        #: One vectored append of all that was buffered; True when something must be synced before
        #: others hear.
        self.write = wal.write
        #: Make safe what is written; the seconds it took. A failure is final.
        self.sync = wal.sync
        #: About how much may still be written before only the reserve is left.
        self.room_bytes = wal.room_bytes
        self.cleaner = Cleaner(
            wal,
            self.journals,
            self.store,
            retain_bytes=options.retain_bytes,
            retain_hours=options.retain_hours,
            archive_dir=options.archive_dir,
        )

    @classmethod
    async def open(
        cls,
        directory: str,
        *,
        disk: Disk,
        clock: Clock,
        identity: fmt.LogIdentity,
        options: LogOptions | None = None,
        progress: RecoveryProgress | None = None,
    ) -> Log:
        """Recover. Raises LogCorrupt, WrongIdentity or UnsupportedFormat, each with file, offset
        and advice. With `progress`, others on the loop have their turn between two segments.
        """
        options = options or LogOptions()
        about = f"{identity.node}\0{identity.cluster}\0{clock.wall_ns()}\0{clock.monotonic_ns()}"
        boot = blake2b(about.encode(), digest_size=16).digest()
        wal = Wal(
            directory,
            disk=disk,
            clock=clock,
            identity=identity,
            boot=boot,
            segment_bytes=options.segment_bytes,
            heads_bytes_min=options.heads_bytes_min,
        )
        log = cls(wal, options)
        try:
            for path in (directory, log.store.directory):
                made = not disk.exists(path)
                if made:
                    disk.make_dir(path)
                # Whoever made it may have been killed before this.
                if made or not any(map(fmt.segment_number, disk.list_dir(directory))):
                    await disk.sync_dir(posixpath.dirname(path) or ".")
            log.space()
            wal.on_written = log.space
            found = await recover(wal, identity, progress)
            log._adopt(found)
            await wal.start(found.next_number)
            await log._settle(found)
            wal.on_note_due, wal.note_at_ns = log._note_round, 0
            wal.sync_count, wal.longest_sync_s = 0, 0.0
        except OSError as error:
            wal.close()
            raise FatalDiskError(f"opening {directory} failed: {error}") from error
        except LogError:
            wal.close()
            raise
        return log

    @property
    def hot_bytes(self) -> int:
        """Of the latest records, which are kept in memory."""
        return self._hot.bytes

    def _adopt(self, found: Recovered) -> None:
        self.recovered_records, self.cut_bytes = found.records, found.cut_bytes
        self._forced, self._diverged = found.forced, found.diverged
        for group, replay in sorted(found.replays.items()):
            state = assemble(self.wal, self.store, group, replay)
            journal = self.journals[group] = Journal(group, self.wal, self.store, self._hot)
            journal.adopt(replay, state.snapshot, state.mark, state.tail, state.old)
            journal.mark_again = state.fell_back

    async def _settle(self, found: Recovered) -> None:
        """Leave on disk what a later recovery should know."""
        for number in sorted(self.wal.segments)[-2:-1]:
            segment = self.wal.segments[number]
            self.wal.append(fmt.KIND_SYNCED, 0, 0, 0, fmt.encode_synced(number, segment.size))
        again = [journal for journal in self.journals.values() if journal.mark_again]
        if again:
            await self.wal.disk.sync_dir(self.store.directory)  # the damaged one has a new name
        for journal in again:
            journal.repeat_state()
        self.wal.write()
        await self.wal.sync()
        self.store.prune({group: journal.mark for group, journal in self.journals.items()})

    def journal(self, group: int) -> Journal:
        """The journal of a group; a new one is born with entry 1, PySyncObj's no-op."""
        found = self.journals.get(group)
        if found is None:
            found = self.journals[group] = Journal(group, self.wal, self.store, self._hot)
            if any(group in segment.groups for segment in self.wal.segments.values()):
                # A former life of the group left records.
                found.forced = b"" if group in self._forced else None
                found.diverged = False if group in self._diverged else None
                found.repeat_state()
            else:
                self.wal.append(fmt.KIND_GROUP_CREATED, group, 0, 0, b"")
        return found

    def groups(self) -> list[int]:
        return sorted(self.journals)

    def remove_group(self, group: int) -> None:
        """Forget a group; its entries die with the record of this."""
        journal = self.journals.pop(group, None)
        if journal is not None:
            if journal.forced is not None:
                self._forced.add(group)
            if journal.diverged is not None:
                self._diverged.add(group)
            journal.remove()

    def note(self, kind: int, group: int, index: int, term: int, payload: bytes) -> None:
        """Something for later readers; it never causes a sync."""
        assert kind >= fmt.KIND_NOTE
        self.wal.append(kind, group, index, term, payload)

    def _note_round(self) -> None:
        """What the disk did, for later readers: about once a second, and whenever it was slow."""
        wal = self.wal
        is_first, wal.note_at_ns = not wal.note_at_ns, wal.synced_at_ns + ROUND_NOTE_NS
        if is_first and wal.longest_sync_s < SLOW_SYNC_S:
            return
        records, size = self._noted
        self._noted = (wal.record_count, wal.written_bytes)
        longest_ns = round(wal.longest_sync_s * 1e9)
        done = [wal.record_count - records, wal.written_bytes - size, wal.sync_count, longest_ns]
        self.note(fmt.KIND_ROUND, 0, 0, 0, pack(done))
        wal.sync_count, wal.longest_sync_s = 0, 0.0

    def space(self) -> Space:
        """The volume as it is now."""
        wal = self.wal
        free, total = (ask(wal.directory) for ask in (wal.disk.free_bytes, wal.disk.total_bytes))
        refused = self._space.refuse_publishes
        space = measured(free, total, self.options.min_free_bytes, refused=refused)
        self._space = space
        wal.room_until = wal.written_bytes + free - space.reserve_bytes
        wal.segment_bytes = space.segment_bytes(self.options.segment_bytes)
        until_refused = (free - space.limit_bytes) // LOOK_PARTS
        wal.look_at_bytes = wal.written_bytes + max(LOOK_BYTES_MIN, until_refused)
        if space.refuse_publishes != refused:
            self.on_space()
        return space

    async def maintain(self) -> None:
        """Archive, rewrite and drop segments; a bounded piece of work, to be called about once a
        second.
        """
        if self._maintaining:
            return
        self._maintaining = True
        try:
            self.wal.write()
            space, active = self.space(), self.wal.active
            if active.size >= self.wal.segment_bytes:
                await self.wal.sync()
            kept = 1 if space.near else SNAPSHOTS_KEPT
            if kept != self.store.kept:
                self.store.kept = kept
                for journal in self.journals.values():
                    journal.prune_snapshots()
            dead = active.size - active.live_bytes
            room = space.free_bytes >= ROLL_BYTES_MIN
            if space.near and room and dead >= max(ROLL_BYTES_MIN, active.size // 2):
                await self.wal.roll()
            await self.cleaner.run(space)
            await self.cleaner.verify(VERIFY_BYTES)
            removed = [g for g in self.store.indexes() if g not in self.journals]
            if removed:
                await self.wal.sync()
                for group in removed:
                    self.store.prune_group(group, BIRTH)
        finally:
            self._maintaining = False

    async def close(self) -> None:
        """Write and sync everything, with a last word on how far."""
        if self.wal.failure is None:
            for _ in range(2):  # the second one is for the mark that the first one leaves
                self.wal.write()
                await self.wal.sync()
        self.cleaner.close()
        self.wal.close()
