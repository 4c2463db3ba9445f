"""What hot paths count: plain integers, read when somebody scrapes.

All are of this process since it started, and of the clients of this node: as in RabbitMQ a message
is counted where its client is connected, whichever node leads its queue. A batch is counted once.
What only a queue's leader sees (dead letters, what queues hold) is counted there instead.
"""

from __future__ import annotations

import typing
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Literal

from cluster.machine.catalog import QueueInfo
from cluster.machine.replies import Enqueued

#: Bounds, in seconds, from what a sync of a fast disk takes to what nobody waits for.
SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
#: The same for what may wait for people: up to a day.
LONG_SECONDS = (*SECONDS, 300.0, 1_800.0, 7_200.0, 86_400.0)


class Spread:
    """Counts by bucket, the last one for what is above all bounds, and the sum of all values."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """So many of this value; a bound belongs to the bucket below it."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each with all that is below it."""
        found: list[tuple[str, float]] = []
        total = 0
        names = [*[str(float(bound)) for bound in self.bounds], "+Inf"]
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, total))
        return found


#: By which clients publish.
CONFIRMING = ("amqp", "native", "http")


class Latencies:
    """How long messages take on one node, measured once a batch and counted for all of it."""

    __slots__ = ("acked", "confirmed", "delivered")

    def __init__(self) -> None:
        self.confirmed = {protocol: Spread() for protocol in CONFIRMING}
        self.delivered = Spread(LONG_SECONDS)
        self.acked = Spread(LONG_SECONDS)


@dataclass(slots=True)
class Counts:
    """Since this process started. Messages, not batches."""

    published: int = 0
    confirmed: int = 0
    duplicates: int = 0
    delivered: int = 0
    redelivered: int = 0
    settled: int = 0
    latencies: Latencies = field(default_factory=Latencies)

    def stored(self, door: str, reply: Enqueued, took_s: float) -> None:
        self.confirmed += reply.stored
        self.duplicates += reply.duplicates
        self.latencies.confirmed[door].add(took_s, reply.stored + reply.duplicates)


#: Bounds of the histogram of message sizes, in bytes; beyond the last is the rest.
SIZE_BOUNDS = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)

Protocol = Literal["amqp091", "quorate", "http"]
PROTOCOLS: tuple[Protocol, ...] = ("amqp091", "quorate", "http")
#: As RabbitMQ calls them: of a transient queue, which one node keeps; of a replicated one.
CLASSIC = "rabbit_classic_queue"
QUORUM = "rabbit_quorum_queue"
QUEUE_TYPES = (CLASSIC, QUORUM)


class Sizes:
    """How large messages were."""

    __slots__ = ("buckets", "sum")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SIZE_BOUNDS) + 1)
        self.sum = 0


class Batch(typing.Protocol):
    """Messages that were taken at once, as often as each other."""

    @property
    def bodies(self) -> Sequence[Sized]: ...
    @property
    def acquired_count(self) -> int: ...


@dataclass(slots=True)
class DeliveryCounters:
    """What clients of one protocol got from queues of one type."""

    consumed_manual: int = 0  # to be settled by the client
    consumed_auto: int = 0
    got_manual: int = 0
    got_auto: int = 0
    got_empty: int = 0  # requests, not messages
    redelivered: int = 0
    acknowledged: int = 0

    @property
    def delivered(self) -> int:
        return self.consumed_manual + self.consumed_auto + self.got_manual + self.got_auto

    def consumed(self, count: int, *, auto: bool, redelivered: bool) -> None:
        if auto:
            self.consumed_auto += count
        else:
            self.consumed_manual += count
        if redelivered:
            self.redelivered += count

    def got(self, batches: Sequence[Batch], *, auto: bool) -> None:
        """The answer to one request."""
        count = sum([len(batch.bodies) for batch in batches])
        if not count:
            self.got_empty += 1
        elif auto:
            self.got_auto += count
        else:
            self.got_manual += count
        self.redelivered += sum([len(b.bodies) for b in batches if b.acquired_count])


@dataclass(slots=True)
class ProtocolCounters:
    """What clients of one protocol did."""

    received: int = 0
    received_confirm: int = 0
    confirmed: int = 0
    routed: int = 0  # once for each queue that a message goes to
    dropped: int = 0  # unroutable
    returned: int = 0  # unroutable, and mandatory
    sizes: Sizes = field(default_factory=Sizes)
    classic: DeliveryCounters = field(default_factory=DeliveryCounters)
    quorum: DeliveryCounters = field(default_factory=DeliveryCounters)

    def of(self, queue: QueueInfo) -> DeliveryCounters:
        return self.quorum if queue.node is None else self.classic

    def of_type(self, queue_type: str) -> DeliveryCounters:
        return self.classic if queue_type == CLASSIC else self.quorum

    def published(self, bodies: Sequence[Sized], *, routed: int, confirm: bool) -> None:
        """One batch, `routed` as the counter."""
        count = len(bodies)
        self.received += count
        self.routed += routed
        if confirm:
            self.received_confirm += count
        sizes = self.sizes
        for size, alike in Counter(map(len, bodies)).items():  # mostly there are few
            sizes.sum += size * alike
            sizes.buckets[bisect_left(SIZE_BOUNDS, size)] += alike


class ClientCounters:
    """One per node."""

    __slots__ = (
        "amqp091",
        "channels_closed",
        "channels_opened",
        "connections_closed",
        "connections_opened",
        "http",
        "quorate",
    )

    def __init__(self) -> None:
        self.amqp091 = ProtocolCounters()
        self.quorate = ProtocolCounters()
        self.http = ProtocolCounters()
        self.connections_opened = 0
        self.connections_closed = 0
        self.channels_opened = 0
        self.channels_closed = 0

    def of(self, protocol: Protocol) -> ProtocolCounters:
        return getattr(self, protocol)
