"""How long things take, as histograms under names of our own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import HistogramMetricFamily, Metric

from node.metrics.client_counters import Spread
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources


def collect(sources: Sources, _: Scrape) -> Iterator[Metric]:
    watch = sources.watch
    watch.look()
    yield _family(
        "quorate_commit_seconds",
        "Time from the first proposal of an entry at its leader until it is applied there; once an"
        " entry, however many messages it holds.",
        watch.commit_seconds,
    )
    yield _family(
        "quorate_round_seconds",
        "Time of a drive loop iteration that synced the log: messages, entries, a write, a sync.",
        watch.round_seconds,
    )
    yield _family(
        "quorate_round_records",
        "Records written to the log since the sync before, at each iteration that synced.",
        watch.round_records,
    )
    yield _family(
        "quorate_round_bytes",
        "Bytes written to the log since the sync before, at each iteration that synced.",
        watch.round_bytes,
    )
    yield _family(
        "quorate_event_loop_lag_seconds",
        "How late the event loop was for a timer, ten times a second.",
        watch.loop_lag_seconds,
    )
    latencies = sources.counts.latencies
    confirmed = HistogramMetricFamily(
        "quorate_publish_confirm_seconds",
        "Time from reading a publish until its outcome is known, by the protocol of the client;"
        " measured once a batch, counted for each message.",
        labels=["protocol"],
    )
    for protocol, spread in latencies.confirmed.items():
        confirmed.add_metric([protocol], spread.buckets(), spread.sum)
    yield confirmed
    yield _family(
        "quorate_publish_deliver_seconds",
        "Time from the leader's taking of a message to its first delivery by the leader, to the"
        " millisecond and by the leaders' clocks; measured once a batch, counted for each message.",
        latencies.delivered,
    )
    yield _family(
        "quorate_deliver_ack_seconds",
        "Time from sending a delivery to a client of this node until its ack is read; measured once"
        " a batch, counted for each message. Of a consumer of the native protocol one batch at a"
        " time is measured.",
        latencies.acked,
    )


def _family(name: str, text: str, spread: Spread) -> Metric:
    return HistogramMetricFamily(name, text, buckets=spread.buckets(), sum_value=spread.sum)
