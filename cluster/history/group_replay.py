"""What became of every message of a group, out of the entries of its log.

The entries go through the real machine, and an event recorder in it writes down what happens,
as rows of the table `events` of a post-mortem: plain tuples, with the fields of `Event` in that
order. chaos/postmortem/schemas.py says what a row means.

    replay = GroupReplay.after(group, snapshot)    # or GroupReplay(group): before the first entry
    for row in replay.known(): ...           # what was there already, if somebody asks
    for index, term, command in entries:     # committed, in order, without a gap
        replay.apply(index, term, command)
        rows = replay.take_rows()            # what it led to; may wait for many entries
    replay.digest()                          # to compare with what a node noted at `replay.index`

Nothing here is a decision: all that is said, the machine has said or done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cluster.codec.entries import AnyCommand, body_offsets, decode_entry, written_under
from cluster.codec.errors import CodecError
from cluster.history.event_rows import Event, Row, RowRecorder
from cluster.log.snapshots import Snapshot
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import Enqueue, Transaction
from cluster.machine.queue import Queue
from cluster.machine.stream.stream import Stream
from cluster.machine.versions import NeedsNewer
from cluster.raft.configuration import split
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import CATALOG_GROUP, GroupId, Stamp

#: Entry 1 of every group is a no-op that is in no log.
BEFORE_FIRST: Final = 1
#: Entries are kept up to here, should the machine raise at one: then the state before it is
#: computed again, as nodes do.
KEPT_BYTES_MAX: Final = 64 << 20


__all__ = ["Event", "GroupReplay", "ReplayFailed", "Row", "stamped"]


class ReplayFailed(Exception):
    """An entry that cannot be applied, or is not the next one."""


def stamped(index: int, term: int, command: bytes) -> list[tuple[Stamp, AnyCommand]]:
    """The commands of an entry as the machine wants them; none: it is not of a regular kind.
    CodecError: it is no entry.
    """
    if command[:1] != REGULAR:
        return []
    entry = decode_entry(command[1:])
    commands, now_ms = entry.commands, entry.now_ms
    if len(commands) == 1:
        return [(Stamp(index, term, now_ms), commands[0])]
    offsets = enumerate(body_offsets(commands))
    stamps = [Stamp(index, term, now_ms, ordinal, offset) for ordinal, offset in offsets]
    return list(zip(stamps, commands, strict=True))


class GroupReplay:
    """See the module. The catalog's group has no messages: of it there are only digests."""

    def __init__(self, group: GroupId) -> None:
        self.group = group
        self.index = BEFORE_FIRST  # of the newest entry that was applied
        self.term = 0
        self.commands = 0
        self.machine: CatalogMachine | QueueMachine
        self._recorder = RowRecorder(group)
        if group == CATALOG_GROUP:
            self.machine = CatalogMachine()
        else:
            self.machine = self._recorder.machine
            self.machine.record(self._recorder)
        self._state = self.machine.snapshot()
        self._kept: list[tuple[int, int, bytes]] | None = []  # applied since that state
        self._kept_bytes = 0
        self.skipped: list[tuple[int, int]] = []  # index and ordinal, of commands

    @classmethod
    def after(cls, group: GroupId, snapshot: Snapshot) -> GroupReplay:
        """Go on from there. UnsupportedSnapshot: this release cannot restore it."""
        found = cls(group)
        try:
            found._state = split(snapshot.data)[1]
            found.machine.restore(found._state)
        except UnsupportedSnapshot:
            raise
        except Exception as error:
            # Its bytes are as they were written, so what wrote them means something else by them.
            raise UnsupportedSnapshot(
                f"the state after entry {snapshot.index} is of another release:"
                f" {type(error).__name__}: {error}"
            ) from error
        if isinstance(found.machine, QueueMachine):
            found.machine.record(found._recorder)
        found.index, found.term = snapshot.index, snapshot.term
        return found

    @classmethod
    def begin(cls, group: GroupId, snapshot: Snapshot | None) -> GroupReplay:
        """After the snapshot, or before the first entry. UnsupportedSnapshot."""
        return cls(group) if snapshot is None else cls.after(group, snapshot)

    @property
    def now_ms(self) -> int:
        """The leader's clock, as far as this group has seen it."""
        return self._recorder.machine.now_ms

    @property
    def messages(self) -> int:
        """Stored since the beginning of this replay."""
        return self._recorder.messages

    def apply(self, index: int, term: int, command: bytes) -> None:
        """The next entry, as it is in the log. A command at which the machine raises is skipped, as
        on every node. ReplayFailed: nothing after it can be said.
        """
        if index != self.index + 1:
            raise ReplayFailed(f"entry {self.index + 1} is missing")
        newest = self.machine.newest
        if command[:1] == REGULAR and (version := written_under(command, 1)) > newest:
            raise ReplayFailed(str(NeedsNewer(f"entry {index}", version, newest)))
        self.index, self.term = index, term
        apply, recorder = self.machine.apply, self._recorder
        self._keep(index, term, command)
        try:
            for stamp, each in stamped(index, term, command):
                self.commands += 1
                count = len(recorder.rows)
                recorder.begin(stamp)
                try:
                    reply, _ = apply(stamp, each)
                except Exception as error:  # noqa: BLE001 -- a bug of the machine, whatever it is
                    self._skip(stamp, error)
                    del recorder.rows[count:]
                    continue
                kind = type(each)
                if kind is Enqueue or kind is Transaction:
                    recorder.answered(each, reply, stamp.body_offset)
        except CodecError as error:
            raise ReplayFailed(f"entry {index} is no entry: {error}") from error
        except ReplayFailed:
            raise
        except Exception as error:
            # A node stops the group there, and so does this.
            raise ReplayFailed(f"entry {index}: {type(error).__name__}: {error}") from error

    def _keep(self, index: int, term: int, command: bytes) -> None:
        if self._kept is not None:
            self._kept.append((index, term, command))
            self._kept_bytes += len(command)
            if self._kept_bytes > KEPT_BYTES_MAX:
                self._kept = None

    def _skip(self, at: Stamp, error: Exception) -> None:
        """The state as it was before that command, which has left some of it changed."""
        if self._kept is None:
            raise ReplayFailed(
                f"entry {at.index}: {type(error).__name__}: {error}; too much was replayed"
                " since the newest state to leave this command out"
            ) from error
        machine = self.machine
        machine.restore(self._state)
        before = (at.index, at.ordinal)
        for index, term, command in self._kept:
            for stamp, each in stamped(index, term, command):
                place = (index, stamp.ordinal)
                if place < before and place not in self.skipped:
                    machine.apply(stamp, each)
        self.skipped.append(before)
        if isinstance(machine, QueueMachine):
            machine.record(self._recorder)

    def take_rows(self) -> list[Row]:
        """Those since they were last taken, in order."""
        rows = self._recorder.rows
        self._recorder.rows = []
        return rows

    def known(self) -> Iterator[Row]:
        """The messages that are there now, and who is active; at_ms: when each was stored."""
        if isinstance(self.machine, QueueMachine):
            self._recorder.begin(Stamp(self.index, self.term, 0))
            for number in self.machine.queues():
                queue = self.machine.find(number)
                if isinstance(queue, Queue):
                    yield from self._recorder.known(queue)
                elif isinstance(queue, Stream):
                    yield from self._recorder.kept(queue)

    def digest(self) -> bytes:
        return self.machine.digest()
