"""Exchanges for native clients: made, bound, and published to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from cluster.groups.outcome import called_back
from cluster.machine import commands
from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.replies import Reply
from cluster.types import QueueId
from node.broker.broker import Broker
from node.broker.ingress import Attrs, check_attrs, check_name, shown
from node.broker.publishing import QueuePublisher
from node.broker.stream_attrs import with_subjects
from node.clients.client_session import ClientSession
from node.errors import OutcomeUnknown, Refused, reply_of
from node.messages import properties as amqp
from node.messages.message import routing_key_of, where_of
from node.messages.plain_values import wrong_beside_bodies, wrong_value
from node.protocols.native import requests

NO_EXCHANGE = "no_exchange"
#: How long a publish waits for its queues; the node goes on trying to store it.
PUBLISH_S_MAX = 15.0
#: What a client may say beside the body has a name here, or stands where the message goes.
_ELSEWHERE = frozenset({"key", "exchange"})


@dataclass(slots=True)
class Share:
    """What one queue gets of a publish."""

    info: QueueInfo
    bodies: list[bytes] = field(default_factory=list[bytes])
    metas: list[bytes] = field(default_factory=list[bytes])
    attrs: list[Attrs | None] = field(default_factory=list["Attrs | None"])


class Exchanges:
    """What native clients ask of them."""

    def __init__(self, broker: Broker, publisher: QueuePublisher) -> None:
        self._broker = broker
        self._publisher = publisher

    # --- made and bound ---------------------------------------------------------------------------

    async def declare(self, connection: ClientSession, frame: requests.DeclareExchange) -> None:
        """Raises BrokerError."""
        name, vhost, access = frame.exchange, connection.vhost, connection.access
        check_name(name, "exchange")
        wrong = wrong_value(frame.arguments)
        if wrong is not None:
            raise Refused(codes.BAD_ARGUMENT, f"arguments of an exchange: {wrong}")
        known = self._broker.cluster.catalog_machine.exchange(vhost, name) is not None
        if access is not None and not known:
            access.check_alternate(name, frame.arguments)
        await self._change(
            commands.DeclareExchange(
                vhost,
                name,
                frame.type,
                durable=frame.durable,
                auto_delete=frame.auto_delete,
                internal=frame.internal,
                arguments=frame.arguments,
            )
        )
        connection.answer(frame.request)

    async def delete(self, connection: ClientSession, frame: requests.DeleteExchange) -> None:
        """Raises BrokerError."""
        command = commands.DeleteExchange(
            connection.vhost, frame.exchange, if_unused=frame.if_unused
        )
        await self._change(command)
        connection.answer(frame.request)

    async def bind(self, connection: ClientSession, frame: requests.Bind) -> None:
        """Or unbound. Raises BrokerError."""
        vhost, access = connection.vhost, connection.access
        wrong = wrong_value(frame.arguments)
        if wrong is not None:
            raise Refused(codes.BAD_ARGUMENT, f"arguments of a binding: {wrong}")
        if frame.kind == "queue":
            await self._broker.find_shared(vhost, frame.destination)
        if access is not None:
            await self._broker.check_binding(
                access, frame.source, frame.kind, frame.destination, frame.key
            )
        command = commands.Bind if frame.bound else commands.Unbind
        await self._change(
            command(vhost, frame.source, frame.kind, frame.destination, frame.key, frame.arguments)
        )
        connection.answer(frame.request)

    async def _change(self, command: commands.Command) -> Reply:
        return reply_of(await self._broker.cluster.change(command))

    # --- published to -----------------------------------------------------------------------------

    async def publish(self, connection: ClientSession, frame: requests.PublishTo) -> None:
        """Answered when all queues have it: OK has how many messages any queue got."""
        room = self._broker.ingress.room
        shares, routed = await self.shares(connection, frame)
        size_bytes = sum(map(len, frame.bodies))
        async with room.of(size_bytes):
            try:
                async with asyncio.timeout(PUBLISH_S_MAX):
                    full = await asyncio.gather(*map(self._stored, shares))
            except TimeoutError as error:
                raise OutcomeUnknown("the queues did not answer in time") from error
        names = [name for name in full if name is not None]
        if names:
            raise Refused(
                codes.QUEUE_FULL,
                f"queue {names[0]} is at its limit, and did not take all; others may have",
            )
        connection.answer(frame.request, routed)

    async def _stored(self, share: Share) -> str | None:
        """The name of the queue if it refused some."""
        size_bytes = sum(map(len, share.bodies)) + sum(map(len, share.metas))
        refused = await called_back(
            lambda done: self._publisher.publish(
                share.info, share.bodies, share.metas, attrs_of(share), size_bytes, done
            )
        )
        return share.info.name if refused else None

    async def shares(
        self, connection: ClientSession, frame: requests.PublishTo
    ) -> tuple[list[Share], int]:
        """What each queue gets; and how many messages go anywhere. Raises BrokerError."""
        ingress, access = self._broker.ingress, connection.access
        assert access is not None, "whoever came through a socket is somebody"
        access.check("write", "exchange", frame.exchange)
        if not frame.bodies:
            raise Refused(codes.BAD_ARGUMENT, "a publish has one or more bodies")
        for body in frame.bodies:
            ingress.check_size(len(body), in_parts=False)
        ingress.check_alarms()
        check_attrs(frame.attrs, len(frame.bodies), self._broker.cluster.now_ms())
        where = _where(frame)
        shares: dict[QueueId, Share] = {}
        routed, fresh = 0, False
        for body, meta, own in _each(frame):
            properties = _properties(meta)
            asked, properties = await ingress.interpret_in_time(access, properties)
            attrs: Attrs = {**(asked or {}), **cast("Attrs", own or {})}
            route = ingress.route(access, frame.exchange, frame.key, properties, attrs)
            if not fresh and ingress.in_doubt(frame.exchange, route):
                await self._broker.catch_up()
                fresh = True
                route = ingress.route(access, frame.exchange, frame.key, properties, attrs)
            if route is None:
                raise Refused(
                    NO_EXCHANGE,
                    f"there is no exchange '{frame.exchange}' in virtual host"
                    f" '{connection.vhost}': declare it first",
                )
            routed += bool(route.queues)
            properties = shown(properties)
            for info in route.queues:
                share = shares.get(info.queue) or shares.setdefault(info.queue, Share(info))
                share.bodies.append(body)
                share.metas.append(where + properties)
                share.attrs.append(ingress.attrs_for_queue(info, attrs or None, properties))
        if shares:
            ingress.check_vhost(connection.vhost)
        return list(shares.values()), routed


def attrs_of(share: Share) -> Any:
    """As a command has them."""
    attrs = with_subjects(share.info, map(routing_key_of, share.metas), share.attrs)
    return attrs if any(attrs) else None


def _where(frame: requests.PublishTo) -> bytes:
    try:
        return where_of(frame.exchange, frame.key)
    except ValueError as error:
        raise Refused(
            codes.BAD_ARGUMENT, "names of exchanges and routing keys have at most 255 bytes"
        ) from error


def _each(frame: requests.PublishTo) -> Iterator[tuple[bytes, Any, Any]]:
    """Bodies with what is beside each."""
    count = len(frame.bodies)
    wrong = wrong_beside_bodies(frame.meta)
    if wrong is not None:
        raise Refused(codes.BAD_ARGUMENT, f"headers and properties of a message: {wrong}")

    def spread(value: Any) -> list[Any]:
        if type(value) is not list:
            return [value] * count
        values = cast("list[Any]", value)
        if len(values) != count:
            raise Refused(codes.BAD_ARGUMENT, "a list of meta or attrs has one for each body")
        return values

    return zip(frame.bodies, spread(frame.meta), spread(frame.attrs), strict=True)


def _properties(meta: Any) -> bytes:
    """Those of AMQP, by which headers exchanges route, and which consumers are to see."""
    if meta is not None and type(meta) is not dict:
        raise Refused(codes.BAD_ARGUMENT, "through an exchange, meta is a map of properties")
    given = {
        name: value
        for name, value in cast("dict[str, Any]", meta or {}).items()
        if name not in _ELSEWHERE
    }
    try:
        return amqp.build({"delivery_mode": 2, **given})
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(codes.BAD_ARGUMENT, f"properties of a message: {error}") from error
