"""All nodes lose their power at the same instant, under load, again and again: nothing that was
confirmed may be missing afterwards.

`python -m chaos power --rounds 20`. Exit status: 0 nothing was lost; 1 a promise was broken; 2 it
could not be tried here. With `--lie` the disks say that they synced and did not: the control, which
must lose confirmed messages and be seen to.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.campaign import exit_status
from chaos.commands import RUNS
from chaos.history import History, Op
from chaos.live import disks
from chaos.live.live_cluster import LiveCluster, NotReadyError
from chaos.load.addresses import Address
from chaos.load.driver import PROTOCOLS
from chaos.load.workload import Workload
from chaos.nemesis.nemesis import Nemesis
from chaos.plan import Plan
from chaos.report.series import NEMESIS, published_by, workload_of
from chaos.report.tables import show_run
from chaos.run import Say, run_one

ROUNDS = 20
#: Those of w6 leave messages in their queues until the end.
WORKLOADS = ("w1-native", "w1-amqp", "w6-native", "w6-amqp", "w9-native")
#: Load between two cuts, counted from when both protocols confirm again, and time without power.
LOAD_S = (0.5, 4.0)
DARK_S = (0.1, 1.0)
#: How long nodes may take until clients have confirms again.
RECOVERY_S_MAX = 60.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class PowerPlan(Plan):
    mix: str = "calm"
    workloads: Sequence[str] = WORKLOADS
    disks: str | None = "ext4"
    pace: float = 2.5
    rounds: int = ROUNDS
    lie: bool = False

    @property
    def command(self) -> str:
        words = f"python -m chaos power --rounds {self.rounds} --seed {self.seed}"
        return f"{words} --filesystem {self.disks}" + (" --lie" if self.lie else "")


@dataclass(frozen=True, slots=True)
class Round:
    """One loss of power."""

    down_s: float  # from the cut until both protocols confirm again
    ready_s: float  # from the start of the nodes until all said that they are ready
    recovery_s: float  # and until both protocols confirm again


@dataclass
class Play:
    """The script of a run."""

    plan: PowerPlan
    say: Say
    rounds: list[Round] = field(default_factory=list[Round])

    async def __call__(
        self, nemesis: Nemesis, _addresses: list[Address], workloads: Sequence[Workload]
    ) -> None:
        cluster, history = nemesis.stage.cluster, nemesis.stage.history
        dice = random.Random(f"{self.plan.seed}/power")
        try:
            await _confirming(history)
            await self._lie(cluster)
            while len(self.rounds) < self.plan.rounds:
                await asyncio.sleep(dice.uniform(*LOAD_S))
                self.rounds.append(await self._round(cluster, history, dice, workloads))
        except (NotReadyError, TimeoutError) as error:
            nemesis.findings.append(f"not everything went on in time: {error}")

    async def _round(
        self,
        cluster: LiveCluster,
        history: History,
        dice: random.Random,
        workloads: Sequence[Workload],
    ) -> Round:
        cut_s, confirmed = time.monotonic(), sum(map(_confirmed, history))
        history.saw(NEMESIS, "fault", {"kind": "power_loss_all", "nodes": cluster.nodes})
        await asyncio.to_thread(cluster.power_loss, cluster.nodes)
        await asyncio.sleep(dice.uniform(*DARK_S))
        start_s = time.monotonic()
        await asyncio.to_thread(cluster.start_all)
        await self._lie(cluster)
        await cluster.until_ready(timeout_s=RECOVERY_S_MAX)
        ready_s = time.monotonic()
        if self.plan.lie:  # the queues may be gone, too
            await asyncio.gather(*(workload.prepare() for workload in workloads))
        again_s = await _confirming(history)
        row = Round(again_s - cut_s, ready_s - start_s, again_s - start_s)
        self.say(
            f"{len(self.rounds) + 1:3d}/{self.plan.rounds}  confirmed {confirmed:>9,}"
            f"  down {row.down_s:5.2f} s  ready {row.ready_s:5.2f} s"
            f"  confirming {row.recovery_s:5.2f} s"
        )
        return row

    async def _lie(self, cluster: LiveCluster) -> None:
        for node in cluster.nodes if self.plan.lie else ():
            await asyncio.to_thread(cluster.lie_fsync, node)


async def _confirming(history: History) -> float:
    """When both protocols have confirmed something from now on. Raises TimeoutError."""
    began, confirming = len(history), set[str]()
    async with asyncio.timeout(RECOVERY_S_MAX):
        while confirming != {*PROTOCOLS}:
            await asyncio.sleep(LOOK_S)
            new = filter(_confirmed, history.ops[began:])
            confirming |= {workload_of(op).partition("-")[2] for op in new}
    return time.monotonic()


def _confirmed(op: Op) -> int:
    """Messages."""
    return published_by(op) if op.type == "ok" else 0


def run(plan: PowerPlan, folder: Path, console: Console) -> int:
    """One campaign; its exit status."""
    chosen = disks.choose(folder / "probe", "xfs" if plan.disks == "xfs" else "ext4")
    chosen.close()
    needed = ("power_loss", "lie_fsync") if plan.lie else ("power_loss",)
    for fault in needed:
        if fault in chosen.missing:
            console.print(f"cannot be tried here: {chosen.missing[fault]}", markup=False)
            return 2

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    play = Play(plan, say)
    outcome = asyncio.run(run_one(plan, folder, say, play))
    show_run(console, outcome)
    table = Table("", "median s", "most s")
    for name, values in (
        ("down", [each.down_s for each in play.rounds]),
        ("ready after the start", [each.ready_s for each in play.rounds]),
        ("confirming after the start", [each.recovery_s for each in play.rounds]),
    ):
        if values:
            table.add_row(name, f"{statistics.median(values):.2f}", f"{max(values):.2f}")
    console.print(table)
    return exit_status([outcome])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos power", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--filesystem", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--lie", action="store_true", help="the control: syncs do nothing")
    parser.add_argument("--out", type=Path, default=RUNS / "power")
    given = parser.parse_args(arguments)
    plan = PowerPlan(given.seed, disks=given.filesystem, rounds=given.rounds, lie=given.lie)
    return run(plan, given.out, Console(highlight=False))
