"""Gives space back: dead segments are dropped, sparse ones are rewritten; sealed ones are archived
before, and snapshots with them.

Nothing is removed before what replaces it is synced. Records of a dropped segment that still mean
something beyond their entries (term, commit, marks, truncates) are replaced by writing each group's
state once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cluster.log import format as fmt
from cluster.log.damage import describe
from cluster.log.errors import LogCorrupt
from cluster.log.heads import heads_path
from cluster.log.journal import Journal
from cluster.log.rewriting import Rewriting
from cluster.log.segment import Segment
from cluster.log.snapshots import BIRTH, SnapshotStore
from cluster.log.space import Space
from cluster.log.wal import Wal
from cluster.seams import File

#: Bytes that one call may copy to another segment, and write to the archive in one go.
REWRITE_BYTES_MAX: Final = 4 << 20
COPY_BYTES: Final = 1 << 20
#: Bytes that are verified in one go.
VERIFIED_AT_ONCE: Final = 1 << 20
#: A sealed segment with less than this share of live bytes is rewritten.
SPARSE_SHARE: Final = 0.5
#: The same while space is short: then even a small gain is worth the copying.
SPARSE_SHARE_PRESSED: Final = 0.85
#: More sparse segments than these are rewritten, though they do not fill half a segment.
SPARSE_SEGMENTS_MAX: Final = 4
#: Sealed segments below an eighth of the usual size, as every restart leaves one; above this many
#: they are merged.
SMALL_SEGMENTS_MAX: Final = 8


class Cleaner:
    """See the module; driven by `Log.maintain`."""

    def __init__(
        self,
        wal: Wal,
        journals: Mapping[int, Journal],
        store: SnapshotStore,
        *,
        retain_bytes: int,
        retain_hours: float,
        archive_dir: str | None,
    ) -> None:
        self.archive_error: str | None = (
            None  # of the last attempt; it is repeated at the next call
        )
        self._wal = wal
        self._journals = journals
        self._store = store
        self._archived: dict[int, int] = {}  # group -> index of its newest snapshot in the archive
        self._retain_bytes = retain_bytes
        self._retain_ns = int(retain_hours * 3600e9)
        self._archive_dir = archive_dir
        self._rewriting: Rewriting | None = None

    async def run(self, space: Space) -> None:
        if self._archive_dir is not None:
            await self._archive(self._archive_dir)
        # What is dead already goes first: it makes the room that rewriting needs.
        await self._drop(self._dead(space_is_short=space.near))
        if await self._rewrite(space):
            await self._drop(self._dead(space_is_short=space.near))

    async def verify(self, bytes_max: int) -> None:
        """About so much more of the sealed segments that were not read at the start. LogCorrupt:
        there is damage.
        """
        segments = self._wal.segments
        segment = next((each for each in segments.values() if each.unverified), None)
        if segment is None:
            return
        end = min(segment.size, segment.unverified + bytes_max)
        while 0 < segment.unverified < end and segments.get(segment.number) is segment:
            at = await self._verify_piece(segment, segment.unverified)
            segment.unverified = at if at < segment.size else 0

    async def _verify_piece(self, segment: Segment, at: int) -> int:
        """Where the next one begins."""
        size = VERIFIED_AT_ONCE
        while True:
            try:
                data = await segment.file.fetch(at, min(size, segment.size - at))
            except OSError as error:
                raise self._wal.fail("read", segment.path, error) from error
            *_, end = fmt.sound_records(data, 0, segment.salt, len(data))
            if end:
                return at + end
            size = fmt.RECORD_HEADER + int.from_bytes(data[:4], "little")
            if size <= len(data) or at + size > segment.size:
                raise LogCorrupt(segment.path, at, describe(data, 0))

    def close(self) -> None:
        """Nothing points to what is being written."""
        if self._rewriting is not None:
            self._rewriting.close()

    # Dropping

    def _dead(self, *, space_is_short: bool) -> list[Segment]:
        """Segments that may go, oldest first; retention keeps the newest dead ones."""
        dead = [s for s in self._wal.segments.values() if s.sealed and s.live_bytes == 0]
        if self._archive_dir is not None:
            dead = [s for s in dead if s.archived]
        if space_is_short:
            return dead
        kept_bytes, young = 0, self._wal.clock.wall_ns() - self._retain_ns
        gone = list[Segment]()
        for segment in reversed(dead):
            kept_bytes += segment.size
            is_young = self._retain_ns > 0 and segment.last_wall_ns > young
            if kept_bytes > self._retain_bytes and not is_young:
                gone.append(segment)
        return gone[::-1]

    async def _drop(self, dead: list[Segment]) -> None:
        if not dead:
            return
        wal = self._wal
        going = {segment.number for segment in dead}
        groups = set[int]().union(*(segment.groups for segment in dead))
        for group in sorted(groups):
            if group in self._journals:
                self._journals[group].repeat_state()
            elif any(group in s.groups for s in wal.segments.values() if s.number not in going):
                # Else what is left of a removed group would bring it back.
                wal.append(fmt.KIND_GROUP_REMOVED, group, 0, 0, b"")
                wal.active.resets.add(group)
        wal.write()
        await wal.sync()
        try:
            for segment in dead:
                wal.disk.remove(segment.path)
                if wal.disk.exists(heads := heads_path(segment.path)):
                    wal.disk.remove(heads)
                wal.segments.pop(segment.number).file.close()
            await wal.disk.sync_dir(wal.directory)
        except OSError as error:
            raise wal.fail("removal", dead[0].path, error) from error

    # Rewriting

    def _sparse(self, space: Space) -> list[Segment]:
        """The sparsest first while space is short."""
        sealed = [s for s in self._wal.segments.values() if s.sealed and s.live_bytes > 0]
        small = [s for s in sealed if s.size < self._wal.segment_bytes // 8]
        merged = small if len(small) > SMALL_SEGMENTS_MAX else []
        share = SPARSE_SHARE_PRESSED if space.near else SPARSE_SHARE
        sparse = [s for s in sealed if s.live_bytes < share * s.size or s in merged]
        return sorted(sparse, key=lambda s: s.live_bytes / s.size) if space.near else sparse

    def _with_room(self, space: Space) -> list[Segment]:
        """Sparse ones whose live records can be copied: half a copy would help nobody."""
        spare = space.free_bytes - space.reserve_bytes // 2
        found = list[Segment]()
        for segment in self._sparse(space):
            if segment.live_bytes <= spare:
                spare -= segment.live_bytes
                found.append(segment)
        return found

    def reclaimable_bytes(self, space: Space) -> int:
        """What is given back without another snapshot."""
        going = self._dead(space_is_short=True) + self._with_room(space)
        return sum(segment.size - segment.live_bytes for segment in going)

    async def _rewrite(self, space: Space) -> bool:
        """Copy some of what is live in the oldest sparse segments; whether any can go now."""
        if self._rewriting is None and (sparse := self._next_sparse(space)):
            number = await self._wal.spare_number()
            try:
                self._rewriting = Rewriting(self._wal, number, sparse, self._journals.values())
            except OSError as error:
                raise self._wal.fail("creation", self._wal.directory, error) from error
        rewriting = self._rewriting
        if rewriting is None:
            return False
        try:
            if not await rewriting.copy(REWRITE_BYTES_MAX) and not space.near:
                return False
            self._rewriting = None
            await rewriting.publish()
        except OSError as error:
            raise self._wal.fail("rewriting", self._wal.directory, error) from error
        return True

    def _next_sparse(self, space: Space) -> list[Segment]:
        """As many as make a segment; none yet if they are few and have little, unless space is
        short: small segments of copies would have to be merged later.
        """
        sparse = self._with_room(space)
        found, room = list[Segment](), self._wal.segment_bytes
        few = len(sparse) <= SPARSE_SEGMENTS_MAX
        if few and sum(s.live_bytes for s in sparse) < room // 2 and not space.near:
            return found
        for segment in sparse:
            if found and segment.live_bytes > room:
                break
            room -= segment.live_bytes
            found.append(segment)
        return found

    # Archive

    async def _archive(self, directory: str) -> None:
        folder = about = f"{directory}/{self._wal.identity.node}"
        try:
            for segment in list(self._wal.segments.values()):
                if segment.sealed and not segment.archived:
                    about = f"{segment.path} to {folder}"
                    name = fmt.archive_name(segment.number, segment.created_ns)
                    await self._copy(segment.file, segment.size, folder, name)
                    segment.archived = True
            for group, journal in list(self._journals.items()):
                index = journal.mark.index
                if index not in (BIRTH.index, self._archived.get(group)):
                    about = f"{self._store.path(group, index)} to {folder}/snapshots"
                    await self._copy_snapshot(group, index, f"{folder}/snapshots")
                    self._archived[group] = index
        except OSError as error:
            # The archive is not the log: it may be full or away, and the node goes on.
            self.archive_error = f"{about}: {error}"
            return
        self.archive_error = None

    async def _copy_snapshot(self, group: int, index: int, folder: str) -> None:
        """So that readers of the archive need not begin at the beginning."""
        path = self._store.path(group, index)
        if not self._wal.disk.exists(path):
            return  # set aside as damaged
        file = self._wal.disk.open(path)
        try:
            await self._copy(file, file.size(), folder, path.rpartition("/")[2])
        finally:
            file.close()

    async def _copy(self, source: File, size: int, folder: str, name: str) -> None:
        disk = self._wal.disk
        target = f"{folder}/{name}"
        if not disk.exists(folder):
            disk.make_dir(folder)
        if disk.exists(target):
            return
        if disk.exists(target + ".tmp"):
            disk.remove(target + ".tmp")
        file = disk.open(target + ".tmp", create=True)
        try:
            for offset in range(0, size, COPY_BYTES):
                file.append([await source.fetch(offset, min(COPY_BYTES, size - offset))])
            await file.sync()
        finally:
            file.close()
        disk.rename(target + ".tmp", target)
        await disk.sync_dir(folder)
