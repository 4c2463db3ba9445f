"""Nodes come and go and groups move under load, by the commands that a person would give, with
faults beside them; then everything is judged as in any other run.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.campaign import exit_status
from chaos.commands import RUNS
from chaos.history import Op, read_history
from chaos.live.live_cluster import NotReadyError
from chaos.load.addresses import Address
from chaos.load.workload import Workload
from chaos.nemesis.nemesis import Nemesis
from chaos.plan import NoSuchPlan, Plan
from chaos.report.outcome import Outcome
from chaos.report.series import Span, clients, gaps_of, published_by
from chaos.report.tables import REPORT_WIDTH, show_run, styled
from chaos.run import Say, run_one
from chaos.scenes.lost_majority import lose_majority
from chaos.scenes.member_scenes import BRIEF, SCENES
from chaos.scenes.member_stage import MemberStage, SceneFailed

LOST_MAJORITY = "lost-majority"
OF_FIVE = "lost-majority-of-five"
ALL = (*(name for name in SCENES if name != BRIEF), LOST_MAJORITY, OF_FIVE)
#: Of both protocols: order, exclusion, transactions, numbered publishers and dead letters.
WORKLOADS = (
    "w1-amqp",
    "w1-native",
    "w2-amqp",
    "w3-native",
    "w4-amqp",
    "w7-amqp",
    "w8-native",
    "w9-native",
)
SCENE_S_MAX = 400.0
#: Under load alone, before the first scene and after each.
CALM_S = 2.0


@dataclass(frozen=True, slots=True)
class MembersPlan(Plan):
    """The scenes take as long as they take."""

    mix: str = "calm"
    workloads: Sequence[str] = WORKLOADS
    scenes: Sequence[str] = ()

    @property
    def command(self) -> str:
        return f"python -m chaos members --seed {self.seed} --only {','.join(self.scenes)}"


@dataclass(frozen=True, slots=True)
class SceneRow:
    """One scene as it was played."""

    name: str
    done: str
    seconds: float
    began_ns: int
    ended_ns: int
    failure: str = ""


@dataclass
class Play:
    """A script of a run: scenes, one after the other. One that fails is the last."""

    scenes: Sequence[str]
    seed: int
    say: Say
    rows: list[SceneRow] = field(default_factory=list[SceneRow])

    async def __call__(
        self, nemesis: Nemesis, addresses: list[Address], _workloads: Sequence[Workload]
    ) -> None:
        members = MemberStage(nemesis, addresses, self.say, self.seed)
        for name in self.scenes:
            await asyncio.sleep(CALM_S)
            row = await self._scene(name, members)
            self.rows.append(row)
            told = row.done or row.failure.partition("\n")[0]
            self.say(f"{name}: {row.seconds:.0f} s, {told}")
            if row.failure:
                nemesis.findings.append(f"{name}: {row.failure}")
                return

    async def _scene(self, name: str, members: MemberStage) -> SceneRow:
        began_ns = time.monotonic_ns()
        done = failure = ""
        try:
            async with asyncio.timeout(SCENE_S_MAX):
                done = await SCENES[name](members)
                await members.whole()
        except (SceneFailed, NotReadyError) as error:
            failure = str(error)
        except TimeoutError:
            failure = f"it did not end within {SCENE_S_MAX:g} s"
        ended_ns = time.monotonic_ns()
        return SceneRow(name, done, (ended_ns - began_ns) / 1e9, began_ns, ended_ns, failure)


async def play(
    scenes: Sequence[str],
    folder: Path,
    *,
    seed: int,
    say: Say,
    workloads: Sequence[str] = WORKLOADS,
) -> tuple[Outcome, list[SceneRow]]:
    """All on one cluster, that begins with three nodes."""
    script = Play(scenes, seed, say)
    plan = MembersPlan(seed, workloads=workloads, scenes=scenes)
    return await run_one(plan, folder, say, script), script.rows


def show_scenes(console: Console, rows: Sequence[SceneRow], ops: Sequence[Op]) -> None:
    gaps = [gap for mine in gaps_of(ops).values() for gap in mine]
    zero_ns = ops[0].monotonic_ns if ops else 0
    table = Table(
        "scene", "what was done", "s", "operations", "confirmed", "longest gap s", "whole"
    )
    for row in rows:
        during = [op for op in clients(ops) if row.began_ns <= op.monotonic_ns <= row.ended_ns]
        window = Span((row.began_ns - zero_ns) / 1e9, (row.ended_ns - zero_ns) / 1e9)
        table.add_row(
            row.name,
            row.done or row.failure.partition("\n")[0],
            f"{row.seconds:.0f}",
            f"{sum(op.type == 'invoke' for op in during):,}",
            f"{sum(published_by(op) for op in during if op.type == 'ok'):,}",
            f"{longest_s(gaps, window):.1f}",
            "[bold red]NO[/]" if row.failure else "yes",
        )
    console.print(table)


def longest_s(gaps: Sequence[Span], window: Span) -> float:
    """Of that part of each gap that is in the window."""
    inside = (min(g.end_s, window.end_s) - max(g.start_s, window.start_s) for g in gaps)
    return max([0.0, *inside])


def scenes_of(only: str | None) -> list[str]:
    """In the order in which they are played. Raises NoSuchPlan."""
    every = (*ALL, BRIEF)
    names = ALL if only is None else only.split(",")
    if unknown := [name for name in names if name not in every]:
        raise NoSuchPlan(f"no scene {', '.join(unknown)}: there are {', '.join(every)}")
    return [name for name in every if name in names]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos members", description=__doc__)
    parser.add_argument("--only", help=f"scenes: {','.join(ALL)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RUNS / "members")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    outcomes = asyncio.run(_all(scenes_of(given.only), given.out, given.seed, console))
    console.print("; ".join(f"{name}: {styled(each.status)}" for name, each in outcomes.items()))
    return exit_status(list(outcomes.values()))


async def _all(
    scenes: Sequence[str], out: Path, seed: int, console: Console
) -> Mapping[str, Outcome]:
    began_s = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - began_s:6.1f}  {text}", markup=False, soft_wrap=True)

    outcomes: dict[str, Outcome] = {}
    played = [name for name in scenes if name in SCENES]
    if played:
        folder = out / "scenes"
        outcome, rows = await play(played, folder, seed=seed, say=say)
        show_run(console, outcome)
        ops = read_history(folder / "history.jsonl")
        show_scenes(console, rows, ops)
        with (folder / "report.txt").open("a", encoding="utf-8") as file:
            show_scenes(Console(file=file, width=REPORT_WIDTH), rows, ops)
        console.print(f"{folder}/timeline.png", soft_wrap=True)
        outcomes["scenes"] = outcome
    for name in (LOST_MAJORITY, OF_FIVE):
        if name in scenes:
            five = name == OF_FIVE
            outcome = await lose_majority(out / name, seed=seed, say=say, of_five=five)
            show_run(console, outcome)
            outcomes[name] = outcome
    return outcomes
