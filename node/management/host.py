"""What a node knows of the machine and the process that it runs in."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.management.context import ManagementServices

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
#: What is told with rates and curves.
MEASURED = (*USED, *CHURN)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
        **measured(services),
    }


def measured(services: ManagementServices) -> dict[str, int]:
    """What the process has now, and what came and went since it began: all of MEASURED."""
    used = (
        memory_bytes(),
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
    return dict(zip(MEASURED, (*used, *counts), strict=True))


def memory_bytes() -> int:
    """Resident."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):  # not Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
