"""One AMQP consumer, on a channel of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import aiormq
from aiormq.abc import DeliveredMessage

from chaos.load.amqp_link import Link, answer_of
from chaos.load.driver import CALL_S_MAX, NOT_OFFERED, Answer, Received, id_of

#: Messages that wait together and have the same to tell are handed over together.
TOGETHER_MAX = 20


class AmqpConsumption:
    """It ends with its channel."""

    def __init__(self, link: Link, channel: aiormq.Channel, queue: str, consumer: str) -> None:
        self.link = link
        self.channel = channel
        #: Of those who use the channel for a transaction.
        self.lock = asyncio.Lock()
        self._transactional = False
        self._queue = queue
        self._consumer = consumer
        self._arrived: deque[tuple[str, int, _Flags]] = deque()
        self._news = asyncio.Event()
        self._ended = False

    @property
    def consumer(self) -> str:
        return self._consumer

    async def start(self, prefetch: int) -> None:
        channel = self.channel
        closing = cast("asyncio.Future[None]", channel.closing)  # pyright: ignore[reportUnknownMemberType]
        closing.add_done_callback(self._end)
        channel.on_consumer_cancel_callbacks.add(self._end)
        await channel.basic_qos(prefetch_count=prefetch)
        await channel.basic_consume(self._queue, self._take, consumer_tag=self._consumer)

    async def next(self) -> Received | None:
        while not self._arrived and not self._ended:
            self._news.clear()
            await self._news.wait()
        if self._ended:
            return None
        message, tag, flags = self._arrived.popleft()
        messages, tags = [message], [tag]
        while self._arrived and self._arrived[0][2] == flags and len(tags) < TOGETHER_MAX:
            message, tag, _ = self._arrived.popleft()
            messages.append(message)
            tags.append(tag)
        redelivered, delivery_count, token, deaths = flags
        return Received(
            self._queue,
            self._consumer,
            messages,
            redelivered,
            delivery_count,
            token,
            None,
            deaths,
            self.link.node,
            (self, tags),
        )

    async def settle(self, received: Received) -> Answer:
        return await self._finish(received, self.ack)

    async def give_back(self, received: Received, *, failed: bool) -> Answer:
        if not failed:
            return NOT_OFFERED
        return await self._finish(
            received, lambda tag: self.channel.basic_nack(tag, requeue=True, wait=False)
        )

    async def discard(self, received: Received) -> Answer:
        return await self._finish(
            received, lambda tag: self.channel.basic_reject(tag, requeue=False, wait=False)
        )

    async def close(self) -> Answer:
        async def closed() -> Answer:
            async with asyncio.timeout(CALL_S_MAX):
                await self.channel.close()
            return Answer("ok")

        self._end()
        return await answer_of(self.link, closed())

    async def ack(self, tag: int) -> None:
        await self.channel.basic_ack(tag, wait=False)

    async def make_transactional(self) -> None:
        """From now on all that is settled here needs a commit."""
        if not self._transactional:
            await self.channel.tx_select()
            self._transactional = True

    async def _finish(self, received: Received, finish: Callable[[int], Awaitable[None]]) -> Answer:
        _, tags = cast("tuple[AmqpConsumption, list[int]]", received.handle)
        if self._ended:
            return Answer("refused", reason="the consumer has ended", node=self.link.node)

        async def finished() -> Answer:
            async with asyncio.timeout(CALL_S_MAX), self.lock:
                for tag in tags:
                    await finish(tag)
                if self._transactional:
                    await self.channel.tx_commit()
                    return Answer("ok")
            return Answer("unknown")  # the protocol has no answer

        return await answer_of(self.link, finished())

    async def _take(self, message: DeliveredMessage) -> None:
        delivery = message.delivery
        if isinstance(delivery, aiormq.spec.Basic.Deliver):
            tag = delivery.delivery_tag or 0
            flags = _flags(message.header.properties.headers or {}, bool(delivery.redelivered))
            self._arrived.append((id_of(message.body), tag, flags))
            self._news.set()

    def _end(self, cause: object = None) -> None:
        del cause
        self._ended = True
        self._news.set()


#: Redelivered, delivery count, fencing token, deaths.
_Flags = tuple[bool, int, int | None, list[Mapping[str, Any]]]


def _flags(headers: Mapping[str, Any], redelivered: bool) -> _Flags:
    token = headers.get("x-fencing-token")
    deaths: list[Mapping[str, Any]] = list(headers.get("x-death") or ())
    count = int(headers.get("x-delivery-count") or 0)
    return redelivered, count, None if token is None else int(token), deaths
