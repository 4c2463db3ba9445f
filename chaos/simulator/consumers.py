"""Clients that consume: they settle, return, crash and come back, and drop what they were handed
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Any

from chaos.history import OpType
from chaos.simulator.clients import Client, Scene
from chaos.simulator.door import Message
from cluster.group import Outcome
from cluster.machine.commands import Discard, OpenSession, Return, Settle, Subscribe
from cluster.machine.replies import Chunk, Ok, Refused, Subscribed
from cluster.types import ConsumerKey, NodeId, SessionId

HeldKey = tuple[int, int]  # position, token


PAST = {
    "settle": "messages settled",
    "return": "messages returned",
    "discard": "messages discarded",
}

#: What each may hold when the load is over, so that a long queue is drained in time.
DRAIN_CREDIT = 500


class Held(Enum):
    """What the consumer knows of a message it was handed."""

    WORKING = "working"
    DONE = "done"  # processed; its settle is not known to have arrived
    SENT = "sent"  # its settle is under way


class Consumer(Client):
    """Holds what it is handed until it knows that its settle arrived; resumes its session at the
    next leader.
    """

    def __init__(self, scene: Scene, name: str, queue: str, *, guarded: bool) -> None:
        super().__init__(scene, name, queue)
        self.guarded = guarded  # writes to a store that checks tokens
        self._life = 0
        self._session = SessionId("")
        self._consumer: ConsumerKey | None = None
        self._held: dict[HeldKey, Held] = {}
        self._ids: dict[HeldKey, str] = {}
        self._again = asyncio.Event()
        self._new_session()

    def _new_session(self) -> None:
        self._life += 1
        self._session = SessionId(f"{self.name}.{self._life}")
        self._held.clear()
        self._consumer = None

    async def run(self) -> None:
        while True:
            connection = await self.connect()
            if await self._subscribe():
                self.scene.cluster.trace.count("subscriptions")
                self._again.clear()
                await self._until(connection.lost, self._again)
            self.disconnect()
            await asyncio.sleep(0.02 + 0.1 * self.dice.random())
            if self.dice.random() < 0.1 and not self.scene.stopping:
                # The client itself crashed: what it held is for others, or for its next life.
                self.scene.cluster.trace.count("consumer crashes")
                self._new_session()

    def hurry(self) -> None:
        """The load is over: come back with room for all that is left."""
        self._again.set()

    async def _until(self, lost: asyncio.Event, again: asyncio.Event) -> None:
        patience_s = 60.0 if self.scene.stopping else self.dice.uniform(2.0, 20.0)
        waits = [asyncio.ensure_future(event.wait()) for event in (lost, again)]
        await asyncio.wait(waits, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _subscribe(self) -> bool:
        assert self.info is not None
        plan = self.scene.cluster.plan
        credit = max(DRAIN_CREDIT, plan.credit) if self.scene.stopping else plan.credit
        opened = await self.ask(OpenSession(self._session, NodeId(""), 0, plan.resume_ms))
        if not isinstance(opened.reply, Ok):
            return False
        outcome = await self.ask(
            Subscribe(self.info.queue, self._session, "c", credit, timeout_ms=30_000)
        )
        reply = outcome.reply
        if not isinstance(reply, Subscribed):
            return False
        if self._consumer is not None and self._consumer != reply.consumer:
            self._held.clear()  # the session had died meanwhile: what it held was returned
        self._consumer = reply.consumer
        return True

    # --- deliveries

    def on_event(self, message: Message) -> None:
        super().on_event(message)
        match message[0]:
            case "deliver":
                self._take(message[2], message[3])
            case "holds":
                self._reconcile(message[2], message[3])
            case "ended":
                if message[1] == self._session:
                    self._new_session()
                    self._again.set()
            case _:
                pass

    def _take(self, consumer: ConsumerKey, chunks: Sequence[tuple[Chunk, list[bytes]]]) -> None:
        for chunk, bodies in chunks:
            ids = [bytes(body).split(b"|", 1)[0].decode() for body in bodies]
            new = [
                (chunk.first + offset, message)
                for offset, message in enumerate(ids)
                if (chunk.first + offset, chunk.token) not in self._ids
            ]
            if not new:
                continue
            self.scene.history.saw(
                self.name,
                "deliver",
                {
                    "queue": self.queue,
                    "consumer": int(consumer),
                    "token": chunk.token,
                    "first": new[0][0],
                    "messages": [message for _, message in new],
                    "delivery_count": chunk.delivery_count,
                    "acquired_count": chunk.acquired_count,
                },
                **self.scene.now(),
            )
            self.scene.cluster.trace.count("deliveries", len(new))
            if chunk.acquired_count:
                self.scene.cluster.trace.count("redeliveries", len(new))
            for position, message in new:
                self._ids[position, chunk.token] = message
                self._held[position, chunk.token] = Held.WORKING
            keys = [(position, chunk.token) for position, _ in new]
            self.process.spawn(self._work(consumer, keys), "work")

    def _reconcile(
        self, consumer: ConsumerKey, chunks: Sequence[tuple[Chunk, list[bytes]]]
    ) -> None:
        """The node says all that we hold: forget the rest, take what is new, settle again what is
        done.
        """
        held = {
            (chunk.first + n, chunk.token) for chunk, bodies in chunks for n in range(len(bodies))
        }
        self._held = {key: state for key, state in self._held.items() if key in held}
        self._take(consumer, chunks)
        done = sorted(key for key, state in self._held.items() if state is not Held.WORKING)
        by_token: dict[int, list[HeldKey]] = {}
        for key in done:
            by_token.setdefault(key[1], []).append(key)
        unknown = sorted(key for key in held if key not in self._held)
        for key in unknown:
            # Processed in an earlier connection and thought settled, yet it is not.
            by_token.setdefault(key[1], []).append(key)
            self._held[key] = Held.DONE
        for keys in by_token.values():
            self.process.spawn(self._finish(consumer, sorted(keys), "settle"), "settle again")

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
                **self.scene.now(),
            )
        for key in keys:
            if key in self._held:
                self._held[key] = Held.DONE
        chance = self.dice.random()
        f = (
            "settle"
            if chance < 0.9 or self.scene.stopping
            else "return"
            if chance < 0.98
            else "discard"
        )
        await self._finish(consumer, keys, f)

    async def _finish(self, consumer: ConsumerKey, keys: list[HeldKey], f: str) -> None:
        keys = [key for key in keys if self._held.get(key) is Held.DONE]
        if not keys or self.info is None:
            return
        connection = self.connection
        if connection is None or connection.lost.is_set() or consumer != self._consumer:
            return  # the next subscription says what we still hold
        token = keys[0][1]
        for key in keys:
            self._held[key] = Held.SENT
        value = {
            "queue": self.queue,
            "consumer": int(consumer),
            "token": token,
            "messages": [self._ids[key] for key in keys],
        }
        op = self.scene.history.invoke(
            self.name, f, value, node=connection.node, **self.scene.now()
        )
        outcome = await connection.answer("ask", self.info.group, self._command(consumer, keys, f))
        kind, extra = _ending(outcome)
        self.scene.history.end(op, kind, extra, **self.scene.now())
        if kind == "ok":
            self.scene.cluster.trace.count(PAST[f], len(keys))
            for key in keys:
                self._held.pop(key, None)
        else:
            for key in keys:
                if self._held.get(key) is Held.SENT:
                    self._held[key] = Held.DONE
            self._again.set()

    def _command(
        self, consumer: ConsumerKey, keys: list[HeldKey], f: str
    ) -> Settle | Return | Discard:
        assert self.info is not None
        queue, ranges = self.info.queue, _ranges([position for position, _ in keys])
        if f == "return":
            return Return(queue, consumer, ranges, failed=self.dice.random() < 0.5)
        return (Settle if f == "settle" else Discard)(queue, consumer, ranges)


def _ending(outcome: Outcome | None) -> tuple[OpType, dict[str, Any]]:
    if outcome is None or outcome.kind == "unknown":
        return "unknown", {}
    if isinstance(outcome.reply, Ok):
        return "ok", {"count": outcome.reply.count}
    reason = outcome.reply.code if isinstance(outcome.reply, Refused) else outcome.code
    return "refused", {"code": reason}


def _ranges(positions: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for position in sorted(positions):
        if ranges and ranges[-1][1] == position - 1:
            ranges[-1] = (ranges[-1][0], position)
        else:
            ranges.append((position, position))
    return ranges
