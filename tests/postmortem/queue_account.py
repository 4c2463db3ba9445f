"""The tables of queues once more: naively, message by message, in the order of the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cluster.history.event_rows import Event

Key = tuple[int, int, int]  # group, queue, position
OWN = ("delivered_before", "out", "settled", "unflagged", "fresh", "unsent")


@dataclass
class Message:
    """As in the table `messages`; the last three only lead to it."""

    message: str
    publisher: str | None
    seqno: int | None
    published_ms: int
    deliveries: int = 0
    redeliveries: int = 0
    first_delivered_ms: int | None = None
    last_delivered_ms: int | None = None
    last_consumer: int | None = None
    last_index: int | None = None
    held_ms: int | None = None
    returns: int = 0
    failed: int = 0
    outcome: str = "ready"
    outcome_ms: int | None = None
    reason: str | None = None
    broken: list[str] = field(default_factory=list[str])
    delivered_before: bool = False  # it was delivered before the log begins
    out: bool = False
    settled: bool = False
    unflagged: int = 0  # deliveries
    fresh: bool = False  # the first of all is one of them
    unsent: int = 0  # returns of what never left a node

    def told(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in OWN}


class Account:
    """Of many groups."""

    def __init__(self) -> None:
        self.messages: dict[Key, Message] = {}
        self.throughput: Counter[tuple[int, int, int, str]] = Counter()
        self.again: dict[tuple[int, int, int], Counter[int]] = defaultdict(Counter)
        self.longest: dict[tuple[int, int, int], int] = defaultdict(int)
        self.active: dict[tuple[int, int], int | None] = {}
        self.not_active: dict[tuple[int, int], int] = {}  # the first entry that served another
        self.begin_ms: dict[int, int] = {}
        self.end_ms = 0

    def read(self, events: Iterable[Event]) -> None:
        for event in events:
            self._one(event)
        for message in self.messages.values():
            if message.unflagged > message.fresh + message.unsent:
                message.broken.append("unflagged_duplicate")

    def _one(self, event: Event) -> None:
        group, queue = event.group, event.queue
        if event.event != "known":
            self.begin_ms.setdefault(group, event.at_ms)
            self.end_ms = max(self.end_ms, event.at_ms)
        if queue is None or event.event in ("duplicate", "refused"):
            return
        if event.event == "active":
            self.active[group, queue] = event.consumer
        if event.first is None or event.last is None:
            return
        delivered = event.event in ("delivered", "got")
        if delivered and event.sac and self.active[group, queue] != event.consumer:
            self.not_active.setdefault((group, queue), event.index)
        for position in range(event.first, event.last + 1):
            self._message(event, (group, queue, position), position - event.first)

    def _count(self, event: Event, *names: str) -> None:
        for name in names:
            assert event.queue is not None
            self.throughput[event.group, event.queue, event.at_ms // 1000 * 1000, name] += 1

    def _message(self, event: Event, key: Key, nth: int) -> None:
        match event.event:
            case "published" | "letter" | "known":
                assert key not in self.messages
                self.messages[key] = self._born(event, nth)
                if event.event != "known":
                    self._count(event, "published")
            case "delivered" | "got":
                self._delivered(event, key)
            case "returned":
                message = self.messages[key]
                self._let_go(message, event, key)
                message.returns += 1
                message.unsent += event.reason == "unsent"
                message.failed += event.failed or 0
                message.outcome = "ready"
                self._count(event, "returned")
            case "settled" | "died" | "purged" | "withdrawn" | "deleted":
                if event.event == "died":
                    self._count(event, "dead")
                if event.event == "settled":
                    self._count(event, "settled")
                self._ended(event, key)
            case _:
                pass

    def _born(self, event: Event, nth: int) -> Message:
        offset = (event.entry_offset or 0) + nth
        born = Message(
            message=f"{event.group}-{event.entry}-{offset}",
            publisher=event.publisher,
            seqno=None if event.seqno is None else event.seqno + nth,
            published_ms=event.at_ms,
        )
        if event.event == "known":
            born.failed = event.failed or 0
            born.last_consumer = event.consumer
            born.delivered_before = event.consumer is not None or bool(event.acquired)
            if event.consumer is not None:
                assert event.token is not None
                born.outcome, born.last_index = "unsettled", event.token >> 16
            if event.reason is not None:
                born.outcome, born.reason = "died", event.reason
        return born

    def _delivered(self, event: Event, key: Key) -> None:
        message = self.messages[key]
        self._count(event, "delivered")
        first = not message.delivered_before and not message.deliveries
        if event.acquired:
            self._count(event, "redelivered")
            self.again[key[0], key[1], event.at_ms // 60_000 * 60_000][key[2]] += 1
        else:
            message.unflagged += 1
            message.fresh |= first
        if message.settled and "settled_again" not in message.broken:
            message.broken.append("settled_again")
        if first:
            message.first_delivered_ms = event.at_ms
        message.redeliveries += not (first and event.acquired == 0)
        message.deliveries += 1
        message.last_delivered_ms, message.last_consumer = event.at_ms, event.consumer
        message.last_index, message.held_ms, message.out = event.index, None, True
        message.failed = event.failed or 0
        if message.outcome == "ready":
            message.outcome = "unsettled"

    def _let_go(self, message: Message, event: Event, key: Key) -> None:
        if message.out:
            assert message.last_delivered_ms is not None
            assert message.last_consumer is not None
            message.held_ms = event.at_ms - message.last_delivered_ms
            self._held(key, message.last_consumer, message.held_ms)
        message.out = False

    def _held(self, key: Key, consumer: int, held_ms: int) -> None:
        by = (key[0], key[1], consumer)
        self.longest[by] = max(self.longest[by], held_ms)

    def _ended(self, event: Event, key: Key) -> None:
        message = self.messages[key]
        self._let_go(message, event, key)
        message.settled |= event.event == "settled"
        if message.outcome in ("ready", "unsettled"):
            message.outcome, message.outcome_ms = event.event, event.at_ms
            message.reason = event.reason

    def unacked(self) -> dict[tuple[int, int, int], tuple[int, int]]:
        """What each consumer holds at the end, and the longest that it ever held a message."""
        held: Counter[tuple[int, int, int]] = Counter()
        for key, message in self.messages.items():
            if message.outcome == "unsettled":
                assert message.last_consumer is not None
                held[key[0], key[1], message.last_consumer] += 1
                since_ms = message.last_delivered_ms
                if since_ms is None:
                    since_ms = self.begin_ms[key[0]]
                self._held(key, message.last_consumer, max(self.end_ms, since_ms) - since_ms)
        return {by: (held[by], self.longest[by]) for by in held.keys() | self.longest.keys()}
