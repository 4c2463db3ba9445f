"""AMQP clients that consume: they ack one by one and many at once, return, cancel, close, crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pamqp import commands

from chaos.history import delivery_value
from chaos.load.driver import id_of
from chaos.simulator.amqp_clients import AmqpChannel, AmqpClient
from chaos.simulator.amqp_wire import Delivered
from chaos.simulator.clients import Scene, first_of
from chaos.simulator.ledger import Row
from node.protocols.amqp.events import Acks, Event

Basic = commands.Basic
#: When the load is over, so that a long queue is drained in time.
DRAIN_PREFETCH = 500
WORK_S = 0.02


class AmqpConsumer(AmqpClient):
    """Sees every delivery once, and none after a cancel was answered."""

    kind = "amqp-consumer"
    #: Goes on as it is when the load is over.
    stays = False

    def __init__(self, scene: Scene, name: str, queue: str) -> None:
        super().__init__(scene, name)
        self.queue = queue
        self.held: dict[int, Row] = {}  # by delivery tag, ascending
        self._consumers: set[str] = set()  # tags that may be delivered to
        self._seen: set[tuple[str, int]] = set()  # on this channel
        self._came = asyncio.Event()
        self._subscriptions = 0

    def hurry(self) -> None:
        """The load is over."""
        self._came.set()

    async def work(self, channel: AmqpChannel) -> None:
        channel.on_delivery = lambda frame: self.take(channel, frame)
        if not await self.begin(channel) or not await self._subscribe(channel):
            return
        hasty = self.scene.stopping or self.stays
        lives_s = 60.0 if hasty else self.dice.uniform(2.0, 20.0)
        until_s = self.scene.cluster.world.now_s + lives_s
        while not channel.over.is_set() and self.scene.cluster.world.now_s < until_s:
            if self.scene.stopping and not hasty:
                return
            if not self.held:
                await self._wait(channel)
                continue
            await self.pause(0.0 if self.scene.stopping else WORK_S)
            if not channel.over.is_set():
                await self.settle_some(channel)

    async def begin(self, channel: AmqpChannel) -> bool:
        return True

    async def _wait(self, channel: AmqpChannel) -> None:
        self._came.clear()
        await first_of(self._came, channel.over, timeout_s=5.0)

    async def _subscribe(self, channel: AmqpChannel) -> bool:
        plan = self.scene.cluster.plan
        prefetch = DRAIN_PREFETCH if self.scene.stopping else plan.prefetch
        how: dict[str, Any] = {
            "prefetch_size": 0,
            "prefetch_count": prefetch,
            "global_": self.dice.random() < 0.3,
        }
        if await channel.ask(Basic.Qos, Basic.QosOk, **how) is None:
            return False
        self._subscriptions += 1
        tag = f"{channel.name}.{self._subscriptions}"
        self._consumers.add(tag)
        asked: dict[str, Any] = {"queue": self.queue, "consumer_tag": tag, "arguments": {}}
        if await channel.ask(Basic.Consume, Basic.ConsumeOk, **asked) is None:
            return False
        self.count("subscriptions")
        return True

    def take(self, channel: AmqpChannel, frame: Delivered) -> None:
        message = id_of(frame.body)
        assert frame.consumer in self._consumers, f"{frame.consumer} was cancelled, yet {message}"
        row = self.scene.cluster.ledger.take(frame.consumer, message)
        assert row is not None, f"{message} came to {frame.consumer}, and no node had sent it"
        assert frame.redelivered is (row.acquired_count > 0), row
        assert (message, row.token) not in self._seen, f"{self.name} was sent twice: {row}"
        self._seen.add((message, row.token))
        self.held[frame.tag] = row
        self.scene.history.saw(
            self.name,
            "deliver",
            delivery_value(
                self.queue,
                int(row.consumer),
                row.token,
                row.position,
                [message],
                delivery_count=row.delivery_count,
                acquired_count=row.acquired_count,
            ),
            node=channel.node,
        )
        self.count("deliveries")
        if row.acquired_count:
            self.count("redeliveries")
        self._came.set()

    # --- settling ---------------------------------------------------------------------------------

    async def settle_some(self, channel: AmqpChannel) -> None:
        tags = list(self.held)
        ways: list[Callable[[AmqpChannel, list[int]], Event]] = [
            self._ack_up_to,
            self._ack_each,
            self._nack,
            self._reject,
        ]
        weights = (1, 0, 0, 0) if self.scene.stopping else (10, 6, 1, 1)
        event = self.dice.choices(ways, weights)[0](channel, tags)
        channel.send(event)
        if not self.scene.stopping and self.dice.random() < 0.01:
            await self._cancel(channel)

    def _ack_up_to(self, channel: AmqpChannel, tags: list[int]) -> Event:
        tag = tags[-1] if self.scene.stopping else self.dice.choice(tags)
        self._gone([each for each in tags if each <= tag], "messages settled")
        return Acks(channel.number, [(0, tag)])

    def _ack_each(self, channel: AmqpChannel, tags: list[int]) -> Event:
        some = self.dice.sample(tags, self.dice.randint(1, min(len(tags), 8)))
        self._gone(some, "messages settled")
        return Acks(channel.number, [(tag, tag) for tag in some])

    def _nack(self, channel: AmqpChannel, tags: list[int]) -> Event:
        tag, multiple = self.dice.choice(tags), self.dice.random() < 0.5
        self._gone(
            [each for each in tags if multiple and each <= tag] or [tag], "messages returned"
        )
        return channel.say(Basic.Nack, delivery_tag=tag, multiple=multiple, requeue=True)

    def _reject(self, channel: AmqpChannel, tags: list[int]) -> Event:
        tag, requeue = self.dice.choice(tags), self.dice.random() < 0.8
        self._gone([tag], "messages returned" if requeue else "messages discarded")
        return channel.say(Basic.Reject, delivery_tag=tag, requeue=requeue)

    def _gone(self, tags: list[int], what: str) -> None:
        for tag in tags:
            del self.held[tag]
        self.count(what, len(tags))

    async def _cancel(self, channel: AmqpChannel) -> None:
        """And consume again, on the same channel: what it holds stays open."""
        (tag,) = self._consumers
        if await channel.ask(Basic.Cancel, Basic.CancelOk, consumer_tag=tag) is None:
            return
        self.count("AMQP consumers cancelled")
        self._consumers.clear()
        await self.pause(0.05)
        await self._subscribe(channel)

    def lost(self, channel: AmqpChannel) -> None:
        self.held.clear()
        self._consumers.clear()
        self._seen.clear()
