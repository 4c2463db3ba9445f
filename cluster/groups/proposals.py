"""Commands on their way into a group's log, and who waits for what became of them.

What is proposed until the next step becomes entries of about 1 MiB (`ENTRY_BYTES_TARGET`), mostly
one, so the batch grows with the disk's slowness and no timer is needed. Every proposal is answered
exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from cluster.groups.outcome import TOO_LARGE, Done, Outcome, refused, unknown
from cluster.machine.commands import (
    BodyPart,
    ChangeCatalog,
    Command,
    Enqueue,
    Transaction,
    TransactionPart,
)
from cluster.seams import Clock
from cluster.types import COMMANDS_PER_ENTRY_MAX

log = structlog.get_logger(__name__)

#: An entry aims at no more than this; one command may be larger...
ENTRY_BYTES_TARGET = 1 << 20
#: ...up to this; more is refused.
ENTRY_BYTES_MAX = 17 << 20
#: A body up to here fits into one entry, whatever is said of it: the most that may travel whole.
WHOLE_BODY_BYTES_MAX = 16 << 20
#: Commands in one entry: ordinals are 16 bits wide, and the last one is left free.
ENTRY_COMMANDS_MAX = COMMANDS_PER_ENTRY_MAX - 1
#: Bytes proposed and not yet applied; more are refused until some are.
PROPOSE_BYTES_MAX = 64 << 20
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
    return refused(TOO_LARGE, reason)


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

    def answer_one(self, done: Done, outcome: Outcome) -> None:
        self.answered.append((done, outcome))

    def call_back(self, group: str) -> None:
        """Callbacks may propose again, and be answered at once. A bug of one is its own."""
        while self.answered:
            answered, self.answered = self.answered, []
            for done, outcome in answered:
                try:
                    done(outcome)
                except Exception as error:  # noqa: BLE001 -- whatever it is
                    report_bug(group, done, error)
