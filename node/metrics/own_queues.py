"""How old messages are, and whether consumers can take them: of the queues that this node leads."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from cluster.machine.deadletters import DELETED, PURGED, REFUSED, WITHDRAWN
from cluster.machine.interface import QueueGauges
from node.metrics.families import counters, gauge, gauges
from node.metrics.queues import capacity_of
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources

#: Of dead letters, in the order in which they are told.
REASONS = ("expired", "rejected", "delivery_limit", "maxlen")
#: As `Removed` has them.
OUTCOMES = ("dropped", "dead_lettered")


def aggregated(sources: Sources, _: Scrape) -> Iterator[Metric]:
    every = [each for _, each in sources.watch.ages.fresh()]
    now_ms = sources.watch.clock.wall_ms()
    ready = min((e.oldest_ready_ms for e in every if e.oldest_ready_ms is not None), default=None)
    unacked = min(
        (e.oldest_unsettled_ms for e in every if e.oldest_unsettled_ms is not None), default=None
    )
    yield gauge(
        "quorate_oldest_ready_seconds",
        "Since the oldest message that is ready, in the queues that this node leads, was published;"
        " 0 when there is none.",
        _age_s(ready, now_ms),
    )
    yield gauge(
        "quorate_oldest_unacked_seconds",
        "Since the oldest message that is delivered and not settled, in the queues that this node"
        " leads, was published; 0 when there is none.",
        _age_s(unacked, now_ms),
    )
    yield gauge(
        "quorate_slo_oldest_age_ratio",
        "The largest age of an oldest ready message, as a share of its queue's x-slo-oldest-age, of"
        " the queues that this node leads; over 1 it is missed.",
        max((ratio for e in every if (ratio := _slo_ratio(e, now_ms)) is not None), default=0.0),
    )
    yield gauge(
        "quorate_sac_queues_without_active",
        "Queues led here with a single active consumer that have consumers, none of them active.",
        sum(each.lacks_active for each in every),
    )
    dead: dict[str, int] = dict.fromkeys(REASONS, 0)
    for (_type, reason, goes), count in sources.deaths.counts().items():
        if goes:
            dead[reason] = dead.get(reason, 0) + count
    yield counters(
        "quorate_dead_letters_total",
        "Messages that died in a queue that this node led and has a dead-letter target, by why.",
        ["reason"],
        [([reason], count) for reason, count in dead.items()],
    )
    removed = {(reason, goes): 0 for reason in REASONS for goes in (False, True)}
    removed |= {(reason, False): 0 for reason in (PURGED, DELETED, REFUSED, WITHDRAWN)}
    for (_type, reason, goes), count in sources.deaths.counts().items():
        removed[reason, goes] = removed.get((reason, goes), 0) + count
    yield counters(
        "quorate_messages_removed_total",
        "Messages that left a queue that this node led otherwise than acknowledged, by why, and"
        " whether they were dropped or dead-lettered.",
        ["reason", "outcome"],
        [([reason, OUTCOMES[goes]], count) for (reason, goes), count in removed.items()],
    )


def per_object(sources: Sources, scrape: Scrape) -> Iterator[Metric]:
    ages = dict(sources.watch.ages.fresh())
    now_ms = sources.watch.clock.wall_ms()
    ready: list[tuple[list[str], float]] = []
    unacked: list[tuple[list[str], float]] = []
    capacity: list[tuple[list[str], float]] = []
    lacks: list[tuple[list[str], float]] = []
    slo: list[tuple[list[str], float]] = []
    removed: list[tuple[list[str], float]] = []
    for group, view in sources.rows.views():
        if not scrape.wants(view.vhost, view.name):
            continue
        labels = [view.vhost, view.name]
        age = ages.get((group.id, view.id))
        ready.append((labels, 0.0 if age is None else _age_s(age.oldest_ready_ms, now_ms)))
        unacked.append((labels, 0.0 if age is None else _age_s(age.oldest_unsettled_ms, now_ms)))
        for reason, counts in sorted(view.removed.items()):
            for outcome, count in zip(OUTCOMES, counts, strict=True):
                if count:
                    removed.append(([*labels, reason, outcome], count))
        if view.config.slo_oldest_age_ms is not None:
            slo.append((labels, 0.0 if age is None else _slo_ratio(age, now_ms) or 0.0))
        if view.config.single_active_consumer:
            lacks.append((labels, int(age is not None and age.lacks_active)))
        if sources.process is not None:
            capacity.append((labels, capacity_of(sources.process, group, view)))
    for name, text, rows in (
        ("oldest_ready_seconds", "Since the oldest ready message was published.", ready),
        (
            "oldest_unacked_seconds",
            "Since the oldest message that is delivered and not settled was published.",
            unacked,
        ),
        (
            "consumer_capacity",
            "Share of the last seconds in which the queue could deliver at once.",
            capacity,
        ),
        (
            "sac_without_active",
            "1: a queue with a single active consumer has consumers, and none is active.",
            lacks,
        ),
        (
            "slo_oldest_age_ratio",
            "Age of the oldest ready message, as a share of x-slo-oldest-age.",
            slo,
        ),
    ):
        yield gauges(f"quorate_queue_{name}", text, ["vhost", "queue"], rows)
    yield counters(
        "quorate_queue_messages_removed_total",
        "Messages that left the queue otherwise than acknowledged, since it was made.",
        ["vhost", "queue", "reason", "outcome"],
        removed,
    )


def _slo_ratio(gauges: QueueGauges, now_ms: int) -> float | None:
    """None: the queue has no such objective."""
    limit_ms = gauges.slo_oldest_age_ms
    if limit_ms is None:
        return None
    return 1000 * _age_s(gauges.oldest_ready_ms, now_ms) / limit_ms


def _age_s(stamped_ms: int | None, now_ms: int) -> float:
    return 0.0 if stamped_ms is None else max(0, now_ms - stamped_ms) / 1000
