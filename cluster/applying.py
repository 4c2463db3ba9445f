"""Committed entries go through the machine, and who asked is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cluster.codec.entries import AnyCommand, Entry, body_count, decode_entry, written_under
from cluster.entry_cache import EntryCache
from cluster.log import KIND_DIGEST, MEMBERSHIP
from cluster.log_time import LogTime
from cluster.machine.effects import Effect
from cluster.machine.interface import Machine
from cluster.machine.replies import Refused
from cluster.machine.versions import NeedsNewer
from cluster.outcome import Done, Outcome, unknown
from cluster.proposals import Proposals
from cluster.raft.journal import RaftJournal
from cluster.raft.stock import NO_OP, REGULAR
from cluster.types import BodyRef, Stamp

#: A digest of the state is noted every so many entries, at the same indexes on every replica.
DIGEST_ENTRIES = 1_000

KINDS_OF_RAFT = frozenset({NO_OP, MEMBERSHIP})

OnEffects = Callable[[Stamp, Sequence[Effect]], None]


class Notes(Protocol):
    """The part of the log that takes notes for a later reader."""

    def note(self, kind: int, group: int, index: int, term: int, payload: bytes) -> None: ...


class Applying:
    """One machine, and the entries that it was or will be given."""

    def __init__(
        self,
        machine: Machine,
        journal: RaftJournal,
        proposals: Proposals,
        notes: Notes,
        time: LogTime,
    ) -> None:
        self._time = time
        self._keeps = False
        self._machine = machine
        self._journal = journal
        self._proposals = proposals
        self._notes = notes
        self._cache = EntryCache()

    def apply(
        self,
        command: bytes,
        stamped: tuple[int, int],
        dones: Sequence[Done | None],
        on_effects: OnEffects | None,
    ) -> None:
        """All commands of one entry; `stamped` is its index and term. What it raises is a bug."""
        if command[:1] != REGULAR:
            return  # of Raft itself
        index, term = stamped
        apply = self._machine.apply
        answer = self._proposals.answer_one
        offset = ordinal = 0
        try:
            entry = decode_entry(memoryview(command)[1:])
            now_ms = entry.now_ms
            self._time.saw(now_ms)
            for ordinal, each in enumerate(entry.commands):
                stamp = Stamp(index, term, now_ms, ordinal, offset)
                reply, effects = apply(stamp, each)
                offset += body_count(each)
                if dones and (done := dones[ordinal]) is not None:
                    if type(reply) is Refused:
                        outcome = Outcome("refused", reply, stamp, reply.code, reply.reason)
                    else:
                        outcome = Outcome("ok", reply, stamp)
                    answer(done, outcome)
                if effects and on_effects is not None:
                    on_effects(stamp, effects)
        except Exception as error:
            reason = f"{type(error).__name__} in the machine at entry {index}"
            self._proposals.answer(dones[ordinal:], unknown(reason))
            raise
        if offset and self._keeps:
            self._cache.put(index, entry, len(command))

    def beyond(self, command: bytes) -> NeedsNewer | None:
        """Why an entry must not be taken here: a later release wrote it."""
        newest = self._machine.newest
        kind = command[:1]
        if kind == REGULAR:
            version = written_under(command, 1)
            return NeedsNewer("an entry", version, newest) if version > newest else None
        return None if kind in KINDS_OF_RAFT else NeedsNewer("an entry", None, newest)

    def keep(self, keeps: bool) -> None:
        """A leader delivers what it just applied, so it keeps that; others would for nothing."""
        self._keeps = keeps
        if not keeps:
            self._cache.clear()

    def note_digest(self, group: int, index: int, term: int) -> bytes | None:
        """What was noted after this entry, if anything."""
        if index % DIGEST_ENTRIES:
            return None
        digest = self._machine.digest()
        self._notes.note(KIND_DIGEST, group, index, term, digest)
        return digest

    def read_bodies(self, ref: BodyRef) -> list[tuple[bytes, Any]]:
        """Body and meta of each message; empty when they are settled and gone."""
        decoded = self._cache.get(ref.index)
        if decoded is None:
            entry, size = self._read(ref.index)
            if entry is None:
                return []
            decoded = self._cache.put(ref.index, entry, size)
        return decoded.messages(ref.offset, ref.count)

    def age_s(self, index: int) -> float | None:
        """Since it was proposed; of an entry whose bodies were read a moment ago."""
        decoded = self._cache.peek(index)
        return None if decoded is None else (self._time.now_ms() - decoded.now_ms) / 1000

    def read_command(self, index: int, ordinal: int) -> AnyCommand | None:
        """One command of an entry that is still in the log."""
        entry, _ = self._read(index)
        return None if entry is None else entry.commands[ordinal]

    def _read(self, index: int) -> tuple[Entry | None, int]:
        """An entry, and its size in the log."""
        data = self._journal.read(index)
        if data is None or data[:1] != REGULAR:
            return None, 0
        return decode_entry(memoryview(data)[1:]), len(data)

    def snapshot_beyond(self, data: bytes) -> NeedsNewer | None:
        """The same of a snapshot."""
        return self._machine.beyond(data)

    def restore(self, data: bytes) -> None:
        self._machine.restore(data)
        self._cache.clear()
