"""Three real nodes on loopback for a benchmark: started, killed, started again, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

START_S_MAX = 60.0
STOP_S_MAX = 30.0
POLL_S = 0.05
HTTP_S_MAX = 5.0


class NodesError(Exception):
    """The nodes did not do what the benchmark needs; the text says where their logs are."""


@dataclass
class BenchNode:
    name: str
    http: int
    peer: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process and self.process.poll() is None else None


class Kill(NamedTuple):
    """Monotonic moments: just before the signal, and when the process was surely gone."""

    at_s: float
    dead_s: float


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Nodes:
    """A cluster under one folder. All waiting has a limit, and every process ends with `stop`."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        ports = free_ports(2 * count)
        self.folder = folder
        self.all = [
            BenchNode(f"node-{i + 1}", ports[2 * i], ports[2 * i + 1], folder / f"node-{i + 1}")
            for i in range(count)
        ]
        for node in self.all:
            node.folder.mkdir(parents=True)
            (node.folder / "quorate.toml").write_text(self._settings(node))

    def _settings(self, node: BenchNode) -> str:
        peers = ", ".join(f'"{each.name}=127.0.0.1:{each.peer}"' for each in self.all)
        return (
            f'node = "{node.name}"\ncluster = "bench"\ndata_dir = "{node.folder / "data"}"\n'
            f'http = "127.0.0.1:{node.http}"\npeer = "127.0.0.1:{node.peer}"\npeers = [{peers}]\n'
            'secret = "only for a benchmark"\nlog_level = "warning"\n'
        )

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.all]

    def pids(self) -> list[int]:
        return [node.pid for node in self.all if node.pid is not None]

    def named(self, name: str) -> BenchNode:
        return next(node for node in self.all if node.name == name)

    def launch(self, node: BenchNode) -> None:
        program = "from quorate.cli import main; main()"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        with (node.folder / "node.log").open("ab") as log:
            node.process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    program,
                    "node",
                    "start",
                    "--config",
                    str(node.folder / "quorate.toml"),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    async def start(self) -> None:
        for node in self.all:
            self.launch(node)
        for node in self.all:
            await self.until_ready(node)

    async def until_ready(self, node: BenchNode) -> None:
        """Serving: its readiness probe says so."""
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end:
            if node.pid is None:
                raise NodesError(f"{node.name} ended; see {node.folder / 'node.log'}")
            if await asyncio.to_thread(_ok, f"{node.url}/health/ready"):
                return
            await asyncio.sleep(POLL_S)
        raise NodesError(
            f"{node.name} is not ready after {START_S_MAX:.0f} s; see {node.folder / 'node.log'}"
        )

    def kill(self, node: BenchNode) -> Kill:
        """SIGKILL, straight: while a shell starts, a leader would go on confirming."""
        assert node.process is not None
        at_s = time.monotonic()
        node.process.kill()
        node.process.wait()
        return Kill(at_s, dead_s=time.monotonic())

    async def stop(self) -> None:
        running = [n.process for n in self.all if n.process and n.process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_S_MAX
        for process in running:
            try:
                await asyncio.to_thread(process.wait, max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def status(self) -> dict[str, Any]:
        """From the first node that answers."""
        for node in self.all:
            if node.pid is not None:
                answer = await asyncio.to_thread(_json, f"{node.url}/v1/status")
                if answer is not None:
                    return answer
        raise NodesError(f"no node answers /v1/status; see the logs under {self.folder}")

    async def leader(self, queue: str) -> BenchNode:
        """The node that leads this queue's group now."""
        end = time.monotonic() + START_S_MAX
        while time.monotonic() < end:
            for node in self.all:
                if node.pid is None:
                    continue
                path = f"{node.url}/v1/queues/%2F/{quote(queue, safe='')}"
                info = await asyncio.to_thread(_json, path)
                leader = info.get("leader") if info else None
                if leader and self.named(str(leader)).pid is not None:
                    return self.named(str(leader))
            await asyncio.sleep(POLL_S)
        raise NodesError(f"{queue} has no leader after {START_S_MAX:.0f} s")


def _ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=HTTP_S_MAX) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _json(url: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=HTTP_S_MAX) as answer:
            return dict(json.loads(answer.read()))
    except (OSError, ValueError):
        return None
