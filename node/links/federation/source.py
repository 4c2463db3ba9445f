"""The far end of federation: a queue of the upstream that a link consumes."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from aiormq.abc import DeliveredMessage
from pamqp import commands

from node.links.amqp import LinkChannel, LinkConnection
from node.links.moving import Item

#: Of a consumer upstream. Negative: those who consume there themselves come first.
PRIORITY = "x-priority"


class UpstreamQueue:
    """`settles_at_once`: what has arrived needs no confirmation to be gone upstream."""

    def __init__(
        self,
        connection: LinkConnection,
        channel: LinkChannel,
        queue: str,
        tag: str,
        *,
        priority: int | None = None,
        settles_at_once: bool = False,
    ) -> None:
        self.consuming = False
        self._channel = channel
        self._queue = queue
        self._tag = tag
        self._priority = priority
        self._at_once = settles_at_once
        self._arrived: deque[DeliveredMessage] = deque()
        self._open: deque[int] = deque()  # tags that are not settled, in their order
        self._kept: set[int] = set()  # that are settled by nobody: they stay upstream
        self._news = asyncio.Event()
        self._ended = ""
        connection.lost.add_done_callback(lambda _: self._end("the connection was lost"))
        closing = cast("asyncio.Future[Any]", cast("Any", channel).closing)
        closing.add_done_callback(lambda _: self._end("the channel was closed"))
        channel.on_consumer_cancel_callbacks.add(self._cancelled)

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        self._news.set()

    def _cancelled(self, *_: Any) -> None:
        self._end(f"the broker cancelled the consumer: queue '{self._queue}' is gone there")

    async def start(self) -> None:
        arguments: dict[str, Any] = {} if self._priority is None else {PRIORITY: self._priority}
        self.consuming = True
        await self._channel.basic_consume(
            self._queue, self._deliver, consumer_tag=self._tag, arguments=arguments
        )

    async def pause(self) -> None:
        """What has arrived is still taken."""
        self.consuming = False
        await self._channel.basic_cancel(self._tag)

    async def _deliver(self, message: DeliveredMessage) -> None:
        self._arrived.append(message)
        self._news.set()

    async def take(self) -> Item:
        """ConnectionError: no more will come."""
        while not self._arrived:
            if self._ended:
                raise ConnectionError(self._ended)
            self._news.clear()
            await self._news.wait()
        message = self._arrived.popleft()
        delivery = message.delivery
        assert isinstance(delivery, commands.Basic.Deliver)
        tag = delivery.delivery_tag or 0
        if self._at_once:
            await self._channel.basic_ack(tag, wait=False)
        else:
            self._open.append(tag)
        return Item(tag, message.body, message)

    async def settle(self, tag: int) -> None:
        """This one, and all that were taken before it."""
        settled: list[int] = []
        while self._open and self._open[0] <= tag:
            first = self._open.popleft()
            if first not in self._kept:
                settled.append(first)
        if settled and not self._kept:
            await self._channel.basic_ack(settled[-1], multiple=True, wait=False)
            return
        for each in settled:  # one for all would mean what is kept, too
            await self._channel.basic_ack(each, wait=False)

    def keep(self, tag: int) -> bool:
        """It is not taken: it stays upstream, in nobody's hands until this link ends, and comes to
        the next one again. False: it is settled already.
        """
        if tag in self._open:
            self._kept.add(tag)
        return tag in self._kept
