"""What must hold of the nodes meanwhile and afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yarl

from quorate.local import LocalNode
from tests.acceptance.fuzz.target import Target

ANSWER_S_MAX = 15.0
#: Longest time for connections to be gone: handshakes run out, closes are answered.
GONE_S_MAX = 60.0
RSS_FACTOR_MAX = 1.6
#: Buffers and caches that any load fills.
RSS_SLACK_BYTES = 96 * 1024 * 1024
LISTING_S_MAX = 30.0
_EVIL = ("Traceback", "task_failed", "never retrieved", "never awaited")
_CLOSED_STATES = {"06", "0A"}  # of /proc/net/tcp: time-wait has no owner; listen


_GUEST = ("guest", "guest")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@dataclass
class Watch:
    """Of all nodes of a cluster."""

    nodes: list[LocalNode]
    target: Target
    findings: list[str] = field(default_factory=list[str])
    slowest_answer_s: float = 0.0
    _read_to: dict[str, int] = field(default_factory=dict[str, int])
    _rss: dict[str, int] = field(default_factory=dict[str, int])

    def look(self) -> None:
        """Cheap: after every few inputs."""
        for node in self.nodes:
            if not node.running:
                self.findings.append(f"{node.name} is dead: {node.state}\n{node.last_lines()}")
            self._read_log(node)

    def _read_log(self, node: LocalNode) -> None:
        with node.log_file.open("rb") as log:
            log.seek(self._read_to.get(node.name, 0))
            data = log.read()
        whole = data.rfind(b"\n") + 1
        self._read_to[node.name] = self._read_to.get(node.name, 0) + whole
        for line in data[:whole].decode(errors="replace").splitlines():
            if _is_evil(line):
                self.findings.append(f"log of {node.name}: {line[:3_000]}")

    async def ask(self) -> None:
        """Every event loop answers."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*(self._ask(http, node) for node in self.nodes))

    async def _ask(self, http: aiohttp.ClientSession, node: LocalNode) -> None:
        start_s = time.monotonic()
        try:
            async with http.get(f"{node.url}/health/live") as answer:
                if answer.status != 200:
                    self.findings.append(f"{node.name} says {answer.status} to /health/live")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self.findings.append(f"{node.name} does not answer /health/live: {error!r}")
        self.slowest_answer_s = max(self.slowest_answer_s, time.monotonic() - start_s)

    async def read_lists(self) -> None:
        """What inputs left behind spoils no answer to other questions."""
        timeout = aiohttp.ClientTimeout(total=LISTING_S_MAX)
        who = {"Authorization": aiohttp.encode_basic_auth(*_GUEST)}
        async with aiohttp.ClientSession(timeout=timeout, headers=who) as http:
            for method, path, body in self.target.questions(self.nodes):
                url = yarl.URL(path, encoded=True)
                try:
                    async with http.request(method, url, json=body) as answer:
                        text = await answer.text()
                        json.loads(text, parse_constant=_refuse_constant)
                        # An input may have deleted it, and another declared it for itself.
                        taken = answer.status == 400 and "RESOURCE_LOCKED" in text
                        if answer.status not in (200, 404) and not taken:
                            self.findings.append(f"{path}: {answer.status} {text[:300]}")
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    self.findings.append(f"{path}: {error!r}")

    # --- memory -----------------------------------------------------------------------------------

    def remember_memory(self) -> None:
        self._rss = self.memory()

    def memory(self) -> dict[str, int]:
        return {node.name: rss_bytes(node.pid) for node in self.nodes if node.pid is not None}

    def check_memory(self) -> None:
        for name, now in self.memory().items():
            before = self._rss.get(name, now)
            if now > before * RSS_FACTOR_MAX + RSS_SLACK_BYTES:
                self.findings.append(
                    f"{name} grew from {before / 2**20:.0f} to {now / 2**20:.0f} MiB"
                )

    # --- what must be gone ------------------------------------------------------------------------

    async def until_alone(self, connections: int, expected: Mapping[str, int]) -> None:
        """So many connections a node are left, and as much as expected in the lists of all."""
        end_s = time.monotonic() + GONE_S_MAX
        while wrong := await self._strangers(connections, expected):
            if time.monotonic() > end_s:
                self.findings += wrong
                return
            await asyncio.sleep(0.25)

    async def _strangers(self, connections: int, expected: Mapping[str, int]) -> list[str]:
        wrong: list[str] = []
        for node in self.nodes:
            sockets = sockets_at(self.target.port(node), node)
            if sockets != connections:
                wrong.append(f"{node.name} has {sockets} connections, not {connections}")
        for what, count in expected.items():
            listed = await listing(self.nodes[0], what)
            if listed is None:
                wrong.append(f"/api/{what} does not answer")
            elif len(listed) != count:
                found = ", ".join(str(row.get("name") or row.get("queue")) for row in listed)
                wrong.append(f"/api/{what} lists {len(listed)}, not {count}: {found}")
        return wrong


def _is_evil(line: str) -> bool:
    try:
        about: Any = json.loads(line)
    except ValueError:
        return bool(line.strip())  # nothing but JSON belongs there
    text = f"{about.get('event')} {about.get('exception')}"
    return about.get("level") in {"error", "critical"} or any(word in text for word in _EVIL)


async def listing(node: LocalNode, what: str) -> list[dict[str, Any]] | None:
    """Of the management API; None: it does not answer."""
    headers = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}  # guest:guest
    timeout = aiohttp.ClientTimeout(total=LISTING_S_MAX)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.get(f"{node.url}/api/{what}") as answer,
        ):
            return await answer.json() if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
        return None


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def sockets_at(port: int, node: LocalNode) -> int:
    """Sockets at this port that its process holds, whatever state they are in."""
    held: set[str] = set()
    folder = Path(f"/proc/{node.pid}/fd")
    for each in os.listdir(folder):
        try:
            link = os.readlink(folder / each)
        except OSError:  # closed meanwhile
            continue
        if link.startswith("socket:["):
            held.add(link[8:-1])
    end = f":{port:04X}"
    count = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[1].endswith(end) and columns[3] not in _CLOSED_STATES:
            count += columns[9] in held
    return count
