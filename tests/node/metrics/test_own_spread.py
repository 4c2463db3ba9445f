"""Histograms of our own count what Prometheus' client would."""

from __future__ import annotations

from random import Random

from prometheus_client import CollectorRegistry, Histogram

from node.metrics.client_counters import SECONDS, Spread


def test_a_spread_has_the_buckets_of_a_histogram_that_saw_each_message():
    random = Random(7)
    registry = CollectorRegistry()
    twin = Histogram("h_seconds", "Twin.", buckets=SECONDS, registry=registry)
    spread = Spread()
    values = [10 ** random.uniform(-5, 3) for _ in range(300)] + [0.0, 0.001, 60.0]

    for value in values:
        count = random.randint(1, 4)
        spread.add(value, count)
        for _ in range(count):
            twin.observe(value)

    (family,) = registry.collect()
    wanted = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert dict(spread.buckets()) == wanted
    assert spread.count == wanted["+Inf"]
    total = next(s.value for s in family.samples if s.name.endswith("_sum"))
    assert abs(spread.sum - total) < 1e-6 * total
