"""Dead letters whose target is in another group: carried there at least once, stored there once.

The source's machine keeps them in an outbox, numbered upwards, until it hears that they are safe.
Numbers carry the term, so what a recovered or restored group numbers anew is never taken for
repeated. One worker a queue, on the leader, sends them in order under one publisher name, `dlx:`
and the source queue, with their numbers in the outbox. The target remembers the highest number it
took from that name and skips what comes again, after a crash, a lost answer or a change of leader,
however it is cut; that is all it remembers, one number a source.

Some numbers are never given, and what went to another queue is missing from a target's; so these
names, and only these, may skip some (cluster.machine.admission). Nothing is lost by it: a letter
leaves only when all lower numbers are safe. A full target takes the first of a batch, in order, and
the rest comes again.

An exchange may route a letter to several queues: it is safe when it is in all of them.

A letter without a queue that takes it is dropped, and the log of the node says so. A stream that
takes none, or not this one, and never will is as good as no queue. But of a source whose strategy
is at-least-once nothing is dropped: RabbitMQ keeps it, too, where publishes are refused by a full
queue (else it drops letters all the same).

Such a one waits in the outbox, and so does one that a target refuses, and one that this node's log
does not give: another leader may have it. As long as all wait that is all, and nothing is written.
Only when one behind them can go they are put off, and later sent under new numbers: with the old
ones the target would take them for repeated. What is put off was not sent since, so any leader may
send it, once that is in the log; they go in the order of their deaths.

A target that refuses is asked again, less and less often. It answers in order: when it refuses one
letter it has none of those behind. Of a letter for several targets is noted which of them have it
when it is put off. One that was sent goes there until there is an answer, whatever becomes of its
route, and is not put off before. But the next leader does not know that it was sent. It puts it off
when it has no queue just then, or the target still refuses it: one that was stored all the same, or
that the last leader's link brings late, comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

import structlog

from cluster.groups.group import Outcome
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import TOO_LARGE
from cluster.machine import QueueMachine
from cluster.machine.admission import CARRIER_PREFIX
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_PRIORITY,
    DeadLettersMoved,
    Enqueue,
    PutOffDeadLetters,
    QueueConfig,
    SafeIn,
    SendDeadLetters,
)
from cluster.machine.dead_letter_look import AllWait, Look, PutOff, Send
from cluster.machine.effects import DeadLetter
from cluster.machine.policies import DEAD_LETTER_STRATEGY
from cluster.machine.replies import NO_QUEUE, PARTS_MISSING, Enqueued
from cluster.machine.stream import errors
from cluster.types import Body, BodyRef, GroupId, LargeBody, QueueId
from node.broker.bodies import (
    HEAD_BYTES,
    Bodies,
    BodyGone,
    NotTaken,
    PartedBody,
    Stored,
    WholeOnly,
    head_of,
)
from node.broker.broker import Broker
from node.broker.stream_attrs import with_subjects
from node.errors import BrokerError, Elsewhere
from node.messages.group_keys import with_group_keys
from node.messages.message import carbon_copies, headers_of, key_of_dead, routing_key_of
from node.metrics.metrics import Metrics
from node.tasks import Tasks

log = structlog.get_logger(__name__)

#: Why streams refuse letters for good.
_FOR_GOOD: Final = {
    errors.SEALED: "the stream is sealed",
    errors.NO_INCREMENT: "the stream counts: it takes increments only",
    errors.MESSAGE_TOO_LARGE: "it is too large for the stream",
}
_OVER_LIMIT: Final = "it is larger than all that the queue may hold, by max-length-bytes"
_FITS_NOWHERE: Final = "its headers and records of death are more than an entry of the log holds"

#: Entry of the log, and place in it.
_Place = tuple[int, int]

#: Never more, in whatever release: what is behind them was sent by nobody.
DEAD_LETTERS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class RoutedDeadLetter:
    """A dead letter with its content, and where it goes."""

    number: int
    body: Body | PartedBody
    meta: Any
    deaths: Any
    targets: tuple[QueueInfo, ...]  # distinct; empty: nowhere
    key: str = ""  # the first that it is routed by
    priority: int = 0  # as published
    safe_in: tuple[QueueId, ...] = ()  # those of them that have it
    place: _Place = (0, 0)
    died: int = 0  # the number that it had first


#: A target, and whether it refuses single letters only.
_Refuses = tuple[QueueId, bool]


class _Rules(NamedTuple):
    """What decides which letters can go."""

    version: int  # of the virtual host's routing
    keeps: bool  # what no queue takes
    refuse: frozenset[_Refuses] = frozenset()  # and are not asked now


@dataclass(slots=True)
class _Refusal:
    """A target took a letter not: the next one is tried at `until_s`."""

    target: QueueInfo
    reason: str
    until_s: float
    pause_s: float
    letters: set[_Place] = field(default_factory=set[_Place])  # the single ones


@dataclass(slots=True)
class _Marks:
    """By these rules and in this term, the letters up to which all wait: of those that were not put
    off, and of those that were. What dies behind very many is found soon.
    """

    rules: _Rules
    term: int
    to: dict[bool, DeadLetter]

    def hold(self, rules: _Rules, term: int) -> bool:
        """More targets may refuse by now: what waits for others waits all the same."""
        return self.knows(rules, term) and self.rules.refuse <= rules.refuse

    def knows(self, rules: _Rules, term: int) -> bool:
        return (self.rules[:2], self.term) == (rules[:2], term)


class _Kept(NamedTuple):
    """No queue took it."""

    version: int  # when the routing was at this
    exchange: str
    key: str


@dataclass(frozen=True, slots=True)
class KeptLetters:
    """Letters of a queue that no queue takes, and that wait for one."""

    vhost: str
    name: str
    count: int
    exchange: str  # that of the first
    key: str


@dataclass(frozen=True, slots=True)
class RefusedLetters:
    """A target refuses letters of a queue, and they wait; `count`: all of the queue that do."""

    vhost: str
    name: str
    count: int
    target: str
    reason: str


@dataclass(frozen=True, slots=True)
class _First:
    """A command for the outbox, before any letter goes; only while its leader leads this term."""

    command: PutOffDeadLetters | SendDeadLetters
    rules: _Rules
    term: int


@dataclass(frozen=True, slots=True)
class _AllWait:
    """All of them, as long as nothing changes. None: look again."""

    state: tuple[_Rules, int, int] | None


class _Later(Exception):
    """The target cannot take it now; all up to number `safe` is safe there (0: none)."""

    def __init__(self, reason: str, safe: int = 0) -> None:
        super().__init__(reason)
        self.safe = safe


class DeadLetters:
    """Workers of the queues that this node leads."""

    def __init__(self, broker: Broker, tasks: Tasks, metrics: Metrics, bodies: Bodies) -> None:
        self._bodies = bodies
        # Of each source and target the large body copied last: a target that is full is asked again
        # and again, and need not be given it each time.
        self._copied: dict[tuple[QueueId, QueueId], tuple[str, Any]] = {}
        self._broker = broker
        self._tasks = tasks
        self._metrics = metrics
        self._working: set[QueueId] = set()
        # Entry and place in it of those that were named.
        self._unreadable: dict[QueueId, set[_Place]] = {}
        self._kept: dict[QueueId, dict[_Place, _Kept]] = {}
        self._marks: dict[QueueId, _Marks] = {}
        self._refusals: dict[QueueId, dict[_Refuses, _Refusal]] = {}
        # Numbers of letters that went to some of their targets and not to all, and to which.
        self._partly: dict[QueueId, SafeIn] = {}
        # Of each source and target, numbers that were sent without an answer: they are sent there
        # until there is one, and not put off before.
        self._in_doubt: dict[QueueId, dict[QueueId, tuple[QueueInfo, frozenset[int]]]] = {}
        self._dropped: dict[tuple[QueueId, QueueId], int] = {}  # of source and target: up to which

    def ready(self, group: GroupId, queue: QueueId) -> None:
        """The outbox of this queue is not empty."""
        if queue not in self._working:
            self._working.add(queue)
            self._tasks.start(self._work(group, queue), name="dead_letters")

    async def _work(self, group: GroupId, queue: QueueId) -> None:
        backoff_s = BACKOFF_S_MIN
        waits = None  # as long as it is so, all do
        again = False
        try:
            while True:
                done = False
                if waits is None or waits != self._state(group, queue):
                    cut_off = self._broker.cut_off
                    found = await self._routed(group, queue)
                    if not found:
                        return
                    waits = found.state if isinstance(found, _AllWait) else None
                    if isinstance(found, list):
                        done = await self._move_up(group, queue, found, cut_off=cut_off)
                    elif isinstance(found, _First):
                        # Letters keep their order only if one catalog judged all of them. If it has
                        # changed, judge again; but once only, as it may go on changing.
                        again = not again and self._rules(group, queue) != found.rules
                        done = again or await self._prepare(group, found, cut_off=cut_off)
                if done:
                    backoff_s = BACKOFF_S_MIN
                    continue
                await asyncio.sleep(self._pause_s(queue, backoff_s))
                backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)
        except Elsewhere:
            return  # the next leader is told on_leader
        finally:
            self._working.discard(queue)
            self._unreadable.pop(queue, None)
            self._kept.pop(queue, None)
            self._marks.pop(queue, None)
            self._refusals.pop(queue, None)
            self._partly.pop(queue, None)
            self._in_doubt.pop(queue, None)
            for key in [key for key in self._dropped if key[0] == queue]:
                del self._dropped[key]

    async def _prepare(self, group: GroupId, first: _First, *, cut_off: bool) -> bool:
        """Whether to look again at once."""
        if cut_off or self._broker.cut_off:
            # What waits by this node's catalog may have a queue by now.
            return await self._broker.catch_up() and not self._broker.cut_off
        found = self._broker.led(group)
        # Never at a later leader, which may have sent what this one would put off.
        if found.term != first.term:
            return True
        outcome = await found.ask(first.command)
        if outcome.kind != "ok":
            log.info("dead_letters_wait", queue=first.command.queue, reason=outcome.reason)
        return outcome.kind == "ok"

    async def _tell(self, group: GroupId, command: DeadLettersMoved) -> bool:
        try:
            await self._broker.ask(group, command)
        except BrokerError as error:
            log.info("dead_letters_wait", queue=command.queue, reason=error.reason)
            return False
        return True

    def unreadable(self, machine: QueueMachine) -> list[tuple[str, str, int]]:
        """Virtual hosts and names of this group's queues with letters that this node, which leads
        it, cannot read; and how many.
        """
        views = [(machine.queue(queue), len(found)) for queue, found in self._unreadable.items()]
        return [(view.vhost, view.name, count) for view, count in views if view and count]

    def kept(self, machine: QueueMachine) -> list[KeptLetters]:
        """Of this group's queues."""
        kept = [(machine.queue(queue), found) for queue, found in self._kept.items()]
        return [
            KeptLetters(view.vhost, view.name, len(found), first.exchange, first.key)
            for view, found in kept
            if view is not None and (first := next(iter(found.values()), None)) is not None
        ]

    def refused(self, machine: QueueMachine) -> list[RefusedLetters]:
        """Of this group's queues. Who was not asked lately is no target any more."""
        since_s = asyncio.get_running_loop().time() - 3 * BACKOFF_S_MAX
        return [
            RefusedLetters(
                view.vhost, view.name, view.dead_letter_count, each.target.name, each.reason
            )
            for queue, found in self._refusals.items()
            if (view := machine.queue(queue)) is not None
            for each in found.values()
            if each.until_s > since_s
        ]

    async def _move_up(
        self,
        group: GroupId,
        queue: QueueId,
        dead_letters: Sequence[RoutedDeadLetter],
        *,
        cut_off: bool,
    ) -> bool:
        """Whether all of them are done with, and the machine knows. `cut_off`: this node was when
        it looked where they go.
        """
        if (
            cut_off
            or self._broker.cut_off
            or not all(dead_letter.targets for dead_letter in dead_letters)
        ):
            # Only what surely has no target is dropped, and this node's catalog may be behind.
            if not await self._broker.catch_up():
                return False
            found = await self._routed(group, queue)
            if not isinstance(found, list):
                return True  # what is in their way comes first
            dead_letters = found
        refuse = self._refusing(queue)
        moved = await self._move(queue, group, dead_letters)
        if moved and not await self._tell(group, DeadLettersMoved(queue, moved)):
            return False
        if not dead_letters or moved == dead_letters[-1].number:
            return True
        # Others may pass what was refused just now.
        return self._keeps(group, queue) and not self._refusing(queue) <= refuse

    def _rules(self, group: GroupId, queue: QueueId) -> _Rules | None:
        """None: the queue is gone."""
        view = self._broker.machine(group).queue(queue)
        if view is None:
            return None
        version = self._broker.cluster.catalog_machine.routing_version(view.vhost)
        keeps = self._keeps(group, queue)
        return _Rules(version, keeps, self._refusing(queue) if keeps else frozenset())

    def _state(self, group: GroupId, queue: QueueId) -> tuple[_Rules, int, int] | None:
        """With the term, and the count of letters: while all wait, none leaves."""
        rules, view = self._rules(group, queue), self._broker.machine(group).queue(queue)
        if rules is None or view is None:
            return None
        return rules, self._broker.led(group).term, view.dead_letter_count

    async def _routed(
        self, group: GroupId, queue: QueueId
    ) -> list[RoutedDeadLetter] | _First | _AllWait:
        """Those at the front of the outbox, when they go; what is to be done first, when they do
        not and others do.
        """
        state = self._state(group, queue)
        if state is None:
            return []
        rules, term, _ = state
        going: list[RoutedDeadLetter] = []
        marks = self._marks.get(queue)
        if marks is not None and not marks.knows(rules, term):
            del self._marks[queue]
            marks = None
        known = marks.to if marks is not None and marks.hold(rules, term) else {}
        waits: dict[bool, DeadLetter] = {}
        look = Look(DEAD_LETTERS_AT_ONCE, BYTES_AT_ONCE, wait_to=known.get(True))
        async for dead, routed in self._each(group, queue, rules, known):
            if not look.add(dead, None if routed is None else len(routed.body)):
                break
            if routed is None:
                waits[dead.put_off] = dead
            elif look.going > len(going):
                going.append(routed)
        found = look.next()
        unreadable = bool(self._unreadable.get(queue))
        if isinstance(found, PutOff):
            if marks is not None and found.known and not unreadable:
                marks.rules = rules._replace(refuse=marks.rules.refuse | rules.refuse)
            else:
                self._marks.pop(queue, None)
            first = PutOffDeadLetters(queue, found.ranges, self._partly.get(queue, ()))
            return _First(first, rules, term)
        if isinstance(found, AllWait):
            if not unreadable:
                self._marks[queue] = _Marks(rules, term, waits)
            return _AllWait(None if unreadable else state)
        if isinstance(found, Send):
            if look.wait_to is not None and (marks is None or known) and not unreadable:
                front = {False: known[False]} if False in known else {}
                self._marks[queue] = _Marks(rules, term, {**front, True: look.wait_to})
            return _First(SendDeadLetters(queue, found.ranges), rules, term)
        return going

    async def _each(
        self,
        group: GroupId,
        queue: QueueId,
        rules: _Rules,
        known: Mapping[bool, DeadLetter],
    ) -> AsyncIterator[tuple[DeadLetter, RoutedDeadLetter | None]]:
        """The outbox; with None those that wait. Behind the front, up to which letter all do is
        known.
        """
        last: DeadLetter | None = None
        count = 0
        while page := self._broker.machine(group).dead_letters(queue, DEAD_LETTERS_AT_ONCE, last):
            for last in page:
                count += 1
                to = known.get(last.put_off)
                behind = last.put_off or count > DEAD_LETTERS_AT_ONCE
                if behind and to is not None and last.number < to.number:
                    last = to
                    yield last, None
                    break
                yield last, await self._judge(group, queue, last, rules)
            await asyncio.sleep(0)  # all of it may have been in memory

    async def _judge(
        self, group: GroupId, queue: QueueId, dead: DeadLetter, rules: _Rules
    ) -> RoutedDeadLetter | None:
        """None: it waits. The first time the log says so."""
        named = self._unreadable.setdefault(queue, set())
        kept = self._kept.setdefault(queue, {})
        place = dead.index, dead.offset
        known = kept.get(place)
        sent = () if dead.put_off else self._sent_to(queue, dead.number)
        if rules.keeps and known and known.version == rules.version and not sent:
            return None
        view = self._broker.machine(group).queue(queue)
        if view is None:
            return None
        routed = await self._read(self._broker.led(group), dead, view.vhost, view.name)
        if routed is None:
            # Or it is gone, with the queue.
            if place not in named and self._broker.machine(group).queue(queue) is not None:
                named.add(place)
                log.error(
                    "dead_letter_unreadable", queue=view.name, number=dead.number, index=dead.index
                )
            return None
        named.discard(place)
        if sent and rules.keeps:
            to = {target.queue for target in routed.targets}
            others = [target for target in sent if target.queue not in to]
            routed = replace(routed, targets=(*routed.targets, *others))
        if routed.targets or routed.safe_in or not rules.keeps:
            kept.pop(place, None)
            return routed if sent or not self._waits(queue, routed, rules) else None
        if known is None:
            log.warning(
                "dead_letter_kept",
                queue=view.name,
                number=dead.number,
                exchange=dead.exchange,
                key=routed.key,
                next="bind a queue to the exchange for this key; the letter waits for it",
            )
        kept[place] = _Kept(rules.version, dead.exchange, routed.key)
        return None

    def _sent_to(self, queue: QueueId, number: int) -> tuple[QueueInfo, ...]:
        """Targets that perhaps have this letter. One that was deleted gets no other."""
        catalog = self._broker.cluster.catalog_machine
        return tuple(
            target
            for target, numbers in self._in_doubt.get(queue, {}).values()
            if number in numbers and catalog.queue_by_id(target.queue) is not None
        )

    def _waits(self, queue: QueueId, letter: RoutedDeadLetter, rules: _Rules) -> bool:
        """Some target refuses it."""
        if not rules.refuse:
            return False
        single = {
            target
            for (target, alone), each in self._refusals.get(queue, {}).items()
            if alone and (target, alone) in rules.refuse and letter.place in each.letters
        }
        return any(
            (target.queue, False) in rules.refuse or target.queue in single
            for target in letter.targets
            if target.queue not in letter.safe_in
        )

    def _keeps(self, group: GroupId, queue: QueueId) -> bool:
        """What no queue takes, by this queue's strategy."""
        catalog = self._broker.cluster.catalog_machine
        view, info = self._broker.machine(group).queue(queue), catalog.queue_by_id(queue)
        return view is not None and info is not None and keeps_all(catalog, info, view.config)

    async def _read(
        self, group: GroupLike, dead: DeadLetter, vhost: str, name: str
    ) -> RoutedDeadLetter | None:
        found = await group.load_bodies(BodyRef(dead.index, dead.offset, 1))
        if not found:
            return None
        body, meta = found[0]
        changed = key_of_dead(dead.deaths)  # by this death, or by one before
        if changed is not None:
            keys = [changed]
        else:
            own = routing_key_of(meta)
            keys = [name if own is None else own, *carbon_copies(headers_of(meta))]
        to = self.route(vhost, dead.exchange, keys, meta)
        return RoutedDeadLetter(
            dead.number,
            body,
            meta,
            dead.deaths,
            to,
            keys[0],
            dead.priority,
            dead.safe_in,
            (dead.index, dead.offset),
            dead.died,
        )

    def route(
        self, vhost: str, exchange: str, keys: Sequence[str], meta: Any
    ) -> tuple[QueueInfo, ...]:
        """The queues that a letter goes to: none as well when the exchange is gone."""

        def headers() -> Mapping[str, Any]:
            return headers_of(meta)

        key, *copies = keys
        route = self._broker.ingress.router.route(
            vhost, exchange, key, headers, copies=copies, steady=True
        )
        return () if route is None else route.queues

    # --- sending ----------------------------------------------------------------------------------

    async def _move(
        self, queue: QueueId, group: GroupId, dead_letters: Sequence[RoutedDeadLetter]
    ) -> int:
        """The highest number up to which all are safe or dropped; 0: none."""
        moved = 0
        for targets, run in runs(dead_letters):
            if not targets and not run[0].safe_in:
                self._drop(queue, run)
            safe: dict[QueueId, int] = {}  # of each target, up to which
            for target in targets:
                if target.queue in run[0].safe_in:
                    continue
                try:
                    await self._send(queue, group, target, run)
                    safe[target.queue] = run[-1].number
                except _Later as later:
                    log.info("dead_letters_wait", target=target.name, reason=str(later))
                    safe[target.queue] = later.safe
            everywhere = min(safe.values(), default=run[-1].number)
            moved = max(moved, everywhere)
            if moved < run[-1].number:
                left = [each.number for each in run if each.number > everywhere]
                self._partly[queue] = _partly(left, safe)
                break
        return moved

    def _refusing(self, queue: QueueId) -> frozenset[_Refuses]:
        """What is not asked now."""
        refusals = self._refusals.get(queue)
        if not refusals:
            return frozenset()
        now_s = asyncio.get_running_loop().time()
        return frozenset(key for key, each in refusals.items() if now_s < each.until_s)

    def _pause_s(self, queue: QueueId, most_s: float) -> float:
        """Until the next target is to be asked again."""
        now_s = asyncio.get_running_loop().time()
        refusals = self._refusals.get(queue, {}).values()
        due = [each.until_s - now_s for each in refusals if each.until_s > now_s]
        return max(min([most_s, *due]), min(most_s, BACKOFF_S_MIN))

    def _refuse(
        self,
        queue: QueueId,
        target: QueueInfo,
        reason: str,
        letter: RoutedDeadLetter,
        *,
        alone: bool,
    ) -> None:
        """`alone`: it may take others."""
        refusals = self._refusals.setdefault(queue, {})
        key = target.queue, alone
        pause_s = min(BACKOFF_S_MAX, refusals[key].pause_s * 2) if key in refusals else 0.0
        pause_s = max(BACKOFF_S_MIN, pause_s)
        until_s = asyncio.get_running_loop().time() + pause_s
        letters = refusals[key].letters if key in refusals else set[_Place]()
        if alone:
            letters.add(letter.place)
        refusals[key] = _Refusal(target, reason, until_s, pause_s, letters)

    def _took(self, queue: QueueId, target: QueueInfo, run: Sequence[RoutedDeadLetter]) -> None:
        """All of them."""
        refusals = self._refusals.get(queue)
        if not refusals:
            return
        refusals.pop((target.queue, False), None)
        alone = refusals.get((target.queue, True))
        if alone is not None:
            alone.letters.difference_update(each.place for each in run)
            if not alone.letters:
                del refusals[target.queue, True]

    def _drop(self, queue: QueueId, run: Sequence[RoutedDeadLetter], **why: str) -> None:
        self._metrics.dead_letters_dropped += len(run)
        for each in run:
            log.warning("dead_letter_dropped", queue=queue, number=each.number, key=each.key, **why)

    async def _send(
        self, queue: QueueId, group: GroupId, target: QueueInfo, run: Sequence[RoutedDeadLetter]
    ) -> None:
        """All of a run that it does not refuse for good, or _Later."""
        safe = 0
        while run:
            outcome = await self._ask(queue, group, target, run)
            reply = outcome.reply
            full = isinstance(reply, Enqueued) and reply.refused
            done = outcome.kind == "ok" and not full
            if not isinstance(run[0].body, bytes) and (done or outcome.code == PARTS_MISSING):
                self._copied.pop((queue, target.queue), None)
            if outcome.code == TOO_LARGE and len(run) > 1:
                half = len(run) // 2
                try:
                    await self._send(queue, group, target, run[:half])
                except _Later as later:
                    raise _Later(str(later), max(safe, later.safe)) from later
                safe, run = run[half - 1].number, run[half:]
                continue
            if outcome.code == TOO_LARGE:
                run = self._made_smaller(queue, group, target, run[0], safe)
                continue
            if outcome.code == NO_QUEUE:
                raise _Later("the target was deleted", safe)
            if outcome.kind != "ok" or not isinstance(reply, Enqueued):
                raise _Later(outcome.reason or outcome.kind, safe)
            self._metrics.dead_letters_moved += reply.stored
            if not reply.refused:
                self._took(queue, target, run)
                return
            taken = reply.refused[0][0]
            safe = run[taken - 1].number if taken else safe
            answers = cast("Mapping[int, Sequence[int]]", reply.answers or {})
            code = answers[taken][0] if answers else errors.NO_ROOM
            fits = bool(answers) or self._fits(target, run[taken])
            reason = _FOR_GOOD.get(code) if fits else _OVER_LIMIT
            if not fits or reason is None or self._keeps(group, queue):
                alone = not fits or code == errors.MESSAGE_TOO_LARGE
                waits = f"refuses {'one of them' if alone else 'them'}: {reason or code}"
                if code == errors.NO_ROOM and fits:
                    waits = "is full"
                if code == errors.WRONG_SUBJECT and (target.stream or {}).get("mirror"):
                    waits = "is a mirror, or being restored: it may take it later"
                self._refuse(queue, target, waits, run[taken], alone=alone)
                raise _Later(f"the target {waits}", safe)
            # What is no matter of a letter's size is one of all behind it.
            end = taken + 1 if code == errors.MESSAGE_TOO_LARGE else len(run)
            self._drop_named(queue, target, run[taken:end], reason)
            safe = run[end - 1].number
            run = run[end:]

    def _fits(self, target: QueueInfo, letter: RoutedDeadLetter) -> bool:
        """Into the queue, when nothing else is there."""
        most = self._broker.cluster.catalog_machine.config_for(target).max_length_bytes
        return most is None or len(letter.body) <= most

    def _made_smaller(
        self,
        queue: QueueId,
        group: GroupId,
        target: QueueInfo,
        letter: RoutedDeadLetter,
        safe: int,
    ) -> Sequence[RoutedDeadLetter]:
        """It exceeds an entry by itself, since it has records of death by now: its body goes in
        parts. If that is no help it is dropped, unless it is kept: _Later.
        """
        if isinstance(letter.body, bytes) and len(letter.body) > HEAD_BYTES:
            return [replace(letter, body=PartedBody.cut(letter.body))]
        if self._keeps(group, queue):
            self._refuse(queue, target, f"refuses one of them: {_FITS_NOWHERE}", letter, alone=True)
            raise _Later(_FITS_NOWHERE, safe)  # what was copied is not copied again
        self._copied.pop((queue, target.queue), None)
        self._drop_named(queue, target, [letter], _FITS_NOWHERE)
        return []

    def _drop_named(
        self, queue: QueueId, target: QueueInfo, run: Sequence[RoutedDeadLetter], reason: str
    ) -> None:
        """Refused for good by this target. Each is named once, however often the run comes again
        since another target is full.
        """
        told = self._dropped.get((queue, target.queue), 0)
        new = [each for each in run if each.number > told]
        self._drop(queue, new, target=target.name, reason=reason)
        self._dropped[queue, target.queue] = max(told, run[-1].number)

    async def _upload(
        self,
        queue: QueueId,
        group: GroupId,
        target: QueueInfo,
        dead_letter: RoutedDeadLetter,
        body: LargeBody | PartedBody,
    ) -> Any:
        """Its parts are copied into the target's group, where the next leader goes on."""
        # The same when it was put off meanwhile.
        name = f"{CARRIER_PREFIX}{queue}:{dead_letter.died or dead_letter.number}"
        copied = self._copied.get((queue, target.queue))
        if copied is not None and copied[0] == name:
            return copied[1]
        source = body if isinstance(body, PartedBody) else Stored(self._bodies, group, body)
        try:
            kept = await self._bodies.upload(target, source, name)
        except WholeOnly as error:
            raise _Later("the target takes no bodies in parts before the upgrade") from error
        except (NotTaken, BodyGone) as error:
            raise _Later(str(error)) from error
        if kept is None:
            raise _Later("the target was deleted")
        self._copied[queue, target.queue] = name, kept
        return kept

    async def _ask(
        self,
        queue: QueueId,
        group: GroupId,
        target: QueueInfo,
        dead_letters: Sequence[RoutedDeadLetter],
    ) -> Outcome:
        large: dict[int, Any] = {}
        for place, dead_letter in enumerate(dead_letters):
            if not isinstance(dead_letter.body, bytes):
                large[place] = await self._upload(
                    queue, group, target, dead_letter, dead_letter.body
                )
        attrs = [{ATTR_DEATHS: each.deaths, ATTR_PRIORITY: each.priority} for each in dead_letters]
        metas = [dead_letter.meta for dead_letter in dead_letters]
        attrs = with_group_keys(target.arguments, metas, attrs, len(metas))
        command = Enqueue(
            target.queue,
            f"{CARRIER_PREFIX}{queue}",
            dead_letters[0].number,
            [head_of(dead_letter.body) for dead_letter in dead_letters],
            metas,
            with_subjects(target, (dead_letter.key for dead_letter in dead_letters), attrs),
            large or None,
        )
        in_doubt = self._in_doubt.setdefault(queue, {})
        numbers = {each.number for each in dead_letters}
        _, before = in_doubt.get(target.queue, (target, frozenset[int]()))
        in_doubt[target.queue] = target, before | numbers
        try:
            outcome = await self._broker.cluster.ask(target.group, command)
        except BrokerError as error:
            raise _Later(error.reason) from error
        left = before | numbers
        if outcome.code == NO_QUEUE:
            left = frozenset[int]()
        elif outcome.kind == "ok":
            left = before - numbers
        elif outcome.kind == "refused":
            left = before  # this time it was not taken
        if left:
            in_doubt[target.queue] = target, left
        else:
            del in_doubt[target.queue]
        return outcome


