"""Commands on their way into a group's log, through its machine once they are committed, who waits
for what became of them, and what is kept of them in memory.

What is proposed until the next step becomes entries of about 1 MiB (`ENTRY_BYTES_TARGET`), mostly
one, so the batch grows with the disk's slowness and no timer is needed. Every proposal is answered
exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import structlog

from cluster.agreed_time import LogTime
from cluster.codec.entries import (
    AnyCommand,
    Entry,
    body_count,
    decode_entry,
    encode_command,
    messages_of,
    part_of,
)
from cluster.groups.outcome import Done, Outcome, called_back, refused, unknown
from cluster.log import MEMBERSHIP
from cluster.machine.commands import (
    BodyPart,
    ChangeCatalog,
    Command,
    Enqueue,
    Transaction,
    TransactionPart,
)
from cluster.machine.effects import Effect
from cluster.machine.interface import Machine
from cluster.machine.replies import COMMAND_SKIPPED, Refused
from cluster.machine.versions import NeedsNewer
from cluster.raft.configuration import split
from cluster.raft.journal import RaftJournal
from cluster.raft.pysyncobj_core import NO_OP, REGULAR
from cluster.seams import Clock
from cluster.types import COMMANDS_PER_ENTRY_MAX, Body, BodyRef, Stamp

log = structlog.get_logger(__name__)

#: An entry is closed when it reaches this; one command may be larger...
ENTRY_BYTES_TARGET = 1 << 20
#: ...up to this, which is refused.
ENTRY_BYTES_MAX = 17 << 20
#: A body up to here fits into one entry, whatever is said of it: the most that may travel whole.
WHOLE_BODY_BYTES_MAX = 16 << 20
#: Commands in one entry: ordinals are 16 bits wide, and the last one is left free.
ENTRY_COMMANDS_MAX = COMMANDS_PER_ENTRY_MAX - 1
#: Bytes proposed and not yet applied; more are refused until some are.
PROPOSE_BYTES_MAX = 64 << 20
#: Entries of Raft itself: no command is in them.
KINDS_OF_RAFT = frozenset({NO_OP, MEMBERSHIP})
#: What a command weighs besides its bodies, for these limits.
COMMAND_OVERHEAD_BYTES = 96


def guarded(group: str, call: Callable[..., object], *args: Any) -> None:
    """A listener's bug is its own: it must not stop replication."""
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 -- whatever it is
        report_bug(group, call, error)


def report_bug(group: str, listener: Callable[..., object], error: Exception) -> None:
    name = getattr(listener, "__qualname__", type(listener).__name__)
    log.error("listener_failed", group=group, listener=name, exc_info=error)


class EntryBatch(NamedTuple):
    """What becomes one entry."""

    commands: Sequence[Command]
    dones: Sequence[Done | None]
    weights: Sequence[int]

    @property
    def one_by_one(self) -> Iterator[EntryBatch]:
        for command, done, weight in zip(*self, strict=True):
            yield EntryBatch([command], [done], [weight])


@dataclass(slots=True)
class _ProposedEntry:
    """An entry of ours that is not applied yet."""

    term: int
    dones: Sequence[Done | None]
    weight: int
    since_ns: int  # when the first of its commands was proposed
    until: float | None = None  # set when leadership was lost: from then on it is unknown


def weigh(command: Command) -> int:
    """About how many bytes the command will take in the log."""
    if type(command) is Enqueue:
        bodies = command.bodies
        return COMMAND_OVERHEAD_BYTES + sum(map(len, bodies)) + 8 * len(bodies)
    if type(command) is BodyPart:
        return COMMAND_OVERHEAD_BYTES + len(command.data)
    if type(command) is Transaction:
        others = sum(weigh(step) for _, steps in command.others for step in steps)
        return COMMAND_OVERHEAD_BYTES + sum(map(weigh, command.steps)) + others
    if type(command) is TransactionPart:
        return COMMAND_OVERHEAD_BYTES + sum(map(weigh, command.steps))
    if type(command) is ChangeCatalog:
        return COMMAND_OVERHEAD_BYTES * (1 + len(command.steps))
    return COMMAND_OVERHEAD_BYTES


