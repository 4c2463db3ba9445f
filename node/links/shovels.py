"""Shovels: each moves what comes to a source to a destination, for as long as its parameter is in
the catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import structlog
from aiormq import AMQPError

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog_entries import ID, USER
from cluster.machine.commands import DropEntry
from node.errors import Refused, reply_of
from node.links.amqp import AmqpClient
from node.links.definition import is_local, place_of, without_password
from node.links.link import Link, LinkKey, LinkSpec
from node.links.moving import move
from node.links.ownership import anchor_of
from node.links.shovel import (
    COMPONENT,
    AmqpDestination,
    AmqpSource,
    NatsDestination,
    NatsSource,
    Shovel,
    parse,
)
from node.links.shovel_amqp import AmqpConsumer, AmqpPublisher, Running
from node.links.shovel_nats import CONNECT_ERRORS, NatsConsumer, NatsPublisher, open_nats

log = structlog.get_logger(__name__)

Consumer = AmqpConsumer | NatsConsumer
Publisher = AmqpPublisher | NatsPublisher


class Shovels:
    """Of this node: which there should be in the cluster, and how each is run."""

    name = COMPONENT

    def __init__(
        self, cluster: ClusterNode, client: AmqpClient, cluster_name: Callable[[], str]
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._cluster_name = cluster_name

    def wanted(self) -> list[LinkSpec]:
        parameters = self._cluster.catalog_machine.entries("parameters")
        specs: list[LinkSpec] = []
        for key, entry in parameters.items():
            if key[0] != COMPONENT or USER not in entry:  # else an earlier release kept it
                continue
            try:
                specs.append(self._spec(key[1], key[2], entry))
            except Refused as refused:  # another release took it
                log.warning("shovel_unreadable", vhost=key[1], shovel=key[2], reason=refused.reason)
        return specs

    def _spec(self, vhost: str, name: str, entry: Mapping[str, Any]) -> LinkSpec:
        key = LinkKey(COMPONENT, vhost, name)
        shovel = parse(name, entry["value"])
        anchor = anchor_of(self._cluster.catalog_machine, key, _queues_here(vhost, shovel))
        run = partial(self._run, shovel, entry)
        return LinkSpec(key, entry, anchor, shovel.reconnect_delay_s, run)

    async def _run(self, shovel: Shovel, entry: Mapping[str, Any], link: Link) -> None:
        key = link.spec.key
        running = Running(
            shovel,
            self._client,
            name=key.name,
            vhost=key.vhost,
            user=entry[USER],
            id=entry[ID],
            cluster_name=self._cluster_name(),
        )
        async with _open(running) as (consumer, publisher):
            link.running(src_uri=consumer.uri, dest_uri=publisher.uri)
            await move(link, consumer, publisher, shovel.ack_mode, under_way_max=shovel.prefetch)
        await self._delete(key, entry)

    async def _delete(self, key: LinkKey, entry: Mapping[str, Any]) -> None:
        """It has moved what it should, and is not needed any more."""
        if self._cluster.catalog_machine.entry("parameters", key) == entry:
            reply_of(await self._cluster.change(DropEntry("parameters", key)))


@asynccontextmanager
async def _open(running: Running) -> AsyncGenerator[tuple[Consumer, Publisher]]:
    """Both ends, connected: the destination first, so that what is taken has where to go."""
    shovel = running.shovel
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as open_ends:
        publisher: Publisher
        consumer: Consumer
        to, source = shovel.destination, shovel.source
        if isinstance(to, NatsDestination):
            lost: asyncio.Future[Any] = loop.create_future()
            opened = open_nats(to.uris, name=running.shown_name, lost=lost)
            with _told_of("destination", to.uris):
                publisher = NatsPublisher(*await open_ends.enter_async_context(opened), to, shovel)
        else:
            with _told_of("destination", to.uris):
                connection = await running.connect(to.uris)
            open_ends.push_async_callback(connection.close)
            publisher, lost = AmqpPublisher(running, connection, to), connection.lost
        if isinstance(source, NatsSource):
            own: asyncio.Future[Any] = loop.create_future()
            opened = open_nats(source.uris, name=running.shown_name, lost=own)
            with _told_of("source", source.uris):
                consumer = NatsConsumer(*await open_ends.enter_async_context(opened), running.id)
            consumer.ends_with(own, "the connection to the source was closed")
        else:
            with _told_of("source", source.uris):
                connection = await running.connect(source.uris)
            open_ends.push_async_callback(connection.close)
            consumer = AmqpConsumer(running, connection)
        if isinstance(publisher, AmqpPublisher):
            await publisher.begin(_passport(running, consumer.uri, publisher.uri))
        consumer.ends_with(lost, "the connection to the destination was closed")
        await consumer.begin(cast(Any, source), shovel)
        yield consumer, publisher


@contextmanager
def _told_of(end: str, uris: Sequence[str]) -> Generator[None]:
    """What a client library raises names neither the end nor its address."""
    try:
        yield
    except (*CONNECT_ERRORS, AMQPError) as error:
        why = str(error) or type(error).__name__
        places = ", ".join(map(without_password, uris))
        raise ConnectionError(f"cannot connect to the {end} {places}: {why}") from error


def _passport(running: Running, src_uri: str, dest_uri: str) -> dict[str, Any]:
    """What `x-shovelled` tells, in RabbitMQ's words."""
    given = running.shovel.given
    ends = ("src-queue", "src-exchange", "src-exchange-key", "dest-queue", "dest-exchange")
    return {
        "shovelled-by": running.cluster_name,
        "shovel-type": "dynamic",
        "shovel-name": running.name,
        "shovel-vhost": running.vhost,
        "src-uri": src_uri,
        "dest-uri": dest_uri,
        **{name: given[name] for name in (*ends, "dest-exchange-key") if given.get(name)},
    }


def _queues_here(vhost: str, shovel: Shovel) -> list[tuple[str, str]]:
    """Of its ends, those that are queues of this cluster: the source first."""
    found: list[tuple[str, str]] = []
    for end in (shovel.source, shovel.destination):
        if isinstance(end, (AmqpSource, AmqpDestination)) and end.queue is not None:
            local = next((uri for uri in end.uris if is_local(uri)), None)
            if local is not None:
                place = place_of(local).vhost
                found.append((vhost if place is None else place, end.queue))
    return found
