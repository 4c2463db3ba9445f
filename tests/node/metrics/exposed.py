"""What was exposed, as values by name and labels."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric


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
