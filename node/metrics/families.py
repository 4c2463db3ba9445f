"""Small ways to make a family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Rows = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """`name` ends in _total."""
    return CounterMetricFamily(name.removesuffix("_total"), text, value=value)


def gauges(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def counters(name: str, text: str, labels: Sequence[str], rows: Rows) -> Metric:
    family = CounterMetricFamily(name.removesuffix("_total"), text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def info(name: str, text: str, labels: Mapping[str, str]) -> Metric:
    """A one, for its labels."""
    return gauges(name, text, list(labels), [(list(labels.values()), 1)])
