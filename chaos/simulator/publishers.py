"""Clients that publish: named ones resend until they know, anonymous ones take the first answer."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.history import Op, publish_value
from chaos.simulator.clients import ANSWER_S_MAX, RETRY_S, Client, Connection, Scene
from node.dispatch.outgoing import Confirm, Failure, Moved
from node.protocols.native.requests import Publish

#: From the ids of a batch: its attributes, and what the history says of them.
Attributes = Callable[[random.Random, Sequence[str]], tuple[Any, dict[str, Any]]]


@dataclass(eq=False)
class Batch:
    """A publish that is not known to be stored yet."""

    op: Op
    first: int
    bodies: list[bytes]
    attrs: Any = None


class Publisher(Client):
    """Numbers its messages and sends them in order; after a break it starts again at the first
    unconfirmed.
    """

    def __init__(
        self,
        scene: Scene,
        name: str,
        queue: str,
        *,
        named: bool,
        attributes: Attributes | None = None,
    ) -> None:
        super().__init__(scene, name, queue)
        self.named = named
        self._attributes = attributes
        self.unconfirmed: deque[Batch] = deque()
        self._next = 1

    @property
    def idle(self) -> bool:
        return not self.unconfirmed

    async def run(self) -> None:
        while not (self.scene.stopping and self.idle):
            connection = await self.connect()
            await (self._send_named(connection) if self.named else self._send_anonymous(connection))
            self.disconnect()
            if not self.sent_on:
                await asyncio.sleep(RETRY_S * self.dice.random())

    def next_batch(self) -> Batch:
        plan = self.scene.cluster.plan
        count = self.dice.randint(1, plan.batch_max)
        first, self._next = self._next, self._next + count
        bodies: list[bytes] = []
        for number in range(first, first + count):
            head = f"{self.name}:{number}|".encode()
            bodies.append(head + bytes(self.dice.randint(0, plan.body_bytes_max)))
        value: dict[str, Any] = {
            **publish_value(self.queue, self.name, first, count),
            "ordered": self.named,
        }
        attrs = None
        if self._attributes is not None:
            ids = [f"{self.name}:{number}" for number in range(first, first + count)]
            attrs, said = self._attributes(self.dice, ids)
            value.update(said)
        op = self.scene.history.invoke(self.name, "publish", value)
        return Batch(op, first, bodies, attrs)

    def again(self, batch: Batch) -> Batch:
        """The same messages, by another publish."""
        op = self.scene.history.invoke(self.name, "publish", batch.op.value)
        return Batch(op, batch.first, batch.bodies, batch.attrs)

    def _send(self, connection: Connection, batch: Batch) -> asyncio.Future[Any]:
        publisher, seqno = (self.name, batch.first) if self.named else (None, 0)
        attrs = batch.attrs
        return connection.request(Publish, self.queue, publisher, seqno, batch.bodies, None, attrs)

    async def _pause(self) -> None:
        await asyncio.sleep(self.dice.expovariate(1.0) * self.scene.cluster.plan.pause_ms / 1e3)
        while not self.scene.stopping and self.scene.crowded:
            await asyncio.sleep(RETRY_S)

    async def _send_named(self, connection: Connection) -> None:
        """Until the connection or the leader is no good any more."""
        window = self.scene.cluster.plan.window
        under_way: deque[tuple[Batch, asyncio.Future[Any]]] = deque()
        for batch in self.unconfirmed:
            under_way.append((batch, self._send(connection, batch)))
            if len(under_way) > 1:
                self.scene.cluster.trace.count("publishes resent")
        while not connection.lost.is_set():
            if not self.scene.stopping and len(under_way) < window:
                batch = self.next_batch()
                self.unconfirmed.append(batch)
                under_way.append((batch, self._send(connection, batch)))
                await self._pause()
            elif not under_way:
                return
            while under_way and (
                under_way[0][1].done() or len(under_way) >= window or self.scene.stopping
            ):
                batch, future = under_way.popleft()
                if not await self._confirmed(connection, batch, future):
                    return

    async def _confirmed(
        self, connection: Connection, batch: Batch, future: asyncio.Future[Any]
    ) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answer = await future
        except TimeoutError:
            return False
        if not isinstance(answer, Confirm):
            return False
        assert self.unconfirmed[0] is batch
        self.unconfirmed.popleft()
        self.ended(batch, "ok", connection, answer)
        return True

    async def _send_anonymous(self, connection: Connection) -> None:
        while not (self.scene.stopping and self.idle) and not connection.lost.is_set():
            batch = self.next_batch()
            answer = await connection.answer(self._send(connection, batch))
            if not isinstance(answer, Confirm):
                surely_not = isinstance(answer, Moved) or (
                    isinstance(answer, Failure) and answer.code != "unknown"
                )
                self.ended(batch, "refused" if surely_not else "unknown", connection, None)
                return
            self.ended(batch, "ok", connection, answer)
            await self._pause()

    def ended(self, batch: Batch, kind: Any, connection: Connection, reply: Confirm | None) -> None:
        trace = self.scene.cluster.trace
        extra: dict[str, Any] = {}
        if reply is not None:
            trace.count("messages confirmed", len(batch.bodies))
            trace.count("duplicates dropped", reply.duplicates)
            extra = {"refused": [list(pair) for pair in reply.refused]}
        else:
            trace.count(f"publishes {kind}")
        self.scene.history.end(batch.op, kind, extra, node=connection.node)

    def give_up(self) -> None:
        """The run ends: nobody knows what became of the rest."""
        for batch in self.unconfirmed:
            self.scene.history.end(batch.op, "unknown", None)
