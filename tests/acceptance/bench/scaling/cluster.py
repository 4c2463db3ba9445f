"""Nodes on loopback as several hosts, and what each of them has spent."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

import quorate
from quorate.local import LocalNode
from tests.acceptance.bench.measure import MachineCpu, Meter, cpu_s, percentile, rss_bytes
from tests.acceptance.bench.nodes import Nodes, NodesError
from tests.acceptance.bench.workers import Outcome, Work, worker

#: Nodes that have just met hand leaderships over to where they belong.
BALANCED_S = 8.0
HTTP_S_MAX = 60.0
FOUNDED_S_MAX = 60.0
AT_ONCE = 100
METRIC = re.compile(
    r"^(quorate_round_bytes_sum|quorate_log_fsync_seconds_count) (\S+)$", re.MULTILINE
)
Figures = dict[str, float]


@dataclass(frozen=True)
class Reading:
    """Since the nodes' starts, by node."""

    cpu_s: Mapping[str, float]
    written: Mapping[str, float]  # bytes into its log
    syncs: Mapping[str, float]


class Cluster(Nodes):
    """`hosts`: how many there are; nodes are on them in turn, by addresses of loopback."""

    def __init__(self, folder: Path, nodes: int = 3, hosts: int = 1, groups: int = 8) -> None:
        settings = f'default_groups = {groups}\nlog_format = "json"\n'
        super().__init__(folder, nodes, settings)
        places = {node.peer: 1 + number % hosts for number, node in enumerate(self.all)}
        for node in self.all:
            file = node.folder / "quorate.toml"
            text = file.read_text()
            for port, host in places.items():
                text = text.replace(f"127.0.0.1:{port}", f"127.0.0.{host}:{port}")
            file.write_text(text)

    async def begin(self) -> None:
        """Start, found groups, and wait until leaderships are where they belong."""
        await self.start()
        async with asyncio.timeout(FOUNDED_S_MAX):
            while True:
                try:
                    await self.declare("first", 1)
                    break
                except quorate.Refused as refused:
                    if refused.code != "no_group":
                        raise
                await asyncio.sleep(0.1)
        await asyncio.sleep(BALANCED_S)

    @property
    def ports(self) -> list[int]:
        return [node.amqp for node in self.all]

    async def declare(self, prefix: str, count: int, first: int = 0, group: str = "") -> float:
        """Queues `prefix`0 ..., in one group if asked for, a hundred at once; declares a second."""
        arguments = {"x-queue-group": group} if group else {}
        start_s = time.monotonic()
        await self._each(
            lambda client, number: client.declare(f"{prefix}{number}", arguments), first, count
        )
        return (count - first) / (time.monotonic() - start_s)

    async def delete(self, prefix: str, count: int) -> None:
        await self._each(lambda client, number: client.delete(f"{prefix}{number}"), 0, count)

    async def _each(
        self, call: Callable[[quorate.Client, int], Awaitable[object]], first: int, count: int
    ) -> None:
        async with quorate.connect(self.urls) as client:
            for start in range(first, count, AT_ONCE):
                numbers = range(start, min(count, start + AT_ONCE))
                await asyncio.gather(*(call(client, number) for number in numbers))

    async def place(self, queue: str) -> tuple[LocalNode, list[LocalNode], list[LocalNode]]:
        """Who leads it, its other members, and those without a copy."""
        leader = await self.leader(queue)
        about = await self._get(leader, f"/api/queues/%2F/{queue}")
        members = [self._cluster.named(name) for name in about["members"]]
        others = [node for node in self.all if node not in members]
        return leader, [node for node in members if node is not leader], others

    async def reading(self) -> Reading:
        """CPU is read last: a scrape costs some."""
        written: dict[str, float] = {}
        syncs: dict[str, float] = {}
        for node in self.all:
            text = await self._text(node, "/metrics") if node.running else ""
            found = {match[1]: float(match[2]) for match in METRIC.finditer(text)}
            written[node.name] = found.get("quorate_round_bytes_sum", 0.0)
            syncs[node.name] = found.get("quorate_log_fsync_seconds_count", 0.0)
        return Reading(self.cpu(), written, syncs)

    def cpu(self) -> dict[str, float]:
        return {node.name: cpu_s([node.pid]) for node in self.all if node.pid}

    def rss_mb(self) -> dict[str, float]:
        return {node.name: rss_bytes(node.pid) / 1e6 for node in self.all if node.pid}

    def memory(self) -> Figures:
        each = list(self.rss_mb().values())
        return {"rss_mb": sum(each) / len(each)}

    async def idle(self, seconds: float) -> Figures:
        """Percent of a core that a node takes, in the mean."""
        start_s, nodes, machine = time.monotonic(), cpu_s(self.pids()), MachineCpu.now()
        await asyncio.sleep(seconds)
        spent, took_s = cpu_s(self.pids()) - nodes, time.monotonic() - start_s
        after = MachineCpu.now()
        others_s = after.busy_s - machine.busy_s - spent + after.steal_s - machine.steal_s
        return {
            "idle_percent": 100 * spent / took_s / len(self.all),
            "others_percent": max(0.0, 100 * others_s / (after.total_s - machine.total_s)),
        }

    async def loaded(
        self, publish: Sequence[Work], seconds: float, consume: Sequence[Work] = ()
    ) -> Figures:
        """What the publishers took of the nodes, in microseconds a message, and what was logged.

        Consumers are there before and stay until after.
        """
        async with AsyncExitStack() as stack:
            consumers = [await stack.enter_async_context(worker(w, _nothing)) for w in consume]
            for each in consumers:
                await each.ready.wait()
            before, meter = await self.reading(), Meter(self.pids)
            publishers = [await stack.enter_async_context(worker(w, _nothing)) for w in publish]
            for each in publishers:
                await each.ready.wait()
            await asyncio.sleep(seconds)
            for each in publishers:
                each.close_input()
            published = [await each.result() for each in publishers]
            cost, spent = meter.stop(), self.cpu()
            after = await self.reading()
            for each in consumers:
                each.close_input()
            consumed = [await each.result() for each in consumers]
        figures = _figures(published, before, after, spent)
        figures["others_percent"] = cost.others_percent + cost.steal_percent
        if consumed:
            figures["consumed"] = float(sum(outcome.count for outcome in consumed))
            ages_ms = [ms for outcome in consumed for ms in outcome.latencies_ms] or [0.0]
            figures["end_to_end_ms"] = percentile(ages_ms, 50)
            figures["end_to_end_p99_ms"] = percentile(ages_ms, 99)
        return figures

    async def restart(self, node: LocalNode) -> Figures:
        """Killed and started again: seconds until it is ready, and of its CPU until then."""
        await self.kill(node)
        start_s = time.monotonic()
        await self.launch(node)
        await self.until_ready()
        assert node.pid is not None
        return {"restart_s": time.monotonic() - start_s, "restart_cpu_s": cpu_s([node.pid])}

    async def _get(self, node: LocalNode, path: str) -> dict[str, Any]:
        return dict(json.loads(await self._text(node, path)))

    async def _text(self, node: LocalNode, path: str) -> str:
        timeout = aiohttp.ClientTimeout(total=HTTP_S_MAX)
        auth = aiohttp.BasicAuth("guest", "guest")
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(node.url + path, auth=auth) as answer,
        ):
            if answer.status != 200:
                raise NodesError(f"{path} at {node.name}: {answer.status}")
            return await answer.text()


def _nothing(_: int) -> None:
    pass


def _figures(
    published: Sequence[Outcome], before: Reading, after: Reading, spent: Mapping[str, float]
) -> Figures:
    count = max(1, sum(outcome.count for outcome in published))
    if refused := sum(outcome.extra.get("refused", 0) for outcome in published):
        raise NodesError(f"{refused} publishes were refused")
    span_s = max(o.end_s for o in published) - min(o.start_s for o in published)
    latencies_ms = [ms for outcome in published for ms in outcome.latencies_ms]
    by_node = {name: 1e6 * (spent[name] - at) / count for name, at in before.cpu_s.items()}
    figures = {
        "messages": float(count),
        "rate": count / span_s,
        "p50_ms": percentile(latencies_ms, 50),
        "p99_ms": percentile(latencies_ms, 99),
        "cpu_us": sum(by_node.values()),
        "busiest_us": max(by_node.values()),
    }
    written = [after.written[name] - before.written[name] for name in before.written]
    figures["log_bytes"] = sum(written) / count  # of all copies
    figures["syncs"] = sum(after.syncs[name] - before.syncs[name] for name in before.syncs) / count
    return figures | {f"cpu_us {name}": each for name, each in by_node.items()}
