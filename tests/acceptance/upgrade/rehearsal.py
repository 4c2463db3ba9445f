"""Three real nodes rolled from one release to another and back, under load by both protocols.

What clients were told is kept in mind: every message that was confirmed must come out in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pika.exceptions

import quorate
from cluster.groups.group import DIGEST_ENTRIES
from cluster.machine import MACHINE_VERSION
from quorate.local import LocalCluster, LocalNode
from tests.acceptance.upgrade import releases

PATIENCE_S = 180
#: Between two publishes: who rolls nodes has processors left for that.
PACE_S = 0.01
EXIT_DATA = 3
#: Groups rise within a second or two, unless something holds them.
RISING_S = 3.0
#: A release refuses settings that it does not know.
LATER_SETTINGS = {
    releases.FIRST: ("auth.passwordless_guest", "nats"),
    releases.GATED: ("nats",),
}

Say = Callable[[str], object]


class Fleet(LocalCluster):
    """Nodes, each with the source tree that it runs."""

    trees: dict[str, Path]

    async def start(self, node: LocalNode) -> None:
        tree = self.trees[node.name]
        config = node.folder / "quorate.toml"
        lines = config.read_text(encoding="utf-8").splitlines(keepends=True)
        for release, unknown in LATER_SETTINGS.items():
            if tree.name.startswith(release):
                lines = [line for line in lines if not line.startswith(unknown)]
        used = node.folder / "used.toml"
        used.write_text("".join(lines), encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        with node.log_file.open("ab") as log:
            node.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "quorate", "node", "start", "--config", str(used)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=tree,
                env={**environment, "PYTHONPATH": str(tree)},
                start_new_session=True,
            )

    async def stop_one(self, node: LocalNode) -> int:
        assert node.process is not None
        node.process.terminate()
        async with asyncio.timeout(PATIENCE_S):
            return await node.process.wait()

    async def roll(self, node: LocalNode, tree: Path) -> None:
        """As an orderly update does it: stop, start, wait until it is ready."""
        await self.stop_one(node)
        self.trees[node.name] = tree
        await self.start(node)
        await self.until_ready(timeout_s=PATIENCE_S)

    async def status(self, node: LocalNode) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{node.url}/v1/status?digests") as got,
        ):
            return await got.json()

    async def statuses(self) -> list[dict[str, Any]]:
        return [await self.status(node) for node in self.nodes if node.running]

    async def versions(self) -> set[int]:
        """Machine versions of all copies of all groups."""
        found: set[int] = set()
        for status in await self.statuses():
            found |= {group["machine"]["version"] for group in status["groups"]}
        return found

    async def until_versions(self, *wanted: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.versions() != {*wanted}:
                await asyncio.sleep(0.2)

    async def until_noted(self) -> None:
        """A state of some group was noted, to be compared with."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                groups = (await self.status(self.nodes[0]))["groups"]
                if any(group["applied"] > DIGEST_ENTRIES for group in groups):
                    return
                await asyncio.sleep(0.5)

    async def until_equal(self) -> int:
        """All copies of each group are at the same entry and in the same state; how many groups."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                states: dict[int, set[tuple[int, str]]] = {}
                for status in await self.statuses():
                    for group in status["groups"]:
                        assert group["poisoned"] is None, group
                        states.setdefault(group["id"], set()).add(
                            (group["applied"], group["digest"])
                        )
                differing = {
                    group: found
                    for group, found in states.items()
                    if len(found) > len({index for index, _ in found})
                }
                assert not differing, f"copies differ at one entry: {differing}"
                if all(len(found) == 1 for found in states.values()):
                    return len(states)
                await asyncio.sleep(0.2)

    async def quorate(self, tree: Path, *command: str) -> str:
        """A command of that release."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quorate", *command, "--url", ",".join(self.urls)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async def until_all_can_run(self, machine: int) -> None:
        """As the catalog says, and for long enough that groups would have risen."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                said = await self.quorate(self.trees[self.nodes[0].name], "upgrade", "status")
                if f"can run {machine}" in said:
                    break
                await asyncio.sleep(0.2)
        await asyncio.sleep(RISING_S)

    async def checked(self, node: LocalNode, tree: Path) -> int:
        """What `quorate upgrade check` of another release makes of a node that runs; how many
        states it compared.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quorate", "upgrade", "check", str(node.folder), "--json"),
            stdout=asyncio.subprocess.PIPE,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return sum(json.loads(line)["compared"] for line in out.splitlines())

    def said(self, node: LocalNode, since: int = 0) -> str:
        return node.log_file.read_text(encoding="utf-8", errors="replace")[since:]


