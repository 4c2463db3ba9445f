"""A client of the native protocol: the product's own, which finds leaders and numbers publishes.

That one sends again by itself what was not confirmed, under the same numbers, so that nothing is
stored twice. What has no answer in time is unknown, and may be stored later.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import aiohttp

from chaos.load.addresses import Address, Chooser
from chaos.load.driver import (
    CALL_S_MAX,
    NOT_OFFERED,
    Answer,
    Consumption,
    Protocols,
    Publish,
    Received,
    body_of,
    id_of,
)
from chaos.load.http_calls import HttpCalls, named
from quorate import wire
from quorate.consumer import Consumer
from quorate.core import Core
from quorate.delivery import Batch
from quorate.errors import ClientClosed, OutcomeUnknown, QuorateError, Refused
from quorate.publisher import Publisher

#: How long what a client holds waits for it after its connections are lost.
RESUME_MS = 2_000


class Exchanges(Protocol):
    """The native protocol knows queues alone; so another one is asked."""

    async def declare_exchange(self, exchange: str, kind: str) -> Answer: ...
    async def delete_exchange(self, exchange: str) -> Answer: ...
    async def bind(self, queue: str, exchange: str, key: str) -> Answer: ...
    async def unbind(self, queue: str, exchange: str, key: str) -> Answer: ...
    async def publish(self, publish: Publish) -> Answer: ...
    async def close(self) -> None: ...


class HttpExchanges:
    """By the management API."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    async def declare_exchange(self, exchange: str, kind: str) -> Answer:
        about = {"type": kind, "durable": True}
        return await self._http.call("PUT", f"/api/exchanges/%2F/{named(exchange)}", about)

    async def delete_exchange(self, exchange: str) -> Answer:
        return await self._http.call("DELETE", f"/api/exchanges/%2F/{named(exchange)}")

    async def bind(self, queue: str, exchange: str, key: str) -> Answer:
        path = f"/api/bindings/%2F/e/{named(exchange)}/q/{named(queue)}"
        return await self._http.call("POST", path, {"routing_key": key})

    async def unbind(self, queue: str, exchange: str, key: str) -> Answer:
        path = f"/api/bindings/%2F/e/{named(exchange)}/q/{named(queue)}/{named(key) or '~'}"
        return await self._http.call("DELETE", path)

    async def publish(self, publish: Publish) -> Answer:
        """One at a time."""
        if len(publish.messages) != 1 or publish.delay_ms is not None:
            return NOT_OFFERED
        properties: dict[str, Any] = {"delivery_mode": 2, "headers": dict(publish.headers)}
        if publish.ttl_ms is not None:
            properties["expiration"] = str(publish.ttl_ms)
        body = {
            "properties": properties,
            "routing_key": publish.key,
            "payload": body_of(publish.messages[0], publish.bytes_each).decode(),
            "payload_encoding": "string",
        }
        path = f"/api/exchanges/%2F/{named(publish.exchange)}/publish"
        answer = await self._http.call("POST", path, body)
        if answer.ok and not answer.value["routed"]:
            return Answer("refused", reason="routed nowhere", node=answer.node)
        return answer

    async def close(self) -> None:
        await self._http.close()