def brings_bytes(command: Command) -> bool:
    """Whether one that weighs more than `COMMAND_OVERHEAD_BYTES` needs room. Settles, in a
    transaction too, and all else that is small do not: they always pass, or nothing would ever
    make room.
    """
    if type(command) is Transaction:
        others = (step for _, steps in command.others for step in steps)
        return any(type(step) is Enqueue for step in (*command.steps, *others))
    if type(command) is TransactionPart:
        return any(type(step) is Enqueue for step in command.steps)
    return True


def too_large(size: int) -> Outcome:
    reason = f"the command takes {size} bytes; at most {ENTRY_BYTES_MAX} fit into an entry"
    return refused("too_large", reason)


class Proposals:
    """First they wait to be appended, then to be applied, and last for their callbacks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ns = 0  # when the first one that waits was proposed
        self.bytes = 0  # of everything proposed and not yet applied
        self.waiting: list[Command] = []  # to be appended
        self._dones: list[Done | None] = []
        self._weights: list[int] = []
        self._entries: dict[int, _ProposedEntry] = {}
        self.in_doubt = False  # some entry has a time from which on it is unknown
        self.answered: list[tuple[Done, Outcome]] = []  # and not called back yet

    # --- to be appended

    def add(self, command: Command, done: Done | None, weight: int) -> bool:
        """True: it is the first one that waits."""
        self.bytes += weight
        self.waiting.append(command)
        self._dones.append(done)
        self._weights.append(weight)
        if len(self.waiting) > 1:
            return False
        self._since_ns = self._clock.monotonic_ns()
        return True

    def batches(self) -> list[EntryBatch]:
        """All that wait to be appended, as few entries."""
        commands, self.waiting = self.waiting, []
        dones, self._dones = self._dones, []
        weights, self._weights = self._weights, []
        found = list[EntryBatch]()
        start = size = 0
        for position, weight in enumerate(weights):
            full = size + weight > ENTRY_BYTES_TARGET or position - start == ENTRY_COMMANDS_MAX
            if full and position > start:
                span = slice(start, position)
                found.append(EntryBatch(commands[span], dones[span], weights[span]))
                start, size = position, 0
            size += weight
        found.append(EntryBatch(commands[start:], dones[start:], weights[start:]))
        return found

    def appended(self, index: int, term: int, batch: EntryBatch) -> None:
        if index in self._entries:  # of an earlier leadership of ours, and truncated since
            self.give_up([index], unknown("leadership was lost and another entry took its place"))
        self._entries[index] = _ProposedEntry(term, batch.dones, sum(batch.weights), self._since_ns)

    def refuse(self, batch: EntryBatch, outcome: Outcome) -> None:
        """These are not going to be appended."""
        self.bytes -= sum(batch.weights)
        self.answer(batch.dones, outcome)

    def refuse_all(self, outcome: Outcome) -> None:
        """Nothing that waits is going to be appended."""
        if self.waiting:
            for batch in self.batches():
                self.refuse(batch, outcome)

    # --- to be applied

    def applied(
        self, index: int, term: int, overwritten: Callable[[], Outcome]
    ) -> tuple[Sequence[Done | None], int]:
        """The entry at `index` is being applied: who waits for the replies of its commands, and
        when it was proposed here (0: it was not).

        When another entry than ours was committed there, ours never will be.
        """
        entry = self._entries.pop(index, None) if self._entries else None
        if entry is None:
            return (), 0
        self.bytes -= entry.weight
        if entry.term == term:
            return entry.dones, entry.since_ns
        self.answer(entry.dones, overwritten())
        return (), 0

    def doubt(self, until: float) -> None:
        """Leadership was lost: what is appended may still be committed, by another leader."""
        for entry in self._entries.values():
            if entry.until is None:
                entry.until = until
                self.in_doubt = True

    def overdue(self, now: float) -> list[int]:
        doubted = {i: at for i, each in self._entries.items() if (at := each.until) is not None}
        self.in_doubt = bool(doubted)
        return [i for i, at in doubted.items() if now >= at]

    def up_to(self, index: int) -> list[int]:
        return [each for each in self._entries if each <= index]

    def give_up(self, indexes: Iterable[int], outcome: Outcome) -> None:
        """What became of these will not be seen here."""
        for index in indexes:
            entry = self._entries.pop(index)
            self.bytes -= entry.weight
            self.answer(entry.dones, outcome)

    def give_up_all(self, outcome: Outcome) -> None:
        self.give_up(list(self._entries), outcome)

    # --- answers

    def answer(self, dones: Sequence[Done | None], outcome: Outcome) -> None:
        """To be called back when the work at hand is done, not in the middle of it."""
        self.answered.extend([(done, outcome) for done in dones if done is not None])

    def call_back(self, group: str) -> None:
        """Callbacks may propose again, and be answered at once. A bug of one is its own."""
        while self.answered:
            answered, self.answered = self.answered, []
            for done, outcome in answered:
                try:
                    done(outcome)
                except Exception as error:  # noqa: BLE001 -- whatever it is
                    report_bug(group, done, error)


# --- entries in memory, since delivering what was just published decodes nothing again

#: Of one group; bytes of the entries as they lie in the log.
CACHE_BYTES_MAX = 4 << 20
CACHE_ENTRIES_MAX = 4096


class CachedEntry:
    """One entry, and its bodies as `BodyRef` numbers them."""

    __slots__ = ("_entry", "_messages", "now_ms", "size")

    def __init__(self, entry: Entry | bytes, size: int) -> None:
        """An entry, or the command of the log that holds it."""
        self.size = size
        self.now_ms = 0 if isinstance(entry, bytes) else entry.now_ms  # known once it is decoded
        self._entry: Entry | bytes | None = entry
        self._messages: list[tuple[Body, Any]] = []

    def messages(self, offset: int, count: int) -> list[tuple[Body, Any]]:
        """Body and meta of `count` messages from `offset`."""
        entry = self._entry
        if entry is not None:
            if isinstance(entry, bytes):
                entry = _decoded(entry)
                self.now_ms = entry.now_ms
            self._messages = messages_of(entry)
            self._entry = None
        return self._messages[offset : offset + count]


def _decoded(command: bytes) -> Entry:
    if command[:1] != REGULAR:
        return Entry(1, 0, [])  # Raft's own: no message is in it
    return decode_entry(memoryview(command)[1:])


class EntryCache:
    """The most recently used ones, up to a number of bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: dict[int, CachedEntry] = {}  # in order of use

    def __contains__(self, index: int) -> bool:
        return index in self._entries

    def get(self, index: int) -> CachedEntry | None:
        entry = self._entries.pop(index, None)
        if entry is not None:
            self._entries[index] = entry
        return entry

    def peek(self, index: int) -> CachedEntry | None:
        """Not a use."""
        return self._entries.get(index)

    def put(self, index: int, entry: Entry | bytes, size: int) -> CachedEntry:
        cached = CachedEntry(entry, size)
        previous = self._entries.pop(index, None)
        if previous is not None:
            self._bytes -= previous.size
        self._entries[index] = cached
        self._bytes += size
        while len(self._entries) > 1 and (
            self._bytes > self._bytes_max or len(self._entries) > CACHE_ENTRIES_MAX
        ):
            oldest = next(iter(self._entries))
            self._bytes -= self._entries.pop(oldest).size
        return cached

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0