@asynccontextmanager
async def fleet(folder: Path, tree: Path) -> AsyncGenerator[Fleet]:
    cluster = Fleet.prepare(folder, preferred_ports=False)
    assert isinstance(cluster, Fleet)
    cluster.trees = {node.name: tree for node in cluster.nodes}
    try:
        await cluster.start_all()
        await cluster.until_ready(timeout_s=PATIENCE_S)
        yield cluster
    finally:
        await cluster.stop()


@dataclass
class Load:
    """Publishers of both protocols; a third queue lets messages expire, so that time is told."""

    cluster: Fleet
    confirmed: dict[str, set[bytes]] = field(
        default_factory=lambda: {"native": set(), "amqp": set()}
    )
    _over: threading.Event = field(default_factory=threading.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    @classmethod
    @asynccontextmanager
    async def on(cls, cluster: Fleet) -> AsyncGenerator[Load]:
        load = cls(cluster)
        await load._begin()
        try:
            yield load
        finally:
            await load.end()

    async def _begin(self) -> None:
        async with quorate.connect(self.cluster.urls) as client:
            for name in self.confirmed:
                await client.declare(name)
            await client.declare("short", {"x-message-ttl": 100})
        self._tasks = [
            asyncio.create_task(self._native()),
            asyncio.create_task(self._short()),
            asyncio.create_task(asyncio.to_thread(self._amqp)),
        ]

    async def end(self) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)

    async def _native(self) -> None:
        async with quorate.connect(self.cluster.urls) as client:
            number = 0
            while not self._over.is_set():
                bodies = [b"%d" % each for each in range(number, number + 5)]
                number += 5
                with contextlib.suppress(quorate.QuorateError):
                    await client.publish_many("native", bodies, batch=5)
                    self.confirmed["native"].update(bodies)
                await asyncio.sleep(PACE_S)

    async def _short(self) -> None:
        async with quorate.connect(self.cluster.urls) as client:
            while not self._over.is_set():
                with contextlib.suppress(quorate.QuorateError):
                    await client.publish("short", b"x")
                await asyncio.sleep(0.1)

    def _amqp(self) -> None:
        number = turn = 0
        while not self._over.is_set():
            turn += 1
            node = self.cluster.nodes[turn % len(self.cluster.nodes)]
            try:
                connection = pika.BlockingConnection(pika.URLParameters(node.amqp_url))
                channel = connection.channel()
                channel.confirm_delivery()
                while not self._over.is_set():
                    body = b"%d" % number
                    number += 1
                    channel.basic_publish("", "amqp", body, mandatory=True)
                    self.confirmed["amqp"].add(body)
                    self._over.wait(PACE_S)
                connection.close()
            except (pika.exceptions.AMQPError, OSError):
                self._over.wait(0.05)

    async def drained(self) -> dict[str, int]:
        """What was confirmed and does not come out, by queue."""
        lost: dict[str, int] = {}
        async with quorate.connect(self.cluster.urls) as client:
            for name, sent in self.confirmed.items():
                got: set[bytes] = set()
                with contextlib.suppress(TimeoutError):
                    async with (
                        asyncio.timeout(PATIENCE_S),
                        client.consume_batches(name, credit=500) as consumer,
                    ):
                        async for batch in consumer:
                            got.update(batch.bodies)
                            await batch.settle()
                            if sent <= got:
                                break
                lost[name] = len(sent - got)
        return lost


async def judged(cluster: Fleet, load: Load, say: Say) -> None:
    await load.end()
    counts = {name: len(sent) for name, sent in load.confirmed.items()}
    assert all(count > 20 for count in counts.values()), f"there was no load: {counts}"
    lost = await load.drained()
    groups = await cluster.until_equal()
    say(f"confirmed {counts}, lost {lost}, {groups} groups, diverged 0")
    assert not any(lost.values()), f"confirmed and lost: {lost}"


@dataclass(frozen=True)
class Release:
    tree: Path
    machine: int
    name: str


