"""The schedule of a nemesis: a pure function of seed and mix. Which node leads is only known when
an episode begins, so what is drawn is a kind of target; the rest is up to the episode's own dice.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Literal, cast, get_args

from chaos.nemesis.mixes import BOLD, MILD, VARIANTS, Mix
from cluster.types import NodeId

Target = Literal["one", "leader", "owner", "minority", "majority", "all"]

#: Whom a kind strikes whose variants do not say it; all others strike one node, in half of the
#: cases a leader.
TARGETS: Mapping[str, Mapping[Target, float]] = {
    "degrade": {"all": 1},
    "power_loss_all": {"all": 1},
    "skew_clock": {"one": 2, "leader": 2, "all": 1},
}
OTHERS: Mapping[Target, float] = {"one": 1, "leader": 1}
COMPANY_SHARE = 0.25
#: Nobody serves meanwhile.
LASTS_S_MAX: Mapping[str, float] = {"power_loss_all": 1.0}


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
    variant: str = ""  # of `VARIANTS`

    def dice(self, seed: int) -> random.Random:
        """For all that is left to decide."""
        return random.Random(f"nemesis/{seed}/{self.name}")


def draw(
    seed: int, mix: Mix, pace: Pace, *, without: Container[str] = (), shuffled: bool = True
) -> Iterator[Episode]:
    """Without end. Every kind comes once before any comes again, `shuffled` or as the mix names
    them; so do the variants of a kind, but for those `without` which it has to do.
    """
    dice = random.Random(f"nemesis/{seed}")
    names, weights = [name for name, _ in mix], [weight for _, weight in mix]
    mild = [name for name in names if name in MILD]
    variants = {name: _turns(dice, name, without) for name in names}
    first = dice.sample(names, len(names)) if shuffled else names[::-1]
    number = 0
    while names:
        name = first.pop() if first else dice.choices(names, weights)[0]
        quiet_s, lasts_s = dice.uniform(*pace.quiet_s), dice.uniform(*pace.lasts_s)
        company = None
        if name.partition(":")[0] in BOLD and mild and dice.random() < COMPANY_SHARE:
            beside = dice.choice(mild)
            company = _episode(dice, f"{number}+", beside, next(variants[beside]), lasts_s)
        yield replace(
            _episode(dice, str(number), name, next(variants[name]), lasts_s),
            quiet_s=quiet_s,
            company=company,
        )
        number += 1


def _turns(dice: random.Random, name: str, without: Container[str]) -> Iterator[str]:
    """The variants of a kind, again and again; the one that its name gives."""
    kind, _, given = name.partition(":")
    every = [each for each in VARIANTS.get(kind, ("",)) if f"{kind}:{each}" not in without]
    return cycle([given] if given else dice.sample(every, len(every)))


def _episode(dice: random.Random, number: str, name: str, variant: str, lasts_s: float) -> Episode:
    kind = name.partition(":")[0]
    chances = TARGETS.get(kind, OTHERS)
    target = dice.choices(list(chances), list(chances.values()))[0]
    if variant in get_args(Target):
        target = cast("Target", variant)
    elif variant.startswith("isolate_"):
        target = cast("Target", variant.removeprefix("isolate_"))
    lasts_s = min(lasts_s, LASTS_S_MAX.get(kind, lasts_s))
    return Episode(number, kind, target, lasts_s, variant=variant)


def pick(
    target: Target,
    nodes: Sequence[NodeId],
    leader: NodeId | None,
    dice: random.Random,
    owners: Sequence[NodeId] = (),
) -> list[NodeId]:
    """The nodes of a target. `leader`: of some group, when one is known; `owners`: of links."""
    minority = (len(nodes) - 1) // 2
    shuffled = dice.sample(nodes, len(nodes))
    match target:
        case "one":
            return shuffled[:1]
        case "leader":
            return shuffled[:1] if leader is None else [leader]
        case "owner":
            return [dice.choice(owners)] if owners else shuffled[:1]
        case "minority":
            return shuffled[: max(1, minority)]
        case "majority":
            return shuffled[: len(nodes) - minority]
        case "all":
            return shuffled
