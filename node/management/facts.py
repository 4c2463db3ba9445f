"""What a copy of a queue knows of it: counts, rates and consumers, as they travel between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from cluster.machine.counters import QueueCounters, held_up_until
from cluster.machine.deadletters import EXPIRED, MAXLEN
from cluster.machine.disposal import NOTHING_REMOVED
from cluster.machine.interface import ConsumerView, QueueView

#: What is counted, as `message_stats` calls it.
COUNTED: tuple[str, ...] = (
    "publish",
    "deliver",
    "get",
    "get_no_ack",
    "get_empty",
    "ack",
    "redeliver",
)


class ConsumerFacts(NamedTuple):
    key: int
    session: str
    tag: str
    credit: int  # 0: no limit
    priority: int
    exclusive: bool
    ack_required: bool
    active: bool
    status: str


class QueueFacts(NamedTuple):
    ready: int
    unsettled: int
    delayed: int
    dead_letters: int  # on their way to other groups
    bytes: int
    ready_bytes: int
    oldest_ready_ms: int | None
    used_ms: int  # 0: not since this copy began
    is_single_active: bool
    counts: Sequence[int]  # of COUNTED, since this copy began
    rates: Sequence[float]  # of COUNTED, a second
    messages_rates: Sequence[float]  # of all messages, the ready ones, the unsettled ones
    capacity: float  # 0 to 1, of the time in which it could deliver at once (A14)
    consumers: Sequence[ConsumerFacts]

    @property
    def messages(self) -> int:
        return self.ready + self.unsettled + self.delayed

    def packed(self) -> list[Any]:
        return [*self[:-1], [list(consumer) for consumer in self.consumers]]


def unpacked(row: Sequence[Any]) -> QueueFacts:
    return QueueFacts._make([*row[:-1], [ConsumerFacts._make(each) for each in row[-1]]])


class Sample(NamedTuple):
    """Of one queue; good for as long as it has not changed."""

    changes: int
    counts: tuple[int, ...]
    messages: tuple[int, int, int]
    held_up_ms: int
    held_up_since_ms: int | None
    expired: int = 0  # dropped for it, as `overflowed`
    overflowed: int = 0


class Moment(NamedTuple):
    at_s: float
    now_ms: int  # the same, as the log tells time


def sampled(counters: QueueCounters, view: QueueView) -> Sample:
    counts = (
        counters.published,
        counters.delivered,
        counters.got,
        counters.got_settled,
        counters.got_empty,
        counters.settled,
        counters.redelivered,
    )
    messages = (view.messages, view.ready_count, view.unsettled_count)
    return Sample(
        counters.changes,
        counts,
        messages,
        counters.held_up_ms,
        counters.held_up_since_ms,
        view.removed.get(EXPIRED, NOTHING_REMOVED).dropped,
        view.removed.get(MAXLEN, NOTHING_REMOVED).dropped,
    )


def facts_of(
    view: QueueView, counters: QueueCounters, at: Moment, before: Sample | None, since: Moment
) -> QueueFacts:
    """Rates are those since the moment of the sample before; without one there are none yet."""
    now = sampled(counters, view)
    consumers = [_consumer(each) for each in view.consumers if each.status != "get"]
    seconds = at.at_s - since.at_s
    rates = [0.0] * len(COUNTED)
    messages_rates = [0.0] * 3
    if before is not None and seconds > 0:
        rates = [
            round(max(0, new - old) / seconds, 2)
            for new, old in zip(now.counts, before.counts, strict=True)
        ]
        messages_rates = [
            round((new - old) / seconds, 2)
            for new, old in zip(now.messages, before.messages, strict=True)
        ]
    return QueueFacts(
        ready=view.ready_count,
        unsettled=view.unsettled_count,
        delayed=view.delayed_count,
        dead_letters=view.dead_letter_count,
        bytes=view.bytes,
        ready_bytes=view.ready_bytes,
        oldest_ready_ms=view.oldest_ready_ms,
        used_ms=counters.used_ms,
        is_single_active=view.config.single_active_consumer,
        counts=now.counts,
        rates=rates,
        messages_rates=messages_rates,
        capacity=capacity(counters, at, before, since) if consumers else 0.0,
        consumers=consumers,
    )


def capacity(counters: QueueCounters, at: Moment, before: Sample | None, since: Moment) -> float:
    """The share of the time since then in which no message had to wait for a consumer."""
    span_ms = at.now_ms - since.now_ms
    if before is None or span_ms <= 0:
        return 1.0 if counters.held_up_since_ms is None else 0.0
    then_ms = held_up_until(before.held_up_ms, before.held_up_since_ms, since.now_ms)
    share = (counters.held_up_until(at.now_ms) - then_ms) / span_ms
    return round(min(1.0, max(0.0, 1.0 - share)), 4)


def _consumer(view: ConsumerView) -> ConsumerFacts:
    return ConsumerFacts(
        view.key,
        view.session,
        view.tag,
        view.credit,
        view.priority,
        view.exclusive,
        not view.auto_settle,
        view.active,
        view.status,
    )
