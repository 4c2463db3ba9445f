"""Which modules make up which endpoint, and how a scrape is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from node.metrics import (
    counted,
    detailed,
    identity,
    own,
    own_latencies,
    own_node,
    own_queues,
    own_raft,
    queues,
    raft,
    resources,
)
from node.metrics.families import Many
from node.metrics.scrape import EndpointName, Scrape
from node.metrics.sources import Sources

Collect = Callable[[Sources, Scrape], Iterator[Metric]]

#: What is compressed at once; more than that by a thread.
INLINE_BYTES_MAX = 256 << 10

MODULES: Mapping[EndpointName, Sequence[Collect]] = {
    "aggregated": (
        identity.collect,
        counted.collect,
        resources.collect,
        queues.collect,
        raft.collect,
        own.collect,
        own_raft.collect,
        own_node.collect,
        own_latencies.collect,
        own_queues.aggregated,
    ),
    "per-object": (
        identity.collect,
        counted.collect,
        resources.collect,
        queues.collect_each,
        raft.collect_each,
        own_queues.per_object,
    ),
    "detailed": (identity.collect, detailed.collect),
}


def families(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    """Each is whole when it comes: what it was read from may change before the next one."""
    sources.begin()
    for collect in MODULES[scrape.endpoint]:
        yield from collect(sources, scrape)


async def exposition(sources: Sources, scrape: Scrape) -> bytes:
    """With 10,000 queues one by one it is 20 MB of text, during which the node must do its work."""
    await sources.rows.freshen()
    parts: list[bytes] = []
    for family in families(sources, scrape):
        if not isinstance(family, Many):
            parts.append(generate_latest(_Given(family)))
            continue
        for piece in family.text():
            parts.append(piece.encode())
            await asyncio.sleep(0)
    return b"".join(parts)


class _Given(CollectorRegistry):
    """One family that was read already."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Endpoints:
    """One per node. Nobody needs a password for them: what they tell holds no secret."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.aggregated)
        app.router.add_get("/metrics/per-object", self.per_object)
        app.router.add_get("/metrics/detailed", self.detailed)

    async def aggregated(self, _: web.Request) -> web.Response:
        return await self._answer(Scrape("aggregated"))

    async def per_object(self, _: web.Request) -> web.Response:
        return await self._answer(Scrape("per-object"))

    async def detailed(self, request: web.Request) -> web.Response:
        families = frozenset(request.query.getall("family", []))
        unknown = families - detailed.FAMILIES.keys() - detailed.ABSENT
        if unknown:
            known = ", ".join(detailed.FAMILIES)
            reason = f"there is no family {min(unknown)!r}: ask for some of {known}"
            body = json.dumps({"code": "bad_argument", "reason": reason})
            return web.Response(status=400, text=body, content_type="application/json")
        return await self._answer(
            Scrape("detailed", families, _some(request, "vhost"), _some(request, "queue"))
        )

    async def _answer(self, scrape: Scrape) -> web.Response:
        body = await exposition(self._sources, scrape)
        headers = {"Content-Type": CONTENT_TYPE_LATEST}
        answer = web.Response(body=body, headers=headers, zlib_executor_size=INLINE_BYTES_MAX)
        answer.enable_compression()  # when it was asked for, as Prometheus does
        return answer


def _some(request: web.Request, name: str) -> frozenset[str] | None:
    """None: no restriction."""
    values = request.query.getall(name, [])
    return frozenset(values) if values else None
