"""Consumers come, change and go; and those that only take once."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.machine.checkout import Checkout
from cluster.machine.commands import Cancel, Get, HandedTo, SetCredit, Subscribe
from cluster.machine.consumers import NOTHING_KNOWN, Consumer
from cluster.machine.context import ApplyContext
from cluster.machine.identity import QueueIdentity
from cluster.machine.lifetime import QueueLifetime
from cluster.machine.marks import TIME_MS_MAX
from cluster.machine.messages import Messages
from cluster.machine.replies import (
    BAD_ARGUMENT,
    EXCLUSIVE_USE,
    LIMIT_REACHED,
    SINGLE_ACTIVE,
    Chunk,
    Got,
    Ok,
    Refused,
    Reply,
    Subscribed,
)
from cluster.machine.surgery import wrong_ranges
from cluster.types import ConsumerKey

GET_COUNT_MAX = 65_536
CONSUMERS_MAX = 65_536  # per queue


@dataclass(eq=False, slots=True)
class Subscriptions:
    """Keeps nothing: the checkout has the consumers, the lifetime when there last was one."""

    identity: QueueIdentity
    messages: Messages
    checkout: Checkout
    lifetime: QueueLifetime

    def subscribe(self, context: ApplyContext, command: Subscribe) -> Reply:
        timeout_ms = command.timeout_ms
        if command.credit < 0 or not (timeout_ms is None or 0 <= timeout_ms <= TIME_MS_MAX):
            return Refused(BAD_ARGUMENT, "credit and timeout are numbers of at least 0")
        consumers, identity = self.checkout.consumers, self.identity
        consumer = consumers.find(command.session, command.tag)
        others = [other for other in consumers.registered() if other is not consumer]
        if command.exclusive and consumers.single_active:
            return Refused(
                SINGLE_ACTIVE,
                f"queue {identity.name} has a single active consumer:"
                " subscribe without `exclusive`",
            )
        if any(other.exclusive for other in others) or (command.exclusive and others):
            return Refused(
                EXCLUSIVE_USE,
                f"queue {identity.name} is in exclusive use, or has consumers already:"
                " cancel those first",
            )
        fresh = consumer is None
        if fresh and len(consumers.by_key) >= CONSUMERS_MAX:
            return Refused(
                LIMIT_REACHED, f"queue {identity.name} has {CONSUMERS_MAX} consumers already"
            )
        if consumer is None:
            consumer = Consumer(ConsumerKey(context.key), command.session, command.tag)
        if identity.recorder is not None and (fresh or consumer.cancelled):
            identity.recorder.subscribed(identity, consumer)
        consumer.credit = command.credit
        consumer.priority = command.priority
        consumer.exclusive = command.exclusive
        consumer.auto_settle = command.auto_settle
        consumer.timeout_ms = command.timeout_ms
        consumer.cancelled = False
        consumer.set_bounds(context.version, delivery_limit=identity.config.delivery_limit)
        if fresh:
            consumers.add(consumer)
            context.group.consumer_added(consumer.session, identity.id, consumer.key)
        else:
            consumers.changed(consumer)
        self.lifetime.subscribed()
        self.checkout.elect(context)
        return Subscribed(consumer.key, consumers.is_active(consumer))

    def cancel(self, context: ApplyContext, command: Cancel) -> Reply:
        consumer = self.checkout.consumers.by_key.get(command.consumer)
        if consumer is None or not (consumer.registered or command.give_back):
            return self.checkout.no_consumer(command.consumer)
        count = consumer.held.count
        if command.give_back:
            self.end(context, consumer.key, failed=False)
            return Ok(count)
        self._unregister(context, consumer)
        self.checkout.consumers.changed(consumer)
        self.checkout.freed(context, consumer)
        return Ok(count)

    def _unregister(self, context: ApplyContext, consumer: Consumer) -> None:
        identity = self.identity
        consumer.cancelled = True
        self.lifetime.unused(context.now_ms)
        if identity.recorder is not None:
            identity.recorder.consumer_ended(identity, consumer, context.effects)

    def set_credit(self, context: ApplyContext, command: SetCredit) -> Reply:
        consumer = self.checkout.consumers.by_key.get(command.consumer)
        if consumer is None or not consumer.registered:
            return self.checkout.no_consumer(command.consumer)
        if command.credit < 0:
            return Refused(BAD_ARGUMENT, "credit is a number of at least 0; 0 means unlimited")
        consumer.credit = command.credit
        consumer.set_bounds(context.version, delivery_limit=self.identity.config.delivery_limit)
        self.checkout.consumers.changed(consumer)
        return Ok()

    def get(self, context: ApplyContext, command: Get) -> Reply:
        if self.checkout.consumers.single_active:
            instead = "subscribe instead of get"
            if command.positions:
                instead = "retime messages to now, and it is given them next"
            return Refused(
                SINGLE_ACTIVE,
                f"queue {self.identity.name} has a single active consumer: {instead}",
            )
        if not 1 <= command.count <= GET_COUNT_MAX:
            return Refused(BAD_ARGUMENT, f"count is a number from 1 to {GET_COUNT_MAX}")
        if command.positions and (wrong := wrong_ranges(command.positions)) is not None:
            return wrong
        self.lifetime.used(context.now_ms)
        consumer = Consumer(ConsumerKey(context.key), command.session, "")
        consumer.once = True
        consumer.auto_settle = command.auto_settle
        self.messages.end_delays(context.now_ms)
        chunks: list[Chunk] = []
        if command.positions:
            # By name it is given also when the queue is paused, as it could be moved.
            chunks = self.checkout.take_named(context, consumer, command.positions)
        elif not self.checkout.paused:
            chunks = self.checkout.take(context, consumer, command.count)
        if consumer.held.count:
            self.checkout.consumers.add(consumer)
            context.group.consumer_added(consumer.session, self.identity.id, consumer.key)
        return Got(consumer.key, chunks, self.messages.ready.count)

    # --- what becomes of their sessions -----------------------------------------------------------

    def connected(self, key: ConsumerKey, *, connected: bool) -> None:
        """The session of this consumer is suspected, or back."""
        consumer = self.checkout.consumers.by_key[key]
        consumer.connected = connected
        if connected:
            consumer.handed = None
        self.checkout.consumers.changed(consumer)

    def was_handed(self, key: ConsumerKey, handed: HandedTo | None) -> None:
        """How far this consumer is, whose session is about to end; None: its node does not know."""
        consumer = self.checkout.consumers.by_key[key]
        if handed is None and consumer.registered:
            handed = HandedTo(self.identity.id, key, NOTHING_KNOWN, ())
        consumer.handed = handed

    def end(self, context: ApplyContext, key: ConsumerKey, *, failed: bool) -> None:
        """Nothing is left of the consumer: all it holds is returned (B11)."""
        consumer = self.checkout.consumers.by_key[key]
        if consumer.registered:
            self._unregister(context, consumer)
        self.checkout.return_all(context, consumer, failed=failed)
