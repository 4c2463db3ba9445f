"""Which entries the history of one message can do without: those behind its end, and those between
two snapshots in which it is as it was.

That nothing happened to it in between is concluded, never assumed:

- Every delivery has a token of its own. Who holds the message under the same token has held it all
  the time.
- A dead letter that came back has died once more.
- What is given back has been acquired once more, unless no client can have seen it: neither it nor
  any message behind it. Only a few commands give that back as if nothing had happened.
- What was sent again under its number, or was refused under it, changes no state. So the entries
  that are left out are looked through for its number, and where need be for those commands, which
  takes a tenth to a fifth of the time that applying them does.

Of streams, whose consumers leave no trace in a message, nothing is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple

from cluster.codec.entries import (
    number_at,
    only_tag,
    start_of_enqueue,
    tag_of,
    unpack_command,
    unpack_entry,
    written_under,
)
from cluster.codec.errors import CodecError
from cluster.history.committed import Base, BaseState, GroupLog, Vanished
from cluster.history.group_replay import GroupReplay
from cluster.history.message_events import MessageEvents, Number
from cluster.machine import QueueMachine, UnsupportedSnapshot
from cluster.machine.commands import (
    CloseSession,
    CreateQueue,
    DetachSession,
    Enqueue,
    Return,
    Transaction,
    TransactionPart,
)
from cluster.machine.deadletters import Deaths
from cluster.machine.queue import Queue
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import GroupId, QueueId

_CREATE: Final = tag_of(CreateQueue)
_ENQUEUE: Final = tag_of(Enqueue)
#: Commands that may give deliveries back as if there had been none.
_LOOKED_AT: Final = frozenset(
    map(tag_of, (Return, DetachSession, CloseSession, Transaction, TransactionPart))
)


class Standing(NamedTuple):
    """How a message is in some state of the machine."""

    place: Literal["waiting", "held", "leaving", "gone"]
    token: int = 0  # of its delivery
    acquired: int = 0
    failed: int = 0
    deaths: Deaths | None = None
    seen: bool = False  # a client may have seen it, or one behind it
    last_token: int = 0


GONE: Final = Standing("gone")


def standing_of(message: MessageEvents, machine: QueueMachine) -> Standing | None:
    """None: nothing can be concluded from that."""
    stay, entry = message.stay, message.entry
    if stay is None:
        return None
    queue = machine.find(stay.queue)
    if queue is None:
        return GONE
    if not isinstance(queue, Queue):
        return None
    position = stay.position
    row = next(iter(queue.rows(position, 1)), None)
    if row is None or row.position != position:
        batches = queue.disposal.outbox.everything()
        leaves = any(batch.first <= position <= batch.last for batch in batches)
        return Standing("leaving") if leaves else GONE
    bodies = row.chunk.bodies
    if (bodies.index, bodies.offset) != (entry, message.offset):
        return None
    checkout = queue.checkout
    return Standing(
        "held" if row.state == "unsettled" else "waiting",
        row.chunk.token,
        row.mark.acquired,
        row.mark.failed,
        row.mark.deaths,
        position <= checkout.seen,
        checkout.last_token,
    )


class Looked:
    """What entries say that are not applied: where the number is, and if that is asked where
    deliveries may be given back as if there had been none. An entry that this release cannot follow
    counts as both.
    """

    def __init__(self, log: GroupLog, number: Number | None, newest: int, *, undone: bool) -> None:
        self.about = number, undone
        self._log = log
        self._newest = newest  # machine version of this release
        self._first, self._last = 1, 0  # of what was looked through
        self._numbered: list[int] = []
        self._undone: list[int] = []

    def numbered_after(self, index: int, last: int) -> int | None:
        """The last of these entries that may have it. None: there is none."""
        self._look(index + 1, last)
        return _last_within(self._numbered, index, last)

    def undone_after(self, index: int, last: int) -> int | None:
        """The last of these entries that may give back."""
        assert self.about[1]
        self._look(index + 1, last)
        return _last_within(self._undone, index, last)

    def _look(self, first: int, last: int) -> None:
        if self.about == (None, False):
            return
        if self._last < self._first:
            self._first, self._last = first, first - 1
        if first < self._first:
            numbered, undone = self._numbered, self._undone
            self._numbered, self._undone = [], []
            self._look_through(first, self._first - 1)
            self._numbered += numbered
            self._undone += undone
            self._first = first
        if last > self._last:
            self._look_through(self._last + 1, last)
            self._last = last

    def _look_through(self, first: int, last: int) -> None:
        newest, regular, (number, undone) = self._newest, REGULAR, self.about
        # To decode all that is published would take four times as long.
        enqueue = b"" if number is None else start_of_enqueue(number.queue, number.publisher)
        for index, command in self._log.between(first, last):
            if command[:1] != regular:
                continue
            if written_under(command, 1) > newest:
                self._numbered.append(index)
                self._undone.append(index)
                continue
            if number is not None and _may_have(command, enqueue, number.seqno):
                self._numbered.append(index)
            if undone and _may_do(command, _undoes):
                self._undone.append(index)


def _last_within(indexes: list[int], index: int, last: int) -> int | None:
    at = bisect_right(indexes, last) - 1
    return indexes[at] if at >= 0 and indexes[at] > index else None


def _may_have(command: bytes, enqueue: bytes, seqno: int) -> bool:
    """Is it among the numbers of any of these enqueues?"""
    at = command.find(enqueue)
    while at >= 0:
        try:
            first, end = number_at(command, at + len(enqueue))
            count, _ = number_at(command, end)
        except CodecError:
            return True
        # Who does not number them counts the bodies of a batch.
        first = first or 1
        if first <= seqno < first + count:
            return True
        at = command.find(enqueue, at + 1)
    return False


def _may_do(command: bytes, does: Callable[[Any], bool]) -> bool:
    """Does any command of the entry do that, which no enqueue does?"""
    if only_tag(command, 1) == _ENQUEUE:
        return False
    try:
        _, _, commands = unpack_entry(command[1:])
        return any(map(does, commands))
    except (CodecError, LookupError, TypeError):
        return True


def _undoes(fields: Any) -> bool:
    if fields[0] not in _LOOKED_AT:
        return False
    command = unpack_command(fields)
    if isinstance(command, (DetachSession, CloseSession)):
        return command.handed is not None
    if isinstance(command, (Transaction, TransactionPart)):
        return any(isinstance(step, Return) and step.unsent for step in command.steps)
    return not isinstance(command, Return) or command.unsent


class Leap(NamedTuple):
    """`state`: go on from there. None: there is nothing to come up to entry `to`."""

    state: BaseState | None
    to: int
    to_ms: int


class Leaps:
    """Of one message in one log, asked again and again while its history is followed."""

    def __init__(self, log: GroupLog) -> None:
        self._log = log
        self._looked: Looked | None = None
        self._known: dict[tuple[Any, Base], Standing | None] = {}
        self._asked: tuple[int, int] | None = None
        self._retry_at = 0
        self._looked_to = log.last  # from which entry on it was looked who creates the queue
        self._created = 0  # the last that does

    def is_not_after(self, number: Number, index: int) -> bool:
        """No later entry publishes a message under that number."""
        looked = self._look_for(number, QueueMachine.newest, undone=False)
        return looked.numbered_after(index, self._log.last) is None

    def is_created_after(self, queue: QueueId, index: int) -> bool:
        """A later entry may create it anew: its positions begin at 1 again. Always the same queue
        is asked about.
        """

        def creates(fields: Any) -> bool:
            return fields[0] == _CREATE and fields[1] == queue

        if index < self._looked_to:
            for at, each in self._log.between(index + 1, self._looked_to):
                if each[:1] == REGULAR and _may_do(each, creates):
                    self._created = max(self._created, at)
            self._looked_to = index
        return index < self._created

    def from_here(self, replay: GroupReplay, message: MessageEvents) -> Leap | None:
        """None: the next entries are to be applied."""
        index, machine = replay.index, replay.machine
        asked = message.count, self._retry_at
        if asked == self._asked and index < self._retry_at:
            return None
        assert isinstance(machine, QueueMachine)
        standing = standing_of(message, machine)
        if standing is None:
            return None
        queue = message.wanted.queue
        if queue is not None and (message.is_replaced or self.is_created_after(queue, index)):
            return None
        may_be_undone = standing.place == "waiting" and not standing.seen
        looked = self._look_for(message.number, machine.newest, undone=may_be_undone)
        if standing == GONE:
            last = self._log.reach(index)
            again = looked.numbered_after(index, last)
            if again is None:
                return Leap(None, last, max(replay.now_ms, self._last_ms(index, last)))
            self._retry_at = again
        elif (leap := self._over_entries(index, standing, message, looked)) is not None:
            return leap
        self._asked = message.count, self._retry_at
        return None

    def _look_for(self, number: Number | None, newest: int, *, undone: bool) -> Looked:
        known = self._looked
        if known is None or known.about[0] != number or undone > known.about[1]:
            known = self._looked = Looked(self._log, number, newest, undone=undone)
        return known

    def _last_ms(self, index: int, last: int) -> int:
        """The last stamp behind this entry, which is the highest: they never go back."""
        for each in range(last, index, -1):
            for _, command in self._log.between(each, each):
                if command[:1] == REGULAR:
                    try:
                        return unpack_entry(command[1:])[1]
                    except CodecError:
                        return 0
        return 0

    def _over_entries(
        self, index: int, standing: Standing, message: MessageEvents, looked: Looked
    ) -> Leap | None:
        """To the last snapshot in which nothing has happened yet."""
        reach = self._log.reach(index)
        bases = [base for base in self._log.bases if index < base.index <= reach]
        self._retry_at = bases[0].index if bases else self._log.last + 1
        if standing.place not in {"waiting", "held"}:
            return None
        low, high = 0, len(bases)
        while low < high:  # the last one first: most often nothing happens for long
            middle = high - 1 if high == len(bases) else (low + high) // 2
            if self._is_untouched(index, standing, bases[middle], message, looked):
                low = middle + 1
            else:
                high = middle
        state = self._load(bases[low - 1]) if low else None
        return None if state is None else Leap(state, state.base.index, 0)

    def _is_untouched(
        self, index: int, standing: Standing, base: Base, message: MessageEvents, looked: Looked
    ) -> bool:
        then = self._standing_at(base, message)
        if then is None:
            return False
        if standing != then._replace(seen=standing.seen, last_token=standing.last_token):
            return False
        if looked.numbered_after(index, base.index) is not None:
            return False
        if standing.place == "held" or standing.seen or standing.last_token == then.last_token:
            return True
        return looked.undone_after(index, base.index) is None

    def _standing_at(self, base: Base, message: MessageEvents) -> Standing | None:
        key = (message.entry, message.offset, message.stay), base
        if key not in self._known:
            state, found = self._load(base), None
            if state is not None:
                with suppress(UnsupportedSnapshot):
                    machine = GroupReplay.begin(GroupId(self._log.group), state.snapshot).machine
                    assert isinstance(machine, QueueMachine)
                    found = standing_of(message, machine)
            self._known[key] = found
        return self._known[key]

    def _load(self, base: Base) -> BaseState | None:
        """None: it cannot be read, and its entries have to be applied."""
        try:
            return self._log.load(base)
        except Vanished:
            return None
