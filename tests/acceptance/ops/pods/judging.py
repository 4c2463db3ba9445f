"""What a scene's clients saw, judged: verdicts, sums, and the longest gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chaos.checker import Verdict, ack_finality, check_all, total_queue, vanished
from chaos.checker.verdict import merge
from chaos.history import Op
from tests.acceptance.ops.pods.load import PROTOCOLS

CHECKERS = {"total-queue": total_queue, "ack-finality": ack_finality, "vanished": vanished}


@dataclass
class Seen:
    """Of one scene. `wrong`: what broke a promise, apart from the verdicts."""

    scene: str
    took_s: float = 0.0
    verdicts: Sequence[Verdict] = ()
    confirmed: int = 0
    delivered: int = 0
    unknown: int = 0
    refused: int = 0
    gaps_ms: Mapping[str, float] = field(default_factory=dict[str, float])  # by protocol
    facts: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        return not self.wrong and bool(self.verdicts) and merge(self.verdicts) is True


def judge(seen: Seen, ops: Sequence[Op], began_ns: int, ended_ns: int) -> None:
    """Gaps are those that touch the time between the two; all else is of the whole history."""
    verdicts: list[Verdict] = []
    gaps: dict[str, float] = {}
    for protocol in PROTOCOLS:
        mine = [op for op in ops if op.process.startswith(f"pods-{protocol}/")]
        verdicts += check_all(mine, CHECKERS)
        gap = longest_gap_ms(mine, began_ns, ended_ns)
        if gap is not None:
            gaps[protocol] = gap
    seen.verdicts, seen.gaps_ms = verdicts, gaps
    publishes = [op for op in ops if op.f == "publish"]
    seen.confirmed = sum(op.value["count"] for op in publishes if op.type == "ok")
    seen.unknown = sum(op.value["count"] for op in publishes if op.type == "unknown")
    seen.refused = sum(op.value["count"] for op in publishes if op.type == "refused")
    seen.delivered = sum(len(op.value["messages"]) for op in ops if op.f == "deliver")
    if not seen.confirmed or not seen.delivered:
        seen.wrong.append(f"no load: {seen.confirmed} confirmed, {seen.delivered} delivered")
    if len(gaps) < len(PROTOCOLS):
        seen.wrong.append("a protocol's publishers had no confirm before and after")


def longest_gap_ms(ops: Sequence[Op], began_ns: int, ended_ns: int) -> float | None:
    """The longest time that a publisher waited from one confirm to the next; of all of them the
    longest. None: one of them had none before, or none after it.
    """
    confirms: dict[str, list[int]] = {op.process: [] for op in ops if op.f == "publish"}
    for op in ops:
        if op.f == "publish" and op.type == "ok":
            confirms[op.process].append(op.monotonic_ns)
    longest = 0
    for times in confirms.values():
        if not times or times[0] > began_ns or times[-1] < ended_ns:
            return None
        pairs = pairwise(times)
        longest = max([longest, *(b - a for a, b in pairs if b >= began_ns and a <= ended_ns)])
    return longest / 1e6 if confirms else None
