"""Real nodes as processes, and all that can befall them.

Calls that inject a fault can be made at any time; what makes no sense does nothing. They block for
some milliseconds, some for a second: from a loop they belong in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from chaos.faults import Damage, Grudge, Weather
from chaos.live import data_faults, node_status
from chaos.live.clocks import ClockFile
from chaos.live.machine import Machine, empty, replace, to_disk
from chaos.live.seams import Disks, Network
from chaos.load.addresses import Address
from cluster.types import NodeId
from quorate.lifetime import tied

ROOT = Path(__file__).parents[2]
CLUSTER = "chaos"
#: What most runs begin with.
NODES = ("node-1", "node-2", "node-3")
START_S_MAX = 60.0
#: How long the others may take until they can do without a node that is drained; and it to answer.
DRAIN_S_MAX = 5.0
ANSWER_S_MAX = 20.0
LOOK_S = 0.05
LOG_LINES_SHOWN = 5
#: So that a short run sees snapshots taken and installed; a real node waits for many more entries.
SNAPSHOT_ENTRIES = 200
#: Exit status of a node whose data is damaged and that says so.
EXIT_DAMAGED = 3

#: Linux lets a process that is `tied` end with the thread that started it: this one lasts.
_STARTER = ThreadPoolExecutor(1, "starter")


def from_thread_that_lasts(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Starts a process, whichever thread calls, and however soon that ends."""
    return _STARTER.submit(start).result()


class NotReadyError(Exception):
    """Nodes ended or did not become ready; the text says which, and where their logs are."""


