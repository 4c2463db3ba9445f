"""Many runs within a time, so that every mix of faults has its turn, and one table in the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from chaos.nemesis.mixes import MIXES as ALL_MIXES
from chaos.nemesis.mixes import names_of, possible
from chaos.plan import Plan
from chaos.report.outcome import Outcome, Status
from chaos.report.tables import show_run, styled
from chaos.run import run_one

#: A run of those faults that came least in the runs before it.
LEAST = "least"
#: In this order; too few runs for all of them are runs of everything, then of what came least.
MIXES = ("everything", "network", "processes", "disks", "power", "data", LEAST, LEAST)
EVERYTHING = ALL_MIXES["everything"]
#: How long a run takes in all, about, and how much of it is not load: it starts, heals, drains.
RUN_S = 75.0
OVERHEAD_S = 35.0
LOAD_S_MIN = 15.0
TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Budget:
    """How the time that is left is shared out among the runs that are left."""

    minutes: float

    @property
    def runs(self) -> int:
        return max(round(self.minutes * 60 / RUN_S), 1)

    def mixes(self) -> list[str]:
        if self.runs < len(MIXES):
            return ["everything", *([LEAST] * (self.runs - 1))]
        return [MIXES[number % len(MIXES)] for number in range(self.runs)]

    def load_s(
        self, *, gone_s: float, runs_left: int, overheads_s: Sequence[float]
    ) -> float | None:
        """Of the next run; None: there is no time for one any more. The first always is."""
        overhead_s = sum(overheads_s) / len(overheads_s) if overheads_s else OVERHEAD_S
        left_s = self.minutes * 60 - gone_s
        if overheads_s and left_s < overhead_s + LOAD_S_MIN:
            return None
        return max(left_s / runs_left - overhead_s, LOAD_S_MIN)


class Campaign:
    """`plan`: of every run, but for seed, mix and length; its seed is the first."""

    def __init__(
        self, minutes: float, plan: Plan, out: Path, console: Console, *, keep: bool = False
    ) -> None:
        self._budget = Budget(minutes)
        self._plan = plan
        self._out = out
        self._keep = keep
        self._console = console
        self.outcomes: list[Outcome] = []

    async def go(self) -> list[Outcome]:
        began_s = time.monotonic()
        overheads_s: list[float] = []
        mixes = self._budget.mixes()
        with _progress(self._console) as progress:
            bar = progress.add_task("", total=self._budget.minutes * 60)
            ticking = asyncio.create_task(_tick(progress, bar, began_s))
            try:
                for number, mix in enumerate(mixes):
                    load_s = self._budget.load_s(
                        gone_s=time.monotonic() - began_s,
                        runs_left=len(mixes) - number,
                        overheads_s=overheads_s,
                    )
                    if load_s is None:
                        self._console.print(f"no time for {', '.join(mixes[number:])}")
                        break
                    seed = self._plan.seed + number
                    plan = replace(
                        self._plan,
                        seed=seed,
                        mix=",".join(self.least_tried()) if mix == LEAST else mix,
                        seconds=round(load_s),
                    )
                    title = f"run {number + 1} of {len(mixes)}, {mix}"
                    run_s = time.monotonic()
                    outcome = await run_one(
                        plan,
                        self._out / f"{plan.seed}-{plan.title}",
                        lambda text, title=title: progress.update(
                            bar, description=f"{title}: {text}"
                        ),
                        keep=self._keep,
                    )
                    overheads_s.append(time.monotonic() - run_s - plan.seconds)
                    self._ended(outcome)
            finally:
                ticking.cancel()
                await asyncio.gather(ticking, return_exceptions=True)
        return self.outcomes

    @property
    def tried(self) -> Counter[str]:
        every: Counter[str] = Counter()
        for outcome in self.outcomes:
            every.update(outcome.totals.faults)
        return every

    def not_reached(self) -> list[str]:
        """Of all that this machine allows."""
        tried = self.tried
        missing = {name for outcome in self.outcomes for name in outcome.missing}
        left, _ = possible(EVERYTHING, dict.fromkeys(missing, "told by a run"))
        return [name for name in names_of(left) if name not in missing and not tried[name]]

    def least_tried(self) -> list[str]:
        """All faults: one of each kind that never came, then what else never came, in turns."""
        tried = self.tried
        ranks: dict[str, tuple[bool, int]] = {}
        for kind, weight in EVERYTHING:
            names = sorted(names_of(((kind, weight),)), key=lambda name: tried[name])
            times = sum(tried[name] for name in names)
            ranks |= {name: (tried[name] > 0, times + turn) for turn, name in enumerate(names)}
        return sorted(ranks, key=lambda name: ranks[name])

    def _ended(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status is not Status.VALID:
            show_run(self._console, outcome)
            return
        self._console.print(
            f"seed {outcome.seed}, {outcome.title}: {styled(outcome.status)},"
            f" {sum(outcome.totals.faults.values())} faults,"
            f" {outcome.totals.confirmed:,} messages confirmed, {outcome.folder}/timeline.png"
        )


def exit_status(outcomes: Sequence[Outcome]) -> int:
    """0: all valid; 1: a promise was broken; 2: not known, or the harness failed."""
    statuses = {outcome.status for outcome in outcomes}
    if Status.VIOLATED in statuses:
        return 1
    return 0 if statuses == {Status.VALID} else 2


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console
    )


async def _tick(progress: Progress, bar: TaskID, began_s: float) -> None:
    while True:
        progress.update(bar, completed=time.monotonic() - began_s)
        await asyncio.sleep(TICK_S)
