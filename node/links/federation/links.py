"""Which exchanges and queues are federated with what, by the policies and parameters of the
catalog; and their links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final
from urllib.parse import quote

from aiormq.exceptions import AMQPError

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_entries import USER
from cluster.machine.catalog_routing import TRACE
from cluster.machine.policies import FEDERATION, PolicyTarget
from node.broker.broker import Broker
from node.broker.publishing import QueuePublisher
from node.errors import BrokerError
from node.links.amqp import AmqpClient
from node.links.federation import plan
from node.links.federation.connecting import Connecting, Federated, What
from node.links.federation.downstream import Downstream
from node.links.federation.exchanges import ExchangeLink
from node.links.federation.queues import QueueLink
from node.links.federation.upstreams import UPSTREAM, UPSTREAM_SET, Upstream, upstreams_of
from node.links.link import Link, LinkKey, LinkSpec
from node.links.ownership import anchor_of
from node.tasks import Tasks

KIND: Final = "federation"
#: What a link that is not wanted any more left upstream is removed within this, or stays.
CLEAN_S_MAX: Final = 10.0

_TARGETS: Final[Mapping[What, PolicyTarget]] = {"exchange": "exchanges", "queue": "queues"}

Parameters = Mapping[tuple[str, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Known:
    """What was found out about a vhost when it was so."""

    version: tuple[int, int, str]
    parameters: Parameters
    federated: dict[LinkKey, Federated]


class FederationLinks:
    """A kind of links: one per node."""

    name = KIND

    def __init__(
        self,
        cluster: ClusterNode,
        client: AmqpClient,
        broker: Broker,
        publisher: QueuePublisher,
        tasks: Tasks,
        *,
        cluster_name: Callable[[], str],
    ) -> None:
        self._cluster = cluster
        self._broker = broker
        self._tasks = tasks
        self._name = cluster_name
        self._connecting = Connecting(cluster, client)
        self._downstream = Downstream(cluster, broker, publisher)
        self._known: dict[str, _Known] = {}

    def wanted(self) -> list[LinkSpec]:
        catalog = self._cluster.catalog_machine
        return [self._spec(catalog, key, each) for key, each in self._federated(catalog).items()]

    def _spec(self, catalog: CatalogMachine, key: LinkKey, federated: Federated) -> LinkSpec:
        end = federated.end
        queues = [(end.vhost, end.name)] if federated.what == "queue" else []
        return LinkSpec(
            key,
            definition=federated,
            anchor=anchor_of(catalog, key, queues),
            reconnect_delay_s=federated.upstream.reconnect_delay_s,
            run=partial(self._run, key, federated),
        )

    def _federated(self, catalog: CatalogMachine) -> dict[LinkKey, Federated]:
        by_vhost: dict[str, dict[tuple[str, ...], Mapping[str, Any]]] = {}
        for key, entry in catalog.entries("parameters").items():
            if key[0] in (UPSTREAM, UPSTREAM_SET):
                by_vhost.setdefault(key[1], {})[key] = entry
        self._known = {
            vhost: self._of_vhost(catalog, vhost, parameters)
            for vhost, parameters in by_vhost.items()
        }
        return {
            key: each for known in self._known.values() for key, each in known.federated.items()
        }

    def _of_vhost(self, catalog: CatalogMachine, vhost: str, parameters: Parameters) -> _Known:
        cluster = self._name()
        version = catalog.routing_version(vhost), catalog.policy_version, cluster
        known = self._known.get(vhost)
        if known is None or known.version != version or known.parameters != parameters:
            found = federated_in(catalog, vhost, parameters, cluster)
            known = _Known(version, parameters, {key_of(each): each for each in found})
        return known

    # --- running ----------------------------------------------------------------------------------

    async def _run(self, key: LinkKey, federated: Federated, link: Link) -> None:
        try:
            if federated.what == "exchange":
                await ExchangeLink(federated, self._connecting, self._downstream).run(link)
            else:
                run = QueueLink(federated, self._connecting, self._downstream, self._broker).run
                await run(link)
        except asyncio.CancelledError:
            if federated.what == "exchange" and not self._is_wanted(key, federated):
                self._tasks.start(self._clean(federated), name="federation_clean")
            raise

    def _is_wanted(self, key: LinkKey, federated: Federated) -> bool:
        """By this node or the next owner, which then goes on with what is upstream."""
        now = self._federated(self._cluster.catalog_machine).get(key)
        return now is not None and now.upstream.uris == federated.upstream.uris

    async def _clean(self, federated: Federated) -> None:
        """What collects upstream, if nobody here will ever read it; in doubt it stays."""
        if federated.upstream.keeps_resources:
            return
        with suppress(OSError, TimeoutError, AMQPError, BrokerError):
            async with asyncio.timeout(CLEAN_S_MAX), self._connecting.open(federated) as connection:
                upstream = federated.upstream_end(connection)
                if not await self._broker.catch_up() or await self._is_read(federated, upstream):
                    return
                queue = plan.queue_name(upstream, federated.end)
                channel = await connection.channel()
                await channel.queue_delete(queue)
                for suffix in plan.SUFFIXES:
                    await channel.exchange_delete(plan.exchange_name(queue, suffix))

    async def _is_read(self, federated: Federated, upstream: plan.End) -> bool:
        """Whether a link that is wanted has the same queue there: one whose URIs were changed, or
        whose policy is back. Other URIs may lead to the same cluster: only that itself knows.
        """
        for each in self._federated(self._cluster.catalog_machine).values():
            alike = (each.what, each.end, each.upstream_name)
            if alike == (federated.what, federated.end, federated.upstream_name):
                async with self._connecting.open(each) as connection:
                    if each.upstream_end(connection) == upstream:
                        return True
        return False


# --- what is federated ----------------------------------------------------------------------------


def federated_in(
    catalog: CatalogMachine, vhost: str, parameters: Parameters, cluster: str
) -> Iterator[Federated]:
    """Exchanges and queues of the vhost, with each of their upstreams. Pure."""
    of_policy: dict[str, list[Upstream]] = {}
    policies = [e for (owner, _), e in catalog.entries("policies").items() if owner == vhost]
    if not any(set(FEDERATION) & e["definition"].keys() for e in policies):
        return
    for what, name in _names(catalog, vhost):
        policy = catalog.policy_for(vhost, name, _TARGETS[what])
        if policy is None:
            continue
        upstreams = of_policy.get(policy[0])
        if upstreams is None:
            definition = policy[1]["definition"]
            upstreams = of_policy[policy[0]] = upstreams_of(parameters, vhost, definition)
        for upstream in upstreams:
            entry = parameters.get((UPSTREAM, vhost, upstream.name), {})
            yield Federated(what, plan.End(cluster, vhost, name), upstream, entry.get(USER, ""))


def _names(catalog: CatalogMachine, vhost: str) -> Iterator[tuple[What, str]]:
    """What may be federated: nothing that a link has made itself, or that has one user."""
    for exchange in catalog.exchanges(vhost):
        if exchange.name not in ("", TRACE) and not exchange.internal:
            yield "exchange", exchange.name
    for queue in catalog.queues(vhost):
        if not queue.exclusive and queue.stream is None and plan.PURPOSE not in queue.arguments:
            yield "queue", queue.name


def key_of(federated: Federated) -> LinkKey:
    words = (federated.what, federated.end.name, federated.upstream.name, federated.upstream_name)
    return LinkKey(KIND, federated.end.vhost, " ".join(quote(word, safe="") for word in words))


def id_of(key: LinkKey) -> str:
    """A short name, for paths."""
    return blake2b("\0".join(key).encode(), digest_size=4).hexdigest()
