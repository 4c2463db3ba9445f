"""What can be planted in what clients saw: a history as a chaos run writes it, of a shop's queues.

With these all scenes are known, so whoever wants them all imports them from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chaos.history import History, Op, line_of
from cluster.machine.replies import Chunk
from cluster.types import ConsumerKey
from tests.postmortem.plants import BROKEN, PLANTS, SCENES, Expected, Planted, opened, scene
from tests.postmortem.shop import Shop, ShopQueue, span

__all__ = ["PLANTS", "SCENES"]

MS_NS = 1_000_000


@dataclass
class Seen:
    """The clients of one queue. Messages are called by what `web` calls them."""

    queue: ShopQueue
    history: History
    ids: dict[int, str] = field(default_factory=dict[int, str])  # by position

    def now(self) -> dict[str, Any]:
        return {"wall_ms": self.queue.cluster.time.now_ns // MS_NS}

    def publish(self, *, refused: bool = False) -> Op:
        """`refused`: the publisher was told so, whatever became of it."""
        number = self.queue.published + 1
        invoked = self.ask(number)
        self.queue.publish()
        outcome = self.history.end(invoked, "refused" if refused else "ok", **self.now())
        for _, chunk in self.queue.delivered():
            self.ids[chunk.first] = f"web:{number}"
        return outcome

    def ask(self, number: int, publisher: str = "web") -> Op:
        value = {"queue": self.queue.name, "publisher": publisher, "first": number, "count": 1}
        return self.history.invoke(publisher, "publish", {**value, "ordered": True}, **self.now())

    def deliver(self, consumer: ConsumerKey, chunk: Chunk, *, after: int = 0) -> Op:
        """`after`: once more, with a token that much newer than that of its delivery."""
        value = {
            **self._what(consumer, chunk),
            "first": chunk.first,
            "token": chunk.token + after,
            "delivery_count": chunk.delivery_count,
            "acquired_count": chunk.acquired_count + after,
        }
        return self.history.saw("worker", "deliver", value, **self.now())

    def settle(self, consumer: ConsumerKey, chunk: Chunk) -> None:
        value: dict[str, Any] = {**self._what(consumer, chunk), "token": chunk.token}
        invoked = self.history.invoke("worker", "settle", value, **self.now())
        self.queue.settle(consumer, chunk)
        self.history.end(invoked, "ok", {"count": len(value["messages"])}, **self.now())

    def _what(self, consumer: ConsumerKey, chunk: Chunk) -> dict[str, Any]:
        first, last = span(chunk)
        messages = [self.ids[position] for position in range(first, last + 1)]
        return {"queue": self.queue.name, "consumer": int(consumer), "messages": messages}

    def trade(self, count: int) -> None:
        for _ in range(count):
            self.publish()
            for consumer, chunk in self.queue.delivered():
                self.deliver(consumer, chunk)
                self.queue.cluster.wait(0.01)
                self.settle(consumer, chunk)
            self.queue.cluster.wait(0.5)

    def drained(self) -> None:
        self.history.saw("harness", "drain", {"queue": self.queue.name}, **self.now())


@scene("client_anomaly", "lost_message", "settled_again")
def seen_by_clients(folder: Path) -> Planted:
    """The logs are in order: what is wrong happened between nodes and clients."""
    history = History()
    with opened(folder) as cluster:
        shop = Shop(cluster)
        orders, ledger = Seen(shop.orders, history), Seen(shop.ledger, history)
        orders.trade(10)
        ledger.trade(10)
        expected = [refused_yet_delivered(ledger), confirmed_for_nothing(orders)]
        expected.append(sent_again(orders))
        orders.trade(5)
        ledger.trade(5)
        for queue in (orders, ledger):
            queue.drained()
    file = folder / "history.jsonl"
    file.write_text("".join(map(line_of, history)))
    return Planted(cluster.paths, BROKEN, expected, cluster.logs, history=file)


def refused_yet_delivered(queue: Seen) -> Expected:
    """Who published it was told that it is surely not stored."""
    told = queue.publish(refused=True)
    for consumer, chunk in queue.queue.delivered():
        queue.deliver(consumer, chunk)
        queue.settle(consumer, chunk)
    return _expected("client_anomaly", queue, told, f"web:{queue.queue.published}")


def confirmed_for_nothing(queue: Seen) -> Expected:
    """Confirmed, and in no log."""
    told = queue.history.end(queue.ask(1, "phone"), "ok", **queue.now())
    return _expected("lost_message", queue, told, "phone:1")


def sent_again(queue: Seen) -> Expected:
    """A node handed it out once more when it was settled, and no log says why."""
    queue.publish()
    ((consumer, chunk),) = queue.queue.delivered()
    queue.deliver(consumer, chunk)
    queue.settle(consumer, chunk)
    queue.queue.cluster.wait(1)
    seen = queue.deliver(consumer, chunk, after=1)
    return _expected("settled_again", queue, seen, f"web:{queue.queue.published}")


def _expected(code: str, queue: Seen, op: Op, message: str) -> Expected:
    where = {"queue": queue.queue.name, "message": message, "from_ns": op.wall_ms * MS_NS}
    return Expected(code, {**where, "count": 1})


@scene("lost_message")
def confirmed_by_record(folder: Path) -> Planted:
    """No history, but a list of what was confirmed: one of it is in no log. What was
    settled, or confirmed behind the end of the logs, is in order.
    """
    rows = ["queue,publisher,number,time,remark"]
    with opened(folder) as cluster:
        shop = Shop(cluster)
        shop.trade(5)
        rows += [f"orders,web,{number},{_time(cluster.time.now_ns)}," for number in (1, 2, 3)]
        lost_ns = cluster.time.now_ns // MS_NS * MS_NS
        rows.append(f"orders,phone,7,{_time(lost_ns)},by hand")
        rows.append(f"/orders,web,4,{lost_ns // MS_NS},")
        shop.trade(5)
        rows.append(f"orders,phone,8,{_time(cluster.time.now_ns + 3_600 * 10**9)},too late")
    file = folder / "confirmed.csv"
    file.write_text("\n".join(rows) + "\n")
    lost = {"queue": "orders", "message": "phone:7", "from_ns": lost_ns, "count": 1}
    expected = [Expected("lost_message", lost)]
    return Planted(cluster.paths, BROKEN, expected, cluster.logs, confirmed=file)


def _time(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns / 1e9, UTC).isoformat()
