"""What a history says over time: rates, latencies, gaps, faults and leaders. Nothing is judged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from chaos.history import HANDING, PUBLISHING, Op

#: Width of the windows in which latencies are summed up, and rates counted.
WINDOW_S = 0.25
#: A stretch without a confirm counts as a gap from here on.
GAP_S_MIN = 0.3

#: Who is no client.
NEMESIS = "nemesis"
WATCH = "watch"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted, in seconds since the history began."""

    start_s: float
    end_s: float
    open: bool = False  # it had not ended when the history did

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Fault:
    """What befell which nodes, and when."""

    kind: str
    nodes: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Leadership:
    """A node led a group under a term, until somebody else did."""

    group: str
    node: str
    term: int
    span: Span


@dataclass(frozen=True, slots=True)
class Latency:
    """Of what was confirmed in one window."""

    at_s: float
    median_ms: float
    p99_ms: float


@dataclass(eq=False)
class Series:
    """All of a history that a picture shows."""

    seconds: float
    workloads: list[str]
    confirmed: dict[str, list[int]]  # by workload: messages in each window
    delivered: dict[str, list[int]]
    latencies: dict[str, list[Latency]]  # by protocol
    unknown_s: list[float]  # publishes whose outcome nobody knows, when that was known
    gaps: dict[str, list[Span]]  # by workload that publishes
    faults: list[Fault]
    leaderships: list[Leadership]
    load_end_s: float  # nothing was published from then on


def workload_of(op: Op) -> str:
    return op.process.partition("/")[0]


def protocol_of(workload: str) -> str:
    return workload.rpartition("-")[2] if "-" in workload else "client"


def published_by(op: Op) -> int:
    """Messages that this op, an invocation or an ok, puts into queues."""
    match op.f:
        case "publish":
            refused = op.value.get("refused") or ()
            kept_out = sum(int(last) - int(first) + 1 for first, last in refused)
            return int(op.value.get("count", 1)) - kept_out
        case "transaction":
            return len(op.value.get("publishes") or ())
        case "put":
            return int(not op.value.get("duplicate"))
        case _:
            return 0


def delivered_by(op: Op) -> int:
    """Messages that were handed to a client."""
    if op.f not in HANDING:
        return 0
    return len(op.value.get("messages") or ()) if op.f == "deliver" else 1


def clients(ops: Sequence[Op]) -> Iterator[Op]:
    return (op for op in ops if workload_of(op) not in (NEMESIS, WATCH))


def series_of(ops: Sequence[Op]) -> Series:
    """One pass for each of the rows."""
    zero_ns = ops[0].monotonic_ns if ops else 0
    seconds = (ops[-1].monotonic_ns - zero_ns) / 1e9 if ops else 0.0

    def at_s(op: Op) -> float:
        return (op.monotonic_ns - zero_ns) / 1e9

    workloads = sorted({workload_of(op) for op in clients(ops)}, key=_rank)
    windows = int(seconds / WINDOW_S) + 1
    confirmed = {name: [0] * windows for name in workloads}
    delivered = {name: [0] * windows for name in workloads}
    waits: dict[str, list[list[float]]] = {}
    unknown_s: list[float] = []
    load_end_s = 0.0
    for op in clients(ops):
        name, window = workload_of(op), int(at_s(op) / WINDOW_S)
        if op.f in HANDING:
            delivered[name][window] += delivered_by(op)
            continue
        count = published_by(op)
        if not count:
            continue
        load_end_s = at_s(op)
        if op.type == "unknown":
            unknown_s.append(at_s(op))
        elif op.type == "ok" and op.invoke is not None:
            confirmed[name][window] += count
            by_window = waits.get(protocol_of(name))
            if by_window is None:
                by_window = waits[protocol_of(name)] = [[] for _ in range(windows)]
            by_window[window].append(at_s(op) - (ops[op.invoke].monotonic_ns - zero_ns) / 1e9)
    return Series(
        seconds,
        workloads,
        confirmed,
        delivered,
        {protocol: _latencies(by_window) for protocol, by_window in sorted(waits.items())},
        unknown_s,
        dict(sorted(gaps_of(ops).items(), key=lambda item: _rank(item[0]))),
        _faults(ops, zero_ns, seconds),
        _leaderships(ops, zero_ns, seconds),
        load_end_s,
    )


