"""Nodes on loopback under one folder: started, killed and stopped as real processes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import aiohttp

from quorate.lifetime import tied
from quorate.places import CLUSTER_FILE
from quorate.ports import claim, free_port

#: Of the first node, where they are free.
PORTS = {"http": 8081, "peer": 7071, "amqp": 5672, "nats": 4222, "nats_monitor": 8222}
#: How long nodes may take to answer, and to stop, before something is wrong.
START_S_MAX = 60.0
Probe = Literal["startup", "ready"]
#: By port: held as long as nobody else may have it.
Claims = dict[int, IO[str]]
STOP_S_MAX = 20.0
#: What a node says until it has read its log.
READING = re.compile(r"the log is being read: (\d+) of (\d+) segments")
LOG_LINES_SHOWN = 5


class Reading(NamedTuple):
    """How far a node is that reads its log at its start."""

    read: int
    segments: int

    def __str__(self) -> str:
        return f"reading its log: {self.read:,} of {self.segments:,} segments"

    @classmethod
    def said_in(cls, text: str) -> Reading | None:
        found = READING.search(text)
        return None if found is None else cls(int(found[1]), int(found[2]))


class LocalClusterError(Exception):
    """The cluster cannot be started or used as asked; the text says what to do."""


@dataclass
class LocalNode:
    """One node process, or its place."""

    name: str
    http: int
    peer: int
    amqp: int
    folder: Path
    process: asyncio.subprocess.Process | None = None
    stopping: bool = False
    nats: int = 0  # 0: it does not listen
    nats_monitor: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    @property
    def amqp_url(self) -> str:
        """As user guest, in vhost /."""
        return f"amqp://guest:guest@127.0.0.1:{self.amqp}/%2F"

    @property
    def nats_url(self) -> str:
        """As user guest, in vhost /."""
        return f"nats://guest:guest@127.0.0.1:{self.nats}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.running else None

    @property
    def state(self) -> str:
        if self.process is None:
            return "not started"
        if self.running:
            return "stopping" if self.stopping else "running"
        return f"ended ({self.process.returncode})"

    @property
    def log_file(self) -> Path:
        return self.folder / "node.log"

    def last_lines(self) -> str:
        """The end of its log, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
            return "\n".join(lines[-LOG_LINES_SHOWN:])
        return ""


def _ports(first: int, claims: Claims) -> Iterator[int]:
    """Ports from `first` on where they are free, then any free ones; `first` 0: any."""
    for port in range(first, first + 30 if first else 0):
        if _claimed(port, claims):
            yield port
    while True:
        if _claimed(port := free_port(), claims):
            yield port


def _claimed(port: int, claims: Claims) -> bool:
    if port in claims or (claimed := claim(port)) is None:
        return False
    claims[port] = claimed
    return True


