"""Consumers of a stream: cursors with names, over messages that stay.

What a consumer has yet to get is counted, never listed: the messages at its cursor and behind that
its filter means, and those picked for it when it was made (`last_per_subject`). What was delivered
and is to be acknowledged is held as ranges; when its time is over, or it is given back, it waits
to be delivered again, before anything new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any, Final, NamedTuple

from cluster.machine.commands import RestoreConsumer
from cluster.machine.marks import TIME_MS_MAX
from cluster.machine.replies import StreamChunk
from cluster.machine.runs import RangeMap
from cluster.machine.stream.finding import Finder
from cluster.machine.stream.retained import Retained
from cluster.machine.stream.settings import ConsumerSettings, consumer_settings
from cluster.machine.stream.subjects import Filter
from cluster.types import ConsumerKey

#: Of a consumer's configuration, what is never changed.
AS_CREATED: Final = ("deliver_policy", "opt_start_seq", "opt_start_ms", "ack_policy")
#: Messages that one command hands out at most.
FETCHED_MAX: Final = 65_536
TOO_LARGE: Final = "too_large"
#: Deadlines of what is held no longer, beside one for each range that is.
DEADLINES_SLACK: Final = 64
#: Of messages and deliveries: more than there ever are.
NUMBER_MAX: Final = 1 << 62
#: So many given back are taken out of the waiting ones one by one.
TAKEN_ONE_BY_ONE: Final = 8
#: Stands for a moment only.
NEVER_DUE: Final = TIME_MS_MAX


class Held(NamedTuple):
    """Of messages that are to be acknowledged."""

    ahead: int  # the consumer's number of the first delivery, less the sequence
    deliveries: int  # so far; 0: it was sent to nobody
    due_ms: int  # to be acknowledged by then; 0: it waits to be delivered again


class ConsumerInfo(NamedTuple):
    delivered_consumer: int  # deliveries so far
    delivered_stream: int  # highest sequence delivered
    last_delivered_ms: int  # 0: nothing yet
    floor_consumer: int  # all deliveries up to here are acknowledged
    floor_stream: int
    last_ack_ms: int
    ack_pending: int
    redelivered: int
    pending: int


class Given(NamedTuple):
    """What one request gets."""

    number: int
    chunks: list[StreamChunk]
    note: str


class StreamConsumer:
    __slots__ = (
        "_deadlines",
        "_finder",
        "_may_be_unsent",
        "again",
        "config",
        "created_ms",
        "cursor",
        "delivered",
        "delivered_ms",
        "delivered_stream",
        "exhausted",
        "filter",
        "floor",
        "floor_ms",
        "floor_stream",
        "held",
        "key",
        "paused",
        "pending",
        "perhaps_unsent",
        "picked",
        "settings",
        "was_ready",
    )

    def __init__(self, key: ConsumerKey, config: dict[str, Any], created_ms: int) -> None:
        self.key = key
        self.config = config
        self.settings: ConsumerSettings = consumer_settings(config)
        self.created_ms = created_ms
        self.filter: Filter = NO_FILTER
        self._finder = Finder()
        #: First sequence that it was not given, of those that come in order; perhaps yet to come.
        self.cursor = 1
        #: Sequences below the cursor that come before it.
        self.picked: RangeMap[None] = RangeMap()
        self.pending = 0  # messages that it has yet to get
        self.held: RangeMap[Held] = RangeMap()
        self.again: deque[int] = deque()  # of those held, that wait: the first one is next
        #: Delivered too often, yet they stay; an acknowledgement may still come.
        self.exhausted: RangeMap[None] = RangeMap()
        #: What the last `Fetch` handed out, if nothing else would bring it again: only its leader
        #: knows whether it was sent, until it fetches once more. As in `Acknowledge.unsent`.
        self.perhaps_unsent: list[tuple[int, int, int, int]] = []
        self._may_be_unsent = True  # of those held: else nothing is counted
        self.delivered = 0
        self.delivered_stream = 0
        self.delivered_ms = 0
        self.floor = 0
        self.floor_stream = 0
        self.floor_ms = 0  # when something was last acknowledged
        self.paused = False
        self.was_ready = False  # when the last command was done
        #: (due ms, first, last), some out of date; none is missing.
        self._deadlines: list[tuple[int, int, int]] = []

    def set_filter(self, wanted: Filter) -> None:
        self.filter = wanted
        self._finder = Finder()

    def set_config(self, config: dict[str, Any]) -> None:
        """What it said of its beginning and of how it acknowledges holds on."""
        kept = {name: self.config[name] for name in AS_CREATED if name in self.config}
        self.config = {name: config[name] for name in config if name not in AS_CREATED} | kept
        self.settings = consumer_settings(self.config)

    def follow(self, before: ConsumerSettings) -> None:
        """Also what was delivered by other settings is due as these say; all of it, where it is
        delivered to another subject.
        """
        settings, held = self.settings, list(self.held)
        for first, last, each in held:
            if each.due_ms:
                later_ms = _wait_ms(settings, each.deliveries) - _wait_ms(before, each.deliveries)
                due_ms = max(1, each.due_ms + later_ms)
                self.held.assign(first, last, each._replace(due_ms=due_ms))
        self._plan_anew()
        if settings.deliver_subject != before.deliver_subject and settings.ack_policy != "none":
            most = settings.deliveries_max
            for first, last, each in held:
                if each.due_ms and (most is None or each.deliveries < most):
                    self.wait_again(first, last, each)

    def take_exceeding(self) -> list[tuple[int, int, Held]]:
        """What waits, and was delivered as often as it may be by now: it waits no more."""
        most = self.settings.deliveries_max
        if most is None or self.settings.ack_policy == "none":
            return []
        found = [each for each in self.held if not each[2].due_ms and each[2].deliveries >= most]
        self._wait_no_more([(first, last) for first, last, _ in found])
        return found

    # --- what it may have -------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """So many new messages may be handed out before others are acknowledged."""
        most = self.settings.ack_pending_max
        if most is None or self.settings.ack_policy == "none":
            return FETCHED_MAX
        return max(0, most - self.held.count)

    @property
    def may_fetch(self) -> bool:
        """Something could be handed out now."""
        return not self.paused and (bool(self.again) or (self.pending > 0 and self.room > 0))

    def wants(
        self, subject_id: int, first: int, last: int, *, exhausted: bool
    ) -> list[tuple[int, int]]:
        """Which of these messages of one subject it has yet to get or to acknowledge. `exhausted`:
        also those that it was delivered too often.
        """
        if not self.filter.means(subject_id):
            return []
        found = [(start, end) for start, end, _ in self.held.pieces(first, last)]
        found += [(start, end) for start, end, _ in self.picked.pieces(first, last)]
        if exhausted:
            found += [(start, end) for start, end, _ in self.exhausted.pieces(first, last)]
        if self.settings.ack_policy == "none":
            rows = self.perhaps_unsent
            found += [
                (max(first, a), min(last, b)) for a, b, *_ in rows if a <= last and first <= b
            ]
        if last >= self.cursor:
            found.append((max(first, self.cursor), last))
        return sorted(found)

    # --- handing out ------------------------------------------------------------------------------

    def fetch(
        self,
        retained: Retained,
        requests: Sequence[tuple[int, int, int]],
        now_ms: int,
        overhead: int = 0,
        *,
        holds: bool,
    ) -> list[Given]:
        """`holds`: what it gets is held until somebody says that it was sent, or acknowledged."""
        given: list[Given] = []
        left = FETCHED_MAX
        unsent = self.unsent_count
        for number, count, size in requests:
            request = _Request(min(count, left), size, overhead, unsent)
            while request.count > 0 and not request.note and self.may_fetch:
                if self.again:
                    self._give_again(retained, request, now_ms, holds=holds)
                else:
                    self._give_new(retained, request, now_ms, holds=holds)
            unsent = request.unsent
            if request.chunks or request.note:
                given.append(Given(number, request.chunks, request.note))
                left -= max(0, min(count, left) - request.count)
        return given

    def note_handed(self, given: Sequence[Given], *, holds: bool) -> None:
        """All that was handed out before has been sent by now."""
        most = self.settings.deliveries_max if self.settings.ack_policy != "none" else None
        self.perhaps_unsent = [
            (each.first, each.first + each.bodies.count - 1, each.consumer_first, count)
            for one in (given if most is not None or not holds else ())
            for each in one.chunks
            for count in (each.delivery_count,)
            if not holds or (most is not None and count >= most)
        ]

    def _give_again(
        self, retained: Retained, request: _Request, now_ms: int, *, holds: bool
    ) -> None:
        sequence = self.again[0]
        if not request.fitting(self._weights(retained, request, sequence, sequence)):
            return
        self.again.popleft()
        held = self.held.get(sequence)
        assert held is not None, "what is to be delivered again is not held"
        count = held.deliveries + 1
        request.unsent -= count == 1
        pending = self.pending + request.unsent
        self.delivered += 1
        self.delivered_ms = now_ms
        if holds:
            anew = count == 1 and self.settings.ack_policy == "none"  # numbers were wound back
            ahead = self.delivered - sequence if anew else held.ahead
            self._hold(sequence, sequence, Held(ahead, count, self._due_ms(count, now_ms)))
        else:
            self.held.cut(sequence, sequence)
            self.raise_floor()
        for _, _, bodies, stored_ms in retained.pieces(sequence, sequence):
            chunk = StreamChunk(sequence, bodies, self.delivered, count, pending, stored_ms)
            request.chunks.append(chunk)

    def _give_new(self, retained: Retained, request: _Request, now_ms: int, *, holds: bool) -> None:
        most = min(request.count, self.room)
        if self.picked:
            first, last = self.picked.head
            last = min(last, first + most - 1)
        else:
            first = self._finder.next_of(retained, self.filter, self.cursor)
            last = retained.run_of(self.filter, first, first + most - 1)
        if request.by_bytes:
            fitting = request.fitting(self._weights(retained, request, first, last))
            if not fitting:
                return
            last = first + fitting - 1
        else:
            request.count -= last - first + 1
        if self.picked:
            self.picked.cut(first, last)
        else:
            self.cursor = last + 1
        if holds:
            due_ms = self._due_ms(1, now_ms)
            self._hold(first, last, Held(self.delivered + 1 - first, 1, due_ms), fresh=True)
        for start, end, bodies, stored_ms in retained.pieces(first, last):
            request.chunks.append(
                StreamChunk(start, bodies, self.delivered + 1, 1, self.pending - 1, stored_ms)
            )
            self.delivered += end - start + 1
            self.pending -= end - start + 1
        self.delivered_stream = last
        self.delivered_ms = now_ms
        if not (holds or self.held):
            self.floor, self.floor_stream = self.delivered, last

    def _weights(
        self, retained: Retained, request: _Request, first: int, last: int
    ) -> Sequence[int]:
        """What these messages count of the bytes that a request may have."""
        sizes = retained.sizes_of(first, last)
        overhead = request.overhead
        if not overhead:
            return sizes
        name_of, id_at = retained.subjects.name_of, retained.id_at
        return [size + overhead + len(name_of(id_at(first + at))) for at, size in enumerate(sizes)]

    def _due_ms(self, deliveries: int, now_ms: int) -> int:
        return now_ms + _wait_ms(self.settings, deliveries)

    def _hold(self, first: int, last: int, held: Held, *, fresh: bool = False) -> None:
        if fresh:
            self.held.put(first, last, held)
        else:
            self.held.assign(first, last, held)
        heappush(self._deadlines, (held.due_ms, first, last))
        if len(self._deadlines) > 2 * self.held.range_count + DEADLINES_SLACK:
            self._plan_anew()

    # --- what becomes of it -----------------------------------------------------------------------

    def done(self, first: int, last: int) -> list[tuple[int, int]]:
        """These are acknowledged, as far as they are held. Answers which were."""
        pieces = [(start, end) for start, end, _ in self._cut(first, last)]
        if self.exhausted:
            pieces += [(start, end) for start, end, _ in self.exhausted.cut(first, last)]
        return pieces

    def _cut(self, first: int, last: int) -> list[tuple[int, int, Held]]:
        """They are held no longer."""
        pieces = self.held.cut(first, last)
        if self.again:
            waiting = [(start, end) for start, end, held in pieces if not held.due_ms]
            self._wait_no_more(waiting)
        return pieces

    def _wait_no_more(self, ranges: Sequence[tuple[int, int]]) -> None:
        count = sum(last - first + 1 for first, last in ranges)
        if count <= TAKEN_ONE_BY_ONE:
            for first, last in ranges:
                for sequence in range(first, last + 1):
                    self.again.remove(sequence)
        else:
            gone = {at for first, last in ranges for at in range(first, last + 1)}
            self.again = deque(each for each in self.again if each not in gone)

    def waits(self, first: int, last: int, now_ms: int) -> list[tuple[int, int, Held, int]]:
        """Of those held of these that were delivered and wait for nothing but to be acknowledged:
        for how many ms they do.
        """
        found: list[tuple[int, int, Held, int]] = []
        for start, end, held in self.held.pieces(first, last):
            if held.due_ms:
                delivered_ms = held.due_ms - (self._due_ms(held.deliveries, 0))
                found.append((start, end, held, max(0, now_ms - delivered_ms)))
        return found

    def acknowledged(self, now_ms: int) -> None:
        """Something was: the floor may rise."""
        if self.settings.ack_policy != "none":
            self.floor_ms = now_ms
        self.raise_floor()

    def raise_floor(self) -> None:
        """To what is below all that is held."""
        if not self.held:
            floor, stream = self.delivered, max(self.delivered_stream, self.floor_stream)
        else:
            first = self.held.head[0]
            held = self.held.get(first)
            assert held is not None
            floor, stream = min(first + held.ahead - 1, self.delivered), first - 1
        self.floor, self.floor_stream = max(self.floor, floor), max(self.floor_stream, stream)

    def give_back(self, sequence: int, delay_ms: int, now_ms: int, *, moves: bool) -> Held | None:
        """It is to be delivered again, after that or at once. None: it is not held, or waits
        already; then it may wait longer if it `moves`.
        """
        held = self.held.get(sequence)
        if held is None:
            return None
        if not held.due_ms:
            if not (moves and delay_ms > 0 and held.deliveries):
                return None
            self._wait_no_more([(sequence, sequence)])
        if delay_ms > 0:
            due_ms = now_ms + min(delay_ms, TIME_MS_MAX)
            self._hold(sequence, sequence, held._replace(due_ms=due_ms))
        return held

    def wait_again(self, first: int, last: int, held: Held) -> bool:
        """Their time is over: they are delivered again, or not any more if that was too often.
        False: the latter.
        """
        most = self.settings.deliveries_max
        if self.settings.ack_policy == "none":
            most = None  # nobody knows that it was sent even once
        if most is not None and held.deliveries >= most:
            self.held.cut(first, last)
            self.exhausted.put(first, last, None)
            return False
        self.held.assign(first, last, held._replace(due_ms=0))
        self._may_be_unsent |= not held.deliveries
        self.again.extend(range(first, last + 1))
        return True

    def take_back(
        self, retained: Retained, unsent: Sequence[tuple[int, int, int, int]], holds: bool
    ) -> None:
        """See `Acknowledge.unsent`. They come before all others, in their order. If nothing was
        handed out behind them to who does not acknowledge, their numbers come again, too: by them
        an ordered consumer misses none, and sees that it has had a message already.
        """
        unsent = [(row[0], row[1], row[2], row[3]) for row in unsent]
        in_doubt, self.perhaps_unsent = self.perhaps_unsent, []
        self._may_be_unsent = True
        for first, last, number, count in reversed(unsent):
            if not 0 < first <= last < self.cursor or count < 1:
                continue
            known = (first, last, number, count) in in_doubt
            is_held = holds and not (known and self.settings.ack_policy == "none")
            if not is_held and 0 < number <= self.delivered - (last - first):
                ahead = number - first - (count > 1)  # the first one was lower
                self._hold_unsent(retained, first, last, Held(ahead, count, NEVER_DUE))
            elif known:  # it may be too late for it by now
                for start, end, _ in self.exhausted.cut(first, last):
                    self.held.put(start, end, Held(number - first, count, NEVER_DUE))
                    self._lower_floor(start, number - first)
            for start, end, held in reversed(self.held.pieces(first, last)):
                if held.deliveries == count:  # else they were delivered since
                    if not held.due_ms:  # their time was over before
                        self._wait_no_more([(start, end)])
                    self.held.assign(start, end, held._replace(deliveries=count - 1, due_ms=0))
                    self.again.extendleft(range(end, start - 1, -1))
        if self.settings.ack_policy == "none" and self._were_last(unsent):
            self.delivered = unsent[0][2] - 1
            self.floor = min(self.floor, self.delivered)

    def _were_last(self, unsent: Sequence[tuple[int, int, int, int]]) -> bool:
        """Nothing that was sent has a number of these, or a higher one."""
        number = self.delivered + 1
        for first, last, begin, _ in reversed(unsent):
            number -= last - first + 1
            if begin != number:
                return False
        sent = (held.ahead + last for _, last, held in self.held if held.deliveries)
        return bool(unsent) and all(each < number for each in sent)

    def _hold_unsent(self, retained: Retained, first: int, last: int, held: Held) -> None:
        """As if they had been held, whoever does not acknowledge."""
        found = list(retained.extents(first, last))
        for part in (self.held, self.picked, self.exhausted):
            for start, end, _ in part.pieces(first, last):
                found = [each for one in found for each in without(one, start, end)]
        for start, end in found:
            self.held.put(start, end, held)
        if found:
            self._lower_floor(found[0][0], held.ahead)

    def _lower_floor(self, first: int, ahead: int) -> None:
        """Again something is held that was not, from there on."""
        self.floor = min(self.floor, first + ahead - 1)
        self.floor_stream = min(self.floor_stream, first - 1)

    def works(self, sequence: int, now_ms: int) -> bool:
        """Its time starts anew."""
        held = self.held.get(sequence)
        if held is None:
            return False
        if not held.due_ms:
            self.again.remove(sequence)
        due_ms = self._due_ms(held.deliveries, now_ms)
        self._hold(sequence, sequence, held._replace(due_ms=due_ms))
        return True

    def take_due(self, now_ms: int) -> list[tuple[int, int, Held]]:
        """What should have been acknowledged by now, ascending."""
        heap = self._deadlines
        due: dict[tuple[int, int], Held] = {}
        while heap and heap[0][0] <= now_ms:
            _, first, last = heappop(heap)
            for start, end, held in self.held.pieces(first, last):
                if 0 < held.due_ms <= now_ms:
                    due[start, end] = held
        found: list[tuple[int, int, Held]] = []
        before = 0
        for (first, last), held in sorted(due.items()):  # parts of one range may have come twice
            if last > before:
                found.append((max(first, before + 1), last, held))
                before = last
        return found

    @property
    def due_ms(self) -> int | None:
        """Perhaps too early, never too late."""
        heap = self._deadlines
        due_ms = heap[0][0] if heap else None
        if self.paused:
            until_ms = self.settings.pause_until_ms
            due_ms = until_ms if due_ms is None else min(due_ms, until_ms)
        return due_ms

    def removed(self, first: int, last: int, subject_id: int) -> None:
        """These messages of one subject are gone from the stream."""
        if last >= self.cursor and self.filter.means(subject_id):
            self.pending -= last - max(first, self.cursor) + 1
        if self.picked:
            self.pending -= sum(e - s + 1 for s, e, _ in self.picked.cut(first, last))
        if self.held and self.held.head[0] <= last and self._cut(first, last):
            self.raise_floor()
        if self.exhausted:
            self.exhausted.cut(first, last)

    def all_removed(self, next_sequence: int) -> None:
        """No message is left."""
        self.pending = 0
        self.picked.clear()
        self.held.clear()
        self.again.clear()
        self.exhausted.clear()
        self.perhaps_unsent = []
        self._deadlines.clear()
        self.cursor = max(self.cursor, next_sequence)
        self.raise_floor()

    def begin_at(self, sequence: int) -> None:
        """Nothing was delivered, and comes from there on."""
        for each in (self.picked, self.held, self.again, self.exhausted, self._deadlines):
            each.clear()
        self.perhaps_unsent = []
        self._finder = Finder()
        self.cursor = sequence
        self.delivered = self.delivered_ms = self.floor = self.floor_ms = 0
        self.delivered_stream = self.floor_stream = sequence - 1

    def restore(self, retained: Retained, state: RestoreConsumer, now_ms: int) -> None:
        """See `is_state`."""
        self.begin_at(state.cursor)
        self.delivered, self.delivered_stream, delivered_ms = state.delivered
        self.floor, self.floor_stream, floor_ms = state.floor
        self.delivered_ms, self.floor_ms = min(delivered_ms, now_ms), min(floor_ms, now_ms)
        for first, last, ahead, deliveries in state.held:
            due_ms = self._due_ms(deliveries, now_ms) if deliveries else 0
            for start, end in retained.extents(first, last):
                self.held.put(start, end, Held(ahead, deliveries, due_ms))
                if not deliveries:
                    self.again.extend(range(start, end + 1))
                    self._may_be_unsent = True
        self._plan_anew()
        for ranges, into in ((state.picked, self.picked), (state.exhausted, self.exhausted)):
            for first, last in ranges:
                for start, end in retained.extents(first, last):
                    into.put(start, end, None)
        self.pending = self.picked.count + retained.count_of(self.filter, self.cursor)

    def next_new(self, retained: Retained) -> int:
        """The first message that it has yet to get; 0: none."""
        if self.picked:
            return self.picked.head[0]
        return self._finder.next_of(retained, self.filter, self.cursor)

    # --- looking, and snapshots -------------------------------------------------------------------

    @property
    def unsent_count(self) -> int:
        """Messages behind the cursor that are pending: sent to nobody, as far as is known."""
        count = 0
        if self._may_be_unsent:
            count = sum(
                last - first + 1
                for first, last, held in self.held
                if not (held.deliveries or held.due_ms)
            )
            self._may_be_unsent = count > 0
        return count

    def info(self) -> ConsumerInfo:
        """Who does not acknowledge has nothing to acknowledge: what is held then is on its way."""
        acknowledges = self.settings.ack_policy != "none"
        again = sum(last - first + 1 for first, last, held in self.held if held.deliveries > 1)
        unsent = self.unsent_count
        return ConsumerInfo(
            delivered_consumer=self.delivered,
            delivered_stream=self.delivered_stream,
            last_delivered_ms=self.delivered_ms,
            floor_consumer=self.floor,
            floor_stream=self.floor_stream,
            last_ack_ms=self.floor_ms,
            ack_pending=self.held.count - unsent if acknowledges else 0,
            redelivered=again + self.exhausted.count,
            pending=self.pending + unsent,
        )

    def dump(self) -> list[Any]:
        """What is perhaps unsent stands behind the rest, where there is any."""
        firsts, lasts, held = self.held.dump()
        unsent = [list(each) for each in self.perhaps_unsent]
        return [
            self.key,
            self.config,
            self.created_ms,
            self.cursor,
            self.pending,
            self.paused,
            [self.delivered, self.delivered_stream, self.delivered_ms],
            [self.floor, self.floor_stream, self.floor_ms],
            [list(firsts), list(lasts), [list(each) for each in held]],
            list(self.again),
            [[first, last] for first, last, _ in self.picked],
            [[first, last] for first, last, _ in self.exhausted],
            *([unsent] if unsent else ()),
        ]

    @classmethod
    def of(cls, row: Sequence[Any]) -> StreamConsumer:
        consumer = cls(ConsumerKey(row[0]), row[1], row[2])
        consumer.cursor, consumer.pending, consumer.paused = row[3:6]
        consumer.delivered, consumer.delivered_stream, consumer.delivered_ms = row[6]
        consumer.floor, consumer.floor_stream, consumer.floor_ms = row[7]
        firsts, lasts, held = row[8]
        consumer.held.load(firsts, lasts, [Held(*each) for each in held])
        consumer.again.extend(row[9])
        for ranges, into in zip(row[10:12], (consumer.picked, consumer.exhausted), strict=True):
            for first, last in ranges:
                into.put(first, last, None)
        for unsent in row[12:]:
            consumer.perhaps_unsent = [(a, b, c, d) for a, b, c, d in unsent]
        consumer._plan_anew()
        consumer.was_ready = consumer.may_fetch
        return consumer

    def _plan_anew(self) -> None:
        self._deadlines = [
            (held.due_ms, first, last) for first, last, held in self.held if held.due_ms
        ]
        heapify(self._deadlines)

    def invariants(self, retained: Retained) -> None:
        for part in (self.held, self.picked, self.exhausted):
            part.invariants()
        waiting = sorted(self.again)
        assert waiting == [
            at for first, last, h in self.held if not h.due_ms for at in range(first, last + 1)
        ], "what waits is not what was given back"
        ahead = sum(last - first + 1 for first, last, _ in self.picked)
        assert self.pending == ahead + retained.count_of(self.filter, self.cursor), "pending"
        for first, last in (*_ranges(self.held), *_ranges(self.picked), *_ranges(self.exhausted)):
            assert all(map(retained.is_live, range(first, last + 1))), "held, and gone"
        for first, last, held in self.held:
            assert held.deliveries or held.due_ms or self._may_be_unsent, "unsent, and not counted"
            if held.deliveries:
                assert held.ahead + last <= self.delivered, "held, and never delivered"
            if held.due_ms:
                known = [d for d, s, e in self._deadlines if s <= last and first <= e]
                assert known, "a deadline would be missed"
                assert min(known) <= held.due_ms, "a deadline would be late"
        if self.held:
            assert self.held.head[0] > self.floor_stream, "held below the floor"
        assert self.was_ready == self.may_fetch, "nobody was told that there is something"


def is_state(state: RestoreConsumer) -> bool:
    """Can a consumer be like that?"""
    (given, given_last, given_ms), (floor, floor_last, floor_ms) = state.delivered, state.floor
    if not 0 < state.cursor <= NUMBER_MAX:
        return False
    if not (0 <= floor <= given <= NUMBER_MAX and given_ms >= 0 and floor_ms >= 0):
        return False
    if not (0 <= given_last < state.cursor and 0 <= floor_last < state.cursor):
        return False
    if any(
        not floor_last < first <= last <= given_last
        or first + ahead <= 0
        or (deliveries and last + ahead > given)
        or not 0 <= deliveries <= NUMBER_MAX
        for first, last, ahead, deliveries in state.held
    ):
        return False
    before = 0
    held = [(first, last) for first, last, _, _ in state.held]
    if any(first <= given_last for first, _ in state.picked):
        return False
    for first, last in sorted([*held, *state.picked, *state.exhausted]):
        if not before < first <= last:
            return False
        before = last
    return before < state.cursor


class _Request:
    """What one request may still have."""

    __slots__ = ("by_bytes", "bytes", "chunks", "count", "note", "overhead", "unsent")

    def __init__(self, count: int, size: int, overhead: int, unsent: int) -> None:
        self.overhead = overhead
        self.unsent = unsent  # of the consumer's messages, those that are yet to be sent again
        self.count = count
        self.by_bytes = size > 0
        self.bytes = size
        self.chunks: list[StreamChunk] = []
        self.note = ""

    def fitting(self, sizes: Sequence[int]) -> int:
        """How many of these in a row it gets, which is noted; fewer than all: no more fit."""
        count, total = len(sizes), sum(sizes)
        if self.by_bytes and total > self.bytes:
            self.note = TOO_LARGE
            running = list(accumulate(sizes))
            count = bisect_right(running, self.bytes)
            total = running[count - 1] if count else 0
        self.bytes -= total
        self.count -= count
        return count


NO_FILTER: Final = Filter(())


def _wait_ms(settings: ConsumerSettings, deliveries: int) -> int:
    backoff = settings.backoff_ms
    wait_ms = backoff[min(deliveries, len(backoff)) - 1] if backoff else 0
    return max(1, min(wait_ms or settings.ack_wait_ms, TIME_MS_MAX))


def without(piece: tuple[int, int], first: int, last: int) -> list[tuple[int, int]]:
    start, end = piece
    if last < start or end < first:
        return [piece]
    parts = [(start, first - 1), (last + 1, end)]
    return [each for each in parts if each[0] <= each[1]]


def _ranges(held: RangeMap[Any]) -> Iterator[tuple[int, int]]:
    return ((first, last) for first, last, _ in held)
