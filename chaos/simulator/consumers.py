"""Clients that consume: they settle, return, crash and come back, and drop what they were handed
twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from enum import Enum
from typing import Any

from chaos.history import OpType, delivery_value, settle_value
from chaos.load.driver import id_of
from chaos.simulator.channel import Closed
from chaos.simulator.clients import Client, Connection, Scene, asked, first_of
from cluster.machine.replies import UNKNOWN_DELIVERY
from cluster.machine.runs import ranges_of
from cluster.types import ConsumerKey
from node.broker.bodies import head_of
from node.dispatch.outgoing import (
    Delivery,
    Ended,
    Failure,
    GetAnswer,
    MessageBatch,
    Moved,
    RequestAnswer,
    SubscribeAnswer,
)
from node.protocols.native.requests import (
    Discard,
    Get,
    Hello,
    Retime,
    Return,
    Settle,
    Subscribe,
)

HeldKey = tuple[int, int]  # position, token


PAST = {
    "settle": "messages settled",
    "return": "messages returned",
    "discard": "messages discarded",
}

#: What each may hold when the load is over, so that a long queue is drained in time.
DRAIN_CREDIT = 500


#: In so many of all runs messages are put aside, for at most so long.
ASIDE_SHARE = 0.5
ASIDE_MS_MAX = 5_000


class Held(Enum):
    """What the consumer knows of a message it was handed."""

    WORKING = "working"
    DONE = "done"  # processed; its settle is not known to have arrived
    SENT = "sent"  # its settle is under way


class Consumer(Client):
    """Holds what it is handed until it knows that its settle arrived; resumes its session at the
    next leader.
    """

    def __init__(
        self,
        scene: Scene,
        name: str,
        queue: str,
        *,
        guarded: bool = False,
        patient: bool = False,
    ) -> None:
        super().__init__(scene, name, queue)
        self.patient = patient  # discards nothing
        self.guarded = guarded  # writes to a store that checks tokens
        seed = scene.cluster.plan.seed
        self._aside: random.Random | None = None  # of consumers that put messages aside
        if random.Random(f"aside/{seed}").random() < ASIDE_SHARE:
            self._aside = random.Random(f"aside/{seed}/{name}")
        self._life = 0
        self._consumer: ConsumerKey | None = None
        self._held: dict[HeldKey, Held] = {}
        self._ids: dict[HeldKey, str] = {}
        self._newest: dict[int, int] = {}  # position -> token of its last delivery
        self._again = asyncio.Event()
        self._new_session()

    def _new_session(self) -> None:
        self._life += 1
        self._held.clear()
        self._consumer = None

    def hello(self) -> Hello:
        resume_ms = self.scene.cluster.plan.resume_ms
        return Hello(f"{self.name}.{self._life}", resume_ms, "simulated", "/", self.forward)

    async def run(self) -> None:
        while True:
            connection = await self.connect()
            self._again.clear()
            if await self._subscribe(connection):
                self.scene.cluster.trace.count("subscriptions")
                await self._until(connection.lost, self._again)
            if self.dice.random() < 0.1 and not self.scene.stopping:
                # The client itself ends: what it held is for others, or for its next life.
                if self.dice.random() < 0.5 and not connection.lost.is_set():
                    connection.shut_down()
                    await asyncio.sleep(0.05)
                    self.scene.cluster.trace.count("goodbyes")
                else:
                    self.scene.cluster.trace.count("consumer crashes")
                self._new_session()
            self.disconnect()
            if not self.sent_on:
                await asyncio.sleep(0.02 + 0.1 * self.dice.random())

    def hurry(self) -> None:
        """The load is over: come back with room for all that is left."""
        self._again.set()

    async def _until(self, lost: asyncio.Event, again: asyncio.Event) -> None:
        patience_s = 60.0 if self.scene.stopping else self.dice.uniform(2.0, 20.0)
        await first_of(lost, again, timeout_s=patience_s)

    async def _subscribe(self, connection: Connection) -> bool:
        plan = self.scene.cluster.plan
        credit = max(DRAIN_CREDIT, plan.credit) if self.scene.stopping else plan.credit
        held = [(position, position, token) for position, token in sorted(self._held)]
        options = ("c", credit, 0, False, False, 30_000, held)
        answer = await connection.answer(connection.request(Subscribe, self.queue, *options))
        if not isinstance(answer, SubscribeAnswer):
            return False
        self._settle_again(answer.consumer)
        return True

    # --- deliveries

    def on_frame(self, frame: Any) -> None:
        super().on_frame(frame)
        match frame:
            case SubscribeAnswer(_, consumer):
                if self._consumer is not None and self._consumer != consumer:
                    self._held.clear()  # the session had died: what it held was returned
                self._consumer = consumer
            case Delivery(_, consumer, batches):
                self._take(consumer, batches)
            case Ended() | Closed():
                self._again.set()  # under the same session name, as if it were still there
            case _:
                pass

    def _take(self, consumer: ConsumerKey, batches: Sequence[MessageBatch]) -> None:
        for batch in batches:
            ids = [id_of(head_of(body)) for body in batch.bodies]
            keys = [(batch.first + offset, batch.token) for offset in range(len(ids))]
            new = [
                (key[0], message)
                for key, message in zip(keys, ids, strict=True)
                if key not in self._ids
            ]
            if len(new) < len(ids):
                # A node sends nothing again that the client said it has, nor what was settled.
                again = [key for key in keys if key in self._ids]
                raise AssertionError(f"{self.name}: {again} of {self.queue} came again")
            if not new:
                continue
            self.scene.history.saw(
                self.name,
                "deliver",
                delivery_value(
                    self.queue,
                    int(consumer),
                    batch.token,
                    new[0][0],
                    [message for _, message in new],
                    delivery_count=batch.delivery_count,
                    acquired_count=batch.acquired_count,
                ),
            )
            self.scene.cluster.trace.count("deliveries", len(new))
            if batch.acquired_count:
                self.scene.cluster.trace.count("redeliveries", len(new))
            # Whatever of these is held under an older token was returned: a settle names positions,
            # and would settle the new delivery before it is worked on.
            positions = {position for position, _ in new}
            self._held = {key: h for key, h in self._held.items() if key[0] not in positions}
            for position, message in new:
                self._ids[position, batch.token] = message
                self._newest[position] = batch.token
                self._held[position, batch.token] = Held.WORKING
            keys = [(position, batch.token) for position, _ in new]
            self.process.spawn(self._work(consumer, keys), "work")

    def _settle_again(self, consumer: ConsumerKey) -> None:
        """What was processed before the break, and is not known to be settled: one by one, since
        one message that is settled already would have all others refused with it.
        """
        for key in sorted(self._held):
            if self._held[key] is Held.DONE:
                self.process.spawn(self._finish(consumer, [key], "settle", again=True), "again")

    async def _work(self, consumer: ConsumerKey, keys: list[HeldKey]) -> None:
        if not self.scene.stopping:
            await asyncio.sleep(self.dice.expovariate(1.0) * 0.02)
        token = keys[0][1]
        if self.guarded:
            stored = self.scene.stores.get(self.queue, 0)
            accepted = token >= stored
            self.scene.stores[self.queue] = max(stored, token)
            self.scene.history.saw(
                self.name,
                "store",
                {
                    "queue": self.queue,
                    "consumer": int(consumer),
                    "token": token,
                    "accepted": accepted,
                },
            )
        for key in keys:
            if key in self._held:
                self._held[key] = Held.DONE
        chance = self.dice.random()
        if chance < 0.9 or self.scene.stopping:
            f = "settle"
        else:
            f = "return" if chance < 0.98 or self.patient else "discard"
        await self._finish(consumer, keys, f)

    async def _finish(
        self, consumer: ConsumerKey, keys: list[HeldKey], f: str, *, again: bool = False
    ) -> None:
        keys = [key for key in keys if self._held.get(key) is Held.DONE]
        if not keys:
            return
        connection = self.connection
        if connection is None or connection.lost.is_set() or consumer != self._consumer:
            return  # the next subscription says what we still hold
        token = keys[0][1]
        for key in keys:
            self._held[key] = Held.SENT
        value = settle_value(self.queue, int(consumer), token, [self._ids[key] for key in keys])
        op = self.scene.history.invoke(self.name, f, value, node=connection.node)
        aside = f == "return" and self._aside is not None and self._aside.random() < 0.5
        request = self._request(connection, consumer, keys, f, aside=aside)
        answer = await connection.answer(request)
        kind, extra = _ending(answer, len(keys))
        newer = any(self._newest.get(position, 0) > token for position, _ in keys)
        if kind == "ok" and (again or newer):
            # Perhaps returned and handed out again meanwhile, and that delivery was settled.
            kind = "unknown"
        self.scene.history.end(op, kind, extra)
        if isinstance(answer, RequestAnswer):
            self.scene.cluster.trace.count(PAST[f], len(keys))
            if aside:
                self.scene.cluster.trace.count("messages put aside", len(keys))
                places = [position for position, _ in keys]
                self.process.spawn(self._call_back(places), "call back")
        if kind == "refused" and extra["code"] == UNKNOWN_DELIVERY and len(keys) == 1:
            self._held.pop(keys[0], None)  # settled before, or returned long since
        elif isinstance(answer, RequestAnswer):
            for key in keys:
                self._held.pop(key, None)
        else:
            for key in keys:
                if self._held.get(key) is Held.SENT:
                    self._held[key] = Held.DONE
            self._again.set()

    async def _call_back(self, positions: list[int]) -> None:
        """What was put aside is fetched by its place, or is to be ready at once. If neither comes
        to anything, it is ready when its time is up.
        """
        assert self._aside is not None
        await asyncio.sleep(self._aside.uniform(0.0, 0.5))
        ranges, count = ranges_of(sorted(positions)), self.scene.cluster.trace.count
        if self.guarded or self._aside.random() < 0.5:  # a single active consumer fetches nothing
            answer = await asked(self, Retime, self.queue, ranges, None, 0)
            if isinstance(answer, RequestAnswer):
                count("messages retimed", answer.value)
            return
        cluster = self.scene.cluster
        channel = cluster.connect(self.process, self._aside.choice(cluster.nodes))
        if channel is None:
            return
        # What is on its way back is lost with this connection, and returns with its session.
        hello = Hello(None, 0, "simulated", "/", True)
        connection = Connection(channel, channel.at, hello, lambda _frame: None)
        if await connection.answer(connection.welcomed) is not None:
            fields = (self.queue, len(positions), False, ranges)
            answer = await connection.answer(connection.request(Get, *fields))
            if isinstance(answer, GetAnswer):
                for batch in answer.batches:
                    count("messages fetched", len(batch.bodies))
                    await self._finish_fetched(connection, answer.consumer, batch)
        connection.close()

    async def _finish_fetched(
        self, connection: Connection, consumer: ConsumerKey, batch: MessageBatch
    ) -> None:
        ids, last = [id_of(head_of(body)) for body in batch.bodies], batch.first + len(batch.bodies)
        fields = (self.queue, int(consumer), batch.token)
        self.scene.history.saw(
            self.name,
            "deliver",
            delivery_value(
                *fields,
                batch.first,
                ids,
                delivery_count=batch.delivery_count,
                acquired_count=batch.acquired_count,
            ),
        )
        value = settle_value(*fields, ids)
        op = self.scene.history.invoke(self.name, "settle", value, node=connection.node)
        ranges = [(batch.first, last - 1)]
        request = connection.request(Settle, self.queue, consumer, ranges, batch.token)
        answer = await connection.answer(request)
        self.scene.history.end(op, *_ending(answer, len(ids)))
        if isinstance(answer, RequestAnswer):
            self.scene.cluster.trace.count(PAST["settle"], len(ids))

    def _request(
        self,
        connection: Connection,
        consumer: ConsumerKey,
        keys: list[HeldKey],
        f: str,
        *,
        aside: bool,
    ) -> asyncio.Future[Any]:
        ranges = ranges_of(sorted(position for position, _ in keys))
        token = max(token for _, token in keys)
        if f == "return":
            failed = self.dice.random() < 0.5
            delay_ms = None
            if aside and self._aside is not None:
                delay_ms = self._aside.randint(500, ASIDE_MS_MAX)
            return connection.request(Return, self.queue, consumer, ranges, failed, delay_ms, token)
        kind = Settle if f == "settle" else Discard
        return connection.request(kind, self.queue, consumer, ranges, token)


def _ending(answer: Any, asked: int) -> tuple[OpType, dict[str, Any]]:
    match answer:
        case RequestAnswer(_, value):
            return "ok", {"count": asked if value is None else value}
        case Failure(_, code) if code != "unknown":
            return "refused", {"code": code}
        case Moved():
            return "refused", {"code": "moved"}
        case _:
            return "unknown", {}
