"""Committed entries on their way through the machine, and the bodies that they left in the log."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from cluster.agreed_time import LogTime
from cluster.codec.entries import AnyCommand, body_count, decode_entry, encode_command, part_of
from cluster.groups.cold_reads import ColdReads
from cluster.groups.entry_cache import EntryCache
from cluster.groups.outcome import Done, Outcome, called_back, unknown
from cluster.groups.pacing import Pacing
from cluster.groups.proposals import Proposals
from cluster.log import MEMBERSHIP
from cluster.machine.commands import BodyPart, Enqueue
from cluster.machine.effects import Effect
from cluster.machine.interface import Machine
from cluster.machine.replies import COMMAND_SKIPPED, Enqueued, Refused
from cluster.machine.versions import NeedsNewer
from cluster.raft.configuration import split
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.types import Body, BodyRef, Stamp

#: Entries of Raft itself: no command is in them.
KINDS_OF_RAFT = frozenset({NO_OP, MEMBERSHIP})
#: Read at a time when the state of before a command is computed again.
REPLAY_BYTES = 4 << 20

#: Of a command that was skipped, kept in the note of it; the entry has all of it.
SKIPPED_BYTES_MAX = 4 << 10


def skipped_reason(error: Exception) -> str:
    return (
        f"the machine cannot do this ({type(error).__name__}): it was skipped on every copy and"
        " changed nothing; this is a bug, please report it"
    )


class Applying:
    """One machine, and the committed entries that it was or will be given."""

    def __init__(
        self,
        machine: Machine,
        journal: RaftJournal,
        proposals: Proposals,
        time: LogTime,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        pacing: Pacing,
    ) -> None:
        self._time = time
        self._pacing = pacing
        self._keeps = False
        self._machine = machine
        self._journal = journal
        self._proposals = proposals
        self._cache = EntryCache()
        self.cold = ColdReads(journal, self._cache, spawn)
        self._blank = machine.snapshot()
        self._skipped: set[tuple[int, int]] = set()  # index and ordinal, above the newest snapshot
        self.skipped_count = 0  # since the process started
        #: Told the stamp of a command that was skipped, why, and its bytes.
        self.on_skipped: Callable[[Stamp, str, bytes], object] = lambda _, __, ___: None

    def apply(
        self,
        data: bytes,
        index: int,
        term: int,
        dones: Sequence[Done | None],
        on_effects: Callable[[Stamp, Sequence[Effect]], None] | None,
    ) -> int:
        """All commands of one entry, and how many they are. A command at which the machine raises
        is skipped. What is raised here has no way out: the copy is no use.
        """
        if data[:1] != REGULAR:
            if data[:1] not in KINDS_OF_RAFT:
                raise NeedsNewer("an entry", None, self._machine.newest)
            return 0  # of Raft itself
        apply = self._machine.apply
        proposals = self._proposals
        offset = ordinal = 0
        try:
            entry = decode_entry(memoryview(data)[1:])
            if entry.version > self._machine.newest:
                raise NeedsNewer("an entry", entry.version, self._machine.newest)
            now_ms = entry.now_ms
            if now_ms > self._time.highest_ms:
                self._time.saw(now_ms)
            for ordinal, each in enumerate(entry.commands):
                stamp = Stamp(index, term, now_ms, ordinal, offset)
                try:
                    reply, effects = apply(stamp, each)
                except Exception as error:  # noqa: BLE001 -- a bug, whatever it is
                    self._go_back(index, ordinal)
                    reply, effects = self._skip(stamp, each, error), ()
                offset += body_count(each)
                if dones and (done := dones[ordinal]) is not None:
                    if type(reply) is Refused:
                        outcome = Outcome("refused", reply, stamp, reply.code, reply.reason)
                    else:
                        outcome = Outcome("ok", reply, stamp)
                        if type(each) is Enqueue and type(reply) is Enqueued:
                            self._pacing.confirm(each.queue, reply, done, outcome)
                            done = None
                    if done is not None:
                        proposals.answered.append((done, outcome))
                if effects and on_effects is not None:
                    on_effects(stamp, effects)
        except Exception as error:
            reason = f"{type(error).__name__} in the machine at entry {index}"
            self._proposals.answer(dones[ordinal:], unknown(reason))
            raise
        if offset and self._keeps and type(entry.commands[0]) is not BodyPart:
            self._cache.put(index, entry, len(data))
        return len(entry.commands)

    # --- commands at which the machine raises

    def _go_back(self, index: int, ordinal: int) -> None:
        """The state as it was before this command, which has left some of it changed: from the
        newest snapshot, with all that was applied since, but what was skipped. Every copy that has
        the same log and machine does the same, so they stay equal.
        """
        machine, journal = self._machine, self._journal
        snapshot = journal.load_snapshot()
        machine.restore(self._blank if snapshot is None else split(snapshot.data)[1])
        wanted = journal.base_index + 1
        while wanted <= index:
            found = journal.entries(wanted, index - wanted + 1, REPLAY_BYTES)
            assert found, f"entry {wanted} is above the snapshot, and not in the log"
            for data, at, term in found:
                assert at == wanted, f"entry {wanted} is missing"
                wanted = at + 1
                if data[:1] != REGULAR:
                    continue
                entry = decode_entry(memoryview(data)[1:])
                offset = 0
                for number, each in enumerate(entry.commands):
                    if (at, number) == (index, ordinal):
                        return
                    if (at, number) not in self._skipped:
                        machine.apply(Stamp(at, term, entry.now_ms, number, offset), each)
                    offset += body_count(each)
        raise AssertionError(f"entry {index} has no command {ordinal}")

    def _skip(self, stamp: Stamp, command: AnyCommand, error: Exception) -> Refused:
        base = self._journal.base_index
        self._skipped = {each for each in self._skipped if each[0] > base}
        self._skipped.add((stamp.index, stamp.ordinal))
        self.skipped_count += 1
        reason = f"{type(error).__name__}: {error}"
        self.on_skipped(stamp, reason, encode_command(command))
        return Refused(COMMAND_SKIPPED, skipped_reason(error))

    def keep(self, keeps: bool) -> None:
        """A leader delivers what it just applied, so it keeps that; others would for nothing."""
        self._keeps = keeps
        if not keeps:
            self._cache.clear()

    def read_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]] | None:
        """Body and meta of each message; empty when they are settled and gone, None when they are
        not in memory.
        """
        cached = self._cache.get(ref.index)
        if cached is None:
            data = self._journal.in_memory(ref.index)
            if data is None:
                return None if self._journal.holds(ref.index) else []
            cached = self._cache.put(ref.index, data, len(data))
        return cached.messages(ref.offset, ref.count)

    async def load_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]]:
        """As `read_bodies`, wherever they are."""
        found = self.read_bodies(ref)
        if found is not None:
            return found
        arrived = await called_back(partial(self.cold.fetch, ref.index, ref.index))
        if isinstance(arrived, BaseException):
            raise arrived
        return [] if arrived is None else arrived.messages(ref.offset, ref.count)

    async def load_part(self, index: int, offset: int) -> bytes | None:
        """A part of a large body, wherever it is; None: it is gone. It is remembered nowhere: it is
        read once for each delivery.
        """
        data = self._journal.in_memory(index)
        if data is not None:
            found = data[:1] == REGULAR
            return part_of(decode_entry(memoryview(data)[1:]), offset) if found else None
        if not self._journal.holds(index):
            return None
        ((body, _),) = await self.load_bodies(BodyRef(index, offset, 1)) or ((None, None),)
        return body if isinstance(body, bytes) else None

    def age_s(self, index: int) -> float | None:
        """Since it was proposed; of an entry whose bodies were read a moment ago."""
        cached = self._cache.peek(index)
        return None if cached is None else (self._time.now_ms() - cached.now_ms) / 1000

    def read_command(self, index: int, ordinal: int) -> AnyCommand | None:
        """One command of an entry that is still in the log."""
        data = self._journal.read(index)
        if data is None or data[:1] != REGULAR:
            return None
        return decode_entry(memoryview(data)[1:]).commands[ordinal]

    def commands_after(self, index: int) -> Iterator[AnyCommand]:
        """Those in the log behind this entry, be they committed or not."""
        while found := self._journal.entries(index + 1, None, REPLAY_BYTES):
            for data, _, _ in found:
                if data[:1] == REGULAR:
                    yield from decode_entry(memoryview(data)[1:]).commands
            index = found[-1][1]

    def restore(self, data: bytes) -> None:
        self._machine.restore(data)
        self._time.saw(self._machine.now_ms)
        self._cache.clear()