class LocalCluster:
    """The nodes of one folder. Only one process at a time may hold it."""

    def __init__(self, folder: Path, nodes: list[LocalNode], held: ExitStack) -> None:
        """`held`: the lock of the folder and the claims to its ports, until the cluster stops."""
        self.folder = folder
        self.nodes = nodes
        self._held = held

    @classmethod
    def prepare(
        cls,
        folder: Path,
        *,
        nodes: int = 3,
        fresh: bool = False,
        preferred_ports: bool = True,
        settings: str = "",
    ) -> LocalCluster:
        """Read or make the folder: ports, secret, settings. `settings` is TOML added to each
        node's.

        Raises LocalClusterError.
        """
        if fresh and folder.exists():
            _remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            lock = stack.enter_context((folder / "lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LocalClusterError(
                    f"a cluster is running in {folder} already: stop it, or give another --dir"
                ) from None
            claims: Claims = {}
            stack.callback(lambda: [claimed.close() for claimed in claims.values()])
            rows = _remembered(folder)
            if rows is not None and len(rows) != nodes:
                raise LocalClusterError(
                    f"{folder} holds a cluster of {len(rows)} nodes, not {nodes}:"
                    f" start it with --nodes {len(rows)}, or begin anew with --fresh"
                )
            try:
                if rows is None:
                    rows = _new_rows(nodes, preferred_ports, claims)
                else:
                    _claim_ports(rows, preferred_ports, claims)
            except OSError as error:
                raise LocalClusterError(f"no port for a node: {error}") from error
            made = [
                LocalNode(
                    row["node"],
                    row["http"],
                    row["peer"],
                    row["amqp"],
                    folder / row["node"],
                    nats=row["nats"],
                    nats_monitor=row["nats_monitor"],
                )
                for row in rows
            ]
            secret = _secret(folder)
            for node in made:
                _write_settings(node, made, secret, settings)
            held = stack.pop_all()
        cluster = cls(folder, made, held)
        cluster.remember()
        return cluster

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def named(self, name: str) -> LocalNode:
        return next(node for node in self.nodes if node.name == name)

    def remember(self) -> None:
        """Write where the nodes are, for other commands and the next start."""
        about: dict[str, Any] = {
            "urls": self.urls,
            "nodes": [
                {
                    "node": node.name,
                    "http": node.http,
                    "peer": node.peer,
                    "amqp": node.amqp,
                    "nats": node.nats,
                    "nats_monitor": node.nats_monitor,
                    "pid": node.pid,
                    "folder": str(node.folder.resolve()),
                }
                for node in self.nodes
            ],
        }
        temporary = self.folder / f".{CLUSTER_FILE}.new"
        temporary.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.folder / CLUSTER_FILE)

    async def start(self, node: LocalNode) -> None:
        """Start the process; it is not ready yet."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        with node.log_file.open("ab") as log:
            node.process = await asyncio.create_subprocess_exec(
                # -P: the current folder is not where nodes take their code from.
                *(sys.executable, "-P", "-m", "quorate", "node", "start"),
                *("--config", str(node.folder / "quorate.toml")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=tied(environment),
                # Ctrl-C is for us: we tell the nodes, each once.
                start_new_session=True,
            )
        node.stopping = False
        self.remember()

    async def start_all(self) -> None:
        for node in self.nodes:
            await self.start(node)

    async def until_ready(
        self,
        *,
        timeout_s: float = START_S_MAX,
        probe: Probe = "ready",
        told: Callable[[LocalNode, Reading], None] | None = None,
    ) -> None:
        """Every started node says so; "startup" is said by one with an alarm, too. One that reads
        its log may take as long as it gets on; `told` hears how far it is. Raises
        LocalClusterError.
        """
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    for node in self.nodes:
                        known: Reading | None = None
                        while (why := await _why_not(http, node, probe)) is not None:
                            if not node.running:
                                raise LocalClusterError(_obituary(node))
                            reading = Reading.said_in(why)
                            if reading is not None and reading != known:
                                known = reading
                                limit.reschedule(loop.time() + timeout_s)
                                if told is not None:
                                    told(node, reading)
                            await asyncio.sleep(0.05)
            except TimeoutError:
                waiting = ", ".join(node.name for node in self.nodes)
                raise LocalClusterError(
                    f"not all of {waiting} are ready after {timeout_s:g} s:"
                    f" see the node.log files under {self.folder}"
                ) from None

    async def kill(self, node: LocalNode) -> None:
        """SIGKILL, and wait until the process is gone."""
        if node.process is not None and node.running:
            node.process.kill()
            await node.process.wait()

    async def stop(self) -> list[str]:
        """SIGTERM to all, SIGKILL to those that do not end in time; says what was unusual."""
        running = [node for node in self.nodes if node.running]
        for node in running:
            node.stopping = True
            if node.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    node.process.send_signal(signal.SIGTERM)
        unusual: list[str] = []

        async def ended(node: LocalNode) -> None:
            assert node.process is not None
            try:
                async with asyncio.timeout(STOP_S_MAX):
                    code = await node.process.wait()
            except TimeoutError:
                node.process.kill()
                await node.process.wait()
                unusual.append(f"{node.name} did not stop within {STOP_S_MAX:g} s: killed")
            else:
                # Told to end before it had begun to listen for that: it ended all the same.
                if code and code != -signal.SIGTERM:
                    unusual.append(f"{node.name} ended with status {code}: see {node.log_file}")

        await asyncio.gather(*(ended(node) for node in running))
        self.remember()
        self._held.close()
        return unusual


async def _why_not(http: aiohttp.ClientSession, node: LocalNode, probe: Probe) -> str | None:
    """None: it is. Empty: it does not answer."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with http.get(f"{node.url}/health/{probe}") as answer:
            return None if answer.status == 200 else await answer.text()
    return ""


