"""One time for all nodes: which monotonic time of which process is when.

The wall clock of a process counts as it was when it began, so that its jumps do not matter. Between
two processes the clocks that they noted of each other decide, or, where a clock jumped, entries: a
follower never has one before the leader has it, and mostly right after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Boot = tuple[str, int]  # node, and which of its processes

#: Wall clock against monotonic clock: what is no jump.
STEADY_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Process:
    """What its records say of its clocks."""

    first_ns: int  # monotonic
    last_ns: int
    base_ns: int  # wall clock less monotonic clock, in its first record
    steady: bool  # and the same ever after


@dataclass(frozen=True, slots=True)
class Pair:
    """How much more the wall clock of `boot` (as it began) shows than that of `other`."""

    boot: Boot
    other: Boot
    ahead_ns: int
    sure: bool  # measured in both directions


def compared(processes: Iterable[Boot], pairs: Iterable[Pair]) -> bool:
    """Whether all processes are, directly or by others, with each other."""
    groups = {boot: {boot} for boot in processes}
    for pair in pairs:
        if pair.boot in groups and pair.other in groups:
            one = groups[pair.boot] | groups[pair.other]
            groups.update(dict.fromkeys(one, one))
    return all(len(group) == len(groups) for group in groups.values())


def shifts(processes: Mapping[Boot, Process], pairs: Iterable[Pair]) -> dict[Boot, int]:
    """What to add to monotonic times. Who is compared with nobody is taken at its word."""
    edges: dict[Boot, dict[Boot, tuple[bool, int]]] = {boot: {} for boot in processes}
    # Of two that looked at each other one counts: the same one, in whatever order they are told.
    for pair in sorted(pairs, key=lambda each: (each.boot, each.other, each.ahead_ns)):
        if pair.boot not in edges or pair.other not in edges:
            continue
        for boot, other, ahead in (
            (pair.boot, pair.other, pair.ahead_ns),
            (pair.other, pair.boot, -pair.ahead_ns),
        ):
            known = edges[boot].get(other)
            if known is None or (pair.sure and not known[0]):
                edges[boot][other] = (pair.sure, ahead)
    ahead_of: dict[Boot, int] = {}
    for root in sorted(edges):
        if root in ahead_of:
            continue
        ahead_of[root] = 0
        waiting = [root]
        for boot in waiting:
            surest_first = sorted(edges[boot].items(), key=lambda each: (not each[1][0], each[0]))
            for other, (_, ahead) in surest_first:
                if other not in ahead_of:
                    ahead_of[other] = ahead_of[boot] - ahead
                    waiting.append(other)
    return {boot: process.base_ns - ahead_of[boot] for boot, process in processes.items()}