class NativeDriver:
    """One client with one session; a new session when the cluster has ended it."""

    protocol: Protocols = "native"

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        dice: random.Random,
        *,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        http: Callable[[], aiohttp.ClientSession | None] = lambda: None,
        exchanges: Exchanges | None = None,
    ) -> None:
        """`http`, `exchanges`: in another world than this one, what clients connect by, and who
        does what the protocol has no words for.
        """
        self.name = name
        self._wall_ms = wall_ms
        self._new_http = http
        self._chooser = Chooser(addresses, dice)
        self._exchanges: Exchanges = exchanges or HttpExchanges(HttpCalls(self._chooser))
        self._core: Core | None = None
        self._publishers: dict[str, Publisher] = {}
        self._numbered: dict[tuple[str, str], tuple[Publisher, int]] = {}
        self._serial = itertools.count()
        self._closed = False
        self._ending: dict[asyncio.Task[None], None] = {}

    # --- queues and exchanges ---------------------------------------------------------------------

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> Answer:
        return await self._ask(queue, wire.DECLARE, dict(arguments))

    async def delete(self, queue: str) -> Answer:
        self._publishers.pop(queue, None)
        return await self._ask(queue, wire.DELETE, False, False)

    async def declare_exchange(self, exchange: str, kind: str) -> Answer:
        return await self._exchanges.declare_exchange(exchange, kind)

    async def delete_exchange(self, exchange: str) -> Answer:
        return await self._exchanges.delete_exchange(exchange)

    async def bind(self, queue: str, exchange: str, key: str) -> Answer:
        return await self._exchanges.bind(queue, exchange, key)

    async def unbind(self, queue: str, exchange: str, key: str) -> Answer:
        return await self._exchanges.unbind(queue, exchange, key)

    async def length(self, queue: str) -> Answer:
        answer = await self._ask(queue, wire.INFO)
        if not answer.ok:
            return answer
        return Answer("ok", int(answer.value["messages"]), node=answer.node)

    async def _ask(self, queue: str, opcode: int, *fields: Any) -> Answer:
        async def asked(core: Core) -> Answer:
            frame, _ = await core.ask(queue, opcode, *fields)
            return Answer("ok", frame[2])

        return await self._answered(queue, asked)

    # --- publishing -------------------------------------------------------------------------------

    async def publish(self, publish: Publish) -> Answer:
        if publish.exchange:
            return await self._exchanges.publish(publish)

        async def published(core: Core) -> Answer:
            publisher = self._publishers.get(publish.key)
            if publisher is None:
                publisher = Publisher(core, publish.key, None, None)
                self._publishers[publish.key] = publisher
            return await self._send(publisher, publish)

        return await self._answered(publish.key, published)

    async def numbered(self, publisher: str, first: int, publish: Publish) -> Answer:
        async def published(core: Core) -> Answer:
            key = (publisher, publish.key)
            line, expected = self._numbered.pop(key, (None, 0))
            if line is None or expected != first:
                # The queue counts from 1.
                line = Publisher(core, publish.key, publisher, first + 1)
            answer = await self._send(line, publish)
            if answer.ok:
                self._numbered[key] = (line, first + len(publish.messages))
            return answer

        return await self._answered(publish.key, published)

    async def transaction(
        self, publishes: Sequence[Publish], settles: Sequence[Received], *, commit: bool = True
    ) -> Answer:
        del publishes, settles, commit
        return NOT_OFFERED

    async def _send(self, publisher: Publisher, publish: Publish) -> Answer:
        delay_ms = publish.delay_ms
        await publisher.publish_many(
            [body_of(message, publish.bytes_each) for message in publish.messages],
            meta={"headers": dict(publish.headers)} if publish.headers else None,
            ttl_ms=publish.ttl_ms,
            deliver_at_ms=None if delay_ms is None else self._wall_ms() + delay_ms,
        )
        return Answer("ok")

    # --- consuming --------------------------------------------------------------------------------

    async def consume(self, queue: str, *, prefetch: int) -> Consumption | Answer:
        tag = f"{self.name}.{next(self._serial)}"
        started: list[Consumption] = []

        async def subscribed(core: Core) -> Answer:
            consumer = _Consumer(
                core,
                queue,
                tag=tag,
                credit=prefetch,
                priority=0,
                exclusive=False,
                auto_settle=False,
                timeout_ms=None,
            )
            await consumer.start()
            started.append(NativeConsumption(consumer, core))
            return Answer("ok")

        answer = await self._answered(queue, subscribed)
        return started[0] if started else answer

    # --- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        if self._core is not None:
            await self._core.close()
        await self._exchanges.close()
        await asyncio.gather(*self._ending)

    async def drop(self) -> None:
        if self._core is not None:
            for connection in self._core.routes.connections:
                connection.lost = True  # so that nobody says goodbye over it
        await self.close()

    async def _answered(self, queue: str, call: Callable[[Core], Awaitable[Answer]]) -> Answer:
        if self._closed:
            return Answer("refused", reason="the client is closed")
        core = self._core
        if core is None:
            core = self._core = self._new_core()
        answer = await answer_of(call(core))
        if answer.type == "unknown" and isinstance(answer.value, ClientClosed):
            self._replace(core)
        connection = core.routes.to_node(queue)
        node = connection.node if connection is not None else None
        return Answer(answer.type, answer.value, answer.reason, node, answer.refused)

    def _new_core(self) -> Core:
        addresses = self._chooser.shuffled()
        user, password = addresses[0].credentials
        return Core(
            [address.url for address in addresses],
            vhost="/",
            session=None,
            resume_ms=RESUME_MS,
            timeout_s=CALL_S_MAX,
            name=self.name,
            forward=False,
            tls=None,
            user=user,
            password=password,
            http=self._new_http(),
        )

    def _replace(self, core: Core) -> None:
        """A session that was ended cannot be used again."""
        if self._core is core:
            self._core = None
            self._publishers.clear()
            self._numbered.clear()
            task = asyncio.get_running_loop().create_task(core.close())
            self._ending[task] = None
            task.add_done_callback(self._ending.pop)


