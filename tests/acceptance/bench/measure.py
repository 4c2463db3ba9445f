"""What /proc says: CPU and memory of the nodes, and what others took of the machine."""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

#: Above this share of the machine taken by others a row is marked: its figures mean little.
NOISY_PERCENT = 15.0
SETTLE_S_MAX = 4.0
SETTLE_STEP_S = 0.3
SETTLED_CPU_S = 0.04


def cpu_s(pids: Sequence[int]) -> float:
    """User and system seconds of these processes; one that is gone counts nothing."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def rss_bytes(pid: int, *, peak: bool = False) -> int:
    """`peak`: the most since `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak(pid: int) -> int:
    """What the process has now, from which its peak is counted anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return rss_bytes(pid)


@dataclass(frozen=True)
class MachineCpu:
    busy_s: float  # all cores, steal not counted
    steal_s: float
    total_s: float

    @classmethod
    def now(cls) -> MachineCpu:
        first = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, idle, iowait, irq, softirq, steal = (
            int(field) / TICKS_PER_S for field in first.split()[1:9]
        )
        busy = user + nice + system + irq + softirq
        return cls(busy, steal, busy + steal + idle + iowait)


def own_cpu_s() -> float:
    """This process and its children that have ended: the clients."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@dataclass(frozen=True)
class Cost:
    """What a run took of the machine."""

    nodes_cpu_s: float
    clients_cpu_s: float
    others_percent: float  # of all cores while the clients ran
    steal_percent: float

    @property
    def noisy(self) -> bool:
        return self.others_percent + self.steal_percent > NOISY_PERCENT

    def nodes_cpu_s_per_100k(self, messages: int) -> float:
        return self.nodes_cpu_s / messages * 100_000


class Meter:
    """Started before the clients, stopped when they have ended."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._nodes = cpu_s(pids())
        self._own = own_cpu_s()
        self._machine = MachineCpu.now()

    def stop(self) -> Cost:
        nodes = cpu_s(self._pids()) - self._nodes
        clients = own_cpu_s() - self._own
        after = MachineCpu.now()
        total = max(after.total_s - self._machine.total_s, 1 / TICKS_PER_S)
        others = max(0.0, after.busy_s - self._machine.busy_s - nodes - clients)
        steal = after.steal_s - self._machine.steal_s
        self._settle()
        return Cost(
            nodes_cpu_s=cpu_s(self._pids()) - self._nodes,
            clients_cpu_s=clients,
            others_percent=100 * others / total,
            steal_percent=100 * steal / total,
        )

    def _settle(self) -> None:
        # Followers may still apply what the clients already saw confirmed: their CPU counts too.
        end = time.monotonic() + SETTLE_S_MAX
        before = cpu_s(self._pids())
        while time.monotonic() < end:
            time.sleep(SETTLE_STEP_S)
            now = cpu_s(self._pids())
            if now - before < SETTLED_CPU_S:
                return
            before = now


def machine_facts() -> dict[str, str | int]:
    memory = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": models[0] if models else platform.machine(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank; `values` need not be sorted."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def fsync_ms(directory: Path, count: int = 50) -> tuple[float, float]:
    """p50 and p99 of a small append and its fdatasync here: what every confirm waits for."""
    path = directory / "fsync-probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    spans: list[float] = []
    try:
        for _ in range(count):
            os.write(descriptor, b"x" * 512)
            start = time.perf_counter()
            os.fdatasync(descriptor)
            spans.append((time.perf_counter() - start) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return percentile(spans, 50), percentile(spans, 99)
