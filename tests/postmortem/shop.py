"""A shop on a built cluster: the catalog and two groups, queues with consumers, and their trade."""

from __future__ import annotations

from dataclasses import dataclass, field

from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Return,
    Settle,
    Subscribe,
)
from cluster.machine.effects import Deliver
from cluster.machine.replies import Chunk, Subscribed
from cluster.types import CATALOG_GROUP, ConsumerKey, NodeId, QueueId, SessionId
from tests.postmortem.builder import Built

ORDERS = 1  # group
LEDGER = 2


@dataclass
class ShopQueue:
    """One queue, and what was done with it."""

    cluster: Built
    group: int
    id: QueueId
    name: str
    published: int = 0
    consumers: dict[str, ConsumerKey] = field(default_factory=dict[str, ConsumerKey])

    def subscribe(self, tag: str, credit: int = 0) -> ConsumerKey:
        session = SessionId(f"{self.name}/{tag}")
        node = NodeId("n1")
        self.cluster.propose(
            self.group,
            OpenSession(session, node, 1),
            Subscribe(self.id, session, tag, credit),
        )
        reply = self.cluster.replies[-1]
        assert isinstance(reply, Subscribed), reply
        self.consumers[tag] = reply.consumer
        return reply.consumer

    def publish(self, count: int = 1) -> int:
        """The index of the entry."""
        first = self.published + 1
        self.published += count
        bodies = [f"{self.name} {first + nth}".encode().ljust(100) for nth in range(count)]
        return self.cluster.propose(self.group, Enqueue(self.id, "web", first, bodies))

    def delivered(self) -> list[tuple[ConsumerKey, Chunk]]:
        """By the entry before."""
        return [
            (each.consumer, chunk)
            for each in self.cluster.effects
            if isinstance(each, Deliver) and each.queue == self.id
            for chunk in each.chunks
        ]

    def settle(self, consumer: ConsumerKey, chunk: Chunk) -> int:
        return self.cluster.propose(
            self.group, Settle(self.id, consumer, [span(chunk)], chunk.token)
        )

    def give_back(self, consumer: ConsumerKey, chunk: Chunk, *, failed: bool = False) -> int:
        return self.cluster.propose(
            self.group, Return(self.id, consumer, [span(chunk)], failed, None, chunk.token)
        )

    def trade(self, count: int = 1, *, every_s: float = 0.5) -> None:
        """Messages that are published, delivered and settled, as it should be."""
        for _ in range(count):
            self.publish()
            for consumer, chunk in self.delivered():
                self.cluster.wait(0.01)
                self.settle(consumer, chunk)
            self.cluster.wait(every_s)


def span(chunk: Chunk) -> tuple[int, int]:
    return chunk.first, chunk.first + chunk.bodies.count - 1


class Shop:
    """Open for business: n1 leads the group with the queue `orders`, n2 that with `ledger`, which
    has a single active consumer; n3 leads the catalog.
    """

    def __init__(self, cluster: Built) -> None:
        self.cluster = cluster
        self.queues = 0
        cluster.elect(CATALOG_GROUP, "n3")
        cluster.elect(ORDERS, "n1")
        cluster.elect(LEDGER, "n2")
        self.orders = self.queue(ORDERS, "orders")
        self.ledger = self.queue(LEDGER, "ledger", QueueConfig(single_active_consumer=True))
        self.orders.subscribe("packer-1")
        for tag in ("first", "second"):
            self.ledger.subscribe(tag, credit=1)

    def queue(self, group: int, name: str, config: QueueConfig | None = None) -> ShopQueue:
        self.queues += 1
        queue = QueueId(self.queues)
        self.cluster.propose(group, CreateQueue(queue, "/", name, config or QueueConfig()))
        return ShopQueue(self.cluster, group, queue, name)

    def trade(self, rounds: int = 10, *, every_s: float = 0.5) -> None:
        for _ in range(rounds):
            self.orders.trade(1, every_s=every_s / 2)
            self.ledger.trade(1, every_s=every_s / 2)