async def there_and_back(old: Release, new: Release, folder: Path, say: Say) -> None:
    """From one release to the one after it, back as long as nothing of that was written, and there
    again. Then it is too late: who goes back all the same ends in words, and nothing is lost.
    """
    async with fleet(folder, old.tree) as cluster, Load.on(cluster) as load:
        await cluster.until_versions(old.machine)
        one, two, three = cluster.nodes
        await cluster.until_noted()
        compared = await cluster.checked(one, new.tree)
        assert compared, "nothing was compared"
        say(f"{new.name} replays the log of one: {compared} states compared, all equal")
        for node in (one, two):
            await cluster.roll(node, new.tree)
        say(f"two of three run {new.name}: machine versions {await cluster.versions()}")
        await cluster.until_versions(old.machine)
        for node in (two, one):
            await cluster.roll(node, old.tree)
        say(f"and back: machine versions {await cluster.versions()}")
        await cluster.until_versions(old.machine)

        await cluster.quorate(old.tree, "upgrade", "hold")
        for node in (one, two, three):
            await cluster.roll(node, new.tree)
        await cluster.until_all_can_run(new.machine)
        say(f"all run {new.name}, held: machine versions {await cluster.versions()}")
        await cluster.until_versions(old.machine)
        for node in (three, two, one):
            await cluster.roll(node, old.tree)
        say(f"all back: machine versions {await cluster.versions()}")
        await cluster.until_versions(old.machine)
        for node in (two, three, one):
            await cluster.roll(node, new.tree)
        await cluster.until_versions(old.machine)
        await cluster.quorate(new.tree, "upgrade", "finish")
        await cluster.until_versions(new.machine)
        say(f"all run {new.name}, finished: machine version {new.machine}")

        seen = len(cluster.said(three))
        await cluster.stop_one(three)
        cluster.trees[three.name] = old.tree
        await cluster.start(three)
        assert three.process is not None
        async with asyncio.timeout(PATIENCE_S):
            status = await three.process.wait()
        words = [line for line in cluster.said(three, seen).splitlines() if "needs machine" in line]
        assert (status, bool(words)) == (EXIT_DATA, True), cluster.said(three, seen)
        say(f"one goes back too late, and ends with status {status}: {words[-1][:200]}")
        cluster.trees[three.name] = new.tree
        await cluster.start(three)
        await cluster.until_ready(timeout_s=PATIENCE_S)
        await judged(cluster, load, say)


def this() -> Release:
    return Release(releases.this(), MACHINE_VERSION, "this release")


async def to_the_next(folder: Path, say: Say) -> None:
    following = Release(releases.following(), releases.LATER, "the next release")
    await there_and_back(this(), following, folder, say)


async def from_the_gated(folder: Path, say: Say) -> None:
    gated = Release(releases.gated(), releases.GATED_VERSION, "0.2")
    await there_and_back(gated, this(), folder, say)


async def from_the_first(folder: Path, say: Say) -> None:
    """The first release knows no versions: all nodes stop, and start as this release."""
    first, this = releases.first(), releases.this()
    async with fleet(folder, first) as cluster, Load.on(cluster) as load:
        await cluster.until_noted()
        compared = await cluster.checked(cluster.nodes[0], this)
        assert compared, "nothing was compared"
        say(f"this release replays the log of one: {compared} states compared, all equal")
        for node in cluster.nodes:
            await cluster.stop_one(node)
        say("a full stop")
        for node in cluster.nodes:
            cluster.trees[node.name] = this
            await cluster.start(node)
        await cluster.until_ready(timeout_s=PATIENCE_S)
        await cluster.until_versions(MACHINE_VERSION)
        say(f"all run this release: machine version {MACHINE_VERSION}")

        one, *others = cluster.nodes
        seen = {node.name: len(cluster.said(node)) for node in others}
        await cluster.stop_one(one)
        cluster.trees[one.name] = first
        await cluster.start(one)
        words = f"runs machine version 1 at most, the cluster has {MACHINE_VERSION}"
        async with asyncio.timeout(PATIENCE_S):
            while not any(words in cluster.said(node, seen[node.name]) for node in others):
                await asyncio.sleep(0.2)
            while words not in cluster.said(one):
                await asyncio.sleep(0.2)
        say(f"the first release among them is refused, and both sides say so: {words}")
        await cluster.stop_one(one)
        cluster.trees[one.name] = this
        await cluster.start(one)
        await cluster.until_ready(timeout_s=PATIENCE_S)
        await judged(cluster, load, say)


async def rolled_from_the_first(folder: Path, say: Say) -> None:
    """Node by node, mixed with the first release."""
    first, this = releases.first(), releases.this()
    async with fleet(folder, first) as cluster, Load.on(cluster) as load:
        for number, node in enumerate(cluster.nodes, start=1):
            await cluster.roll(node, this)
            say(f"{number} of 3 run this release: machine versions {await cluster.versions()}")
        await cluster.until_versions(MACHINE_VERSION)
        await judged(cluster, load, say)


REHEARSALS = {
    "gated": from_the_gated,
    "next": to_the_next,
    "first": from_the_first,
    "mixed": rolled_from_the_first,
}
