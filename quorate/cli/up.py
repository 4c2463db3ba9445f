"""`quorate up`: nodes on loopback, and a table of how they are."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Any, cast

import aiohttp

from quorate.cli.asking import counted
from quorate.cli.output import complain, emit, plain_terminal, run_async, say, stderr
from quorate.local import LocalCluster, LocalNode, Reading
from quorate.places import FOLDER

REFRESH_S = 1.0
#: A node that is killed again within this is waited for longer, up to so long.
RESTART_S_MAX = 30.0
#: By these a person stops a node, which stays so.
STOPPED = (0, -signal.SIGTERM, -signal.SIGINT)
#: In a node's metrics: since its start, each message counted by the node that confirmed it.
CONFIRMED = re.compile(r"^quorate_messages_confirmed_total (\S+)$", re.MULTILINE)


class View:
    """What the nodes say about themselves, asked once a second."""

    def __init__(self, cluster: LocalCluster, http: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.status: dict[str, dict[str, Any]] = {}
        self.groups: list[dict[str, Any]] = []
        self.reading: dict[str, Reading] = {}  # nodes that read their logs
        self.ready = 0
        self.rate: float | None = None  # messages confirmed to publishers, per second
        self._http = http
        self._confirmed: dict[str, float] = {}
        self._counted_s: float | None = None

    async def refresh(self) -> None:
        nodes = self.cluster.nodes
        answers, confirmed = await asyncio.gather(
            asyncio.gather(*(self._ask(node) for node in nodes)),
            asyncio.gather(*(self._ask_confirmed(node) for node in nodes)),
        )
        self.status = {
            node.name: answer
            for node, answer in zip(nodes, answers, strict=True)
            if answer is not None
        }
        self.groups = self._as_led()
        machines: list[dict[str, Any]] = [row.get("machine") or {} for row in self.groups]
        self.ready = sum(int(machine.get("ready", 0)) for machine in machines)
        self._count({n.name: c for n, c in zip(nodes, confirmed, strict=True) if c is not None})

    def _count(self, confirmed: dict[str, float]) -> None:
        now_s = time.monotonic()
        if self._counted_s is not None and now_s > self._counted_s:
            # A node that started again counts from 0; one that was not heard before, from then on.
            more = sum(
                max(0.0, count - self._confirmed[node])
                for node, count in confirmed.items()
                if node in self._confirmed
            )
            self.rate = more / (now_s - self._counted_s)
        self._confirmed, self._counted_s = confirmed, now_s

    async def _ask(self, node: LocalNode) -> dict[str, Any] | None:
        self.reading.pop(node.name, None)
        if not node.running:
            return None
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with self._http.get(f"{node.url}/v1/status") as answer:
                if answer.status != 200:
                    if (reading := Reading.said_in(await answer.text())) is not None:
                        self.reading[node.name] = reading
                    return None
                return cast("dict[str, Any]", await answer.json(content_type=None))
        return None

    async def _ask_confirmed(self, node: LocalNode) -> float | None:
        if not node.running:
            return None
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
            async with self._http.get(f"{node.url}/metrics") as answer:
                found = CONFIRMED.search(await answer.text())
                return None if found is None else float(found[1])
        return None

    def _as_led(self) -> list[dict[str, Any]]:
        """Each group as its leader sees it, or anyone when it has none."""
        best: dict[Any, dict[str, Any]] = {}
        for name, about in self.status.items():
            for row in about.get("groups", []):
                known = best.get(row.get("id"))
                if known is None or row.get("leader") == name:
                    best[row.get("id")] = row
        return [best[key] for key in sorted(best)]

    @property
    def leaderless(self) -> int:
        return sum(1 for row in self.groups if not row.get("leader"))

    def summary(self) -> str:
        up = sum(node.running for node in self.cluster.nodes)
        return (
            f"{up} of {len(self.cluster.nodes)} nodes running, {len(self.groups)} groups,"
            f" {self.leaderless} without a leader, {self.ready:,} messages ready"
        )


class Progress:
    """Says how far nodes are that read their logs, each once a second at most."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._said_s: dict[str, float] = {}

    def told(self, node: LocalNode, reading: Reading) -> None:
        now_s = time.monotonic()
        if now_s < self._said_s.get(node.name, -REFRESH_S) + REFRESH_S:
            return
        self._said_s[node.name] = now_s
        if self._as_json:
            emit({"event": "reading", "node": node.name, **reading._asdict()})
        else:
            say(f"{node.name} is {reading}")


class Restarts:
    """Starts nodes again that were killed. One that was stopped, or ended with an error, stays as
    it is.
    """

    def __init__(self, cluster: LocalCluster, *, as_json: bool) -> None:
        self._cluster = cluster
        self._as_json = as_json
        self._delays_s: dict[str, float] = {}
        self._due_s: dict[str, float] = {}
        self._started_s: dict[str, float] = {}

    async def look(self) -> bool:
        """Whether any node runs, or will."""
        now_s = time.monotonic()
        for node in self._cluster.nodes:
            if node.process is None or (code := node.process.returncode) is None:
                continue
            if code >= 0 or code in STOPPED:
                continue
            if node.name not in self._due_s:
                lived_s = now_s - self._started_s.get(node.name, 0.0)
                before_s = self._delays_s.get(node.name, 0.0) if lived_s < RESTART_S_MAX else 0.0
                self._delays_s[node.name] = min(RESTART_S_MAX, 2 * before_s or REFRESH_S)
                self._due_s[node.name] = now_s + before_s
            if now_s >= self._due_s[node.name]:
                del self._due_s[node.name]
                self._started_s[node.name] = now_s
                await self._cluster.start(node)
                self._tell(node, signal.Signals(-code).name)
        return bool(self._due_s) or any(node.running for node in self._cluster.nodes)

    def _tell(self, node: LocalNode, how: str) -> None:
        if self._as_json:
            emit({"event": "restarted", "node": node.name, "pid": node.pid, "killed_by": how})
        else:
            say(f"{node.name} was killed ({how}): started again, pid {node.pid}")