class LiveCluster:
    """`settings` is TOML that is added to each node's; `build` names what is broken in all of
    them, on purpose.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        network: Network,
        disks: Disks,
        *,
        build: str | None = None,
        settings: str = "",
    ) -> None:
        self.folder = folder.resolve()
        self.network = network
        self.disks = disks
        self.missing: dict[str, str] = {**network.missing, **disks.missing}
        self._build = build
        self._settings = settings
        self._machines: dict[NodeId, Machine] = {}
        self._retired: set[NodeId] = set()
        self._damages = 0
        # A thread may be about to start a node when the run is given up.
        self._starting = threading.Lock()
        self._closed = False
        self.folder.mkdir(parents=True, exist_ok=True)
        secret = self.folder / "secret"
        secret.write_text(secrets.token_urlsafe(24) + "\n", encoding="utf-8")
        founders = [NodeId(name) for name in nodes]
        for node in founders:
            self._make_room(node)
        for node in founders:
            self._write_settings(node, founders)

    # --- where things are

    @property
    def nodes(self) -> list[NodeId]:
        """But for those that are retired."""
        return [node for node in self._machines if node not in self._retired]

    @property
    def nodes_ever(self) -> list[NodeId]:
        return list(self._machines)

    def url(self, node: NodeId) -> str:
        place = self._machines[node].place
        return f"http://{place.host}:{place.ports.http}"

    def address(self, node: NodeId) -> Address:
        """As user guest, in vhost /."""
        place = self._machines[node].place
        amqp_url = f"amqp://guest:guest@{place.host}:{place.ports.amqp}/%2F"
        return Address(node, self.url(node), amqp_url, f"{place.host}:{place.ports.nats}")

    def data_folder(self, node: NodeId) -> Path:
        return self._machines[node].data

    def log_file(self, node: NodeId) -> Path:
        return self._machines[node].log_file

    def log_since_start(self, node: NodeId) -> str:
        """What its newest process has said."""
        machine = self._machines[node]
        with contextlib.suppress(FileNotFoundError), machine.log_file.open("rb") as log:
            log.seek(machine.log_start)
            return log.read().decode(errors="replace")
        return ""

    def running(self, node: NodeId) -> bool:
        process = self._machines[node].process
        return process is not None and process.poll() is None

    def paused(self, node: NodeId) -> bool:
        return self._machines[node].paused and self.running(node)

    def pid(self, node: NodeId) -> int | None:
        process = self._machines[node].process
        return process.pid if process is not None and process.poll() is None else None

    def exit_code(self, node: NodeId) -> int | None:
        """Of its newest process: None while that runs, negative for a signal, `EXIT_DAMAGED` when
        it refused its data.
        """
        process = self._machines[node].process
        return None if process is None else process.poll()

    # --- life of the cluster

    def add_node(self, name: str) -> NodeId:
        """Room for one more, which asks to be let in when it is started."""
        node = NodeId(name)
        self._make_room(node)
        self._write_settings(node, self.nodes, joins=True)
        return node

    def retire(self, node: NodeId) -> None:
        """It is down, and the cluster goes on without it for good. Its folder and log stay."""
        self._at_rest(node)
        self._retired.add(node)

    def start_all(self) -> None:
        for node in self.nodes:
            self.start(node)

    async def until_ready(
        self, nodes: Sequence[NodeId] | None = None, *, timeout_s: float = START_S_MAX
    ) -> None:
        """These nodes say that clients may come. Raises NotReadyError."""
        waiting = list(self.nodes if nodes is None else nodes)
        try:
            async with asyncio.timeout(timeout_s), node_status.session() as http:
                while waiting:
                    if await node_status.is_healthy(http, self.url(waiting[0]), "ready"):
                        waiting.pop(0)
                    elif not self.running(waiting[0]):
                        raise NotReadyError(self.obituary(waiting[0]))
                    else:
                        await asyncio.sleep(LOOK_S)
        except TimeoutError:
            names = ", ".join(waiting)
            raise NotReadyError(
                f"{names} not ready after {timeout_s:g} s: see the logs under {self.folder}"
            ) from None

    async def live(self, node: NodeId) -> bool:
        """It answers, and does not say that it is about to end itself."""
        async with node_status.session() as http:
            return await node_status.is_healthy(http, self.url(node), "live")

    async def until_ended(self, node: NodeId, *, timeout_s: float) -> bool:
        """Whether its process is gone in time."""
        return await _until(lambda: not self.running(node), timeout_s)

    async def until_said(self, node: NodeId, event: str, *, count: int, timeout_s: float) -> bool:
        """Whether its newest process has logged this so often in time."""
        return await _until(lambda: self.times_said(node, event) >= count, timeout_s)

    def times_said(self, node: NodeId, event: str) -> int:
        return self.log_since_start(node).count(f'"event": "{event}"')

    async def until_started(self, node: NodeId) -> None:
        """It has read its log and serves, or it has ended."""
        await _until(
            lambda: not self.running(node) or '"node_started"' in self.log_since_start(node),
            START_S_MAX,
        )

    async def status(self, node: NodeId, *, digests: bool = False) -> dict[str, Any] | None:
        """What the node knows of the cluster; None when it does not answer. `digests`: of the
        states of its copies too.
        """
        return await node_status.status_of(self.url(node), digests=digests)

    def obituary(self, node: NodeId) -> str:
        lines = self.log_since_start(node).splitlines()[-LOG_LINES_SHOWN:]
        end = "".join(f"\n  {line}" for line in lines)
        return f"{node} ended with status {self.exit_code(node)}; its log ends:{end}"

    def copy_logs(self, to: Path) -> None:
        """Settings, log and data of every node, none of which runs, into folders of `to`."""
        for node, machine in self._machines.items():
            self._at_rest(node)
            target = (to / node).resolve()
            target.mkdir(parents=True, exist_ok=True)
            for file in (machine.log_file, machine.folder / "quorate.toml"):
                if file.exists() and file.parent != target:
                    shutil.copy2(file, target)
            if machine.data != target / "data":
                replace(machine.data, target / "data")

    def close(self) -> None:
        """End all processes, then what they ran on. Logs and plain folders stay."""
        with self._starting:
            self._closed = True
        for node in self._machines:
            self.kill(node)
        try:
            self.disks.close()
        finally:
            self.network.close()
            for machine in self._machines.values():
                machine.clock.close()

    # --- faults: network

    def partition(self, grudge: Grudge, *, reset: bool = False) -> None:
        """Replace the current cuts by these. `reset`: connections over a cut are reset, not just
        silent.
        """
        self.network.partition(grudge, reset=reset)

    def degrade(self, weather: Weather) -> None:
        self.network.degrade(weather)

    def cut_clients(self, node: NodeId) -> None:
        """Clients do not reach this node, until `heal`."""
        self.network.cut_clients(node)

    def heal(self) -> None:
        """Everything but processes that are down."""
        self.network.heal()
        for node, machine in self._machines.items():
            self.heal_disk(node)
            machine.clock.set(0)
            self.resume(node)

    # --- faults: processes

    def kill(self, node: NodeId) -> None:
        machine = self._machines[node]
        if machine.process is not None:
            machine.process.kill()
            machine.process.wait()
        machine.paused = False

    def power_loss(self, nodes: Sequence[NodeId]) -> None:
        """All these machines at the same instant, with what they had not synced."""
        powered = [node for node in nodes if not self._machines[node].without_power]
        if powered:
            self.disks.power_loss(powered)
        for node in powered:
            self._machines[node].without_power = True
        # First all of them, then wait: they end as close to each other as one process can do it.
        for node in nodes:
            self._signal(node, signal.SIGKILL)
        for node in nodes:
            self.kill(node)

    def terminate(self, node: NodeId) -> None:
        self._signal(node, signal.SIGTERM)

    async def drain(self, node: NodeId) -> str | None:
        """It gives away what it leads and its clients, and lets none in, until `undo_drain`. None:
        it has; else why not.
        """
        body = {"timeout_ms": round(DRAIN_S_MAX * 1000)}
        url = f"{self.url(node)}/api/nodes/{node}/drain"
        return await node_status.told("PUT", url, body, timeout_s=ANSWER_S_MAX)

    async def undo_drain(self, node: NodeId) -> str | None:
        """None: done; else why not."""
        url = f"{self.url(node)}/api/nodes/{node}/drain"
        return await node_status.told("DELETE", url, timeout_s=ANSWER_S_MAX)

    def start(self, node: NodeId) -> None:
        """Does nothing when it runs already; waits for nothing."""
        with self._starting:
            if not self._closed and not self.running(node):
                self._start(self._machines[node], node)

    def pause(self, node: NodeId) -> None:
        self._machines[node].paused = True
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: NodeId) -> None:
        self._machines[node].paused = False
        self._signal(node, signal.SIGCONT)

    # --- faults: disks of running nodes

    def slow_disk(self, node: NodeId, sync_ms: float | None) -> None:
        """None: as fast as usual."""
        if sync_ms is None:
            self.heal_disk(node)
        elif (pid := self.pid(node)) is not None:
            self.disks.slow(node, pid, sync_ms)

    def fail_fsync(self, node: NodeId) -> None:
        if (pid := self.pid(node)) is not None:
            self.disks.fail(node, pid)

    def lie_fsync(self, node: NodeId) -> None:
        """Its fsyncs do nothing and say that they did, until `heal`."""
        if (pid := self.pid(node)) is not None:
            self._machines[node].lied_to = True
            self.disks.lie(node, pid)

    def fill_disk(self, node: NodeId, *, leave_bytes: int = 0) -> None:
        """`leave_bytes`: so much room stays."""
        self.disks.fill(node, leave_bytes=leave_bytes)

    def heal_disk(self, node: NodeId) -> None:
        """This one's disk alone: others may be struck still."""
        machine = self._machines[node]
        if not machine.without_power:
            self.disks.heal(node)
            if machine.lied_to:
                to_disk(machine.data)  # else the lie would go on in all that it was told about
                machine.lied_to = False

    # --- faults: folders of nodes that are down

    def wipe(self, node: NodeId) -> None:
        self._at_rest(node)
        empty(self._machines[node].data)
        to_disk(self._machines[node].data)

    def copy_data(self, node: NodeId) -> None:
        self._at_rest(node)
        machine = self._machines[node]
        replace(machine.data, machine.copy)

    def restore_data(self, node: NodeId) -> None:
        self._at_rest(node)
        machine = self._machines[node]
        if machine.copy.is_dir():
            replace(machine.copy, machine.data)
            to_disk(machine.data)

    def damage(self, node: NodeId, kind: Damage) -> str | None:
        """Where something was damaged: file and offset. None: there was nothing to damage."""
        self._at_rest(node)
        self._damages += 1
        dice = random.Random(f"{kind}/{node}/{self._damages}")
        place = data_faults.damage(self._machines[node].data, kind, dice)
        to_disk(self._machines[node].data)
        return place

    # --- faults: clocks

    def skew_clock(self, node: NodeId, offset_ms: int) -> None:
        """Its wall clock jumps to this far from the true time."""
        self._machines[node].clock.set(offset_ms)

    # ---

    def _make_room(self, node: NodeId) -> None:
        folder = self.folder / "nodes" / node
        folder.mkdir(parents=True, exist_ok=True)
        clock = folder / "clock"
        harness = {"clock": str(clock), "snapshot_entries": SNAPSHOT_ENTRIES}
        (folder / "harness.json").write_text(json.dumps(harness), encoding="utf-8")
        self._machines[node] = Machine(
            self.network.add(node), folder, self.disks.add(node), ClockFile(clock)
        )

    def _write_settings(
        self, node: NodeId, members: Sequence[NodeId], *, joins: bool = False
    ) -> None:
        machine = self._machines[node]
        place, address = machine.place, self.network.peer_address
        lines: dict[str, Any] = {
            "node": node,
            "cluster": CLUSTER,
            "data_dir": str(machine.data),
            "http": f"{place.host}:{place.ports.http}",
            "amqp": f"{place.host}:{place.ports.amqp}",
            "nats": f"{place.host}:{place.ports.nats}",
            "peer": address(node, node),
            "peers": [f"{member}={address(node, member)}" for member in members],
            "secret_file": str(self.folder / "secret"),
            "log_format": "json",
            # Clients of the harness may be on another host than the node.
            "auth.loopback_users": [],
            "auth.passwordless_guest": True,
        }
        if joins:
            lines["join"] = True
        # JSON text, lists and booleans are TOML too.
        text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
        (machine.folder / "quorate.toml").write_text(text + self._settings, encoding="utf-8")

    def _start(self, machine: Machine, node: NodeId) -> None:
        self._power(node)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        harness = ["--harness", str(machine.folder / "harness.json")]
        if self._build is not None:
            harness += ["--build", self._build]
        with machine.log_file.open("ab") as log:
            machine.log_start = log.tell()
            machine.process = from_thread_that_lasts(
                lambda: subprocess.Popen(
                    [
                        *machine.place.launch,
                        *(sys.executable, "-m", "chaos.live.node_process"),
                        *("--config", str(machine.folder / "quorate.toml")),
                        *harness,
                    ],
                    cwd=ROOT,
                    env=tied(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # Ctrl-C is for the harness, which ends its nodes itself.
                    start_new_session=True,
                )
            )
        machine.paused = False

    def _signal(self, node: NodeId, number: signal.Signals) -> None:
        process = self._machines[node].process
        if process is not None:
            process.send_signal(number)  # which does nothing once it has ended

    def _power(self, node: NodeId) -> None:
        machine = self._machines[node]
        if machine.without_power:
            self.disks.power_back([node])
            machine.without_power = False

    def _at_rest(self, node: NodeId) -> None:
        assert not self.running(node), f"{node} runs: its folder is its own"
        self._power(node)


async def _until(come: Callable[[], bool], timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while not come():
                await asyncio.sleep(LOOK_S)
    return come()