def _rank(workload: str) -> tuple[str, str]:
    """Protocol by protocol."""
    return protocol_of(workload), workload


def _latencies(by_window: list[list[float]]) -> list[Latency]:
    found: list[Latency] = []
    for window, waits in enumerate(by_window):
        if waits:
            waits.sort()
            p99 = waits[min(int(len(waits) * 0.99), len(waits) - 1)]
            found.append(
                Latency((window + 0.5) * WINDOW_S, waits[len(waits) // 2] * 1e3, p99 * 1e3)
            )
    return found


@dataclass(slots=True)
class _Waiting:
    """Of one workload: since when somebody waits for a confirm that has not come."""

    outstanding: int = 0
    since_s: float | None = None
    last_s: float = 0.0
    gaps: list[Span] = field(default_factory=list[Span])

    def ended(self, at_s: float, *, open_: bool) -> None:
        if self.since_s is not None and at_s - self.since_s >= GAP_S_MIN:
            self.gaps.append(Span(self.since_s, at_s, open_))
        self.since_s = at_s if self.outstanding else None


def gaps_of(ops: Sequence[Op]) -> dict[str, list[Span]]:
    """Stretches in which something was to be published, and nothing of the workload was
    confirmed. Who asks for nothing has no gap.
    """
    zero_ns = ops[0].monotonic_ns if ops else 0
    waiting: defaultdict[str, _Waiting] = defaultdict(_Waiting)
    for op in clients(ops):
        if op.f not in PUBLISHING:
            continue
        mine, now_s = waiting[workload_of(op)], (op.monotonic_ns - zero_ns) / 1e9
        mine.last_s = now_s
        if op.type == "invoke":
            mine.outstanding += 1
            if mine.since_s is None:
                mine.since_s = now_s
            continue
        mine.outstanding -= 1
        if op.type == "ok":
            mine.ended(now_s, open_=False)
    for mine in waiting.values():
        mine.ended(mine.last_s, open_=True)
    return {name: mine.gaps for name, mine in waiting.items()}


def _faults(ops: Sequence[Op], zero_ns: int, seconds: float) -> list[Fault]:
    ends = {op.invoke: op for op in ops if op.f == "fault" and op.invoke is not None}
    found: list[Fault] = []
    for op in ops:
        if op.f != "fault" or op.type == "unknown" or op.invoke is not None:
            continue
        start_s, end = (op.monotonic_ns - zero_ns) / 1e9, ends.get(op.index)
        if op.type == "ok":  # of an instant
            span = Span(start_s, start_s)
        elif end is None:
            span = Span(start_s, seconds, open=True)
        else:
            span = Span(start_s, (end.monotonic_ns - zero_ns) / 1e9)
        found.append(Fault(str(op.value.get("kind", "?")), _nodes(op), span))
    return found


def _nodes(op: Op) -> tuple[str, ...]:
    return tuple(str(node) for node in op.value.get("nodes") or ())


def _leaderships(ops: Sequence[Op], zero_ns: int, seconds: float) -> list[Leadership]:
    current: dict[str, tuple[str, int, float]] = {}
    found: list[Leadership] = []

    def close(group: str, at_s: float) -> None:
        node, term, since_s = current.pop(group)
        found.append(Leadership(group, node, term, Span(since_s, at_s)))

    for op in ops:
        if op.f != "leads" or not {"group", "node", "term"} <= op.value.keys():
            continue
        group, node, term = str(op.value["group"]), str(op.value["node"]), int(op.value["term"])
        now_s = (op.monotonic_ns - zero_ns) / 1e9
        if group in current:
            if term <= current[group][1]:  # said late
                continue
            close(group, now_s)
        current[group] = (node, term, now_s)
    for group in list(current):
        close(group, seconds)
    return found
