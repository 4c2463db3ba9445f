"""Small ways to make a family, and a fast way to write one with a sample for each queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

Rows = Iterable[tuple[Sequence[str], float]]

#: Of one piece of text.
LINES_AT_ONCE = 500
#: Labels of a sample whose text is kept for the next family.
LABELLED_MAX = 40_000


class Many(Metric):
    """A family that writes its samples itself: there may be one for each of very many queues."""

    def __init__(
        self, name: str, text: str, kind: str, labels: Sequence[str], rows: Rows, suffix: str = ""
    ) -> None:
        super().__init__(name, text, kind)
        self._labels = labels
        self._suffix = suffix
        self.rows = list(rows)

    # Made when asked for: who writes the text needs none.
    @property
    def samples(self) -> list[Sample]:
        name = self.name + self._suffix
        return [
            Sample(name, dict(zip(self._labels, values, strict=True)), value)
            for values, value in self.rows
        ]

    @samples.setter
    def samples(self, _: list[Sample]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """`Metric`, where it is an attribute, sets it to none."""

    def text(self) -> Iterator[str]:
        """In pieces."""
        name, labels = self.name + self._suffix, tuple(self._labels)
        yield f"# HELP {name} {_escaped(self.documentation)}\n# TYPE {name} {self.type}\n"
        for start in range(0, len(self.rows), LINES_AT_ONCE):
            yield "".join(
                [
                    f"{name}{_labelled(labels, tuple(values))} {value}\n"
                    for values, value in self.rows[start : start + LINES_AT_ONCE]
                ]
            )


@lru_cache(LABELLED_MAX)
def _labelled(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Every family of a scrape has the same queues."""
    if not values:
        return ""
    pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True)]
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """`name` ends in _total."""
    return CounterMetricFamily(name.removesuffix("_total"), text, value=value)


def gauges(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    return Many(name, text, "gauge", labels, rows)


def counters(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    """`name` ends in _total."""
    return Many(name.removesuffix("_total"), text, "counter", labels, rows, "_total")


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A one, for its labels."""
    return gauges(name, text, list(labels), [(list(labels.values()), 1)])
