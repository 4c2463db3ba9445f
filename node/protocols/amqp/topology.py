"""Exchanges, queues and bindings as clients make, find and remove them.

What is declared again as it is already is answered from this node's copy of the catalog; what
changes anything is answered when every node that is up knows it.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from pamqp import commands

from cluster.machine import replies as codes
from cluster.machine.arguments import (
    QUEUE_TYPE,
    STREAM,
    STREAM_CONFIG,
    ArgumentError,
    parse_arguments,
)
from cluster.machine.catalog import QueueInfo
from cluster.machine.catalog_commands import DestinationKind
from cluster.machine.catalog_queues import difference
from cluster.machine.catalog_routing import RESERVED_PREFIX
from cluster.machine.commands import (
    Bind,
    Command,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    Unbind,
)
from cluster.machine.replies import Reply
from node.broker.broker import check_placed, reserved, transient_by
from node.errors import Elsewhere, Refused, reply_of
from node.messages.amqp_errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    ChannelError_,
    ConnectionError_,
)
from node.messages.tables import plain
from node.protocols.amqp import stream_arguments
from node.protocols.amqp.channel_parts import ChannelParts
from node.protocols.amqp.direct_reply import PREFIX, PSEUDO_QUEUE
from node.protocols.amqp.methods import made
from node.protocols.amqp.refusals import locked, no_exchange, no_queue
from node.routing.shards import undeletable

Exchange, Queue = commands.Exchange, commands.Queue

NAME_BYTES_MAX = 255


# --- finding --------------------------------------------------------------------------------------


async def find_queue(channel: ChannelParts, name: str, *, now: bool = False) -> QueueInfo:
    """The queue, if this connection may touch it. An empty name is the one declared last."""
    host = channel.host
    if not name:
        name = channel.last_queue
        if not name:
            raise ChannelError_(NOT_FOUND, "no previously declared queue")
    broker = channel.services.broker
    info = broker.locate(host.vhost, name)
    if info is None or now:
        try:
            info = await channel.patiently(lambda: broker.find(host.vhost, name, now=now))
        except Refused as error:
            if error.code == codes.NO_QUEUE:
                raise no_queue(host.vhost, name) from error
            raise
    if info.exclusive and info.owner != host.id:
        raise locked(host.vhost, name)
    return info


async def _counts(channel: ChannelParts, info: QueueInfo) -> tuple[int, int]:
    """Of a split queue the messages of all shards, to each of which its consumers subscribe."""
    ready, consumers = await _counts_of(channel, info)
    for shard in channel.services.broker.parts(info)[1:]:
        ready += (await _counts_of(channel, shard))[0]
    return ready, consumers


async def _counts_of(channel: ChannelParts, info: QueueInfo) -> tuple[int, int]:
    """Ready messages and consumers, from the leader. In the catalog and not in its group is a queue
    that comes, or one that went with its node: time tells.
    """
    services = channel.services
    broker = services.broker

    async def ask() -> tuple[int, int]:
        leads = broker.leads(info.group)
        if leads and not channel.publishes.used:
            view = broker.machine(info.group).queue(info.queue)
            if view is not None:
                return view.ready_count, len(view.consumers)
        else:
            # Behind what this channel has just published.
            about = await (broker.info(info) if leads else services.relay.info(info))
            if "ready" in about:
                return about["ready"], len(about["consumers"])
        raise Refused(codes.NO_QUEUE, f"no queue '{info.name}' in vhost '{info.vhost}'")

    return await channel.patiently(ask, info)


async def _change(channel: ChannelParts, command: Command) -> Reply:
    return reply_of(await channel.services.broker.cluster.change(command))


def _check_text(value: str, what: str) -> None:
    if len(value.encode()) > NAME_BYTES_MAX or "\x00" in value:
        raise ChannelError_(PRECONDITION_FAILED, f"invalid {what} name")


# --- exchanges ------------------------------------------------------------------------------------


async def declare_exchange(channel: ChannelParts, method: commands.Exchange.Declare) -> None:
    host = channel.host
    name, vhost = method.exchange, host.vhost
    catalog = channel.services.broker.cluster.catalog_machine
    if name == "":
        raise ChannelError_(ACCESS_REFUSED, "operation not permitted on the default exchange")
    if method.passive:
        if catalog.exchange(vhost, name) is None:
            await channel.services.broker.catch_up()
        if catalog.exchange(vhost, name) is None:
            raise no_exchange(vhost, name)
    else:
        host.access.check("configure", "exchange", name)
        _check_text(name, "exchange")
        known = catalog.exchange(vhost, name)
        if known is None and (name == "" or name.startswith(RESERVED_PREFIX)):
            raise ChannelError_(
                ACCESS_REFUSED, f"exchange name '{name}' contains reserved prefix 'amq.*'"
            )
        arguments = plain(method.arguments or {})
        if known is None:
            host.access.check_alternate(name, arguments)
        await _change(
            channel,
            DeclareExchange(
                vhost,
                name,
                method.exchange_type,
                durable=bool(method.durable),
                auto_delete=bool(method.auto_delete),
                internal=bool(method.internal),
                arguments=arguments,
            ),
        )
    if not method.nowait:
        channel.send_method(Exchange.DeclareOk())


async def delete_exchange(channel: ChannelParts, method: commands.Exchange.Delete) -> None:
    channel.host.access.check("configure", "exchange", method.exchange)
    command = DeleteExchange(channel.host.vhost, method.exchange, if_unused=bool(method.if_unused))
    await _change(channel, command)
    if not method.nowait:
        channel.send_method(Exchange.DeleteOk())


async def bind_exchange(channel: ChannelParts, method: commands.Exchange.Bind) -> None:
    arguments = plain(method.arguments or {})
    await _bind(
        channel, Bind, method.source, "exchange", method.destination, method.routing_key, arguments
    )
    if not method.nowait:
        channel.send_method(Exchange.BindOk())


async def unbind_exchange(channel: ChannelParts, method: commands.Exchange.Unbind) -> None:
    arguments = plain(method.arguments or {})
    await _bind(
        channel,
        Unbind,
        method.source,
        "exchange",
        method.destination,
        method.routing_key,
        arguments,
    )
    if not method.nowait:
        channel.send_method(Exchange.UnbindOk())


async def _bind(
    channel: ChannelParts,
    kind_of_command: type[Bind | Unbind],
    source: str,
    kind: DestinationKind,
    destination: str,
    key: str,
    arguments: dict[str, Any],
) -> None:
    host = channel.host
    await channel.services.broker.check_binding(host.access, source, kind, destination, key)
    await _change(channel, kind_of_command(host.vhost, source, kind, destination, key, arguments))


# --- queues ---------------------------------------------------------------------------------------


async def declare_queue(channel: ChannelParts, method: commands.Queue.Declare) -> None:
    name = method.queue
    if name == PSEUDO_QUEUE or name.startswith(PREFIX):
        await _declare_replies(channel, method)
        return
    ahead, broker = channel.declares_ahead, channel.services.broker
    ahead.begin(
        channel.waiting,
        partial(_declared_and_counted, channel),
        lambda new: (
            new != name and reserved(new) is None and broker.locate(channel.host.vhost, new) is None
        ),
    )
    found = await ahead.take(method) or await _declared_and_counted(channel, method)
    channel.last_queue, ready, consumers = found
    if not method.nowait:
        channel.send_method(
            made(
                Queue.DeclareOk,
                queue=channel.last_queue,
                message_count=ready,
                consumer_count=consumers,
            )
        )


async def _declared_and_counted(
    channel: ChannelParts, method: commands.Queue.Declare
) -> tuple[str, int, int]:
    while True:
        if method.passive:
            info = await find_queue(channel, method.queue)
        else:
            info = await _declared(channel, method)
        try:
            return info.name, *await _counts(channel, info)
        except Refused as error:
            catalog = channel.services.broker.cluster.catalog_machine
            gone = error.code == codes.NO_QUEUE and catalog.queue_by_id(info.queue) is None
            if method.passive or not gone:
                raise
            # It was deleted, and this node's copy of the catalog has heard of that only now.


async def _declared(channel: ChannelParts, method: commands.Queue.Declare) -> QueueInfo:
    host, broker = channel.host, channel.services.broker
    name, vhost = method.queue, host.vhost
    server_named = name == ""
    if server_named:
        name = f"amq.gen-{secrets.token_urlsafe(16)}"
    host.access.check("configure", "queue", name)
    known = broker.locate(vhost, name)
    why = None if server_named else reserved(name)
    if known is None and why is not None:
        raise ChannelError_(ACCESS_REFUSED, why)
    _check_text(name, "queue")
    exclusive, auto_delete = bool(method.exclusive), bool(method.auto_delete)
    transient = transient_by(
        durable=bool(method.durable),
        exclusive=exclusive,
        auto_delete=auto_delete,
        named=not server_named,
    )
    asked = plain(method.arguments or {})
    arguments = broker.with_type(vhost, name, asked, transient=transient)
    check_placed(known, vhost, name, arguments)
    if arguments[QUEUE_TYPE] == STREAM:
        catalog = broker.cluster.catalog_machine
        arguments = stream_arguments.as_declared(catalog, vhost, name, arguments)
    durable = bool(method.durable) and not exclusive  # as RabbitMQ has it, whatever was said
    owner = host.id if exclusive else None
    if known is not None:
        config = parse_arguments(arguments)
        if isinstance(config, ArgumentError):
            raise Refused(config.code, config.reason)
        refused = difference(
            known,
            DeclareQueue(
                vhost,
                name,
                arguments,
                durable=durable,
                auto_delete=auto_delete,
                exclusive=exclusive,
                owner=owner,
            ),
        )
        if refused is not None:
            raise Refused(refused.code, refused.reason)
        broker.cluster.names.declared_count += 1
        return known
    host.access.check_dead_letters(name, arguments)
    if exclusive:  # from now on: should the connection end meanwhile, the queue must end with it
        host.exclusive_queues[name] = None
    outcome = await broker.cluster.declare_queue(
        vhost,
        name,
        arguments,
        durable=durable,
        auto_delete=auto_delete,
        exclusive=exclusive,
        transient=transient is not None,
        owner=owner,
    )
    if outcome.code == codes.INEQUIVALENT and STREAM_CONFIG in arguments:
        # Another node has just made it. Configurations may differ for the same declaration.
        await broker.catch_up()
        if broker.locate(vhost, name) is not None:
            return await _declared(channel, method)
    reply_of(outcome)
    info = broker.locate(vhost, name)
    if info is None:  # deleted again at once, and this client is to have it all the same
        return await _declared(channel, method)
    return info


async def _declare_replies(channel: ChannelParts, method: commands.Queue.Declare) -> None:
    """Responders ask this way whether the requester is still there."""
    name = method.queue
    if name != PSEUDO_QUEUE and not await channel.services.direct_replies.exists(name):
        raise no_queue(channel.host.vhost, name)
    if not method.nowait:
        channel.send_method(made(Queue.DeclareOk, queue=name, message_count=0, consumer_count=1))


async def bind_queue(channel: ChannelParts, method: commands.Queue.Bind) -> None:
    info = await find_queue(channel, method.queue)
    arguments = plain(method.arguments or {})
    key = _key_of(method, info)
    await _bind(channel, Bind, method.exchange, "queue", info.name, key, arguments)
    if not method.nowait:
        channel.send_method(Queue.BindOk())


async def unbind_queue(channel: ChannelParts, method: commands.Queue.Unbind) -> None:
    try:
        info = await find_queue(channel, method.queue)
    except ChannelError_ as error:
        if error.code != NOT_FOUND:
            raise
    else:
        arguments = plain(method.arguments or {})
        key = _key_of(method, info)
        await _bind(channel, Unbind, method.exchange, "queue", info.name, key, arguments)
    channel.send_method(Queue.UnbindOk())


def _key_of(method: commands.Queue.Bind | commands.Queue.Unbind, info: QueueInfo) -> str:
    """Without a name and a key: the last queue, under its own name (AMQP 0-9-1, queue.bind)."""
    return method.routing_key or ("" if method.queue else info.name)


async def purge_queue(channel: ChannelParts, method: commands.Queue.Purge) -> None:
    info = await find_queue(channel, method.queue)
    channel.host.access.check("read", "queue", info.name)
    broker, count = channel.services.broker, 0
    for each in broker.parts(info):
        count += await channel.patiently(partial(broker.purge_alone, each), each)
    if not method.nowait:
        channel.send_method(Queue.PurgeOk(count))


async def delete_queue(channel: ChannelParts, method: commands.Queue.Delete) -> None:
    channel.deliveries.hold_notices()
    try:
        count = await _delete(channel, method)
        if not method.nowait:
            channel.send_method(Queue.DeleteOk(count))
    finally:
        channel.deliveries.flush_cancels()


async def _delete(channel: ChannelParts, method: commands.Queue.Delete) -> int:
    """How many messages went with it. Deleting what is not there is fine, as in RabbitMQ."""
    host, cluster = channel.host, channel.services.broker.cluster
    count = 0
    try:
        info = await find_queue(channel, method.queue, now=True)
    except ChannelError_ as error:
        if error.code != NOT_FOUND or not (method.queue or channel.last_queue):
            raise
    else:
        host.access.check("configure", "queue", info.name)
        try:
            why = undeletable(cluster.catalog_machine, info)
            if why is not None:
                raise ChannelError_(PRECONDITION_FAILED, why)
            count, _ = await _counts(channel, info)
            reply_of(
                await cluster.remove_queue(
                    host.vhost,
                    info.name,
                    if_unused=bool(method.if_unused),
                    if_empty=bool(method.if_empty),
                )
            )
        except Elsewhere as error:
            raise ConnectionError_(541, error.reason) from error
        except Refused as error:
            if error.code == codes.NO_QUEUE:
                count = 0
            elif error.code in {codes.IN_USE, codes.NOT_EMPTY}:
                how = "in use" if error.code == codes.IN_USE else "not empty"
                raise ChannelError_(
                    PRECONDITION_FAILED, f"queue '{info.name}' in vhost '{host.vhost}' {how}"
                ) from error
            else:
                raise
        host.exclusive_queues.pop(info.name, None)
    return count