#: The entry; None: it is gone; or why it cannot be read, which ends the node.
Arrived = CachedEntry | None | BaseException
OnArrival = Callable[[Arrived], object]


class ColdReads:
    """Old entries on their way from the disk into the cache, off the event loop. Each is read once
    at a time, whoever asks for it, and what lies close behind it comes along.

    Of one group. `spawn` runs a read to its end; an error of the disk there ends
    the node.
    """

    def __init__(
        self,
        journal: RaftJournal,
        cache: EntryCache,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._journal = journal
        self._cache = cache
        self._spawn = spawn
        self._waiting: dict[int, list[OnArrival]] = {}  # for each entry that is being read

    def fetch(self, first: int, last: int, done: OnArrival) -> None:
        """Bring the entry `first`, and what is near of those up to `last`. `done` is called once,
        later, while the cache has the entry for sure.
        """
        waiting = self._waiting.get(first)
        if waiting is not None:
            waiting.append(done)
        elif self._journal.holds(first):
            near = self._journal.near(first, last)
            for index, _ in near:
                self._waiting.setdefault(index, [])
            self._waiting[first].append(done)
            self._spawn(self._read(near))
        else:
            asyncio.get_running_loop().call_soon(done, None)

    async def _read(self, near: Sequence[tuple[int, Any]]) -> None:
        try:
            found = await self._journal.fetch(near)
        except BaseException as error:
            for index, _ in near:
                for done in self._waiting.pop(index, ()):
                    done(error)
            raise
        cache = self._cache
        # The first one last: what was used last is what the cache keeps.
        for index, command in reversed(found):
            if index not in cache:
                cache.put(index, command, len(command))
        for index, command in found:
            dones = self._waiting.pop(index, ())
            if dones:
                cached = cache.get(index) or cache.put(index, command, len(command))
                for done in dones:
                    done(cached)


# --- through the machine

#: Read at a time when the state of before a command is computed again.
REPLAY_BYTES = 4 << 20

#: Of a command that was skipped, kept in the note of it; the entry has all of it.
SKIPPED_BYTES_MAX = 4 << 10

OnEffects = Callable[[Stamp, Sequence[Effect]], None]


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
    ) -> None:
        self._time = time
        self._keeps = False
        self._machine = machine
        self._journal = journal
        self._proposals = proposals
        self._cache = EntryCache()
        self._cold = ColdReads(journal, self._cache, spawn)
        self._blank = machine.snapshot()
        self._skipped: set[tuple[int, int]] = set()  # index and ordinal, above the newest snapshot
        self.skipped_count = 0  # since the process started
        #: Told the stamp of a command that was skipped, why, and its bytes.
        self.on_skipped: Callable[[Stamp, str, bytes], object] = lambda _, __, ___: None

    def apply(
        self,
        command: bytes,
        stamped: tuple[int, int],
        dones: Sequence[Done | None],
        on_effects: OnEffects | None,
    ) -> None:
        """All commands of one entry; `stamped` is its index and term. A command at which the
        machine raises is skipped. What is raised here has no way out: the copy is no use.
        """
        if command[:1] != REGULAR:
            if command[:1] not in KINDS_OF_RAFT:
                raise NeedsNewer("an entry", None, self._machine.newest)
            return  # of Raft itself
        index, term = stamped
        apply = self._machine.apply
        proposals = self._proposals
        offset = ordinal = 0
        try:
            entry = decode_entry(memoryview(command)[1:])
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
                    proposals.answered.append((done, outcome))
                if effects and on_effects is not None:
                    on_effects(stamp, effects)
        except Exception as error:
            reason = f"{type(error).__name__} in the machine at entry {index}"
            self._proposals.answer(dones[ordinal:], unknown(reason))
            raise
        if offset and self._keeps and type(entry.commands[0]) is not BodyPart:
            self._cache.put(index, entry, len(command))

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
            for command, at, term in found:
                assert at == wanted, f"entry {wanted} is missing"
                wanted = at + 1
                if command[:1] != REGULAR:
                    continue
                entry = decode_entry(memoryview(command)[1:])
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
            command = self._journal.in_memory(ref.index)
            if command is None:
                return None if self._journal.holds(ref.index) else []
            cached = self._cache.put(ref.index, command, len(command))
        return cached.messages(ref.offset, ref.count)

    def fetch(self, first: int, last: int, done: OnArrival) -> None:
        """See `ColdReads.fetch`."""
        self._cold.fetch(first, last, done)

    async def load_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]]:
        """As `read_bodies`, wherever they are."""
        found = self.read_bodies(ref)
        if found is not None:
            return found
        arrived = await called_back(partial(self._cold.fetch, ref.index, ref.index))
        if isinstance(arrived, BaseException):
            raise arrived
        return [] if arrived is None else arrived.messages(ref.offset, ref.count)

    async def load_part(self, index: int, offset: int) -> bytes | None:
        """A part of a large body, wherever it is; None: it is gone. It is remembered nowhere: it is
        read once for each delivery.
        """
        command = self._journal.in_memory(index)
        if command is not None:
            found = command[:1] == REGULAR
            return part_of(decode_entry(memoryview(command)[1:]), offset) if found else None
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
            for command, _, _ in found:
                if command[:1] == REGULAR:
                    yield from decode_entry(memoryview(command)[1:]).commands
            index = found[-1][1]

    def restore(self, data: bytes) -> None:
        self._machine.restore(data)
        self._time.saw(self._machine.now_ms)
        self._cache.clear()
