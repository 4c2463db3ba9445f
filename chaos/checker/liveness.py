"""After the faults the cluster serves again, soon; and how long each fault was felt.

A confirm is the sign of life: something published that ended ok.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import PUBLISHING, Op

#: How long after the heal every workload may have to wait for its first confirm.
BOUND_S = 30.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What one fault did to the confirms of all workloads together. Times in ms; null: there was
    none any more.
    """

    kind: str
    nodes: Sequence[str]
    began_ns: int
    ended_ns: int
    recovered_ms: int | None  # from its end to the first confirm after it
    gap_ms: int | None  # the longest time without a confirm, from its begin to that confirm


def recoveries(ops: Sequence[Op]) -> list[Recovery]:
    """One for each fault that is over."""
    confirms = sorted(_confirms(ops))
    begun = {op.index: op for op in ops if op.f == "fault" and op.type == "invoke"}
    found: list[Recovery] = []
    for op in ops:
        if op.f != "fault" or op.type == "invoke":
            continue
        began = op if op.invoke is None else begun[op.invoke]
        first = bisect_left(confirms, began.monotonic_ns)
        back = bisect_left(confirms, op.monotonic_ns)
        recovered = gap = None
        if back < len(confirms):
            times = [began.monotonic_ns, *confirms[first : back + 1]]
            longest = max(b - a for a, b in pairwise(times))
            recovered, gap = _ms(confirms[back] - op.monotonic_ns), _ms(longest)
        kind, nodes = str(op.value.get("kind", "")), op.value.get("nodes") or ()
        found.append(Recovery(kind, nodes, began.monotonic_ns, op.monotonic_ns, recovered, gap))
    return found


def liveness(bound_s: float = BOUND_S) -> Checker:
    """A checker of whole runs: with the faults, and all workloads."""

    def check(ops: Sequence[Op]) -> Verdict:
        healed_ns = healed_at(ops)
        late: list[str] = []
        undecided: list[str] = []
        slowest_ms = 0
        loads = _loads(ops)
        if healed_ns is None:
            undecided.append("no fault ended, and nothing was healed")
        elif not loads:
            undecided.append("there was no load")
        else:
            for name, load in sorted(loads.items()):
                waited_ms = load.waited_ms(healed_ns)
                if waited_ms is not None:
                    slowest_ms = max(slowest_ms, waited_ms)
                if waited_ms is not None and waited_ms > bound_s * 1000:
                    late.append(f"{name}: first confirm {waited_ms} ms after the heal")
                elif waited_ms is None and load.tried_ms(healed_ns) >= bound_s * 1000:
                    late.append(f"{name}: no confirm in {load.tried_ms(healed_ns)} ms of trying")
                elif waited_ms is None:
                    undecided.append(f"{name}: tried for {load.tried_ms(healed_ns)} ms only")
        felt = recoveries(ops)
        return judge(
            "liveness",
            {"not alive after the heal": late},
            undecided={"no load after the heal": undecided},
            reported={
                "workloads": len(loads),
                "slowest after the heal, ms": slowest_ms,
                "faults": len(felt),
                **_spread("to recover", [each.recovered_ms for each in felt]),
                **_spread("without a confirm", [each.gap_ms for each in felt]),
            },
        )

    return check


def healed_at(ops: Sequence[Op]) -> int | None:
    """The heal, or else the end of the last fault, in monotonic ns."""
    for f in ("heal", "fault"):
        ends = [op.monotonic_ns for op in ops if op.f == f and op.type != "invoke"]
        if ends:
            return max(ends)
    return None


class _Load:
    """Of one workload."""

    def __init__(self) -> None:
        self.confirms: list[int] = []
        self.invokes: list[int] = []
        self.ends: list[int] = []

    def waited_ms(self, healed_ns: int) -> int | None:
        after = [at for at in self.confirms if at >= healed_ns]
        return _ms(min(after) - healed_ns) if after else None

    def tried_ms(self, healed_ns: int) -> int:
        """How long after the heal it still asked, or waited for an outcome."""
        return max(0, _ms(max([*self.invokes[-1:], *self.ends[-1:]]) - healed_ns))


def _loads(ops: Sequence[Op]) -> dict[str, _Load]:
    """By the beginning of the names of its clients."""
    loads: dict[str, _Load] = {}
    for op in ops:
        if op.f in PUBLISHING:
            load = loads.setdefault(op.process.partition("/")[0], _Load())
            if op.type == "invoke":
                load.invokes.append(op.monotonic_ns)
            else:
                load.ends.append(op.monotonic_ns)
                if op.type == "ok":
                    load.confirms.append(op.monotonic_ns)
    return loads


def _confirms(ops: Sequence[Op]) -> list[int]:
    return [op.monotonic_ns for op in ops if op.f in PUBLISHING and op.type == "ok"]


def _spread(what: str, times_ms: Sequence[int | None]) -> dict[str, int]:
    known = sorted(each for each in times_ms if each is not None)
    if not known:
        return {}
    return {
        f"{what}, median ms": known[len(known) // 2],
        f"{what}, p90 ms": known[min(len(known) - 1, len(known) * 9 // 10)],
        f"{what}, most ms": known[-1],
    }


def _ms(ns: int) -> int:
    return ns // 1_000_000
