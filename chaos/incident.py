"""`python -m chaos incident`: an incident on three real nodes, then its post-mortem.

The leader of a busy queue is killed, then a follower stands still for a while. The post-mortem sees
nothing but the files that the nodes left; it must name these, and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import quorate
from chaos.postmortem.findings.catalogue import CLEAN, EXITS
from quorate import numbered
from quorate.cli import run as run_command
from quorate.errors import QuorateError
from quorate.local import LocalCluster, LocalNode

FOLDER = Path("var/incident")
#: By name: arguments of the declaration, messages a second, and how many consume.
QUEUES: dict[str, tuple[dict[str, Any], int, int]] = {
    "orders": ({}, 300, 2),
    "payments": ({"x-single-active-consumer": True}, 100, 2),
    "mails": ({}, 50, 1),
}
#: A stream, messages a second, and its cursors.
STREAM, STREAM_RATE, CURSORS = "events", 100, ("audit", "search")
WATCHED = "orders"
TICK_S = 0.02
CALM_S = 1.0
DOWN_S = 0.5
#: Longer than the limits of both findings that must name it.
STANDSTILL_S = 5.0
WHOLE_S_MAX = 60.0
#: What the post-mortem may be late or early by: its times are when nodes wrote.
TIME_S_MAX = 5.0
QUIET = asyncio.subprocess.DEVNULL
SETTINGS = "[log]\nretain_hours = 24\n"


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to whom: the truth that the report is compared with."""

    code: str  # of the finding that must name it
    node: str
    at_ns: int


class Incident:
    """Three nodes under load, and what befalls them."""

    def __init__(self, cluster: LocalCluster, client: quorate.Client, console: Console) -> None:
        self._cluster = cluster
        self._client = client
        self._console = console
        self.strikes: list[Strike] = []

    async def run(self) -> None:
        for name, (arguments, _, _) in QUEUES.items():
            await self._client.declare(name, arguments=arguments)
        await self._client.declare(STREAM, type="stream")
        for cursor in CURSORS:
            await self._client.add_cursor(STREAM, cursor)
        works: list[Coroutine[Any, Any, None]] = [
            self._publish(STREAM, STREAM_RATE),
            *(self._read(cursor) for cursor in CURSORS),
        ]
        for name, (_, rate, consumers) in QUEUES.items():
            works.append(self._publish(name, rate))
            works += [self._consume(name) for _ in range(consumers)]
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await self._strikes()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _strikes(self) -> None:
        await asyncio.sleep(CALM_S)
        leader = await self._leader()
        self._struck("leader_lost", leader, "killed, it leads the busiest queue")
        await self._cluster.kill(leader)
        await asyncio.sleep(DOWN_S)
        await self._cluster.start(leader)
        await self._whole()
        # One that has been there all the time: a node that comes back has time to catch up. It
        # hands over what it leads first, so that nothing but itself stands still.
        others = [node for node in self._cluster.nodes if node is not leader]
        leader = await self._leader()
        follower = next(node for node in others if node is not leader)
        await asyncio.gather(self._drain(follower), asyncio.sleep(CALM_S))
        self._struck("process_stood_still", follower, f"stands still for {STANDSTILL_S:g} s")
        self.strikes.append(Strike("lagging_replica", follower.name, self.strikes[-1].at_ns))
        self._signal(follower, signal.SIGSTOP)
        await asyncio.sleep(STANDSTILL_S)
        self._signal(follower, signal.SIGCONT)
        await asyncio.sleep(CALM_S)

    def _struck(self, code: str, node: LocalNode, words: str) -> None:
        self.strikes.append(Strike(code, node.name, time.time_ns()))
        self._console.print(f"{time.strftime('%H:%M:%S', time.gmtime())} {node.name}: {words}")

    def _signal(self, node: LocalNode, number: signal.Signals) -> None:
        assert node.process is not None
        node.process.send_signal(number)

    async def _drain(self, node: LocalNode) -> None:
        command = ("-m", "quorate", "node", "drain", "--config", node.folder / "quorate.toml")
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=QUIET, stderr=QUIET
        )
        assert await process.wait() == 0, f"{node.name} was not drained"

    async def _leader(self) -> LocalNode:
        async with asyncio.timeout(WHOLE_S_MAX):
            while True:
                with suppress(QuorateError):
                    name = (await self._client.info(WATCHED)).get("leader")
                    if name is not None and self._cluster.named(str(name)).running:
                        return self._cluster.named(str(name))
                await asyncio.sleep(0.1)

    async def _whole(self) -> None:
        await self._cluster.until_ready(timeout_s=WHOLE_S_MAX)
        await self._leader()

    async def _publish(self, queue: str, rate: int) -> None:
        run, count, sent = numbered.new_run(), max(1, int(rate * TICK_S)), 0
        while True:
            with suppress(QuorateError):
                await self._client.publish_many(
                    queue,
                    numbered.bodies(run, sent, count, 100),
                    meta={"key": queue},  # the subject of a stream is its name
                    timeout=WHOLE_S_MAX,
                )
            sent += count
            await asyncio.sleep(TICK_S)

    async def _consume(self, queue: str) -> None:
        async with quorate.connect(self._cluster.urls, name=f"{queue} consumer") as client:
            while True:
                with suppress(QuorateError):
                    async with client.consume(queue, credit=100) as consumer:
                        async for batch in consumer.batches():
                            await batch.settle()

    async def _read(self, cursor: str) -> None:
        async with quorate.connect(self._cluster.urls, name=f"{STREAM} {cursor}") as client:
            while True:
                with suppress(QuorateError):
                    async for message in client.read(STREAM, cursor=cursor):
                        await message.settle()


