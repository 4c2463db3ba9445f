"""What one run is, and the command that runs it again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from chaos.load.all import WORKLOADS
from chaos.nemesis.mixes import MIXES, Mix, names_of, title_of

SECONDS = 40.0
#: All kinds of faults and `kind:variant`, for mixes that are named so.
KINDS = {
    name: weight
    for kind, weight in MIXES["everything"]
    for name in (kind, *names_of(((kind, weight),)))
}


class NoSuchPlan(Exception):
    """A name that stands for nothing; the text says which there are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before a run begins."""

    seed: int
    mix: str = "everything"  # a name, or faults in their order with commas between
    seconds: float = SECONDS  # of load under faults
    workloads: Sequence[str] = tuple(WORKLOADS)
    network: str | None = None  # None: the truest that there is
    disks: str | None = None
    build: str | None = None  # what is broken in all nodes, on purpose
    pace: float = 1.0  # how many times as often as in other runs publishers publish

    @property
    def command(self) -> str:
        words = ["python", "-m", "chaos", "run", "--seed", str(self.seed), "--mix", self.mix]
        words += ["--seconds", f"{self.seconds:g}"]
        if tuple(self.workloads) != tuple(WORKLOADS):
            words += ["--only", ",".join(self.workloads)]
        if self.pace != 1.0:
            words += ["--pace", f"{self.pace:g}"]
        for option in ("network", "disks", "build"):
            if (value := getattr(self, option)) is not None:
                words += [f"--{option}", value]
        return shlex.join(words)

    @property
    def faults(self) -> Mix:
        return mix_of(self.mix)

    @property
    def shuffled(self) -> bool:
        """Whoever names the faults has them in that order first."""
        return self.mix in MIXES

    @property
    def title(self) -> str:
        return title_of(self.mix)


def mix_of(name: str) -> Mix:
    """Raises NoSuchPlan."""
    if name in MIXES:
        return MIXES[name]
    kinds = name.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise NoSuchPlan(
            f"no mix or fault {', '.join(unknown)}: there are the mixes {', '.join(MIXES)}"
            f" and the faults {', '.join(KINDS)}"
        )
    return tuple((kind, KINDS[kind]) for kind in kinds)


def workloads_of(only: str | None) -> tuple[str, ...]:
    """`only`: names with commas between, w1 for w1-native and w1-amqp. Raises NoSuchPlan."""
    if only is None:
        return tuple(WORKLOADS)
    found: list[str] = []
    for word in only.split(","):
        named = [name for name in WORKLOADS if word in (name, name.partition("-")[0])]
        if not named:
            raise NoSuchPlan(f"no workload {word}: there are {', '.join(WORKLOADS)}")
        found += named
    return tuple(dict.fromkeys(found))
