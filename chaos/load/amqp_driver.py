"""A client of AMQP 0-9-1, with publisher confirms. It connects again by itself, to another node
after a failure, and repeats nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast

import aiormq

from chaos.load.addresses import Address, Chooser
from chaos.load.amqp_consumption import AmqpConsumption
from chaos.load.amqp_link import REFUSALS, Link, LinkFailed, answer_of, connected
from chaos.load.driver import (
    CALL_S_MAX,
    NOT_OFFERED,
    Answer,
    Consumption,
    Protocols,
    Publish,
    Received,
    body_of,
)
from chaos.load.http_calls import HttpCalls

#: Between two rounds of all nodes when none lets us in.
PAUSE_S = 0.1


Connect = Callable[[Address, str], Awaitable[Link]]


class Lengths(Protocol):
    """AMQP counts only what is ready; so another protocol is asked."""

    async def length(self, queue: str) -> Answer: ...
    async def close(self) -> None: ...


class AmqpDriver:
    """One client: one connection at a time, a channel for each purpose and each consumer."""

    protocol: Protocols = "amqp"

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        dice: random.Random,
        serials: Iterator[int],
        *,
        connect: Connect = connected,
        lengths: Lengths | None = None,
    ) -> None:
        """`serials`: of consumers, never given twice. `connect`, `lengths`: in another world than
        this one.
        """
        self.name = name
        self._chooser = Chooser(addresses, dice)
        self._connect = connect
        self._serials = serials
        self._lengths: Lengths = lengths or HttpCalls(self._chooser)
        self._link: Link | None = None
        self._linking = asyncio.Lock()
        self._committing = asyncio.Lock()
        self._closed = False

    # --- queues and exchanges ---------------------------------------------------------------------

    async def declare(self, queue: str, arguments: Mapping[str, Any]) -> Answer:
        given = dict(arguments)
        return await self._ask(
            lambda channel: channel.queue_declare(queue, durable=True, arguments=given)
        )

    async def delete(self, queue: str) -> Answer:
        return await self._ask(lambda channel: channel.queue_delete(queue))

    async def declare_exchange(self, exchange: str, kind: str) -> Answer:
        return await self._ask(
            lambda channel: channel.exchange_declare(exchange, exchange_type=kind, durable=True)
        )

    async def delete_exchange(self, exchange: str) -> Answer:
        return await self._ask(lambda channel: channel.exchange_delete(exchange))

    async def bind(self, queue: str, exchange: str, key: str) -> Answer:
        return await self._ask(lambda channel: channel.queue_bind(queue, exchange, key))

    async def unbind(self, queue: str, exchange: str, key: str) -> Answer:
        return await self._ask(lambda channel: channel.queue_unbind(queue, exchange, key))

    async def length(self, queue: str) -> Answer:
        return await self._lengths.length(queue)

    async def _ask(self, call: Callable[[aiormq.Channel], Awaitable[Any]]) -> Answer:
        async def asked(link: Link) -> Answer:
            await call(await link.shared("declare"))
            return Answer("ok")

        return await self._answered(asked)

    # --- publishing -------------------------------------------------------------------------------

    async def publish(self, publish: Publish) -> Answer:
        if publish.delay_ms is not None:
            return NOT_OFFERED

        async def published(link: Link) -> Answer:
            channel = await link.shared("publish", confirms=True)
            count = len(publish.messages)
            with link.publishing(count) as alone:
                sent = [_send(channel, publish, each, mandatory=True) for each in publish.messages]
                outcomes = await asyncio.gather(*sent, return_exceptions=True)
            return _added_up(outcomes, alone=alone())

        return await self._answered(published)

    async def numbered(self, publisher: str, first: int, publish: Publish) -> Answer:
        del publisher, first, publish
        return NOT_OFFERED

    async def transaction(
        self, publishes: Sequence[Publish], settles: Sequence[Received], *, commit: bool = True
    ) -> Answer:
        """Deliveries are acknowledged where they came, so they must be of one consumer."""
        handles = [cast("tuple[AmqpConsumption, list[int]]", each.handle) for each in settles]
        if any(publish.delay_ms is not None for publish in publishes):
            return NOT_OFFERED
        if not handles:

            async def committed(link: Link) -> Answer:
                async with self._committing:
                    channel = await link.shared("commit")
                    await channel.tx_select()
                    return await _transaction(channel, publishes, commit=commit)

            return await self._answered(committed)
        consumption = handles[0][0]
        if any(each is not consumption for each, _ in handles):
            return Answer("refused", reason="acks in a transaction must be of one channel")
        if consumption.channel.is_closed:
            return Answer("refused", reason="the consumer has ended")

        async def settled() -> Answer:
            async with asyncio.timeout(CALL_S_MAX), consumption.lock:
                await consumption.make_transactional()
                for _, tags in handles:
                    for tag in tags:
                        await consumption.ack(tag)
                return await _transaction(consumption.channel, publishes, commit=commit)

        return await answer_of(consumption.link, settled())

    # --- consuming --------------------------------------------------------------------------------

    async def consume(self, queue: str, *, prefetch: int) -> Consumption | Answer:
        started: list[Consumption] = []

        async def subscribed(link: Link) -> Answer:
            name = f"{self.name}.{next(self._serials)}"
            consumption = AmqpConsumption(link, await link.channel(), queue, name)
            await consumption.start(prefetch)
            started.append(consumption)
            return Answer("ok")

        answer = await self._answered(subscribed)
        return started[0] if started else answer

    # --- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        if self._link is not None:
            await self._link.close()
        await self._lengths.close()

    async def drop(self) -> None:
        if self._link is not None:
            self._link.abort()
        await self.close()

    async def _answered(self, call: Callable[[Link], Awaitable[Answer]]) -> Answer:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CALL_S_MAX
        try:
            async with asyncio.timeout_at(deadline_s):
                link = await self._linked()
        except (TimeoutError, LinkFailed) as error:
            return Answer("refused", reason=f"no node lets us in: {error}")

        async def in_time() -> Answer:
            async with asyncio.timeout_at(deadline_s):
                return await call(link)

        answer = await answer_of(link, in_time())
        if link.lost:
            self._chooser.failed(link.node)
        return answer

    async def _linked(self) -> Link:
        """Raises LinkFailed when the door is closed; tries all nodes until its caller gives up."""
        async with self._linking:
            while not self._closed:
                if self._link is not None:
                    if not self._link.lost:
                        return self._link
                    self._link.abort()
                for address in self._chooser.shuffled():
                    try:
                        self._link = await self._connect(address, self.name)
                    except LinkFailed:
                        self._chooser.failed(address.node)
                        continue
                    break
                else:
                    await asyncio.sleep(PAUSE_S)
        raise LinkFailed("the client is closed")


def _added_up(outcomes: Sequence[BaseException | None], *, alone: bool) -> Answer:
    """Of a batch: confirmed, or kept out by a nack or a return. One that is unknown makes all so.
    So does a channel that the node closed, unless the message was alone on it: which of them it was
    closed for is not known, and others may have been routed.
    """
    refused = [offset for offset, outcome in enumerate(outcomes) if _is_refusal(outcome)]
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not _is_refusal(outcome):
            if isinstance(outcome, REFUSALS) and not alone:
                return Answer("unknown", reason=repr(outcome))
            raise outcome
    if not refused:
        return Answer("ok")
    if len(refused) == len(outcomes):
        return Answer("refused", reason=str(outcomes[0]))
    return Answer("ok", refused=[(offset, offset) for offset in refused])


def _is_refusal(outcome: BaseException | None) -> bool:
    return isinstance(outcome, aiormq.DeliveryError)


async def _transaction(
    channel: aiormq.Channel, publishes: Sequence[Publish], *, commit: bool
) -> Answer:
    for publish in publishes:
        for message in publish.messages:
            await _send(channel, publish, message, mandatory=False)
    if not commit:
        await channel.tx_rollback()
        return Answer("refused", reason="rolled back")
    await channel.tx_commit()
    return Answer("ok")


async def _send(
    channel: aiormq.Channel, publish: Publish, message: str, *, mandatory: bool
) -> None:
    """Returns when it is confirmed, where the channel has confirms."""
    await channel.basic_publish(
        body_of(message, publish.bytes_each),
        exchange=publish.exchange,
        routing_key=publish.key,
        properties=aiormq.spec.Basic.Properties(
            delivery_mode=2,
            expiration=None if publish.ttl_ms is None else str(publish.ttl_ms),
            headers=dict(publish.headers),
        ),
        mandatory=mandatory,
        wait=False,
    )
