"""One run: real nodes, load and faults; then all is healed, drained, stopped and judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from chaos.checker import Verdict, convergence
from chaos.checker.liveness import BOUND_S as LIVENESS_S
from chaos.history import Op, Recorder
from chaos.judging import Aftermath, judge_run
from chaos.live import disks, networks
from chaos.live.live_cluster import NODES, LiveCluster
from chaos.live.loop_disks import SETTINGS as SMALL_DISKS
from chaos.load.addresses import Address
from chaos.load.all import make_workloads
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene, Workload
from chaos.nemesis.episodes import Pace
from chaos.nemesis.nemesis import Nemesis
from chaos.nemesis.watch import Watch
from chaos.plan import Plan
from chaos.report.outcome import Outcome, Status, status_of, totals_of
from chaos.report.series import NEMESIS, published_by, workload_of
from chaos.report.write import write_report
from cluster.types import NodeId

#: Small segments, so that they are cleaned and nodes that were away are sent snapshots.
SETTINGS = f'log.segment_bytes = "1MiB"\n{SMALL_DISKS}'
#: Runs are short: more faults in them tell more.
PACE = Pace(quiet_s=(0.5, 2.0), lasts_s=(0.5, 5.0))
#: In the folder of a run that keeps its logs.
ARCHIVE = "archive"
PREPARE_S_MAX = 60.0
#: Load goes on this long after the last fault: what comes back must be of use.
CALM_S = 3.0
#: After the load has ended, all must be taken out within this.
DRAIN_S_MAX = 120.0
#: And this long may nodes take until all have applied the same.
SETTLE_S_MAX = 30.0
STOP_S_MAX = 40.0
LOOK_S = 0.2

Say = Callable[[str], None]
#: What happens under load in the place of random faults. Nodes that it adds or takes away it adds
#: to or takes from the addresses, which are all that clients know.
Script = Callable[[Nemesis, list[Address], Sequence[Workload]], Awaitable[None]]


@dataclass
class _Found:
    """What is known of a run so far; whatever happens later, this is judged."""

    network: str = "none"
    disks: str = "none"
    missing: dict[str, str] = field(default_factory=dict[str, str])
    workloads: Sequence[Workload] = ()
    aftermath: Aftermath = field(default_factory=Aftermath)
    crashes: list[str] = field(default_factory=list[str])


class Run:
    """`go` once. The folder holds nothing else. `keep`: the nodes' logs stay also when all is
    valid, and what nodes cleaned of them is in an archive.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        say: Say,
        script: Script | None = None,
        *,
        keep: bool = False,
    ) -> None:
        self.plan = plan
        self._script = script
        self._keep = keep
        self._folder = folder
        self._say = say
        self._found = _Found()

    async def go(self) -> Outcome:
        """Never raises for what broker or harness did: the outcome tells it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        recorder = Recorder(self._folder / "history.jsonl")
        began_s = time.monotonic()
        try:
            await self._on_machine(recorder)
        except Exception:  # noqa: BLE001 -- the harness's own bug is a status, not the end of a campaign
            self._found.crashes.append(traceback.format_exc())
        finally:
            recorder.close()
        self._say("judging")
        return await asyncio.to_thread(self._judge, recorder.ops, time.monotonic() - began_s)

    # --- phases

    async def _on_machine(self, recorder: Recorder) -> None:
        """With nodes that run on a network and on disks, all of which go when it ends."""
        plan, found = self.plan, self._found
        self._say("making network and disks")
        places = self._folder / "disks"
        platters = await asyncio.to_thread(disks.choose, places, cast("Any", plan.disks))
        try:
            network = await asyncio.to_thread(networks.choose, plan.network)
        except BaseException:
            platters.close()
            raise
        found.network, found.disks = network.kind, platters.kind
        settings = SETTINGS
        if self._keep:
            archive = (self._folder / ARCHIVE).absolute()
            archive.mkdir()
            settings += f"log.archive_dir = {json.dumps(str(archive))}\n"
        cluster = LiveCluster(
            self._folder, NODES, network, platters, build=plan.build, settings=settings
        )
        try:
            await self._phases(cluster, recorder)
        finally:
            cluster.close()
            shutil.rmtree(places, ignore_errors=True)

    async def _phases(self, cluster: LiveCluster, recorder: Recorder) -> None:
        found = self._found
        self._say("starting nodes")
        cluster.start_all()
        await cluster.until_ready()
        watch = Watch(cluster, recorder)
        watching = asyncio.create_task(watch.run(), name="watch")
        try:
            await self._under_load(cluster, recorder, watch)
            self._say("waiting until all nodes have applied the same")
            found.aftermath.statuses = await settled(cluster)
            if watching.done():
                await watching  # it never ends by itself
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        self._say("stopping nodes")
        found.aftermath.not_stopped = await _stop(cluster)
        await asyncio.to_thread(cluster.copy_logs, self._folder / "nodes")
        found.aftermath.folders = {
            node: self._folder / "nodes" / node / "data" for node in cluster.nodes_ever
        }

    async def _under_load(self, cluster: LiveCluster, recorder: Recorder, watch: Watch) -> None:
        plan, found = self.plan, self._found
        addresses = [cluster.address(node) for node in cluster.nodes]
        drivers = Drivers(addresses, plan.seed)
        scene = Scene(
            recorder,
            drivers.open,
            plan.seed,
            plan.pace,
            open_nats=drivers.open_nats,
            nodes=drivers,
        )
        nemesis = Nemesis(
            cluster,
            watch,
            recorder,
            seed=plan.seed,
            mix=plan.faults,
            pace=PACE,
            shuffled=plan.shuffled,
        )
        found.missing = dict(nemesis.not_tried)
        true_clocks = not {name for name, _ in nemesis.mix} & {"skew_clock", "wrong_clock"}
        workloads = make_workloads(plan.workloads, scene, true_clocks=true_clocks)
        found.workloads = workloads
        self._say("declaring queues")
        async with asyncio.timeout(PREPARE_S_MAX):
            await asyncio.gather(*(workload.prepare() for workload in workloads))
        tasks = {
            workload.name: asyncio.create_task(workload.run(), name=workload.name)
            for workload in workloads
        }
        try:
            if self._script is not None:
                found.aftermath.moved = True
                await self._script(nemesis, addresses, workloads)
            else:
                nemesis.start()
                self._say(f"load and faults for {plan.seconds:g} s")
                await asyncio.sleep(plan.seconds)
            self._say("healing")
            found.aftermath.not_whole = await nemesis.stop()
            found.aftermath.findings = list(nemesis.findings)
            found.aftermath.healed = True
            healed = recorder.saw(NEMESIS, "heal", {})
            await _alive(recorder, healed)
            self._say("draining")
            scene.ending.set()
            await self._drain(workloads, tasks)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _drain(
        self, workloads: Sequence[Workload], tasks: Mapping[str, asyncio.Task[None]]
    ) -> None:
        async def drained(workload: Workload) -> None:
            await tasks[workload.name]
            await workload.drain()

        ends = {
            workload.name: asyncio.create_task(drained(workload), name=f"drain {workload.name}")
            for workload in workloads
        }
        await asyncio.wait(ends.values(), timeout=DRAIN_S_MAX)
        if late := [name for name, end in ends.items() if not end.done()]:
            (self._folder / "stuck.txt").write_text(_all_tasks(), encoding="utf-8")
            self._found.aftermath.not_drained += [
                f"{name} did not end within {DRAIN_S_MAX:g} s: see stuck.txt" for name in late
            ]
        for end in ends.values():
            end.cancel()
        await asyncio.gather(*ends.values(), return_exceptions=True)
        for name, end in ends.items():
            if not end.cancelled() and (error := end.exception()) is not None:
                self._found.crashes.append(f"{name}: {''.join(traceback.format_exception(error))}")

    def _judge(self, ops: Sequence[Op], took_s: float) -> Outcome:
        found, plan = self._found, self.plan
        verdicts: dict[str, list[Verdict]] = {}
        try:
            verdicts = judge_run(ops, found.workloads, found.aftermath)
        except Exception:  # noqa: BLE001 -- no verdict is no pass, and the run is kept
            found.crashes.append(traceback.format_exc())
        crash = "\n".join(found.crashes)
        outcome = Outcome(
            seed=plan.seed,
            mix=plan.mix,
            workloads=plan.workloads,
            seconds=took_s,
            folder=self._folder,
            command=plan.command,
            network=found.network,
            disks=found.disks,
            status=status_of(verdicts, crash),
            totals=totals_of(ops, verdicts),
            verdicts=verdicts,
            missing=found.missing,
            crash=crash,
        )
        write_report(ops, outcome)
        if outcome.status is Status.VALID and not self._keep:
            for folder in found.aftermath.folders.values():
                shutil.rmtree(folder, ignore_errors=True)
        return outcome


async def run_one(
    plan: Plan,
    out: Path,
    say: Say = lambda _: None,
    script: Script | None = None,
    *,
    keep: bool = False,
) -> Outcome:
    """`out`: a folder for this run; what is in it goes. `keep`: see `Run`."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(out)
    return await Run(plan, out, say, script, keep=keep).go()


