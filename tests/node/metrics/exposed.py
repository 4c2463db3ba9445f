"""What was exposed, as values by name and labels."""

from __future__ import annotations

from collections.abc import Iterable

import aiohttp
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.node.nodes import Nodes


class Exposed:
    """`told("name", group="g")`; the labels are given whole."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{sample.name} is there twice"
                self.values[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]

    def labels(self, name: str, label: str) -> set[str]:
        """All values of one label."""
        return {dict(labels)[label] for found, labels in self.values if found == name}


async def told(nodes: Nodes, path: str = "metrics", name: str = "n1") -> Exposed:
    """As Prometheus reads it from a node."""
    async with aiohttp.ClientSession() as http, http.get(f"{nodes.url(name)}/{path}") as answer:
        assert answer.status == 200, await answer.text()
        return Exposed(text_string_to_metric_families(await answer.text()))
