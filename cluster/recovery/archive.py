"""What happened after a backup, out of the segments of any nodes: archived ones, or of a folder.

A log also holds entries that never counted. Those that did are below a commit that the same log
notes later; of these each node has the same, so one node's segments fill the gaps of another's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from cluster.log import LogCorrupt
from cluster.log.format import MARK_RESETS, FileHeader
from cluster.log.portable import RecordFiles
from cluster.log.reader import CORRUPT, Record, read_header, records, segments
from cluster.log.snapshots import decode_mark
from cluster.recovery.restoring import Replayed, stamped_ms

ADVICE: Final = "Give another node's copy of it, or stop before it with --to; nothing was changed"


class ArchiveGap(Exception):
    """What is given does not reach where it should: which entries are missing."""


class _Entry(NamedTuple):
    number: int
    file: str
    offset: int


class Archive:
    """Committed entries of the cluster, above those that a backup holds."""

    def __init__(self, cluster: str, above: Mapping[int, int]) -> None:
        self._cluster = cluster
        self._above = above
        self._entries: dict[int, dict[int, _Entry]] = {}
        self._reaches_ns: dict[int, int] = {}  # by group: who holds it was still there
        self.files = RecordFiles()

    def add(self, directory: str) -> int:
        """All segments of one node. How many. LogCorrupt, or ArchiveGap: of another cluster."""
        found: list[tuple[int, str, bool]] = []
        for file in segments(directory):
            header = read_header(file.path)
            if isinstance(header, FileHeader):
                if header.identity.cluster != self._cluster:
                    raise ArchiveGap(
                        f"{file.path} is of cluster {header.identity.cluster}, the backup of"
                        f" {self._cluster}: give the archive that belongs to it"
                    )
                found.append((header.wall_ns, file.path, file.last))
            elif not file.last:
                raise LogCorrupt(file.path, header.offset, header.payload.decode(), ADVICE)
        uncommitted: dict[int, deque[_Entry]] = {}
        last_ns = 0
        seen: set[int] = set()
        for _, path, last in sorted(found):  # numbers begin again in a folder that was lost
            for record in records(path, last=last):
                if record.kind == CORRUPT:
                    raise LogCorrupt(path, record.offset, record.payload.decode(), ADVICE)
                last_ns = max(last_ns, record.wall_ns)
                seen.add(record.group)
                self._take(record, uncommitted.setdefault(record.group, deque()))
        for group in seen:
            self._reaches_ns[group] = max(last_ns, self._reaches_ns.get(group, 0))
        return len(found)

    def _take(self, record: Record, uncommitted: deque[_Entry]) -> None:
        """The records of one node, in their order."""
        match record.kind:
            case "entry":
                _cut(uncommitted, record.index)
                if record.index > self._above.get(record.group, 1):
                    uncommitted.append(_Entry(record.index, record.file, record.offset))
            case "truncate":
                _cut(uncommitted, record.index)
            case "group-removed":
                uncommitted.clear()
            case "commit":
                self._commit(record.group, record.index, uncommitted)
            case "snapshot":
                mark = decode_mark(record.index, record.term, record.payload)
                if mark.flags & MARK_RESETS:
                    uncommitted.clear()
                self._commit(record.group, record.index, uncommitted)
            case _:
                pass

    def _commit(self, group: int, index: int, uncommitted: deque[_Entry]) -> None:
        entries = self._entries.setdefault(group, {})
        while uncommitted and uncommitted[0].number <= index:
            entry = uncommitted.popleft()
            entries.setdefault(entry.number, entry)

    # --- going on ---------------------------------------------------------------------------------

    def forward(
        self, found: Replayed, *, to_index: int | None = None, to_ms: int | None = None
    ) -> None:
        """Apply what comes next, up to that entry or time, or the end. ArchiveGap, LogCorrupt."""
        if to_index is not None and to_index < found.index:
            raise ArchiveGap(
                f"{found.name}: the backup is at entry {found.index} already, and --to asks for"
                f" {to_index}: restore an earlier backup"
            )
        if to_ms is not None and to_ms < found.now_ms:
            raise ArchiveGap(
                f"{found.name}: the backup is {found.now_ms - to_ms} ms later than --to-time:"
                " restore an earlier backup"
            )
        entries = self._entries.get(found.group, {})
        while to_index is None or found.index < to_index:
            entry = entries.get(found.index + 1)
            if entry is None:
                self._check_end(found, entries, to_index, to_ms)
                return
            record = self.files.record(entry.file, entry.offset)
            at_ms = stamped_ms(record)
            if to_ms is not None and at_ms is not None and at_ms > to_ms:
                return
            found.apply(record)

    def _check_end(
        self,
        found: Replayed,
        entries: Mapping[int, _Entry],
        to_index: int | None,
        to_ms: int | None,
    ) -> None:
        missing = found.index + 1
        later = min((index for index in entries if index > missing), default=None)
        if later is not None:
            last = later - 1 if to_index is None else min(later - 1, to_index)
            raise ArchiveGap(
                f"{found.name}: entries {missing} to {last} are in no segment of the archive, and"
                f" later ones are: give the missing segments, or stop with --to {found.name}="
                f"{found.index}"
            )
        if to_index is not None:
            raise ArchiveGap(
                f"{found.name}: the archive ends at entry {found.index}, and --to asks for"
                f" {to_index}: entries {missing} to {to_index} are missing"
            )
        reaches_ms = self._reaches_ns.get(found.group, 0) // 1_000_000
        if to_ms is not None and reaches_ms < to_ms:
            raise ArchiveGap(
                f"{found.name}: the archive ends {to_ms - reaches_ms} ms before --to-time, so"
                f" entries from {missing} on may be missing: give later segments, or leave"
                " --to-time away"
            )


def _cut(entries: deque[_Entry], index: int) -> None:
    while entries and entries[-1].number >= index:
        entries.pop()
