"""When a group's machine is written down so that the log before it can go, and how: after so much
was applied, or when space is short and it frees something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog

from cluster.log import SnapshotRefused
from cluster.machine.interface import Machine
from cluster.raft.journal_protocol import RaftJournal

#: A snapshot is taken after this many entries, bytes of entries, or commands in them: a start
#: applies those again, in 10 to 60 us each.
SNAPSHOT_ENTRIES = 20_000
SNAPSHOT_BYTES = 64 << 20
SNAPSHOT_COMMANDS = 100_000
#: When space is short, one is taken that frees so much, and this share of its own size.
FREED_BYTES_MIN = 16 << 10
FREED_SHARE_MIN = 0.25

#: Bytes of a snapshot that are made before others get their turn: below a millisecond.
SLICE_BYTES = 16 << 10

log = structlog.get_logger(__name__)


async def _joined(pieces: Iterator[bytes]) -> bytes:
    """What they amount to; the loop turns in between."""
    made = bytearray()
    slice_end = SLICE_BYTES
    for piece in pieces:
        made += piece
        if len(made) >= slice_end:
            slice_end = len(made) + SLICE_BYTES
            await asyncio.sleep(0)
    return bytes(made)


class SnapshotLimits(Protocol):
    @property
    def snapshot_entries(self) -> int: ...
    @property
    def snapshot_bytes(self) -> int: ...
    @property
    def snapshot_commands(self) -> int: ...


class Snapshots:
    """Decides when a group takes a snapshot, and takes it, beside the drive loop.

    Whoever applies an entry takes it off `entries_left`, `bytes_left` and `commands_left`. One is
    due once any of them is gone, unless one is being saved.
    """

    def __init__(
        self,
        group: str,
        machine: Machine,
        journal: RaftJournal,
        limits: SnapshotLimits,
        *,
        join: Callable[[int, bytes], bytes],
    ) -> None:
        self._join = join  # what else is to be known at that entry
        self._group = group
        self._machine = machine
        self._journal = journal
        self._limits = limits
        self.saving = False
        self._wanted = False  # though it is not due
        self._frees = (0, 0)  # index, and what one would have freed there
        self.restart()

    def restart(self) -> None:
        """The journal starts at a snapshot just now."""
        self.entries_left = self._limits.snapshot_entries
        self.bytes_left = self._limits.snapshot_bytes
        self.commands_left = self._limits.snapshot_commands

    def frees_bytes(self, index: int) -> int:
        """What the log could let go with one now; 0: not worth it."""
        journal = self._journal
        if self.saving or index <= journal.base_index:
            return 0
        if index == self._frees[0]:
            return self._frees[1]
        least = max(FREED_BYTES_MIN, journal.snapshot_bytes * FREED_SHARE_MIN)
        held = journal.bytes_up_to(index)
        freed = held - journal.bytes_within(self._machine.live_indexes()) if held >= least else 0
        self._frees = (index, freed if freed >= least else 0)
        return self._frees[1]

    def want(self) -> None:
        """Take one as soon as can be."""
        self._wanted = True
        self.entries_left = 0

    @property
    def under_way(self) -> bool:
        return self._wanted or self.saving

    async def take(self, index_of: Callable[[], int | None]) -> None:
        """The machine as it is when this runs, after that entry; live entries stay readable."""
        if self.saving:
            return
        self.saving = True
        try:
            for _ in self._machine.prepare_snapshot():
                await asyncio.sleep(0)
            await self._take(index_of())
        finally:
            self.saving = False

    async def _take(self, index: int | None) -> None:
        if index is None:
            return  # later, then
        self._wanted = False
        self.restart()
        if index <= self._journal.base_index:
            return
        term = self._journal.term_at(index)
        assert term is not None, "an applied entry above the base is in the log"
        try:
            pieces = self._machine.snapshot_pieces()
            live = self._machine.live_indexes()
            data = self._join(index, await _joined(pieces))
            await self._journal.save_snapshot(index, term, data, live)
            log.info("snapshot_taken", group=self._group, index=index, bytes=len(data))
        except SnapshotRefused as error:
            log.info("snapshot_refused", group=self._group, index=index, reason=str(error))