class _Consumer(Consumer):
    @property
    def registration(self) -> int:
        """Another one when the session was lost, and what it held went back to the queue."""
        return self._key


class NativeConsumption:
    """A subscription; it lives on where a new leader or a new connection takes it over."""

    def __init__(self, consumer: _Consumer, core: Core) -> None:
        self._consumer = consumer
        self._core = core
        self._batches = consumer.batches(1)  # one decision at a time

    @property
    def consumer(self) -> str:
        return f"{self._consumer.tag}.{self._consumer.registration}"

    async def next(self) -> Received | None:
        try:
            batch = await anext(self._batches)
        except (QuorateError, StopAsyncIteration):
            return None
        chunk = batch.chunks[0]
        return Received(
            self._consumer.queue,
            self.consumer,
            [id_of(body) for body in chunk.bodies],
            chunk.acquired_count > 0,
            chunk.delivery_count,
            chunk.token,
            chunk.first,
            chunk.deaths or (),
            self._node(),
            batch,
        )

    async def settle(self, received: Received) -> Answer:
        batch: Batch = received.handle
        return await self._finished(received, batch.settle(wait=True))

    async def give_back(self, received: Received, *, failed: bool) -> Answer:
        batch: Batch = received.handle
        return await self._finished(received, batch.return_(failed=failed, wait=True))

    async def discard(self, received: Received) -> Answer:
        batch: Batch = received.handle
        return await self._finished(received, batch.discard(wait=True))

    async def close(self) -> Answer:
        async def closed() -> Answer:
            await self._consumer.aclose()
            return Answer("ok", node=self._node())

        return await answer_of(closed())

    async def _finished(self, received: Received, call: Awaitable[None]) -> Answer:
        async def finished() -> Answer:
            await call
            return Answer("ok")

        answer = await answer_of(finished())
        kind = answer.type
        if kind == "refused" and len(received.messages) > 1:
            kind = "unknown"  # of one of them; the others may be done
        return Answer(kind, reason=answer.reason, node=self._node())

    def _node(self) -> str | None:
        connection = self._core.routes.to_node(self._consumer.queue)
        return connection.node if connection is not None else None


async def answer_of(call: Awaitable[Answer]) -> Answer:
    """The three outcomes of the product's client. A `ClientClosed` is told as the value."""
    try:
        return await call
    except Refused as refused:
        if refused.confirmed:
            return Answer("ok", reason=str(refused), refused=list(refused.ranges))
        if refused.again:
            return Answer("unknown", reason=f"asked again, and then: {refused}")
        return Answer("refused", refused.detail, str(refused))
    except ClientClosed as closed:
        return Answer("unknown", closed, str(closed))
    except (OutcomeUnknown, QuorateError, OSError, TimeoutError) as error:
        return Answer("unknown", reason=str(error) or repr(error))