def _all_tasks() -> str:
    """What each waits for, innermost last."""
    lines: list[str] = []
    for task in asyncio.all_tasks():
        at: Any = task.get_coro()
        lines.append(task.get_name())
        while (frame := getattr(at, "cr_frame", None)) is not None:
            lines.append(
                f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
            )
            at = at.cr_await
        lines.append(f"  {at}")
    return "\n".join(lines) + "\n"


async def _alive(recorder: Recorder, healed: Op) -> None:
    """Until every workload that publishes had a confirm after the heal; it is judged later."""
    waiting = {workload_of(op) for op in recorder.ops if published_by(op)}
    until_s = time.monotonic() + LIVENESS_S + CALM_S
    seen = healed.index
    await asyncio.sleep(CALM_S)
    while waiting and time.monotonic() < until_s:
        for op in recorder.ops[seen:]:
            if op.type == "ok" and published_by(op):
                waiting.discard(workload_of(op))
        seen = len(recorder)
        await asyncio.sleep(LOOK_S)


async def settled(
    cluster: LiveCluster, *, timeout_s: float = SETTLE_S_MAX
) -> dict[NodeId, dict[str, Any] | None]:
    """Every node's status, when all have applied the same or the time is up."""
    until_s = time.monotonic() + timeout_s
    while True:
        answers = await asyncio.gather(
            *(cluster.status(node, digests=True) for node in cluster.nodes)
        )
        statuses = dict(zip(cluster.nodes, answers, strict=True))
        if convergence(statuses).valid is True or time.monotonic() > until_s:
            return statuses
        await asyncio.sleep(LOOK_S)


async def _stop(cluster: LiveCluster) -> list[str]:
    """In good order; those that did not end so, which is told."""
    for node in cluster.nodes:
        await asyncio.to_thread(cluster.terminate, node)
    wrong: list[str] = []
    for node in cluster.nodes:
        if not await cluster.until_ended(node, timeout_s=STOP_S_MAX):
            wrong.append(f"{node} did not end within {STOP_S_MAX:g} s")
            await asyncio.to_thread(cluster.kill, node)
        elif cluster.exit_code(node):
            wrong.append(cluster.obituary(node))
    return wrong
