"""What each method of a channel does: basic, confirm and tx here, exchanges and queues in topology.

`begin` answers None when the method is done, or the rest of its work when that waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from pamqp import base, commands

from cluster.machine import replies as codes
from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import CONSUMER_TIMEOUT_MS
from cluster.types import GroupId
from node.errors import OutcomeUnknown, Refused
from node.messages.amqp_errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    ChannelError_,
    ConnectionError_,
)
from node.messages.tables import plain
from node.protocols.amqp import stream_consumers, topology
from node.protocols.amqp.channel_parts import ChannelParts
from node.protocols.amqp.deliveries import ChannelConsumer, Verdict
from node.protocols.amqp.direct_reply import PSEUDO_QUEUE
from node.protocols.amqp.publishes import Confirms
from node.routing.shards import SHARD_OF

Work = Coroutine[Any, Any, None] | None
Basic, Confirm, Tx, Exchange, Queue = (
    commands.Basic,
    commands.Confirm,
    commands.Tx,
    commands.Exchange,
    commands.Queue,
)

PRIORITY_ARGUMENT = "x-priority"
TIMEOUT_ARGUMENT = "x-consumer-timeout"
CANCEL_ON_FAILOVER_ARGUMENT = "x-cancel-on-ha-failover"


def begin(channel: ChannelParts, method: base.Frame) -> Work:
    handler = _HANDLERS.get(type(method))
    if handler is None:
        raise ConnectionError_(COMMAND_INVALID, f"{method.name} is not for servers on a channel")
    return handler(channel, method)


# --- basic ----------------------------------------------------------------------------------------


def _ack(channel: ChannelParts, method: commands.Basic.Ack) -> Work:
    channel.deliveries.settle("ack", method.delivery_tag, multiple=bool(method.multiple))
    return None


def _nack(channel: ChannelParts, method: commands.Basic.Nack) -> Work:
    verdict: Verdict = "requeue" if method.requeue else "discard"
    channel.deliveries.settle(verdict, method.delivery_tag, multiple=bool(method.multiple))
    return None


def _reject(channel: ChannelParts, method: commands.Basic.Reject) -> Work:
    verdict: Verdict = "requeue" if method.requeue else "discard"
    channel.deliveries.settle(verdict, method.delivery_tag or 0, multiple=False)
    return None


def _qos(channel: ChannelParts, method: commands.Basic.Qos) -> Work:
    if method.prefetch_size:
        raise ConnectionError_(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    channel.deliveries.set_prefetch(method.prefetch_count, whole_channel=bool(method.global_))
    channel.send_method(Basic.QosOk())
    return None


async def _consume(channel: ChannelParts, method: commands.Basic.Consume) -> None:
    deliveries, host = channel.deliveries, channel.host
    tag = method.consumer_tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
    if tag in deliveries.consumers or (deliveries.reply_name and tag == deliveries.reply_tag):
        raise ConnectionError_(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    most = channel.services.settings.amqp_options.consumers_per_channel_max
    if most is not None and len(deliveries.consumers) >= most:
        raise ConnectionError_(NOT_ALLOWED, f"reached maximum ({most}) of consumers per channel")
    if method.queue == PSEUDO_QUEUE:
        _consume_replies(channel, method, tag)
        return
    info = await topology.find_queue(channel, method.queue)
    host.access.check("read", "queue", info.name)
    arguments = plain(method.arguments or {})
    if info.stream is not None:
        await _consume_stream(
            channel,
            method,
            ChannelConsumer(
                tag,
                info,
                exclusive=bool(method.exclusive),
                prefetch=deliveries.prefetch,
                arguments=arguments,
                silent=bool(method.nowait),
            ),
        )
        return
    stream_consumers.check_queue(info, arguments)
    consumer = ChannelConsumer(
        tag,
        info,
        no_ack=bool(method.no_ack),
        exclusive=bool(method.exclusive),
        priority=_integer(arguments, PRIORITY_ARGUMENT, -(2**31), 2**31 - 1) or 0,
        prefetch=deliveries.prefetch,
        arguments=arguments,
        timeout_ms=_timeout_ms(channel, info, arguments),
        cancel_on_failover=arguments.get(CANCEL_ON_FAILOVER_ARGUMENT) is True,
        silent=bool(method.nowait),
    )
    try:
        await deliveries.subscribe(consumer)
    except Refused as error:
        if error.code != codes.SINGLE_ACTIVE:
            raise
        raise ChannelError_(ACCESS_REFUSED, error.reason) from error  # A29; for a get it is 405


async def _consume_stream(
    channel: ChannelParts, method: commands.Basic.Consume, consumer: ChannelConsumer
) -> None:
    info, given = consumer.info, method.arguments or {}
    stream_consumers.check(info, method, consumer.prefetch)
    now_ms = channel.services.broker.cluster.now_ms()
    start = stream_consumers.start_of(info, given, now_ms)
    wanted = stream_consumers.wanted_of(info, given)
    await channel.deliveries.read_stream(consumer, start, wanted)


def _timeout_ms(channel: ChannelParts, info: QueueInfo, arguments: dict[str, Any]) -> int | None:
    """The consumer's own, or the queue's (None), or this node's when the queue has none (A19)."""
    own = _integer(arguments, TIMEOUT_ARGUMENT, 0, SPAN_MS_MAX)
    of_node = channel.services.settings.amqp_options.consumer_timeout_ms
    if own is not None or of_node == CONSUMER_TIMEOUT_MS or TIMEOUT_ARGUMENT in info.arguments:
        return own
    catalog = channel.services.broker.cluster.catalog_machine
    config = catalog.config_of(info.queue)
    by_policy = config is not None and config.consumer_timeout_ms != CONSUMER_TIMEOUT_MS
    return None if by_policy else of_node


