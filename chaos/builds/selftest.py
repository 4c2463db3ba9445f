"""Does the suite see it? Every broken build runs on real nodes until a checker says that a promise
was broken; and a checker is fed a history that lost one message.

`python -m chaos selftest [BUILD ...]`. Exit status: 0 each was caught; 1 one was not; 2 some could
not be tried here, the others were caught.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.builds import BUILDS
from chaos.builds.trials import CALM, TRIALS, Arena, Trial
from chaos.checker import Verdict, check_all, total_queue
from chaos.checker.links import RUNNING_AGAIN_S
from chaos.checker.log_safety import log_safety
from chaos.history import Op, Recorder
from chaos.live import disks, networks
from chaos.live.live_cluster import NODES, LiveCluster, NotReadyError
from chaos.live.loop_disks import SETTINGS
from chaos.live.seams import Disks
from chaos.load.driver import Driver, Protocols
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene, Workload
from cluster.types import NodeId

#: How long one build may take to be caught, in rounds on clusters of their own.
BUILD_S_MAX = 90.0
#: How often the checkers look at a history that still grows.
LOOK_S = 1.0
#: A broken cluster may never come to an end: clients that do not are left alone.
END_S_MAX = 10.0
DRAIN_S_MAX = RUNNING_AGAIN_S + 5.0
EXAMPLE_CHARS_MAX = 160
LOST_MESSAGE = "one-lost-message"


@dataclass(frozen=True, slots=True)
class Caught:
    checker: str
    anomaly: str
    example: str


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one build."""

    build: str
    caught: Sequence[Caught]
    seconds: float
    rounds: int
    not_tried: str = ""  # why


class Round:
    """One cluster of a build, its load and its strikes."""

    def __init__(self, trial: Trial, folder: Path, chosen: Disks, seed: int) -> None:
        self.trial = trial
        self.folder = folder
        self._recorder = Recorder(folder / "history.jsonl")
        settings = "" if isinstance(chosen, disks.FolderDisks) else SETTINGS
        self._cluster = LiveCluster(
            folder, NODES, networks.choose(), chosen, build=trial.build, settings=settings
        )
        addresses = [self._cluster.address(node) for node in self._cluster.nodes]
        self._drivers = Drivers(addresses, seed)
        self._opened: list[Driver] = []
        self._scene = Scene(
            self._recorder,
            self._open,
            seed,
            open_nats=self._drivers.open_nats,
            nodes=self._drivers,
        )
        self._arena = Arena(self._cluster, random.Random(f"{seed}/{trial.build}"))
        self._workloads = list(trial.load(self._scene))
        self.verdicts: list[Verdict] = []
        self.ended = ""  # early, and why

    def _open(self, name: str, protocol: Protocols) -> Driver:
        driver = self._drivers.open(name, protocol)
        self._opened.append(driver)
        return driver

    @property
    def ops(self) -> list[Op]:
        return self._recorder.ops

    @property
    def missing(self) -> list[str]:
        """Why the trial cannot be had here."""
        missing = self._cluster.missing
        return [f"{fault}: {missing[fault]}" for fault in self.trial.needs if fault in missing]

    async def run(self) -> list[Caught]:
        """What the checkers saw, as soon as they see anything."""
        try:
            self._cluster.start_all()
            await self._cluster.until_ready()
            for workload in self._workloads:
                await workload.prepare()
            await asyncio.to_thread(os.sync)  # the queues themselves shall be there afterwards
            await self._until_seen(asyncio.create_task(self._load(), name="load"))
        except (NotReadyError, RuntimeError) as error:
            # A broken cluster need not serve: what it did until then is judged.
            self.ended = str(error)
        finally:
            for node in self._cluster.nodes:
                await asyncio.to_thread(self._cluster.kill, node)
            closing = (asyncio.wait_for(driver.close(), END_S_MAX) for driver in self._opened)
            await asyncio.gather(*closing, return_exceptions=True)
        self._judge()
        forgetful = self._cluster.nodes if self.trial.wipes else []
        safety = partial(log_safety, self._data(), forgetful=forgetful)
        self.verdicts.append(await asyncio.to_thread(safety))
        return _seen(self.verdicts)

    def _data(self) -> dict[NodeId, Path]:
        """Copies of what the nodes have on their disks: those go with the round."""
        self._cluster.copy_logs(self.folder / "nodes")
        return {node: self.folder / "nodes" / node / "data" for node in self._cluster.nodes}

    def close(self) -> None:
        self._cluster.close()
        self._recorder.close()

    async def _until_seen(self, work: asyncio.Task[None]) -> None:
        """Until the work is done, or a checker has seen enough."""
        while not work.done():
            await asyncio.wait((work,), timeout=LOOK_S)
            self._judge()
            if _seen(self.verdicts):
                break
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await work

    async def _load(self) -> None:
        loads = [asyncio.create_task(workload.run()) for workload in self._workloads]
        drains: list[asyncio.Task[None]] = []
        try:
            until_s = time.monotonic() + self.trial.load_s
            while time.monotonic() < until_s:
                await self.trial.strike(self._arena)
            await asyncio.to_thread(self._cluster.heal)
            await asyncio.to_thread(self._cluster.start_all)
            await self._arena.ready()
            self._scene.ending.set()
            await asyncio.wait(loads, timeout=END_S_MAX)
            drains = [asyncio.create_task(workload.drain()) for workload in self._workloads]
            await asyncio.wait(drains, timeout=DRAIN_S_MAX)
        finally:
            self._scene.ending.set()
            for task in (*loads, *drains):
                task.cancel()
            await asyncio.gather(*loads, *drains, return_exceptions=True)

    def _judge(self) -> None:
        self.verdicts = [
            verdict
            for workload in self._workloads
            for verdict in check_all(self._part(workload), workload.checkers)
        ]

    def _part(self, workload: Workload) -> list[Op]:
        return [op for op in self.ops if op.process.startswith(f"{workload.name}/")]


