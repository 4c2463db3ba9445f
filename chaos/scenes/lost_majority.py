"""Most disks are lost for good, and a person has the rest go on: `quorate node recover`. What a
survivor had is there, and only what none of them had may be lost. Of five nodes two survive, of
which one has less.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from chaos.checker import Verdict, convergence, log_safety
from chaos.checker.total_queue import total_queue
from chaos.checker.verdict import check_all, judge
from chaos.faults import isolate
from chaos.history import Op, Recorder
from chaos.live import disks, networks
from chaos.live.live_cluster import NODES, ROOT, LiveCluster, NotReadyError
from chaos.live.whole import until_whole
from chaos.load.client import Client, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import PROTOCOLS, Protocols
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene
from chaos.report.outcome import CLUSTER, Outcome, Status, status_of, totals_of
from chaos.report.series import NEMESIS, workload_of
from chaos.report.write import write_report
from chaos.run import Say, settled
from cluster.types import NodeId

PUBLISHES_PER_S = 10.0
BATCH_MAX = 20
#: All three take part for so long, then two of them.
BEFORE_S, AFTER_S = 8.0, 4.0
LOOK_S = 0.1
STEP_S_MAX = 120.0
FIVE = ("node-1", "node-2", "node-3", "node-4", "node-5")
QUEUES = {protocol: f"lost-{protocol}.orders" for protocol in PROTOCOLS}
#: The order of a history: what is confirmed behind this, only the lost ones have.
CUT = "cut off"


class RecoveryFailed(Exception):
    """A step did not lead where it must."""


@dataclass
class _Found:
    statuses: Mapping[NodeId, Mapping[str, object] | None] = field(
        default_factory=dict[NodeId, None]
    )
    folders: dict[NodeId, Path] = field(default_factory=dict[NodeId, Path])
    wrong: list[str] = field(default_factory=list[str])
    crash: str = ""


async def lose_majority(folder: Path, *, seed: int, say: Say, of_five: bool = False) -> Outcome:
    """`folder`: what is in it goes. Never raises for what broker or harness did."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    platters = disks.choose(folder / "disks", "folders")
    nodes = FIVE if of_five else NODES
    everywhere = f"replication = {len(nodes)}\n"
    cluster = LiveCluster(folder, nodes, networks.choose(), platters, settings=everywhere)
    recorder = Recorder(folder / "history.jsonl")
    began_s = time.monotonic()
    loss = _Loss(cluster, recorder, seed, say)
    try:
        await loss.run()
    except (RecoveryFailed, NotReadyError, TimeoutError) as error:
        loss.found.wrong.append(str(error) or traceback.format_exc())
    except Exception:  # noqa: BLE001 -- the harness's own bug is a status
        loss.found.crash = traceback.format_exc()
    finally:
        cluster.close()
        recorder.close()
        await asyncio.to_thread(cluster.copy_logs, folder / "nodes")
    ops = recorder.ops
    verdicts = await asyncio.to_thread(_judged, ops, loss.found)
    outcome = Outcome(
        seed=seed,
        mix="lost majority of five" if of_five else "lost majority",
        workloads=sorted({workload_of(op) for op in ops if workload_of(op) != NEMESIS}),
        seconds=time.monotonic() - began_s,
        folder=folder,
        command=f"python -m chaos members --seed {seed} --only lost-majority"
        + ("-of-five" if of_five else ""),
        network=cluster.network.kind,
        disks=platters.kind,
        status=status_of(verdicts, loss.found.crash),
        totals=totals_of(ops, verdicts),
        verdicts=verdicts,
        crash=loss.found.crash,
    )
    await asyncio.to_thread(write_report, ops, outcome)
    shutil.rmtree(folder / "disks", ignore_errors=True)
    if outcome.status is Status.VALID:
        shutil.rmtree(folder / "nodes", ignore_errors=True)
    return outcome