def _obituary(node: LocalNode) -> str:
    assert node.process is not None
    end = node.last_lines()
    return (
        f"{node.name} ended with status {node.process.returncode}; its log is {node.log_file}"
        + (f" and ends:\n{end}" if end else "")
    )


def _remove(folder: Path) -> None:
    if not (folder / CLUSTER_FILE).exists() and any(folder.iterdir()):
        raise LocalClusterError(
            f"{folder} is not empty and holds no cluster: nothing is deleted; give another --dir"
        )
    lock = folder / "lock"
    if lock.exists():
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LocalClusterError(
                    f"a cluster is running in {folder}: stop it before --fresh"
                ) from None
    shutil.rmtree(folder)


def _remembered(folder: Path) -> list[dict[str, Any]] | None:
    try:
        about: Any = json.loads((folder / CLUSTER_FILE).read_text(encoding="utf-8"))
        rows = cast("list[dict[str, Any]]", about["nodes"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LocalClusterError(
            f"{folder / CLUSTER_FILE} cannot be read ({error}): repair it, or begin with --fresh"
        ) from error
    for row in rows:
        pid = row.get("pid")
        if isinstance(pid, int) and _is_node(pid, str(row.get("folder", ""))):
            raise LocalClusterError(
                f"{row['node']} still runs as process {pid}, left by an earlier start:"
                f" stop it with `kill {pid}`"
            )
    return rows


def _is_node(pid: int, folder: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"quorate" in command and folder.encode() in command


def _new_rows(count: int, preferred: bool, claims: Claims) -> list[dict[str, Any]]:
    ports = {kind: _ports(first if preferred else 0, claims) for kind, first in PORTS.items()}
    return [
        {"node": f"node-{number}"} | {kind: next(some) for kind, some in ports.items()}
        for number in range(1, count + 1)
    ]


def _claim_ports(rows: list[dict[str, Any]], preferred: bool, claims: Claims) -> None:
    """Those of the last time; others for those that somebody else has by now."""
    busy = [
        (row, kind)
        for row in rows
        for kind in PORTS
        if kind not in row or not _claimed(row[kind], claims)
    ]
    for row, kind in busy:
        row[kind] = next(_ports(PORTS[kind] if preferred else 0, claims))


def _secret(folder: Path) -> str:
    file = folder / "secret"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24) + "\n", encoding="utf-8")
    return str(file.resolve())


def _write_settings(node: LocalNode, nodes: list[LocalNode], secret: str, extra: str) -> None:
    node.folder.mkdir(exist_ok=True)
    lines = {
        "node": node.name,
        "cluster": "local",
        "data_dir": str((node.folder / "data").resolve()),
        "http": f"127.0.0.1:{node.http}",
        "peer": f"127.0.0.1:{node.peer}",
        "amqp": f"127.0.0.1:{node.amqp}",
        "peers": [f"{each.name}=127.0.0.1:{each.peer}" for each in nodes],
        "secret_file": secret,
        "auth.passwordless_guest": True,
    }
    if node.nats:
        lines["nats"] = f"127.0.0.1:{node.nats}"
    if node.nats_monitor:
        lines["nats_monitor"] = f"127.0.0.1:{node.nats_monitor}"
    # JSON text, lists of it and booleans are TOML too.
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    (node.folder / "quorate.toml").write_text(
        f"# Written by `quorate up` at each start.\n{text}{extra}", encoding="utf-8"
    )