def _consume_replies(channel: ChannelParts, method: commands.Basic.Consume, tag: str) -> None:
    deliveries = channel.deliveries
    if not method.no_ack:
        raise ChannelError_(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if deliveries.reply_name is not None:
        raise ChannelError_(PRECONDITION_FAILED, "reply consumer already set")
    deliveries.reply_name = channel.services.direct_replies.open(deliveries)
    deliveries.reply_tag = tag
    if not method.nowait:
        channel.send_method(Basic.ConsumeOk(tag))


def _integer(arguments: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if type(value) is not int or not low <= value <= high:
        raise ChannelError_(
            PRECONDITION_FAILED,
            f"invalid arg '{name}': must be a whole number from {low} to {high}",
        )
    return value


async def _cancel(channel: ChannelParts, method: commands.Basic.Cancel) -> None:
    deliveries = channel.deliveries
    tag = method.consumer_tag or ""
    if deliveries.reply_name is not None and tag == deliveries.reply_tag:
        channel.services.direct_replies.close(deliveries.reply_name)
        deliveries.reply_name = None
    else:
        await deliveries.cancel(tag)
    if not method.nowait:
        channel.send_method(Basic.CancelOk(tag))


async def _get(channel: ChannelParts, method: commands.Basic.Get) -> None:
    info = await topology.find_queue(channel, method.queue)
    channel.host.access.check("read", "queue", info.name)
    await channel.deliveries.get(info, no_ack=bool(method.no_ack))


def _recover(channel: ChannelParts, method: commands.Basic.Recover) -> Work:
    _recover_async(channel, method)
    channel.send_method(Basic.RecoverOk())
    return None


def _recover_async(
    channel: ChannelParts, method: commands.Basic.Recover | commands.Basic.RecoverAsync
) -> Work:
    if not method.requeue:
        raise ConnectionError_(NOT_IMPLEMENTED, "requeue=false")
    channel.deliveries.recover()
    return None


# --- confirm and tx -------------------------------------------------------------------------------


def _confirm_select(channel: ChannelParts, method: commands.Confirm.Select) -> Work:
    if channel.mode == "tx":
        raise ChannelError_(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if channel.publishes.confirms is None:
        channel.publishes.confirms = Confirms()
    if not method.nowait:
        channel.send_method(Confirm.SelectOk())
    return None


def _tx_select(channel: ChannelParts, _: commands.Tx.Select) -> Work:
    if channel.mode == "confirm":
        raise ChannelError_(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.mode == "plain":
        channel.publishes.begin()
        channel.deliveries.settles.begin()
    channel.send_method(Tx.SelectOk())
    return None


def _check_transactional(channel: ChannelParts) -> None:
    if channel.mode != "tx":
        raise ChannelError_(PRECONDITION_FAILED, "channel is not transactional")


async def _tx_commit(channel: ChannelParts, _: commands.Tx.Commit) -> None:
    """All or nothing, in however many queues (C28)."""
    _check_transactional(channel)
    gone = await channel.publishes.removed_shard()
    published, returns = channel.publishes.take_transaction()
    if gone is not None:
        channel.deliveries.settles.roll_back()
        raise ChannelError_(
            PRECONDITION_FAILED,
            f"partial tx completion: nothing was done: queue {gone.arguments[SHARD_OF]} was joined,"
            f" and its shard {gone.name} is removed: publish again",
        )
    settled = channel.deliveries.settles.take_transaction()
    steps: dict[GroupId, list[Any]] = {}
    for part in (published, settled):
        for group, commands_ in part.items():
            steps.setdefault(group, []).extend(commands_)
    if steps:
        try:
            await channel.services.transactions.commit(steps)
        except Refused as error:
            raise ChannelError_(
                PRECONDITION_FAILED, f"partial tx completion: {error.reason}"
            ) from error
        except OutcomeUnknown as error:
            raise ConnectionError_(INTERNAL_ERROR, error.reason) from error
    for returned in returns:
        channel.outlet.write(returned)
    channel.send_method(Tx.CommitOk())


def _tx_rollback(channel: ChannelParts, _: commands.Tx.Rollback) -> Work:
    _check_transactional(channel)
    channel.publishes.take_transaction()
    channel.deliveries.settles.roll_back()
    channel.send_method(Tx.RollbackOk())
    return None


def _nothing(*_: Any) -> Work:
    return None


_HANDLERS: dict[type[base.Frame], Callable[[ChannelParts, Any], Work]] = {
    Basic.Ack: _ack,
    Basic.Nack: _nack,
    Basic.Reject: _reject,
    Basic.Qos: _qos,
    Basic.Consume: _consume,
    Basic.Cancel: _cancel,
    Basic.CancelOk: _nothing,
    Basic.Get: _get,
    Basic.Recover: _recover,
    Basic.RecoverAsync: _recover_async,
    Confirm.Select: _confirm_select,
    Tx.Select: _tx_select,
    Tx.Commit: _tx_commit,
    Tx.Rollback: _tx_rollback,
    Exchange.Declare: topology.declare_exchange,
    Exchange.Delete: topology.delete_exchange,
    Exchange.Bind: topology.bind_exchange,
    Exchange.Unbind: topology.unbind_exchange,
    Queue.Declare: topology.declare_queue,
    Queue.Bind: topology.bind_queue,
    Queue.Unbind: topology.unbind_queue,
    Queue.Purge: topology.purge_queue,
    Queue.Delete: topology.delete_queue,
}
