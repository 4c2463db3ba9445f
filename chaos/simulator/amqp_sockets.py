"""AMQP connections of a simulated world, as `chaos.load.amqp_link` uses those of aiormq.

What a client says travels as the events that a node's reader would make of it; what nodes write is
read back, and no client may see what `AmqpChannel` finds wrong.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import aiormq
from pamqp import base, commands
from pamqp.header import ContentHeader

from chaos.load.addresses import Address
from chaos.load.amqp_link import CONNECT_S_MAX, Link, LinkFailed
from chaos.simulator.amqp_clients import HEARTBEAT_S, AmqpChannel
from chaos.simulator.amqp_host import AmqpHello
from chaos.simulator.amqp_wire import Confirmed, Delivered, Reader, Returned
from chaos.simulator.channel import Channel, Closed
from chaos.simulator.loop import Process
from chaos.simulator.sim_cluster import SimCluster
from cluster.types import NodeId
from node.messages import properties as props
from node.messages.message import where_of
from node.protocols.amqp.events import Acks, publish_of
from node.protocols.native.requests import Goodbye

FRAME_MAX = 131_072
#: What aiormq raises when a node closes the channel with this code.
ERRORS: Mapping[int | None, type[aiormq.AMQPError]] = {
    403: aiormq.ChannelAccessRefused,
    404: aiormq.ChannelNotFoundEntity,
    405: aiormq.ChannelLockedResource,
    406: aiormq.ChannelPreconditionFailed,
}
Basic, Queue, Exchange, Tx = commands.Basic, commands.Queue, commands.Exchange, commands.Tx


class SimLinks:
    """New connections from one simulated process."""

    def __init__(self, cluster: SimCluster, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._serials = itertools.count(1)

    async def connected(self, address: Address, name: str) -> Link:
        """Raises LinkFailed."""
        node = NodeId(address.node)
        channel = self._cluster.connect(self._process, node)
        if channel is None:
            raise LinkFailed(f"nobody listens at {node}")
        connection = SimConnection(channel, node, f"{name}.{next(self._serials)}")
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await connection.channel()  # it answers
        except (aiormq.AMQPError, TimeoutError) as error:
            connection.let_go()
            raise LinkFailed(f"{node}: {error!r}") from error
        return Link(node, cast("aiormq.Connection", connection), connection)


class SimConnection:
    """As much of an `aiormq.Connection` as a link uses, and its grip."""

    def __init__(self, link: Channel, node: NodeId, name: str) -> None:
        self._link = link
        self._node = node
        self._name = name
        self._reader = Reader()
        self._channels: dict[int, AmqpChannel] = {}
        self._over = asyncio.Event()
        link.on_client = self._heard
        link.on_client_lost = lambda: self._end("connection lost")
        link.to_node(AmqpHello(name, FRAME_MAX, watched=False))
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def is_opened(self) -> bool:
        return not self._over.is_set()

    async def channel(self, *, publisher_confirms: bool = False) -> SimChannel:
        number = len(self._channels) + 1
        channel = AmqpChannel(self._link, self._node, number, f"{self._name}.{number}")
        self._channels[number] = channel
        if self._over.is_set():
            channel.end("the connection has ended")
        made = SimChannel(channel)
        await made.ask(commands.Channel.Open, commands.Channel.OpenOk)
        if publisher_confirms:
            await made.confirm_delivery()
        return made

    async def close(self) -> None:
        self._link.to_node(Goodbye(1000, ""))
        await self._over.wait()

    def let_go(self) -> None:
        self._link.cut()
        self._end("let go")

    def _heard(self, message: Any) -> None:
        if type(message) is Closed:
            self._end(message.reason)
            return
        for frame in self._reader.read(message):
            channel = self._channels[frame.channel]
            if not channel.over.is_set():
                channel.take(frame)

    def _end(self, why: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._watching.cancel()
            for channel in self._channels.values():
                channel.end(why)

    async def _watch(self) -> None:
        """A machine that is gone says nothing."""
        while self._link.open:
            await asyncio.sleep(HEARTBEAT_S)
        self._end("silent")


class SimChannel:
    """As much of an `aiormq.Channel` as a link uses."""

    def __init__(self, channel: AmqpChannel) -> None:
        self.closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_consumer_cancel_callbacks: set[Callable[[], None]] = set()
        self._channel = channel
        self._asking = asyncio.Lock()
        self._confirms = False
        self._published = 0
        self._outcomes: dict[int, asyncio.Future[None]] = {}  # by number, ascending
        self._bodies: dict[bytes, int] = {}
        self._take: Callable[[Any], Awaitable[None]] | None = None
        self._taking: dict[asyncio.Future[None], None] = {}
        channel.on_delivery = self._delivered
        channel.on_confirm = self._confirmed
        channel.on_return = self._returned
        channel.on_cancel = self._cancelled
        self._watching = asyncio.ensure_future(self._watch())

    @property
    def is_closed(self) -> bool:
        return self._channel.over.is_set()

    async def ask(self, kind: type[base.Frame], answer: type[base.Frame], **how: Any) -> None:
        async with self._asking:
            if await self._channel.ask(kind, answer, **how) is None:
                raise self._error()

    async def close(self) -> None:
        await self.ask(commands.Channel.Close, commands.Channel.CloseOk)
        self._channel.end("closed")

    def _error(self) -> aiormq.AMQPError:
        kind = ERRORS.get(self._channel.code, aiormq.AMQPConnectionError)
        return kind(self._channel.why)

    async def _watch(self) -> None:
        await self._channel.over.wait()
        self.closing.set_result(None)
        for outcome in self._outcomes.values():
            if not outcome.done():
                outcome.set_exception(self._error())

    # --- what is declared -------------------------------------------------------------------------

    async def queue_declare(self, queue: str, *, durable: bool, arguments: dict[str, Any]) -> None:
        how = {"queue": queue, "durable": durable, "arguments": arguments}
        await self.ask(Queue.Declare, Queue.DeclareOk, **how)

    async def queue_delete(self, queue: str) -> None:
        await self.ask(Queue.Delete, Queue.DeleteOk, queue=queue)

    async def exchange_declare(self, exchange: str, *, exchange_type: str, durable: bool) -> None:
        how = {"exchange": exchange, "exchange_type": exchange_type, "durable": durable}
        await self.ask(Exchange.Declare, Exchange.DeclareOk, **how)

    async def exchange_delete(self, exchange: str) -> None:
        await self.ask(Exchange.Delete, Exchange.DeleteOk, exchange=exchange)

    async def queue_bind(self, queue: str, exchange: str, key: str) -> None:
        where = {"queue": queue, "exchange": exchange, "routing_key": key}
        await self.ask(Queue.Bind, Queue.BindOk, **where)

    async def queue_unbind(self, queue: str, exchange: str, key: str) -> None:
        where = {"queue": queue, "exchange": exchange, "routing_key": key}
        await self.ask(Queue.Unbind, Queue.UnbindOk, **where)

    async def tx_select(self) -> None:
        await self.ask(Tx.Select, Tx.SelectOk)

    async def tx_rollback(self) -> None:
        await self.ask(Tx.Rollback, Tx.RollbackOk)

    async def tx_commit(self) -> None:
        await self.ask(Tx.Commit, Tx.CommitOk)

    async def confirm_delivery(self) -> None:
        await self.ask(commands.Confirm.Select, commands.Confirm.SelectOk)
        self._confirms = True

    # --- publishing -------------------------------------------------------------------------------

    async def basic_publish(
        self,
        body: bytes,
        *,
        exchange: str,
        routing_key: str,
        properties: aiormq.spec.Basic.Properties,
        mandatory: bool,
        wait: bool,
    ) -> None:
        assert not wait
        named = ("delivery_mode", "expiration", "headers")
        plain = props.build({name: getattr(properties, name) or None for name in named})
        where = where_of(exchange, routing_key)
        self._published += 1
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._confirms:
            self._outcomes[self._published] = outcome
            self._bodies[body] = self._published
            if self.is_closed:
                outcome.set_exception(self._error())
        else:
            outcome.set_result(None)
        channel = self._channel
        channel.send(publish_of(channel.number, where, plain, [body], mandatory=mandatory))
        await outcome

    def _confirmed(self, confirm: Confirmed) -> None:
        assert confirm.tag in self._outcomes, f"a second outcome, or one of no publish: {confirm}"
        every = [number for number in self._outcomes if number <= confirm.tag]
        for number in every if confirm.multiple else [confirm.tag]:
            outcome = self._outcomes.pop(number)
            if outcome.done():
                continue  # it was returned, or nobody waits any more
            if confirm.refused:
                outcome.set_exception(aiormq.DeliveryError(None, Basic.Nack(confirm.tag)))
            else:
                outcome.set_result(None)

    def _returned(self, returned: Returned) -> None:
        outcome = self._outcomes[self._bodies[returned.body]]
        if not outcome.done():
            nowhere = Basic.Return(312, "NO_ROUTE", "", "")
            outcome.set_exception(aiormq.DeliveryError(None, nowhere))

    # --- consuming --------------------------------------------------------------------------------

    async def basic_qos(self, *, prefetch_count: int) -> None:
        how = {"prefetch_size": 0, "prefetch_count": prefetch_count, "global_": False}
        await self.ask(Basic.Qos, Basic.QosOk, **how)

    async def basic_consume(
        self, queue: str, take: Callable[[Any], Awaitable[None]], *, consumer_tag: str
    ) -> None:
        self._take = take
        how: dict[str, Any] = {"queue": queue, "consumer_tag": consumer_tag, "arguments": {}}
        await self.ask(Basic.Consume, Basic.ConsumeOk, **how)

    async def basic_ack(self, tag: int, *, wait: bool) -> None:
        assert not wait
        self._channel.send(Acks(self._channel.number, [(tag, tag)]))

    async def basic_nack(self, tag: int, *, requeue: bool, wait: bool) -> None:
        assert not wait
        how = {"delivery_tag": tag, "multiple": False, "requeue": requeue}
        self._channel.send(self._channel.say(Basic.Nack, **how))

    async def basic_reject(self, tag: int, *, requeue: bool, wait: bool) -> None:
        assert not wait
        self._channel.send(self._channel.say(Basic.Reject, delivery_tag=tag, requeue=requeue))

    def _delivered(self, frame: Delivered) -> None:
        assert self._take is not None
        header = ContentHeader()
        header.unmarshal(frame.header)
        delivery = Basic.Deliver(frame.consumer, frame.tag, frame.redelivered, "", "")
        message = SimpleNamespace(delivery=delivery, header=header, body=frame.body)
        taking = asyncio.ensure_future(self._take(message))
        self._taking[taking] = None
        taking.add_done_callback(self._taking.pop)

    def _cancelled(self) -> None:
        for ended in self.on_consumer_cancel_callbacks:
            ended()
