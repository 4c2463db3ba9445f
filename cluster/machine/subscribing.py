"""Consumers come, change and go; and those that only take once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.machine.commands import Cancel, Get, SetCredit, Subscribe
from cluster.machine.consumers import Consumer
from cluster.machine.dispatch import take
from cluster.machine.marks import TIME_MS_MAX
from cluster.machine.replies import (
    BAD_ARGUMENT,
    EXCLUSIVE_USE,
    LIMIT_REACHED,
    SINGLE_ACTIVE,
    Got,
    Ok,
    Refused,
    Reply,
    Subscribed,
)
from cluster.machine.settling import no_consumer
from cluster.machine.turn import Turn
from cluster.types import ConsumerKey

if TYPE_CHECKING:
    from cluster.machine.queue import Queue

GET_COUNT_MAX = 65_536
CONSUMERS_MAX = 65_536  # a queue


def subscribe(queue: Queue, turn: Turn, command: Subscribe) -> Reply:
    timeout_ms = command.timeout_ms
    if command.credit < 0 or not (timeout_ms is None or 0 <= timeout_ms <= TIME_MS_MAX):
        return Refused(BAD_ARGUMENT, "credit and timeout are numbers of at least 0")
    consumers = queue.consumers
    consumer = consumers.find(command.session, command.tag)
    others = [other for other in consumers.registered() if other is not consumer]
    if command.exclusive and consumers.single_active:
        return Refused(
            SINGLE_ACTIVE,
            f"queue {queue.name} has a single active consumer: subscribe without `exclusive`",
        )
    if any(other.exclusive for other in others) or (command.exclusive and others):
        return Refused(
            EXCLUSIVE_USE,
            f"queue {queue.name} is in exclusive use, or has consumers already: cancel those first",
        )
    fresh = consumer is None
    if fresh and len(consumers.by_key) >= CONSUMERS_MAX:
        return Refused(LIMIT_REACHED, f"queue {queue.name} has {CONSUMERS_MAX} consumers already")
    if consumer is None:
        consumer = Consumer(ConsumerKey(turn.key), command.session, command.tag)
    if queue.witness is not None and (fresh or consumer.cancelled):
        queue.witness.subscribed(queue, consumer)
    consumer.credit = command.credit
    consumer.priority = command.priority
    consumer.exclusive = command.exclusive
    consumer.auto_settle = command.auto_settle
    consumer.timeout_ms = command.timeout_ms
    consumer.cancelled = False
    consumer.set_bounds(turn.version, delivery_limit=queue.config.delivery_limit)
    if fresh:
        consumers.add(consumer)
        turn.group.consumer_added(consumer.session, queue.id, consumer.key)
    else:
        consumers.changed(consumer)
    queue.told_ms = None
    queue.had_consumer = True
    queue.elect(turn)
    return Subscribed(consumer.key, consumers.is_active(consumer))


def cancel(queue: Queue, turn: Turn, command: Cancel) -> Reply:
    consumer = queue.consumers.by_key.get(command.consumer)
    if consumer is None or not (consumer.registered or command.give_back):
        return no_consumer(queue, command.consumer)
    count = consumer.held.count
    if command.give_back:
        queue.end_consumer(turn, consumer, failed=False)
        return Ok(count)
    consumer.cancelled = True
    if queue.witness is not None:
        queue.witness.consumer_ended(queue, consumer, turn.effects)
    queue.unused(turn)
    queue.consumers.changed(consumer)
    queue.freed(turn, consumer)
    return Ok(count)


def set_credit(queue: Queue, turn: Turn, command: SetCredit) -> Reply:
    consumer = queue.consumers.by_key.get(command.consumer)
    if consumer is None or not consumer.registered:
        return no_consumer(queue, command.consumer)
    if command.credit < 0:
        return Refused(BAD_ARGUMENT, "credit is a number of at least 0; 0 means unlimited")
    consumer.credit = command.credit
    consumer.set_bounds(turn.version, delivery_limit=queue.config.delivery_limit)
    queue.consumers.changed(consumer)
    return Ok()


def get(queue: Queue, turn: Turn, command: Get) -> Reply:
    if queue.consumers.single_active:
        return Refused(
            SINGLE_ACTIVE,
            f"queue {queue.name} has a single active consumer: subscribe instead of get",
        )
    if not 1 <= command.count <= GET_COUNT_MAX:
        return Refused(BAD_ARGUMENT, f"count is a number from 1 to {GET_COUNT_MAX}")
    queue.unused_since_ms = turn.now_ms
    queue.told_ms = None
    consumer = Consumer(ConsumerKey(turn.key), command.session, "")
    consumer.once = True
    consumer.auto_settle = command.auto_settle
    queue.end_delays(turn.now_ms)
    chunks = [] if queue.paused else take(queue, turn, consumer, command.count)
    if consumer.held.count:
        queue.consumers.add(consumer)
        turn.group.consumer_added(consumer.session, queue.id, consumer.key)
    return Got(consumer.key, chunks, queue.ready.count)