class _Loss:
    """`run` once."""

    def __init__(self, cluster: LiveCluster, recorder: Recorder, seed: int, say: Say) -> None:
        self.found = _Found()
        self._cluster = cluster
        self._recorder = recorder
        self._say = say
        self._addresses = [cluster.address(node) for node in cluster.nodes]
        self._scene = Scene(recorder, Drivers(self._addresses, seed).open, seed)
        dice = self._scene.dice("lost majority")
        order = dice.sample(cluster.nodes, len(cluster.nodes))
        count = (len(order) - 1) // 2
        self._survivors, self._lost = order[:count], order[count:]  # the last survivor has most
        self._apart: list[NodeId] = []
        self._generation = 0

    async def run(self) -> None:
        cluster, survivors = self._cluster, self._survivors
        cluster.start_all()
        await cluster.until_ready()
        await self._declare()
        self._say(f"all take part for {BEFORE_S:g} s; {' and '.join(survivors)} will survive")
        for survivor in survivors:
            await self._publish(BEFORE_S / len(survivors))
            if (why := await until_whole(cluster, survivor, timeout_s=STEP_S_MAX)) is not None:
                raise RecoveryFailed(why)
            await self._cut_off(survivor)
        self._recorder.saw(NEMESIS, "fault", {"kind": CUT, "nodes": survivors})
        self._say(f"the others confirm for {AFTER_S:g} s")
        await self._publish(AFTER_S)
        self._recorder.saw(NEMESIS, "fault", {"kind": "kill", "nodes": cluster.nodes})
        for node in cluster.nodes:
            await asyncio.to_thread(cluster.kill, node)
        self._recorder.saw(NEMESIS, "fault", {"kind": "wipe", "nodes": self._lost})
        for node in self._lost:
            await asyncio.to_thread(cluster.wipe, node)
        await asyncio.to_thread(cluster.partition, {})
        for survivor in survivors:
            await self._recover(survivor)
        self._say(f"starting {' and '.join(survivors)}, then the lost ones with empty folders")
        for survivor in survivors:
            await asyncio.to_thread(cluster.start, survivor)
        await cluster.until_ready(survivors, timeout_s=STEP_S_MAX)
        for node in self._lost:
            await asyncio.to_thread(cluster.start, node)
        await cluster.until_ready(timeout_s=STEP_S_MAX)
        await self._all_vote()
        self._addresses[:] = [cluster.address(node) for node in cluster.nodes]
        self._say("all are members again; publishing, and taking out what is there")
        await self._publish(BEFORE_S / 2)
        await self._drain()
        self.found.statuses = await settled(cluster, timeout_s=STEP_S_MAX)
        for node in cluster.nodes:
            await asyncio.to_thread(cluster.terminate, node)
        for node in cluster.nodes:
            if not await cluster.until_ended(node, timeout_s=STEP_S_MAX) or cluster.exit_code(node):
                raise RecoveryFailed(cluster.obituary(node))
            self.found.folders[node] = cluster.data_folder(node)

    async def _cut_off(self, survivor: NodeId) -> None:
        """From the others, which go on; so are those that were before."""
        self._say(f"{survivor} is cut off")
        cluster = self._cluster
        self._apart.append(survivor)
        grudge: dict[NodeId, set[NodeId]] = {}
        for apart in self._apart:
            for node, unheard in isolate(apart, cluster.nodes).items():
                grudge.setdefault(node, set()).update(unheard)
        await asyncio.to_thread(cluster.partition, grudge)
        self._addresses[:] = [each for each in self._addresses if each.node != survivor]
        await self._others_lead()

    # --- load

    def _client(self, protocol: Protocols) -> Client:
        """Of a new name: what an old one had confirmed is another matter."""
        self._generation += 1
        return Client(self._scene, f"lost-{protocol}/p{self._generation}", protocol)

    async def _declare(self) -> None:
        client = self._client("native")
        await client.declare_all({queue: {} for queue in QUEUES.values()})
        await client.close()

    async def _publish(self, seconds: float) -> None:
        stop = asyncio.Event()
        clients = {protocol: self._client(protocol) for protocol in PROTOCOLS}

        async def publish(client: Client, queue: str) -> None:
            await client.publish(queue, client.dice.randint(1, BATCH_MAX))

        tasks = [
            asyncio.create_task(
                publish_until(
                    stop, client, PUBLISHES_PER_S, partial(publish, client, QUEUES[protocol])
                )
            )
            for protocol, client in clients.items()
        ]
        await asyncio.sleep(seconds)
        stop.set()
        async with asyncio.timeout(STEP_S_MAX):
            await asyncio.gather(*tasks)
        await close_all(list(clients.values()))

    async def _drain(self) -> None:
        """Until the queues are empty: whether all came out is for the checker."""
        clients = {protocol: self._client(protocol) for protocol in PROTOCOLS}

        async with asyncio.timeout(STEP_S_MAX):
            for protocol, client in clients.items():
                taker = client, client.settle_all
                await drain(f"lost-{protocol}", Left(), {QUEUES[protocol]: taker})
        await close_all(list(clients.values()))

    # --- recovery

    async def _recover(self, survivor: NodeId) -> None:
        lost = [word for node in self._lost for word in ("--lost", node)]
        config = self._cluster.log_file(survivor).parent / "quorate.toml"
        words = ["node", "recover", "--config", str(config), *lost, "--yes"]
        self._say(f"{survivor}: quorate node recover {' '.join(lost)} --yes")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quorate", *words),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(STEP_S_MAX):
            output, _ = await process.communicate()
        if process.returncode:
            text = output.decode(errors="replace")
            raise RecoveryFailed(f"recover ended with status {process.returncode}: {text}")

    async def _others_lead(self) -> None:
        """All groups, without those that are cut off."""
        async with asyncio.timeout(STEP_S_MAX):
            while True:
                there = [node for node in self._cluster.nodes if node not in self._apart]
                told = [await self._cluster.status(node) for node in there]
                groups = [group for status in told if status for group in status["groups"]]
                led = {group["id"] for group in groups if group["role"] == "leader"}
                if groups and led == {group["id"] for group in groups}:
                    return
                await asyncio.sleep(LOOK_S)

    async def _all_vote(self) -> None:
        """In every group, those that came back with nothing too."""
        until_s = time.monotonic() + STEP_S_MAX
        while (why := await self._not_voting()) is not None:
            if time.monotonic() > until_s:
                raise RecoveryFailed(f"not all are members again: {why}")
            await asyncio.sleep(LOOK_S)

    async def _not_voting(self) -> str | None:
        for node in self._cluster.nodes:
            status = await self._cluster.status(node)
            if status is None:
                return f"{node} does not answer"
            for group in status["groups"]:
                if set(group["members"]) != set(self._cluster.nodes) or group["learners"]:
                    return (
                        f"{node}: {group['name']} is on {group['members']},"
                        f" of which {group['learners']} learn"
                    )
                if group["withholds_votes"]:
                    return f"the votes of {node} are suspended in {group['name']}"
        return None