def _partly(numbers: Sequence[int], safe: Mapping[QueueId, int]) -> SafeIn:
    """Which targets have these letters already, by the last one that each has."""

    def having(number: int) -> tuple[QueueId, ...]:
        return tuple(target for target, last in safe.items() if number <= last)

    found = [(queues, list(some)) for queues, some in groupby(numbers, having)]
    return [(some[0], some[-1], queues) for queues, some in found if queues]


def runs(
    dead_letters: Sequence[RoutedDeadLetter],
) -> Iterator[tuple[tuple[QueueInfo, ...], Sequence[RoutedDeadLetter]]]:
    """Neighbours with the same targets, whose numbers follow each other. One with a large body is
    alone: its parts would be forgotten while those of many others are on their way.
    """
    start = 0
    for position, dead_letter in enumerate(dead_letters):
        follows = dead_letter.number == dead_letters[start].number + position - start
        if position > start and isinstance(dead_letters[position - 1].body, LargeBody):
            follows = False
        if position > start and isinstance(dead_letter.body, LargeBody):
            follows = False
        first = dead_letters[start]
        alike = (dead_letter.targets, dead_letter.safe_in) == (first.targets, first.safe_in)
        if not alike or not follows:
            yield dead_letters[start].targets, dead_letters[start:position]
            start = position
    if dead_letters:
        yield dead_letters[start].targets, dead_letters[start:]


def keeps_all(catalog: CatalogMachine, info: QueueInfo, config: QueueConfig) -> bool:
    """A dead letter of this queue that no queue takes waits for one."""
    if config.overflow == "drop-head":
        return False
    return catalog.arguments_of(info).get(f"x-{DEAD_LETTER_STRATEGY}") == "at-least-once"
