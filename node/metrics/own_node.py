"""What this node has and lacks: log, disk, memory, links to the others, logins that failed."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from cluster.raft.links import TcpLinks
from node.memory import resident_bytes
from node.metrics.families import counters, gauge, gauges
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources


def collect(sources: Sources, _: Scrape) -> Iterator[Metric]:
    yield from _log(sources)
    yield from _links(sources)
    yield from _clock(sources)
    yield gauge("quorate_memory_bytes", "Memory of this process, resident.", resident_bytes())
    yield counters(
        "quorate_logins_failed_total",
        "Logins that were refused, by the protocol of the client.",
        ["protocol"],
        [([name], count) for name, count in sorted(sources.watch.logins_failed.items())],
    )
    if sources.process is None:
        return
    alarms = sources.process.alarms
    yield gauge(
        "quorate_memory_limit_bytes",
        "From this much memory in use on, publishers wait.",
        alarms.memory_bytes_max,
    )
    yield gauges(
        "quorate_alarm",
        "1 while this node is low on it, and publishers of all nodes wait.",
        ["alarm"],
        [(["disk"], int(alarms.disk)), (["memory"], int(alarms.memory))],
    )


def _clock(sources: Sources) -> Iterator[Metric]:
    time = sources.cluster.time
    yield gauge(
        "quorate_clock_offset_seconds",
        "How far this node's wall clock is ahead of the time on which a majority of them agrees.",
        time.offset_ms / 1000,
    )
    yield gauge(
        "quorate_clock_alarm",
        "1 while this node's wall clock is out of bounds, and log time does without it.",
        int(time.out_of_bounds),
    )
    yield counters(
        "quorate_clock_jumps_total",
        "Times that this node's wall clock went out of bounds.",
        [],
        [([], time.jumps)],
    )


def _log(sources: Sources) -> Iterator[Metric]:
    log = sources.cluster.log
    segments = list(log.wal.segments.values())
    size = sum(each.size for each in segments)
    live = sum(each.live_bytes for each in segments)
    yield gauge("quorate_log_bytes", "Bytes of all segments of the log.", size)
    yield gauge(
        "quorate_log_live_ratio",
        "Share of the log that is still needed; the rest goes as segments die or are rewritten.",
        live / size if size else 1.0,
    )
    yield gauge("quorate_log_segments", "Segments of the log.", len(segments))
    yield gauge(
        "quorate_disk_free_bytes",
        "Free space on the disk of the data folder.",
        log.space().free_bytes,
    )
    yield gauge(
        "quorate_disk_limit_bytes",
        "Below this much free space, publishers wait.",
        log.space().limit_bytes,
    )


def _links(sources: Sources) -> Iterator[Metric]:
    links = sources.cluster.links
    peers = sources.cluster.linked()
    yield gauges(
        "quorate_link_up",
        "1 when this node is connected to the other one.",
        ["peer"],
        [([peer], int(links.connected(peer))) for peer in peers],
    )
    if isinstance(links, TcpLinks):
        yield counters(
            "quorate_link_dropped_total",
            "Messages for the other node that were not sent, since too much was unsent already.",
            ["peer"],
            [([peer], links.dropped(peer)) for peer in peers],
        )