def _seen(verdicts: Sequence[Verdict]) -> list[Caught]:
    """Anomalies of the checkers that say violated."""
    return [
        Caught(verdict.checker, anomaly, str(examples[0]))
        for verdict in verdicts
        if verdict.valid is False
        for anomaly, examples in verdict.examples.items()
    ]


async def try_build(trial: Trial, folder: Path, console: Console) -> Row:
    """Rounds on new clusters, until it is caught or the time is over."""
    began_s = time.monotonic()
    rounds = 0
    while time.monotonic() - began_s < BUILD_S_MAX:
        rounds += 1
        place = folder / f"{trial.name}-{rounds}"
        place.mkdir(parents=True)
        wants_power = "power_loss" in trial.needs
        chosen = disks.choose(place / "disks", None if wants_power else "folders")
        attempt = Round(trial, place, chosen, seed=rounds)
        try:
            if attempt.missing:
                return Row(trial.name, (), 0.0, 0, "; ".join(attempt.missing))
            caught = await attempt.run()
        finally:
            await asyncio.to_thread(attempt.close)
        if caught:
            return Row(trial.name, caught, time.monotonic() - began_s, rounds)
        console.print(f"  round {rounds}: not seen {attempt.ended}", markup=False)
    return Row(trial.name, (), time.monotonic() - began_s, rounds)


async def try_lost_message(folder: Path) -> Row:
    """A real history of the broker as it is, without the deliveries of one message."""
    began_s = time.monotonic()
    place = folder / LOST_MESSAGE
    place.mkdir(parents=True)
    attempt = Round(CALM, place, disks.choose(place / "disks", "folders"), seed=1)
    try:
        seen = await attempt.run()
    finally:
        await asyncio.to_thread(attempt.close)
    if any(verdict.valid is not True for verdict in attempt.verdicts):
        said = seen or [verdict.describe() for verdict in attempt.verdicts]
        raise AssertionError(f"the broker itself failed in a calm run: {said}")
    verdict = total_queue(without_one(attempt.ops))
    caught = _seen([verdict]) if verdict.counts["lost"] == 1 else []
    return Row(LOST_MESSAGE, caught, time.monotonic() - began_s, 1)


def without_one(ops: Sequence[Op]) -> list[Op]:
    """The history as if one confirmed message had never come out."""
    delivered = [op for op in ops if op.f == "deliver"]
    victim = next(op for op in delivered if op.value["messages"])
    queue, message = victim.value["queue"], victim.value["messages"][-1]

    def cut(op: Op) -> Op:
        if op.f != "deliver" or op.value["queue"] != queue:
            return op
        kept = [each for each in op.value["messages"] if each != message]
        return replace(op, value={**op.value, "messages": kept})

    return [cut(op) for op in ops]


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="Broken builds, and who caught them")
    for column in ("build", "caught by", "example", "after", "rounds"):
        table.add_column(column, overflow="fold")
    for row in rows:
        by = "\n".join(dict.fromkeys(f"{each.checker}: {each.anomaly}" for each in row.caught))
        example = row.caught[0].example[:EXAMPLE_CHARS_MAX] if row.caught else row.not_tried
        word = by or ("not tried" if row.not_tried else "NOT CAUGHT")
        table.add_row(row.build, word, example, f"{row.seconds:.1f} s", str(row.rounds))
    console.print(table)


async def _all(names: Sequence[str], folder: Path, console: Console) -> list[Row]:
    rows: list[Row] = []
    trials = [trial for trial in TRIALS if not names or trial.build in names]
    for trial in trials:
        console.print(f"{trial.name}: {BUILDS[str(trial.build)].does}", markup=False)
        row = await try_build(trial, folder, console)
        by = ", ".join(f"{each.checker}: {each.anomaly}" for each in row.caught)
        console.print(f"  {by or row.not_tried or 'NOT CAUGHT'}, {row.seconds:.1f} s", markup=False)
        rows.append(row)
    if not names or LOST_MESSAGE in names:
        rows.append(await try_lost_message(folder))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos selftest", description=__doc__)
    parser.add_argument("builds", nargs="*", metavar="BUILD", help="only these")
    parser.add_argument("--folder", type=Path, help="where it runs; kept")
    given = parser.parse_args(arguments)
    if unknown := {*given.builds} - {*BUILDS, LOST_MESSAGE}:
        parser.error(f"no such build: {', '.join(sorted(unknown))}")
    console = Console()
    folder: Path = given.folder or Path(tempfile.mkdtemp(prefix="quorate-selftest-"))
    rows = asyncio.run(_all(given.builds, folder, console))
    show(rows, console)
    if any(not row.caught and not row.not_tried for row in rows):
        console.print(f"not all were caught; histories: {folder}", style="red", markup=False)
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 2 if any(row.not_tried for row in rows) else 0
