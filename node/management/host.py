"""What a node knows of the machine and the process that it runs in."""

from __future__ import annotations

import os
import resource
import shutil
from typing import Any

from node.management.services import ManagementServices
from node.memory import resident_bytes
from node.metrics.resources import open_files

#: What comes and goes, as RabbitMQ names it.
CHURN = (
    "connection_created",
    "connection_closed",
    "channel_created",
    "channel_closed",
    "queue_declared",
    "queue_created",
    "queue_deleted",
)
#: What a node has of each just now, as RabbitMQ names it.
USED = ("mem_used", "fd_used", "sockets_used", "disk_free")
#: Milliseconds in which a core worked for the process, since it began: its rate is 1000 for each.
CPU = "cpu_ms"
#: What is told with rates and curves.
MEASURED = (*USED, CPU, *CHURN)


def host_facts(services: ManagementServices, *, uptime_s: float) -> dict[str, Any]:
    """In the words of /api/nodes."""
    settings, alarms = services.settings, services.alarms
    fd_total, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "os_pid": str(os.getpid()),
        "uptime": int(uptime_s * 1000),
        "processors": os.cpu_count() or 1,
        "run_queue": round(os.getloadavg()[0]),
        "mem_limit": alarms.memory_bytes_max,
        "mem_alarm": alarms.memory,
        "disk_free_limit": services.broker.cluster.log.space().limit_bytes,
        "disk_free_alarm": alarms.disk,
        "fd_total": fd_total,
        "sockets_total": settings.limits.connections_max,
        "db_dir": settings.data_dir,
        "mem_bodies": services.cluster.log.hot_bytes,
        **services.latencies_ms(),
        **measured(services),
    }


def measured(services: ManagementServices) -> dict[str, int]:
    """What the process has now, and what came and went since it began: all of MEASURED."""
    times = os.times()
    used = (
        resident_bytes(),
        open_files(),
        len(services.clients),
        shutil.disk_usage(services.settings.data_dir).free,
    )
    counters, names = services.counters, services.cluster.names
    counts = (
        counters.connections_opened,
        counters.connections_closed,
        counters.channels_opened,
        counters.channels_closed,
        names.declared_count,
        names.created_count,
        names.deleted_count,
    )
    worked_ms = round(1000 * (times.user + times.system))
    return dict(zip(MEASURED, (*used, worked_ms, *counts), strict=True))