def run_up(folder: Path, *, nodes: int, fresh: bool, as_json: bool) -> int:
    cluster = LocalCluster.prepare(folder, nodes=nodes, fresh=fresh)
    return run_async(_up(cluster, as_json=as_json))


async def _up(cluster: LocalCluster, *, as_json: bool) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    failed = False
    try:
        failed = await _run(cluster, stopping, as_json=as_json)
    finally:
        say("stopping the nodes")
        unusual = await cluster.stop()
        for line in unusual:
            complain(line)
        if not unusual:
            say("all nodes stopped; the data stays in " + str(cluster.folder))
    return 1 if failed or unusual else 0


async def _run(cluster: LocalCluster, stopping: asyncio.Event, *, as_json: bool) -> bool:
    """True when it ended because nodes did."""
    say(f"starting {counted(len(cluster.nodes), 'node')} in {cluster.folder}")
    await cluster.start_all()
    ready = asyncio.create_task(cluster.until_ready(told=Progress(as_json=as_json).told))
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            return False
        ready.result()
        timeout = aiohttp.ClientTimeout(total=2)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            view = View(cluster, http)
            await view.refresh()
            while (view.leaderless or not view.groups) and not stopping.is_set():
                await asyncio.sleep(0.1)
                await view.refresh()
            _announce(view, as_json=as_json)
            restarts = Restarts(cluster, as_json=as_json)
            if plain_terminal() or as_json:
                return await _plainly(view, restarts, stopping, as_json=as_json)
            return await _live(view, restarts, stopping)
    finally:
        for task in (ready, stopped):
            task.cancel()
        await asyncio.gather(ready, stopped, return_exceptions=True)


def _announce(view: View, *, as_json: bool) -> None:
    cluster = view.cluster
    if as_json:
        emit(
            {
                "event": "ready",
                "urls": cluster.urls,
                "amqp": [node.amqp_url for node in cluster.nodes],
                "nats": [f"nats://127.0.0.1:{node.nats}" for node in cluster.nodes],
                "nats_monitor": [f"http://127.0.0.1:{n.nats_monitor}" for n in cluster.nodes],
                "pids": [node.pid for node in cluster.nodes],
            }
        )
        return
    for node in cluster.nodes:
        doors = f"amqp://127.0.0.1:{node.amqp}  nats://127.0.0.1:{node.nats}"
        say(f"{node.name}  {node.url}  {doors}  pid {node.pid}")
    say(view.summary())
    say(f"export QUORATE_URL={','.join(cluster.urls)}")
    say(f"export AMQP_URL={cluster.nodes[0].amqp_url} NATS_URL={cluster.nodes[0].nats_url}")
    where = "" if str(cluster.folder) == FOLDER else f"--url {shlex.quote(str(cluster.folder))} "
    say(f"web UI: {cluster.urls[0]}/ (user guest, password guest)")
    say(f"try, in another terminal here: quorate {where}publish orders --count 100000")


async def _wait(stopping: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFRESH_S):
            await stopping.wait()
    return stopping.is_set()


async def _plainly(
    view: View, restarts: Restarts, stopping: asyncio.Event, *, as_json: bool
) -> bool:
    """A line when something changed."""
    before: Any = None
    while not await _wait(stopping):
        await view.refresh()
        leaders = {row.get("name"): row.get("leader") for row in view.groups}
        states = {node.name: node.state for node in view.cluster.nodes}
        now = (leaders, states)
        if before is not None and now != before:
            if as_json:
                emit({"event": "changed", "nodes": states, "leaders": leaders})
            else:
                say(view.summary())
        before = now
        if not await restarts.look():
            complain(f"all nodes have ended: see the node.log files in {view.cluster.folder}")
            return True
    return False


async def _live(view: View, restarts: Restarts, stopping: asyncio.Event) -> bool:
    from rich.live import Live

    with Live(console=stderr(), auto_refresh=False, transient=True) as live:
        while True:
            live.update(_picture(view), refresh=True)
            if await _wait(stopping):
                return False
            await view.refresh()
            if not await restarts.look():
                complain(f"all nodes have ended: see the node.log files in {view.cluster.folder}")
                return True


def _picture(view: View) -> Any:
    from rich.console import Group
    from rich.table import Table

    from quorate.cli.nodes import groups_table

    nodes = Table("node", "state", "http", "amqp", "nats", "pid", "leads")
    for node in view.cluster.nodes:
        answering = node.name in view.status
        state = node.state if answering or not node.running else "not answering"
        colour = "green" if answering else "red"
        if (reading := view.reading.get(node.name)) is not None:
            state, colour = str(reading), "yellow"
        leads = sum(1 for row in view.groups if row.get("leader") == node.name)
        nodes.add_row(
            node.name,
            f"[{colour}]{state}[/{colour}]",
            node.url,
            f"127.0.0.1:{node.amqp}",
            f"127.0.0.1:{node.nats}",
            str(node.pid or "-"),
            f"{leads} groups",
        )
    nodes_up = [{"node": node.name, "up": node.running} for node in view.cluster.nodes]
    rate = "-" if view.rate is None else f"{view.rate:,.0f} published/s"
    return Group(
        nodes,
        groups_table({"groups": view.groups, "nodes": nodes_up}),
        f"{view.summary()}, {rate}   [dim]Ctrl-C stops all nodes[/dim]",
    )
