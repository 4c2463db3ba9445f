"""Messages in the hands of consumers: who gets which, and what comes back.

All of it is decided inside `apply`, so every replica knows who holds what. A command of a consumer
is done for all of its messages or for none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.machine.commands import Discard, Extend, Handed, Ranges, Return, Settle
from cluster.machine.consumers import Consumer, Consumers, Hold
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import DELIVERY_LIMIT, EXPIRED, REJECTED
from cluster.machine.disposal import Disposal
from cluster.machine.effects import ActiveChanged, ConsumerEnded, Deliver, Effect
from cluster.machine.expiry import MessageExpiry
from cluster.machine.identity import QueueIdentity
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.messages import Messages
from cluster.machine.replies import (
    BAD_ARGUMENT,
    NO_CONSUMER,
    UNKNOWN_DELIVERY,
    Chunk,
    Ok,
    Refused,
    Reply,
)
from cluster.machine.timetable import Deadline
from cluster.types import ORDINAL_BITS, ConsumerKey, era_of, made

SPAN_MS_MAX = 1 << 40
#: Up to so many ready messages are dealt out one by one; more are shared in ranges, so that a batch
#: stays a batch.
DEAL_SINGLY_MAX = 16
#: One command hands out no more chunks than these; the rest waits for the next one, or a Tick.
CHUNKS_AT_ONCE_MAX = 4_096
#: More entries than a log loses with a majority.
ENTRIES_LOST_MAX = 1 << 30


@dataclass(eq=False, slots=True)
class Checkout:
    """Owns the consumers with what they hold, and the tokens that fence deliveries."""

    identity: QueueIdentity
    messages: Messages
    expiry: MessageExpiry
    disposal: Disposal
    deadline: Deadline
    consumers: Consumers = field(init=False)
    last_token: int = 0
    paused: bool = False
    seen: int = 0  # up to here clients may have seen messages, besides those held now
    unsettled_count: int = 0

    def __post_init__(self) -> None:
        self.consumers = Consumers(self.identity.config.single_active_consumer)

    # --- handing out ------------------------------------------------------------------------------

    def hand_out(self, context: ApplyContext) -> None:
        """Serve consumers until nothing is ready or nobody has room."""
        ready, consumers = self.messages.ready, self.consumers
        delivered: dict[int, tuple[Consumer, list[Chunk]]] = {}
        left = CHUNKS_AT_ONCE_MAX
        ring: deque[Consumer] | None = None
        share = turns = 0
        while ready.count and left > 0 and (free := ready.free):
            serving = consumers.serving()
            if serving is None:
                break
            if serving is not ring or turns == 0:
                turns = len(serving)
                ring = serving
                share = -(-free // turns)
                if turns > 1 and free <= DEAL_SINGLY_MAX:
                    share = 1
            turns -= 1
            consumer = serving[0]
            limit = consumer.room
            if limit > share:
                limit = share
            chunks = self.take(context, consumer, limit, left)
            left -= len(chunks)
            if not chunks:
                continue  # what was ready had expired
            consumers.served(serving)
            known = delivered.get(consumer.key)
            if known is None:
                delivered[consumer.key] = (consumer, chunks)
            else:
                known[1].extend(chunks)
        queue = self.identity.id
        for consumer, chunks in delivered.values():
            context.effects.append(
                Deliver(queue, consumer.key, consumer.session, chunks, consumer.windowed)
            )

    def take(
        self, context: ApplyContext, consumer: Consumer, limit: int, left: int = CHUNKS_AT_ONCE_MAX
    ) -> list[Chunk]:
        """Give the consumer the next messages, at most `limit` in at most `left` chunks, under one
        fencing token.
        """
        messages, expiry = self.messages, self.expiry
        ready, store, keyed = messages.ready, messages.store, messages.keyed
        token = self._new_token(context)
        due_ms = self._due_of(consumer, context.now_ms)
        hold = made(Hold, (token, due_ms))
        chunks: list[Chunk] = []
        while limit > 0 and left > 0 and ready.count and ready.free:
            here = limit
            expired = False
            if keyed is not None:
                alone = messages.may_expire
                first, last = keyed.serve(1 if alone else min(limit, left))
                expired = alone and expiry.judge(first, last, context.now_ms - 1)[0]
            else:
                if limit > left:
                    first = ready.front[0]
                    here = min(limit, store.reach(first, left) - first + 1)
                if messages.may_expire:
                    first, last = ready.front
                    end = min(last, first + here - 1)
                    expired, end = expiry.judge(first, end, context.now_ms - 1)
                    here = end - first + 1
                first, last = ready.take(here)
            messages.waiting_bytes -= store.bytes_of(first, last)
            if expired:
                self.disposal.dead_letter(context, first, last, EXPIRED)
                continue
            limit -= last - first + 1
            taken = self._give(consumer, first, last, hold)
            left -= len(taken)
            chunks += taken
        if chunks and not consumer.auto_settle:
            self._expect_by(consumer, due_ms)
        return chunks

    def take_named(self, context: ApplyContext, consumer: Consumer, ranges: Ranges) -> list[Chunk]:
        """Give the consumer those of these messages that wait, ready or delayed, whatever is before
        them, under one fencing token. What is ready and has expired is not given, nor is one that
        has to wait for another one of its key.
        """
        messages, expiry = self.messages, self.expiry
        if messages.keyed is not None:
            ranges = messages.keyed.apart(ranges)
        if messages.may_expire:
            for first, last in [each for pair in ranges for each in messages.ready.pieces(*pair)]:
                start = first
                while start <= last:
                    expired, end = expiry.judge(start, last, context.now_ms - 1)
                    for low, high in messages.ready.cut(start, end) if expired else ():
                        messages.waiting_bytes -= messages.store.bytes_of(low, high)
                        self.disposal.dead_letter(context, low, high, EXPIRED)
                    start = end + 1
        due_ms = self._due_of(consumer, context.now_ms)
        hold = made(Hold, (self._new_token(context), due_ms))
        taken = messages.take_waiting(ranges)
        chunks = [chunk for pair in taken for chunk in self._give(consumer, *pair, hold)]
        if chunks and not consumer.auto_settle:
            self._expect_by(consumer, due_ms)
        return chunks

    def _give(self, consumer: Consumer, first: int, last: int, hold: Hold) -> list[Chunk]:
        """These wait no more: the consumer has them."""
        messages, recorder = self.messages, self.identity.recorder
        taken = messages.chunks_of(first, last, hold.token)
        if recorder is not None:
            recorder.delivered(self.identity, consumer, taken)
        if consumer.auto_settle:
            messages.release(first, last)
            self.seen = max(self.seen, last)
        else:
            consumer.held.put(first, last, hold)
            if consumer.windowed:
                consumer.ahead.put(first, last, hold.token)
            self.unsettled_count += last - first + 1
        return taken

    def passing(self) -> int:
        """How many messages would surely go straight through to consumers."""
        if self.messages.ready.count or self.paused or self.messages.keyed is not None:
            return 0  # a key may be held
        return min(self.consumers.capacity(), CHUNKS_AT_ONCE_MAX)

    def _new_token(self, context: ApplyContext) -> int:
        """Fences one delivery decision: larger than all before."""
        token = self.last_token + 1
        floor = context.index << ORDINAL_BITS
        if token < floor:
            token = floor
        self.last_token = token
        return token

    def skip_lost(self, context: ApplyContext, term: int) -> None:
        """Tokens go on above those of decisions that were lost."""
        at = context.index + era_of(term) * ENTRIES_LOST_MAX
        self.last_token = max(self.last_token, at << ORDINAL_BITS)

    def elect(self, context: ApplyContext) -> None:
        """Choose the single active consumer, where there is one."""
        consumers, identity = self.consumers, self.identity
        if consumers.elect():
            consumers.active_token = self._new_token(context)
            context.effects.append(self._active_changed())
            if identity.recorder is not None:
                identity.recorder.active(identity, consumers.active, consumers.active_token)

    def _active_changed(self) -> ActiveChanged:
        active, token = self.consumers.active, self.consumers.active_token
        if active is None:
            return ActiveChanged(self.identity.id, None, None, token)
        return ActiveChanged(self.identity.id, active.key, active.session, token)

    # --- deadlines of deliveries (A18) ------------------------------------------------------------

    def _due_of(self, consumer: Consumer, now_ms: int, timeout_ms: int | None = None) -> int:
        """By when what the consumer gets now is to be settled; 0: at any time."""
        if timeout_ms is None:
            timeout_ms = consumer.timeout_ms
        if timeout_ms is None:
            timeout_ms = self.identity.config.consumer_timeout_ms
        return now_ms + timeout_ms if timeout_ms else 0

    def _expect_by(self, consumer: Consumer, due_ms: int) -> None:
        if due_ms:
            if not consumer.due_ms or due_ms < consumer.due_ms:
                consumer.due_ms = due_ms
            self.deadline.wake_at(due_ms)

    def meet_deadlines(self, context: ApplyContext) -> None:
        by_key = self.consumers.by_key
        for consumer in list(by_key.values()):
            if not consumer.due_ms or consumer.due_ms > context.now_ms:
                continue
            consumer.due_ms = consumer.earliest_due()
            if not consumer.due_ms or consumer.due_ms > context.now_ms:
                continue
            if consumer.key in by_key:  # not ended with its session a moment ago
                context.effects.append(
                    ConsumerEnded(self.identity.id, consumer.key, consumer.session, "timeout")
                )
                context.group.timed_out(context, consumer.session)

    # --- commands of consumers --------------------------------------------------------------------

    def settle(self, context: ApplyContext, command: Settle) -> Reply:
        consumer = self._holder_of(command)
        if isinstance(consumer, Refused):
            return consumer
        held, recorder = consumer.held, self.identity.recorder
        before = held.count
        for first, last in command.ranges:
            held.cut(first, last)
            if consumer.windowed:
                consumer.ahead.cut(first, last)
            if recorder is not None:
                recorder.settled(self.identity, consumer, first, last)
            self.messages.release(first, last)
            if last > self.seen:
                self.seen = last
        count = before - held.count
        self.unsettled_count -= count
        self.freed(context, consumer)
        return Ok(count)

    def give_back(self, context: ApplyContext, command: Return) -> Reply:
        delay_ms = command.delay_ms
        if delay_ms is not None and not 0 <= delay_ms <= SPAN_MS_MAX:
            return Refused(BAD_ARGUMENT, "delay_ms is a number of milliseconds, 0 or more")
        consumer = self._holder_of(command)
        if isinstance(consumer, Refused):
            return consumer
        count = 0
        for first, last in command.ranges:
            count += consumer.drop(first, last)
            self._take_back(
                context,
                consumer,
                (first, last),
                failed=command.failed,
                asked=True,
                sent=context.version < 2 or not command.unsent,
                delay_ms=delay_ms,
            )
        self.freed(context, consumer)
        return Ok(count)

    def discard(self, context: ApplyContext, command: Discard) -> Reply:
        consumer = self._holder_of(command)
        if isinstance(consumer, Refused):
            return consumer
        count = 0
        for first, last in command.ranges:
            count += consumer.drop(first, last)
            self.unsettled_count -= last - first + 1
            self.seen = max(self.seen, last)
            self.disposal.dead_letter(context, first, last, REJECTED)
        self.freed(context, consumer)
        return Ok(count)

    def extend(self, context: ApplyContext, command: Extend) -> Reply:
        timeout_ms = command.timeout_ms
        if timeout_ms is not None and not 0 <= timeout_ms <= SPAN_MS_MAX:
            return Refused(BAD_ARGUMENT, "timeout_ms is a number of milliseconds, 0 or more")
        consumer = self._holder(command.consumer, command.ranges)
        if isinstance(consumer, Refused):
            return consumer
        due_ms = self._due_of(consumer, context.now_ms, timeout_ms)
        count = 0
        for first, last in command.ranges:
            for start, end, hold in consumer.held.cut(first, last):
                consumer.held.put(start, end, Hold(hold.token, due_ms))
                count += end - start + 1
        if count:
            self._expect_by(consumer, due_ms)
        return Ok(count)

    def dispatched(self, command: Handed) -> Reply:
        """These left the dispatcher, so there is room. Of other deliveries nothing is said."""
        consumer = self.consumers.by_key.get(command.consumer)
        if consumer is None:
            return self.no_consumer(command.consumer)
        ahead = consumer.ahead
        before = ahead.count
        for first, last, token in command.deliveries:
            for start, end, of_token in ahead.pieces(first, last):
                if of_token == token:
                    ahead.cut(start, end)
        self.consumers.offer(consumer)
        return Ok(before - ahead.count)

    # --- whether a command can be done ------------------------------------------------------------

    def lacks(self, key: ConsumerKey, ranges: Ranges, token: int | None = None) -> Refused | None:
        """Why the consumer could not settle these now; None: it could."""
        found = self._holder(key, ranges)
        if isinstance(found, Refused):
            return found
        return None if token is None else _redelivered(found, ranges, token)

    def _holder_of(self, command: Settle | Return | Discard) -> Consumer | Refused:
        """The consumer, when it holds every one of these deliveries, and no later ones instead."""
        consumer = self._holder(command.consumer, command.ranges)
        if command.token is None or isinstance(consumer, Refused):
            return consumer
        return _redelivered(consumer, command.ranges, command.token) or consumer

    def _holder(self, key: ConsumerKey, ranges: Ranges) -> Consumer | Refused:
        """The consumer, when it holds every one of these positions."""
        consumer = self.consumers.by_key.get(key)
        if consumer is None:
            return self.no_consumer(key)
        before = 0
        for first, last in ranges:
            if not before < first <= last:
                return Refused(
                    BAD_ARGUMENT,
                    "ranges are [first, last], from 1 on, ascending, and do not overlap",
                    [first, last],
                )
            unknown = consumer.held.missing(first, last)
            if unknown is not None:
                return Refused(
                    UNKNOWN_DELIVERY,
                    f"consumer {key} does not hold message {unknown} of queue"
                    f" {self.identity.name}: it was settled, returned or never delivered to it",
                    unknown,
                )
            before = last
        return consumer

    def no_consumer(self, key: ConsumerKey) -> Refused:
        name = self.identity.name
        return Refused(NO_CONSUMER, f"queue {name} has no consumer {key}: subscribe first")

    # --- what comes back --------------------------------------------------------------------------

    def freed(self, context: ApplyContext, consumer: Consumer) -> None:
        """It holds less than before."""
        if consumer.gone:
            self._remove(context, consumer)
        elif not consumer.in_ring:
            self.consumers.offer(consumer)

    def _remove(self, context: ApplyContext, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        context.group.consumer_removed(consumer.session, self.identity.id, consumer.key)

    def return_all(self, context: ApplyContext, consumer: Consumer, *, failed: bool) -> None:
        """The consumer ended: all it holds is returned (B11), and nothing is left of it."""
        parts = consumer.held_parts()
        consumer.held.clear()
        self.seen = max([self.seen, *[last for _, last, handed in parts if handed]])
        failed = failed and not consumer.is_unknown
        for first, last, handed in parts:
            self._take_back(
                context,
                consumer,
                (first, last),
                failed=failed,
                asked=False,
                sent=handed,
                delay_ms=None if failed else 0,
            )
        consumer.ahead.clear()
        self._remove(context, consumer)

    def _take_back(
        self,
        context: ApplyContext,
        consumer: Consumer,
        messages: tuple[int, int],
        *,
        failed: bool,
        asked: bool,
        sent: bool,
        delay_ms: int | None,
    ) -> None:
        """The consumer holds these no more. What was not `sent` is as new, unless clients may have
        seen messages behind it: then nobody may take its next delivery for one in order.
        """
        first, last = messages
        identity, recorder = self.identity, self.identity.recorder
        if sent:
            fresh = last + 1
            self.seen = max(self.seen, last)
        else:
            fresh = max(first, self._seen_up_to() + 1)
        if first < fresh:
            end = min(last, fresh - 1)
            failed = failed and sent
            if recorder is not None:
                recorder.returned(identity, consumer, first, end, failed=failed, asked=asked)
            self._return(context, first, end, failed=failed, delay_ms=delay_ms if sent else 0)
        if fresh <= last:
            if recorder is not None:
                recorder.returned(
                    identity, consumer, fresh, last, failed=False, asked=asked, sent=False
                )
            self.unsettled_count -= last - fresh + 1
            self.messages.waiting_bytes += self.messages.store.bytes_of(fresh, last)
            self.messages.make_ready(fresh, last)

    def _seen_up_to(self) -> int:
        """The highest position that a client may have seen."""
        return max([self.seen, *[each.held.end for each in self.consumers.by_key.values()]])

    def _return(
        self, context: ApplyContext, first: int, last: int, *, failed: bool, delay_ms: int | None
    ) -> None:
        """Back to where they came from (B08), unless they failed too often or shall wait."""
        messages, identity = self.messages, self.identity
        self.unsettled_count -= last - first + 1
        limit = identity.config.delivery_limit
        wish_ms = context.now_ms + delay_ms if delay_ms and context.version >= 5 else None
        for start, end, old in messages.marks.segments(first, last):
            mark = old or NO_MARK
            mark = mark._replace(
                acquired=mark.acquired + 1, failed=mark.failed + failed, wish_ms=wish_ms
            )
            messages.marks.assign(start, end, mark)
            if limit is not None and mark.failed > limit:
                self.disposal.dead_letter(context, start, end, DELIVERY_LIMIT)
                continue
            messages.waiting_bytes += messages.store.bytes_of(start, end)
            wait_ms = self._retry_delay_ms(mark, failed) if delay_ms is None else delay_ms
            if wish_ms is not None:
                self._put_aside(start, end, wish_ms)
            elif wait_ms:
                messages.delay(start, end, context.now_ms + wait_ms)
            else:
                messages.ready.add(start, end, identity.capped(mark.priority))

    def _put_aside(self, first: int, last: int, due_ms: int) -> None:
        """By a consumer, perhaps for years: until then, or until they have expired, which ready
        messages do when their time is over (C17).
        """
        while first <= last:
            ends_ms = self.expiry.expires_at_ms(first)
            until_ms = due_ms if ends_ms is None else min(due_ms, ends_ms + 1)
            end = min(last, self.messages.store.run_end(first))
            self.messages.delay(first, end, until_ms)
            first = end + 1

    def put_aside_anew(self) -> None:
        """Messages expire at other times now."""
        for first, last, wish_ms in self.messages.take_put_aside():
            self._put_aside(first, last, wish_ms)

    def _retry_delay_ms(self, mark: Mark, failed: bool) -> int:
        """Linear in the failures: min, twice min, ... up to max."""
        config = self.identity.config
        kind = config.delayed_retry_type
        if kind == "all" or kind == ("failed" if failed else "returned"):
            delay_ms = config.delayed_retry_min_ms * max(1, mark.failed)
            return min(delay_ms, config.delayed_retry_max_ms)
        return 0

    # --- looking ----------------------------------------------------------------------------------

    def held_chunks(self, consumer: Consumer) -> Sequence[Chunk]:
        """All that is in flight with a consumer, as it was delivered, and in that order."""
        messages, identity = self.messages, self.identity
        if not identity.config.max_priority or not messages.marks.count:
            return [
                chunk
                for first, last, hold in consumer.held
                for chunk in messages.chunks_of(first, last, hold.token)
            ]
        ordered: list[tuple[int, int, Chunk]] = []
        for first, last, hold in consumer.held:
            for start, end, mark in messages.marks.segments(first, last):
                priority = identity.capped(mark.priority) if mark else 0
                chunks = messages.chunks_of(start, end, hold.token)
                ordered += [(hold.token, -priority, chunk) for chunk in chunks]
        # What one decision handed out was taken by priority; within one it is in order already.
        ordered.sort(key=lambda each: each[:2])
        return [chunk for _, _, chunk in ordered]

    def effects_on_leader(self) -> list[Effect]:
        effects: list[Effect] = [self._active_changed()] if self.consumers.single_active else []
        for consumer in self.consumers.by_key.values():
            chunks = self.held_chunks(consumer)
            if chunks:
                queue, session = self.identity.id, consumer.session
                effects.append(Deliver(queue, consumer.key, session, chunks, consumer.windowed))
        return effects

    def bound_consumers(self) -> None:
        """The configuration or the machine's version is another: so is what they may hold."""
        identity = self.identity
        for consumer in list(self.consumers.by_key.values()):
            limit = identity.config.delivery_limit
            if consumer.set_bounds(identity.version, delivery_limit=limit):
                self.consumers.changed(consumer)

    def invariants(self) -> None:
        self.consumers.invariants()
        unsettled = sum(consumer.held.count for consumer in self.consumers.by_key.values())
        assert unsettled == self.unsettled_count, "unsettled messages miscounted"


def _redelivered(consumer: Consumer, ranges: Ranges, token: int) -> Refused | None:
    """The refusal when one of them was delivered again since."""
    for first, last in ranges:
        for start, _, hold in consumer.held.pieces(first, last):
            if hold.token > token:
                return Refused(
                    UNKNOWN_DELIVERY,
                    f"message {start} was delivered again, with token {hold.token}:"
                    f" what had token {token} was returned before",
                    start,
                )
    return None
