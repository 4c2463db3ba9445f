"""Which modules make up which endpoint, and how a scrape is answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from node.metrics import own
from node.metrics.scrape import EndpointName, Scrape
from node.metrics.sources import Sources

Collect = Callable[[Sources, Scrape], Iterator[Metric]]

MODULES: Mapping[EndpointName, Sequence[Collect]] = {
    "aggregated": (own.collect,),
    "per-object": (),
    "detailed": (),
}


class Families(Collector):
    """All families of one scrape, made while it is answered."""

    def __init__(self, sources: Sources, scrape: Scrape) -> None:
        self._sources = sources
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        for collect in MODULES[self._scrape.endpoint]:
            yield from collect(self._sources, self._scrape)


def exposition(sources: Sources, scrape: Scrape) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(sources, scrape))
    return generate_latest(registry)


class Endpoints:
    """One a node."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self.aggregated)

    async def aggregated(self, _: web.Request) -> web.Response:
        return self._answer(Scrape("aggregated"))

    def _answer(self, scrape: Scrape) -> web.Response:
        body = exposition(self._sources, scrape)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
