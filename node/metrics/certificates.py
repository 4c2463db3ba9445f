"""When certificates end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class CertificateExpiry(Collector):
    """Of the listeners that are in use. `expiry_s` is the node's own mapping: it changes."""

    def __init__(self, expiry_s: Mapping[str, float], listeners: Iterable[str]) -> None:
        self._expiry_s = expiry_s
        self._listeners = sorted(listeners)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "quorate_certificate_expiry_timestamp_seconds",
            "When the certificate of a listener ends, in seconds since 1970.",
            labels=["listener"],
        )
        for listener in self._listeners:
            if listener in self._expiry_s:
                family.add_metric([listener], self._expiry_s[listener])
        yield family
