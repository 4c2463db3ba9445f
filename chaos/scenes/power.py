"""All nodes lose their power at the same instant, under load, again and again: nothing that was
confirmed may be missing afterwards.

`python -m chaos power --rounds 20`. Exit status: 0 nothing was lost; 1 a promise was broken; 2 it
could not be tried here. With `--lie` the disks say that they synced and did not: the control, which
must lose confirmed messages and be seen to.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shlex
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.checker.verdict import Verdict, check_all, merge
from chaos.history import History, Op, Recorder
from chaos.live import disks, networks
from chaos.live.live_cluster import NODES, LiveCluster, NotReadyError
from chaos.live.loop_disks import SETTINGS, FileSystem
from chaos.load.driver import PROTOCOLS
from chaos.load.drivers import Drivers
from chaos.load.numbered_publishers import NumberedPublishers
from chaos.load.publish_consume import PublishConsume
from chaos.load.workload import Scene, Workload
from chaos.report.series import published_by, workload_of

ROUNDS = 20
#: How many times as often as in other runs publishers publish, and how slow consumers are.
PACE = 2.5
WORK_S = 0.03
#: Load between two cuts, counted from when both protocols confirm again, and time without power.
LOAD_S = (0.5, 4.0)
DARK_S = (0.1, 1.0)
#: How long nodes may take until clients have confirms again, and the last drain.
RECOVERY_S_MAX = 60.0
DRAIN_S_MAX = 300.0
LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Options:
    rounds: int = ROUNDS
    seed: int = 1
    filesystem: FileSystem = "ext4"
    lie: bool = False

    @property
    def command(self) -> str:
        """What runs it again."""
        words = ["python", "-m", "chaos", "power", "--rounds", str(self.rounds)]
        words += ["--seed", str(self.seed), "--filesystem", self.filesystem]
        return shlex.join([*words, "--lie"] if self.lie else words)


@dataclass(frozen=True, slots=True)
class Round:
    """One loss of power."""

    confirmed: int  # messages, until the cut
    down_s: float  # from the cut until both protocols confirm again
    ready_s: float  # from the start of the nodes until all said that they are ready
    recovery_s: float  # and until both protocols confirm again


@dataclass
class Campaign:
    """What it has found so far."""

    options: Options
    folder: Path
    rounds: list[Round] = field(default_factory=list[Round])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    broken: str = ""  # why it ended early

    @property
    def passed(self) -> bool:
        return not self.broken and merge(self.verdicts) is True


def run(options: Options, console: Console | None = None, folder: Path | None = None) -> int:
    """One campaign; its exit status. The folder is kept when it fails, or when it was given."""
    console = console or Console()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # connections break, and it says so
    place = folder or Path(tempfile.mkdtemp(prefix="quorate-power-"))
    place.mkdir(parents=True, exist_ok=True)
    chosen = disks.choose(place / "disks", options.filesystem)
    needed = {"power_loss", "lie_fsync"} if options.lie else {"power_loss"}
    if lacking := sorted(needed & set(chosen.missing)):
        console.print(f"cannot be tried here: {chosen.missing[lacking[0]]}", markup=False)
        chosen.close()
        return 2
    cluster = LiveCluster(place, NODES, networks.choose(), chosen, settings=SETTINGS)
    campaign = Campaign(options, place)
    try:
        console.print(
            f"{len(NODES)} nodes on {chosen.kind}, {cluster.network.kind}; seed {options.seed}"
            + ("; the disks lie" if options.lie else ""),
            markup=False,
        )
        asyncio.run(_campaign(campaign, cluster, console))
        if not campaign.passed:
            for node in cluster.nodes:
                cluster.kill(node)
            cluster.copy_logs(place / "nodes")
    finally:
        cluster.close()
    _report(campaign, console)
    if campaign.passed and folder is None:
        shutil.rmtree(place)
    return 0 if campaign.passed else 1


async def _campaign(campaign: Campaign, cluster: LiveCluster, console: Console) -> None:
    recorder = Recorder(campaign.folder / "history.jsonl")
    addresses = [cluster.address(node) for node in cluster.nodes]
    drivers = Drivers(addresses, campaign.options.seed)
    scene = Scene(recorder, drivers.open, campaign.options.seed, PACE)
    load: list[Workload] = [
        *(PublishConsume(scene, protocol, work_s=WORK_S) for protocol in PROTOCOLS),
        NumberedPublishers(scene, "native"),
    ]
    try:
        cluster.start_all()
        await cluster.until_ready()
        await _prepare(load)
        loading = asyncio.gather(*(workload.run() for workload in load))
        try:
            await _rounds(campaign, cluster, load, loading, scene, console)
        finally:
            scene.ending.set()
            async with asyncio.timeout(RECOVERY_S_MAX):
                await loading
        async with asyncio.timeout(DRAIN_S_MAX):
            await asyncio.gather(*(workload.drain() for workload in load))
    except (NotReadyError, TimeoutError) as error:
        campaign.broken = str(error) or "not everything went on, or was drained, in time"
    finally:
        recorder.close()
    checkers = {name: each for workload in load for name, each in workload.checkers.items()}
    campaign.verdicts = check_all(recorder.ops, checkers)


async def _prepare(load: Sequence[Workload]) -> None:
    for workload in load:
        await workload.prepare()


async def _rounds(
    campaign: Campaign,
    cluster: LiveCluster,
    load: Sequence[Workload],
    loading: asyncio.Future[list[None]],
    scene: Scene,
    console: Console,
) -> None:
    dice = random.Random(f"{campaign.options.seed}/power")
    recorder = scene.recorder
    await _confirming(recorder, loading)
    if campaign.options.lie:
        await _lie(cluster)
    for number in range(1, campaign.options.rounds + 1):
        await asyncio.sleep(dice.uniform(*LOAD_S))
        cut_s, confirmed = time.monotonic(), sum(_confirmed(op) for op in recorder)
        recorder.saw("nemesis", "fault", {"kind": "power loss", "nodes": cluster.nodes})
        await asyncio.to_thread(cluster.power_loss, cluster.nodes)
        await asyncio.sleep(dice.uniform(*DARK_S))
        start_s = time.monotonic()
        await asyncio.to_thread(cluster.start_all)
        if campaign.options.lie:
            await _lie(cluster)
        await cluster.until_ready(timeout_s=RECOVERY_S_MAX)
        ready_s = time.monotonic() - start_s
        if campaign.options.lie:
            await _prepare(load)  # the queues may be gone, too
        again_s = await _confirming(recorder, loading)
        row = Round(confirmed, again_s - cut_s, ready_s, again_s - start_s)
        campaign.rounds.append(row)
        console.print(
            f"{number:3d}/{campaign.options.rounds}  confirmed {row.confirmed:>9,}"
            f"  down {row.down_s:5.2f} s  ready {row.ready_s:5.2f} s"
            f"  confirming {row.recovery_s:5.2f} s"
        )


async def _confirming(recorder: History, loading: asyncio.Future[list[None]]) -> float:
    """When both protocols have confirmed something from now on. Raises TimeoutError, and what ended
    the load.
    """
    began, confirming = len(recorder), set[str]()
    async with asyncio.timeout(RECOVERY_S_MAX):
        while confirming != {*PROTOCOLS}:
            if loading.done():
                await loading
            await asyncio.sleep(LOOK_S)
            new = recorder.ops[began:]
            confirming |= {workload_of(op).partition("-")[2] for op in new if _confirmed(op)}
    return time.monotonic()


def _confirmed(op: Op) -> int:
    """Messages."""
    return published_by(op) if op.type == "ok" else 0


async def _lie(cluster: LiveCluster) -> None:
    for node in cluster.nodes:
        await asyncio.to_thread(cluster.lie_fsync, node)


def _report(campaign: Campaign, console: Console) -> None:
    table = Table("", "")
    table.add_row("power losses of all nodes", str(len(campaign.rounds)))
    for name, values in (
        ("down", [each.down_s for each in campaign.rounds]),
        ("ready after the start", [each.ready_s for each in campaign.rounds]),
        ("confirming after the start", [each.recovery_s for each in campaign.rounds]),
    ):
        if values:
            middle = statistics.median(values)
            table.add_row(f"{name}: median, most", f"{middle:.2f} s, {max(values):.2f} s")
    for verdict in campaign.verdicts:
        for name, count in verdict.counts.items():
            table.add_row(f"{verdict.checker}: {name}", f"{count:,}")
    console.print(table)
    if campaign.passed:
        console.print("nothing was lost", style="green")
        return
    for verdict in campaign.verdicts:
        if verdict.valid is not True:
            console.print(verdict.describe(), markup=False, style="red")
    if campaign.broken:
        console.print(campaign.broken, markup=False, style="red")
    console.print(f"history, logs and data: {campaign.folder}", markup=False)
    console.print(f"run it again: {campaign.options.command}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos power", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--filesystem", choices=("ext4", "xfs"), default="ext4")
    parser.add_argument("--lie", action="store_true", help="the control: syncs do nothing")
    parser.add_argument("--folder", type=Path, help="where it runs, and what is kept")
    given = parser.parse_args(arguments)
    options = Options(given.rounds, given.seed, given.filesystem, given.lie)
    return run(options, folder=given.folder)