async def suffer(folder: Path, console: Console) -> list[Strike]:
    """The incident; the nodes have ended when this returns."""
    cluster = LocalCluster.prepare(folder, preferred_ports=False, settings=SETTINGS)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        async with quorate.connect(cluster.urls, name="incident") as client:
            incident = Incident(cluster, client, console)
            await incident.run()
    finally:
        for line in await cluster.stop():
            console.print(line)
    return incident.strikes


def compare(strikes: Sequence[Strike], findings: Sequence[dict[str, Any]]) -> list[str]:
    """What the report lacks, and what it has too much."""
    left = list(findings)
    wrong: list[str] = []
    for strike in strikes:
        for finding in left:
            near = abs(finding.get("from_ns", 0) - strike.at_ns) <= TIME_S_MAX * 1e9
            if (finding["code"], finding.get("node")) == (strike.code, strike.node) and near:
                left.remove(finding)
                break
        else:
            wrong.append(f"not found: {strike.code} of {strike.node}")
    return wrong + [f"found, and did not happen: {finding}" for finding in left]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos incident", description=__doc__)
    parser.add_argument("--dir", type=Path, default=FOLDER, help=f"default: {FOLDER}")
    folder: Path = parser.parse_args(arguments).dir
    console = Console(highlight=False)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    console.print(
        "three nodes, three queues and a stream; a leader is killed, a follower stands still:"
    )
    strikes = asyncio.run(suffer(folder / "nodes", console))
    report = folder / "report"
    status = run_command(["postmortem", str(folder / "nodes"), "--out", str(report)])
    if status not in {CLEAN, *EXITS.values()}:
        return status
    summary = json.loads((report / "summary.json").read_text(encoding="utf-8"))
    found = [
        {"code": check["code"], **example}
        for check in summary["checks"]
        for example in check["examples"]
    ]
    wrong = compare(strikes, found)
    for line in wrong:
        console.print(line, style="red", markup=False)
    if not wrong:
        console.print(f"all {len(strikes)} were named, and nothing else: {report}/report.html")
    return 1 if wrong else 0
