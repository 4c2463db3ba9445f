"""The schedule of a nemesis: a pure function of seed and mix. Which node leads is only known when
an episode begins, so what is drawn is a kind of target; the rest is up to the episode's own dice.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chaos.nemesis.mixes import BOLD, MILD, Mix
from cluster.types import NodeId

Target = Literal["one", "leader", "minority", "majority", "all"]

#: Whom a kind strikes, with weights; all others strike one node, in half of the cases a leader.
TARGETS: Mapping[str, Mapping[Target, float]] = {
    "kill": {"one": 2, "leader": 4, "minority": 1, "majority": 2, "all": 1},
    "terminate": {"one": 2, "leader": 3, "all": 1},
    "pause": {"one": 2, "leader": 4, "majority": 2, "all": 1},
    "storm": {"one": 1, "leader": 1, "all": 1},
    "degrade": {"all": 1},
    "power_loss_all": {"all": 1},
    "skew_clock": {"one": 2, "leader": 2, "all": 1},
}
OTHERS: Mapping[Target, float] = {"one": 1, "leader": 1}
COMPANY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Pace:
    """How much quiet there is between episodes, and how long they last."""

    quiet_s: tuple[float, float] = (1.0, 5.0)
    lasts_s: tuple[float, float] = (0.5, 8.0)


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault, from its begin to its end."""

    name: str  # unique in the run
    kind: str
    target: Target
    lasts_s: float
    quiet_s: float = 0.0  # before it
    company: Episode | None = None  # another one, at the same time

    def dice(self, seed: int) -> random.Random:
        """For all that is left to decide."""
        return random.Random(f"nemesis/{seed}/{self.name}")


def draw(seed: int, mix: Mix, pace: Pace) -> Iterator[Episode]:
    """Without end. Every kind comes once, in random order, before any comes again."""
    dice = random.Random(f"nemesis/{seed}")
    kinds, weights = [kind for kind, _ in mix], [weight for _, weight in mix]
    mild = [kind for kind in kinds if kind in MILD]
    first = dice.sample(kinds, len(kinds))
    number = 0
    while kinds:
        kind = first.pop() if first else dice.choices(kinds, weights)[0]
        quiet_s, lasts_s = dice.uniform(*pace.quiet_s), dice.uniform(*pace.lasts_s)
        company = None
        if kind in BOLD and mild and dice.random() < COMPANY_SHARE:
            beside = dice.choice(mild)
            company = Episode(f"{number}+", beside, _target(dice, beside), lasts_s)
        yield Episode(str(number), kind, _target(dice, kind), lasts_s, quiet_s, company)
        number += 1


def _target(dice: random.Random, kind: str) -> Target:
    chances = TARGETS.get(kind, OTHERS)
    return dice.choices(list(chances), list(chances.values()))[0]


def pick(
    target: Target, nodes: Sequence[NodeId], leader: NodeId | None, dice: random.Random
) -> list[NodeId]:
    """The nodes of a target. `leader`: of some group, when one is known."""
    minority = (len(nodes) - 1) // 2
    shuffled = dice.sample(nodes, len(nodes))
    match target:
        case "one":
            return shuffled[:1]
        case "leader":
            return shuffled[:1] if leader is None else [leader]
        case "minority":
            return shuffled[: max(1, minority)]
        case "majority":
            return shuffled[: len(nodes) - minority]
        case "all":
            return shuffled
