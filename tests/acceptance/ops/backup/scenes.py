"""A cluster is backed up under load, destroyed, and restored; what is there then is compared with
what its clients had been told.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import quorate
from quorate.local import LocalCluster
from quorate.management import Management
from tests.acceptance.ops.backup.load import NAME, PRIORITIES, Ledger, Load, drain

ROOT = Path(__file__).parents[4]
LOAD_S = 5.0
COMMAND_S_MAX = 180.0
ARCHIVED_S_MAX = 60.0


class Verdict(NamedTuple):
    scene: str
    what: str
    ok: bool
    detail: str


class Stage:
    """A cluster in a folder, the commands that are given, and what was found."""

    def __init__(self, scene: str, folder: Path, settings: str = "") -> None:
        self.scene = scene
        self.folder = folder
        self.verdicts: list[Verdict] = []
        self._settings = settings
        self.cluster = self._prepare()

    def _prepare(self) -> LocalCluster:
        return LocalCluster.prepare(
            self.folder / "cluster", preferred_ports=False, settings=self._settings
        )

    async def start(self) -> None:
        await self.cluster.start_all()
        await self.cluster.until_ready()

    async def restart(self) -> None:
        await self.cluster.stop()
        self.cluster = self._prepare()
        await self.start()

    async def destroy(self) -> None:
        """The folders of all nodes."""
        for node in self.cluster.nodes:
            await self.cluster.kill(node)
        await self.cluster.stop()
        for node in self.cluster.nodes:
            shutil.rmtree(node.folder / "data")

    async def begin_again(self, restored: Path) -> None:
        """Start nodes on what was restored."""
        for node in self.cluster.nodes:
            (restored / node.name).rename(node.folder / "data")
        self.cluster = self._prepare()
        await self.start()

    async def command(self, *words: object) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quorate",
            *map(str, words),
            cwd=ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                said, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            raise
        assert process.returncode is not None
        return process.returncode, said.decode()

    async def must(self, what: str, *words: object) -> None:
        code, said = await self.command(*words)
        self.judge(what, code == 0, said.strip().splitlines()[-1] if said.strip() else "")
        if code:
            raise AssertionError(f"{' '.join(map(str, words))} ended with {code}:\n{said}")

    async def refused(self, what: str, wanted: Sequence[str], *words: object) -> None:
        """Exit status 3, and it says all of this."""
        code, said = await self.command(*words)
        self.judge(what, code == 3 and all(word in said for word in wanted), said.strip())

    async def restore(self, what: str, backup: Path, to: Path, *more: object) -> None:
        nodes = [word for node in self.cluster.nodes for word in ("--node", node.name)]
        await self.must(
            what, "restore", backup, "--data-dir", to, "--cluster", "local", *nodes, *more
        )

    def judge(self, what: str, ok: bool, detail: str = "") -> None:
        self.verdicts.append(Verdict(self.scene, what, ok, detail))

    async def drained(self) -> dict[str, list[int]]:
        return await drain(self.cluster.urls, self.cluster.nodes[0].amqp)

    async def definitions(self) -> dict[str, Any]:
        async with Management(self.cluster.urls, timeout_s=30) as api:
            return await api.get("definitions")


async def administer(urls: Sequence[str]) -> None:
    """Some of everything that a catalog holds."""
    async with Management(urls, timeout_s=30) as api:
        await api.put("vhosts", "shop", body={"description": "orders"})
        await api.put("users", "app", body={"password": "a secret", "tags": "monitoring"})
        may = {"configure": "^app", "write": ".*", "read": ".*"}
        await api.put("permissions", "shop", "app", body=may)
        policy = {"pattern": "^ord", "definition": {"max-length": 1_000_000}, "priority": 3}
        await api.put("policies", "/", "long", body={**policy, "apply-to": "queues"})
        await api.put("exchanges", "/", "events", body={"type": "topic", "durable": True})
        await api.post("bindings", "/", "e", "events", "q", "kept", body={"routing_key": "eu.#"})


async def under_load(folder: Path, say: Callable[[str], None]) -> list[Verdict]:
    stage = Stage("under load", folder)
    backup, restored = folder / "backup", folder / "restored"
    try:
        await stage.start()
        urls = stage.cluster.urls
        load = Load(urls, stage.cluster.nodes[0].amqp)
        await load.declare()
        await administer(urls)
        load.start()
        await asyncio.sleep(LOAD_S)
        before, definitions = load.copy(), await stage.definitions()
        at = ("--url", ",".join(urls))
        await asyncio.gather(  # each finds its own moment
            stage.must("backup under load", "backup", backup, *at),
            stage.must("another at the same time", "backup", folder / "another", *at),
        )
        during = load.copy()
        say("backed up; more load")
        await asyncio.sleep(LOAD_S / 2)
        await load.stop()
        await stage.must("verify", "backup", "verify", backup)
        await stage.must("verify the other", "backup", "verify", folder / "another")
        await stage.destroy()
        await damage(stage, backup)
        await stage.restore("restore", backup, restored)
        await stage.begin_again(restored)
        say("restored and started")
        after = await stage.definitions()
        stage.judge("the catalog is equal", after == definitions, differences(definitions, after))
        found = await stage.drained()
        compare(stage, before, during, found)
        await repeat(stage, before["orders"])
    finally:
        await stage.cluster.stop()
    return stage.verdicts


async def damage(stage: Stage, backup: Path) -> None:
    """What is not as it was written is refused, and says where."""
    bad = stage.folder / "bad"
    largest = max(backup.glob("*.log"), key=lambda path: path.stat().st_size)
    shutil.copytree(backup, bad)
    data = bytearray((bad / largest.name).read_bytes())
    data[len(data) // 2] ^= 1
    (bad / largest.name).write_bytes(data)
    await stage.refused("one flipped bit", [largest.name, "at offset"], "backup", "verify", bad)
    to = stage.folder / "never"
    words = ("restore", bad, "--data-dir", to, "--node", "n", "--cluster", "c")
    await stage.refused("restore of it", [largest.name, "at offset"], *words)
    stage.judge("nothing was written by it", not to.exists())
    (bad / largest.name).unlink()
    await stage.refused("a missing file", [largest.name, "missing"], "backup", "verify", bad)
    text = (backup / "backup.json").read_text()
    (bad / "backup.json").write_text(text.replace('"messages": ', '"messages": 1', 1))
    await stage.refused("a changed manifest", ["backup.json"], "backup", "verify", bad)


def compare(
    stage: Stage,
    before: dict[str, Ledger],
    during: dict[str, Ledger],
    found: dict[str, list[int]],
) -> None:
    """`before` the command began, and when it had ended."""
    for queue in ("orders", "mail", "later", "kept", "single"):
        numbers = set(found[queue])
        lost = before[queue].confirmed - during[queue].sent_acks - numbers
        again = before[queue].acked & numbers
        alien = [each for each in numbers if each >= during[queue].published]
        twice = len(found[queue]) - len(numbers)
        ok = not (lost or again or alien or twice) and numbers
        detail = (
            f"{len(numbers)} there, {len(lost)} lost, {len(again)} acked before come again,"
            f" {twice} twice, {len(alien)} of later"
        )
        stage.judge(f"messages of {queue}", bool(ok), detail)
        by = PRIORITIES if queue == "mail" else 1
        wrong = out_of_order(found[queue], by)
        stage.judge(f"order of {queue}", wrong == 0, f"{wrong} out of order")
    left, dead = found["rejected"], found["dead"]
    lost = before["rejected"].confirmed - set(left) - set(dead)
    twice = len(left) + len(dead) - len({*left, *dead})
    ok = not lost and not twice and before["rejected"].acked <= set(dead)
    detail = f"{len(left)} left, {len(dead)} dead, {len(lost)} lost, {twice} in both"
    stage.judge("dead letters", ok and bool(dead), detail)


def out_of_order(numbers: Sequence[int], priorities: int) -> int:
    """Higher priorities first, and numbers ascending in each."""
    keys = [(-(number % priorities), number) for number in numbers]
    return sum(1 for one, other in pairwise(keys) if other < one)


async def repeat(stage: Stage, before: Ledger) -> None:
    """A publisher that repeats what it had published before the backup."""
    async with quorate.connect(stage.cluster.urls) as client:
        known = max(before.confirmed) + 1  # numbers begin at 1
        again = await client.publisher("orders", NAME, next_seqno=known).publish(b"repeated")
        info = await client.info("orders")
        ok = again.duplicate and info["ready"] == 0
        stage.judge("a repeated publish is known", ok, f"number {known}: {again}")


async def from_archive(folder: Path, say: Callable[[str], None]) -> list[Verdict]:
    archive, backup = folder / "archive", folder / "backup"
    archive.mkdir(parents=True)
    settings = f'[log]\nsegment_bytes = 1048576\narchive_dir = "{archive}"\n'
    stage = Stage("from the archive", folder, settings)
    try:
        await stage.start()
        urls = stage.cluster.urls
        load = Load(urls, stage.cluster.nodes[0].amqp, pad=1000)
        await load.declare()
        load.start(consume=False)
        await asyncio.sleep(LOAD_S / 2)
        await stage.must("backup under load", "backup", backup, "--url", ",".join(urls))
        await asyncio.sleep(LOAD_S / 2)
        load.pause()
        await asyncio.sleep(1)
        middle, at = load.copy(), datetime.now(UTC)
        await asyncio.sleep(1)
        await administer(urls)
        load.resume()
        await asyncio.sleep(LOAD_S / 2)
        await load.stop()
        end, definitions = load.copy(), await stage.definitions()
        await stage.restart()  # which completes the segments
        await until_archived(stage, archive)
        await stage.destroy()
        # The cluster that is made of it writes an archive of its own.
        archive = archive.rename(folder / "archived")
        say("archived and destroyed")
        await gaps(stage, backup, archive)
        await stage.restore(
            "restore to a time",
            backup,
            folder / "middle",
            *("--archive", archive, "--to-time", at.isoformat()),
        )
        await stage.begin_again(folder / "middle")
        exactly(stage, "then", middle, await stage.drained())
        names = [each["name"] for each in (await stage.definitions())["vhosts"]]
        stage.judge("definitions of then", names == ["/"], f"virtual hosts {', '.join(names)}")
        await stage.destroy()
        say("restored to a time")
        await stage.restore("restore to the end", backup, folder / "end", "--archive", archive)
        await stage.begin_again(folder / "end")
        after = await stage.definitions()
        stage.judge("the catalog is equal", after == definitions, differences(definitions, after))
        exactly(stage, "at the end", end, await stage.drained())
    finally:
        await stage.cluster.stop()
    return stage.verdicts


def exactly(
    stage: Stage, when: str, ledgers: dict[str, Ledger], found: dict[str, list[int]]
) -> None:
    for queue, ledger in ledgers.items():
        if not ledger.published:
            continue
        numbers = found[queue]
        lost, more = ledger.confirmed - set(numbers), set(numbers) - ledger.confirmed
        wrong = out_of_order(numbers, PRIORITIES if queue == "mail" else 1)
        ok = not lost and not more and not wrong and len(numbers) == len(set(numbers))
        detail = f"{len(numbers)} there, {len(lost)} lost, {len(more)} too many, {wrong} displaced"
        stage.judge(f"messages of {queue} {when}", ok, detail)


async def until_archived(stage: Stage, archive: Path) -> None:
    """Each node's segments but the newest."""
    async with asyncio.timeout(ARCHIVED_S_MAX):
        for node in stage.cluster.nodes:
            data = node.folder / "data"
            while len(list((archive / node.name).glob("*.log"))) < _newest(data) - 1:
                await asyncio.sleep(0.2)


def _newest(data: Path) -> int:
    return max(int(path.stem) for path in data.glob("*.log"))


async def gaps(stage: Stage, backup: Path, archive: Path) -> None:
    """One node's segments fill another's gap; a gap in all is named."""
    first = stage.cluster.nodes[0].name
    holed = stage.folder / "holed"
    shutil.copytree(archive / first, holed / first)
    copies = sorted((holed / first).glob("*.log"))
    copies[len(copies) * 2 // 3].unlink()
    words = ["restore", backup, "--cluster", "c", "--node", "n"]
    await stage.refused(
        "a gap in the archive",
        ["entries", "are in no segment of the archive"],
        *words,
        *("--data-dir", stage.folder / "never", "--archive", holed),
    )
    other = archive / stage.cluster.nodes[1].name
    await stage.must(
        "another node's segments fill it",
        *words,
        *("--data-dir", stage.folder / "filled", "--archive", holed, "--archive", other),
    )


def differences(one: Any, other: Any) -> str:
    """The first few places, for people."""
    names = [name for name in one if one[name] != other.get(name)]
    return "; ".join(
        f"{name}: {json.dumps(one[name])[:200]} is {json.dumps(other.get(name))[:200]}"
        for name in names
    )