def _judged(ops: Sequence[Op], found: _Found) -> dict[str, list[Verdict]]:
    cut = next((op.index for op in ops if op.value.get("kind") == CUT), len(ops))
    killed = next((op.index for op in ops if op.value.get("kind") == "kill"), len(ops))
    verdicts: dict[str, list[Verdict]] = {}
    for protocol, queue in QUEUES.items():
        name = f"lost-{protocol}"
        mine = [op for op in ops if workload_of(op) == name]
        only_theirs = [
            op for op in mine if op.f == "publish" and op.type == "ok" and cut < op.index < killed
        ]
        indexes = {op.index for op in only_theirs}
        # Nobody knows of these any more: that they come out would be as good as that they do not.
        known = [replace(op, type="unknown") if op.index in indexes else op for op in mine]
        out = {
            message
            for op in mine
            if op.f == "deliver" and op.value["queue"] == queue
            for message in op.value["messages"]
        }
        confirmed = [
            f"{op.value['publisher']}:{op.value['first'] + each}"
            for op in only_theirs
            for each in range(op.value["count"])
        ]
        lost = sum(message not in out for message in confirmed)
        given_up = judge(
            "given-up",
            {},
            undecided={"nothing was at stake": [] if confirmed else ["nothing was confirmed then"]},
            reported={
                "confirmed without the survivor": len(confirmed),
                "lost with the majority": lost,
            },
        )
        verdicts[name] = [*check_all(known, {"total-queue": total_queue}), given_up]
    verdicts[CLUSTER] = [judge("recovery", {"not as it must be": found.wrong})]
    if found.folders:
        lost_nodes = [
            node for op in ops if op.value.get("kind") == "wipe" for node in op.value["nodes"]
        ]
        safety = log_safety(found.folders, forgetful=lost_nodes)
        verdicts[CLUSTER] += [convergence(found.statuses), safety]
    return verdicts
