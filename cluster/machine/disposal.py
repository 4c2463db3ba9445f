"""How messages leave a queue otherwise than by being settled: dead-lettered, dropped, purged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.machine.commands import ROUTING_KEY, DeadLettersMoved
from cluster.machine.context import ApplyContext, DeadLetterTarget
from cluster.machine.deadletters import (
    DELIVERY_LIMIT,
    PURGED,
    DeadLetterBatch,
    DeadLetterOutbox,
    Deaths,
    died,
    is_cycle,
)
from cluster.machine.effects import DeadLetter, DeadLettersReady, DeliveryLimitReached
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import Removed
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.messages import Messages
from cluster.machine.replies import Ok, Reply

NOTHING_REMOVED = Removed()


@dataclass(eq=False, slots=True)
class Disposal:
    """Owns the dead-letter outbox, and the counts of what was removed.

    What it is given is ready and delayed no longer, and no consumer holds it.
    """

    identity: QueueIdentity
    messages: Messages
    outbox: DeadLetterOutbox = field(default_factory=DeadLetterOutbox)
    removed: dict[str, Removed] = field(default_factory=dict[str, Removed])  # since version 2

    def count(self, context: ApplyContext, reason: str, count: int, *, goes: bool) -> None:
        """These left otherwise than settled. `goes`: to a dead-letter target."""
        context.group.died(reason, count, goes=goes)
        if context.version >= 2:
            removed = self.removed
            removed[reason] = removed.get(reason, NOTHING_REMOVED).and_also(count, goes=goes)

    def dead_letter(self, context: ApplyContext, first: int, last: int, reason: str) -> None:
        """To the target in this group at once, to the outbox for another group, or nowhere (C19).

        A target in this group that has no room, and does not make any, gets it by the outbox too.
        """
        identity, store = self.identity, self.messages.store
        config, recorder = identity.config, identity.recorder
        target = None
        if config.dead_letter_queue is not None:
            target = context.group.find(config.dead_letter_queue)
        exchange = config.dead_letter_exchange
        if reason == DELIVERY_LIMIT:
            context.effects.append(DeliveryLimitReached(identity.id, last - first + 1))
        if target is None and exchange is None:
            self.count(context, reason, last - first + 1, goes=False)
            if recorder is not None:
                recorder.died(identity, first, last, reason, goes=False)
            self.messages.release(first, last)
            return
        for start, end, mark in self.messages.marks.segments(first, last):
            mark = mark or NO_MARK
            deaths = died(
                mark.deaths,
                queue=identity.name,
                reason=reason,
                now_ms=context.now_ms,
                ttl_ms=mark.ttl_ms,
                to=(exchange, config.dead_letter_routing_key),
            )
            ends = target is not None and is_cycle(deaths, target.name)
            self.count(context, reason, end - start + 1, goes=not ends)
            if recorder is not None:
                recorder.died(identity, start, end, reason, goes=not ends)
            if target is None:
                self._post(context, start, end, deaths, mark)
                continue
            if ends:
                self.messages.release(start, end)
                continue
            context.touch(target.id)
            for piece in store.pieces(start, end):
                sizes = store.sizes_of(piece.first, piece.last)
                # Behind those that wait already, so that they stay in order.
                waits = self.outbox.count or not target.takes_all(len(sizes), sizes)
                waits = waits or not self._knows_keys(target)
                if waits and exchange is not None:
                    self._post(context, piece.first, piece.last, deaths, mark)
                    continue
                parts = store.parts_of(piece.first, piece.last)
                keyed = self.messages.keyed
                names = keyed and keyed.names(piece.first, piece.last)
                target.take_dead_letters(
                    context,
                    index=piece.bodies.index,
                    offset=piece.bodies.offset,
                    sizes=sizes,
                    priority=mark.priority,
                    deaths=deaths,
                    parts={position - piece.first: rest for position, rest in parts.items()},
                    names=names,
                )
                self.messages.release(piece.first, piece.last)

    def _knows_keys(self, target: DeadLetterTarget) -> bool:
        """Messages have the keys there that they have here, if it asks for any. Else who reads
        their headers has to take them there.
        """
        config, there = self.identity.config, target.group_key
        changed = there == ROUTING_KEY and config.dead_letter_routing_key is not None
        return there is None or (there == config.group_key and not changed)

    def _post(
        self, context: ApplyContext, first: int, last: int, deaths: Deaths, mark: Mark
    ) -> None:
        """Into the outbox: a node carries it from there."""
        config = self.identity.config
        if not self.outbox.count:
            context.effects.append(DeadLettersReady(self.identity.id))
        self.messages.unmark(first, last)
        to = (config.dead_letter_exchange or "", config.dead_letter_routing_key)
        number = context.number_after(self.outbox.next - 1)
        self.outbox.add(number, first, last, deaths, to, mark.priority)

    def moved(self, context: ApplyContext, command: DeadLettersMoved) -> Reply:
        taken = self.outbox.take(command.number)
        recorder = self.identity.recorder
        for batch in taken:
            if recorder is not None:
                recorder.moved(self.identity, batch.first, batch.last)
            self.messages.release(batch.first, batch.last)
        return Ok(sum(batch.last - batch.first + 1 for batch in taken))

    def purge(self, context: ApplyContext) -> Reply:
        """All that waits."""
        messages, recorder = self.messages, self.identity.recorder
        count = messages.waiting_count
        if count:
            self.count(context, PURGED, count, goes=False)
        with messages.leaving_together():
            while messages.waiting_count:
                first, last = messages.take_head(messages.waiting_count)
                if recorder is not None:
                    recorder.purged(self.identity, first, last)
                messages.release(first, last)
        return Ok(count)

    def dead_letters(self, count: int, after: DeadLetter | None) -> list[DeadLetter]:
        """The first `count` on their way to other groups behind that one."""
        found: list[DeadLetter] = []
        number, behind = (0, False) if after is None else (after.number, after.put_off)
        for batch, put_off in self.outbox.behind(number, put_off=behind):
            if len(found) >= count:
                break
            found += self._unpacked(batch, count - len(found), put_off=put_off)
        return found

    def _unpacked(self, batch: DeadLetterBatch, count: int, *, put_off: bool) -> list[DeadLetter]:
        last = min(batch.last, batch.first + count - 1)
        return [
            DeadLetter(
                batch.number + position - batch.first,
                piece.bodies.index,
                piece.bodies.offset + position - piece.first,
                batch.deaths,
                batch.exchange,
                batch.routing_key,
                batch.priority,
                put_off,
                batch.safe_in,
                (batch.died or batch.number) + position - batch.first,
            )
            for piece in self.messages.store.pieces(batch.first, last)
            for position in range(piece.first, piece.last + 1)
        ]


def dump_removed(removed: dict[str, Removed]) -> list[Any]:
    return [[reason, *counts] for reason, counts in sorted(removed.items())]


def load_removed(rows: Sequence[Any]) -> dict[str, Removed]:
    return {reason: Removed(*counts) for reason, *counts in rows}
