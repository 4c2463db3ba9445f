"""What scenes of coming and going nodes are made of: the real commands, faults beside them, and
what must hold when both are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from chaos.faults import isolate
from chaos.live.live_cluster import ROOT, LiveCluster
from chaos.live.whole import until_whole, why_not_whole
from chaos.load.addresses import Address
from chaos.nemesis.nemesis import Nemesis
from chaos.report.series import NEMESIS
from cluster.types import NodeId
from quorate.errors import QuorateError
from quorate.management import Management

CATALOG = "catalog"
COMMAND_S_MAX = 150.0
ASK_S_MAX = 10.0
END_S_MAX = 60.0
SETTLED_S_MAX = 90.0
#: A fault that waits for a moment that never comes strikes after this all the same.
MOMENT_S_MAX = 10.0
LOOK_S = 0.03
SLOW_LOOK_S = 0.2
#: No term may grow for so long before it is judged who makes it grow, and while it is.
CALM_S = 4.0
CALM_S_MAX = 40.0

Row = dict[str, Any]
Deed = Coroutine[Any, Any, object]


class SceneFailed(Exception):
    """Something that must hold does not; the text says what."""


class MemberStage:
    """`say` hears what is under way. All that is done is in the history, as faults."""

    def __init__(
        self, nemesis: Nemesis, addresses: list[Address], say: Callable[[str], None], seed: int
    ) -> None:
        self.nemesis = nemesis
        self._stage = nemesis.stage
        self.cluster: LiveCluster = self._stage.cluster
        self.seed = seed
        self.dice = random.Random(f"members/{seed}")
        self._addresses = addresses
        self._say = say
        self._names = len(self.cluster.nodes)
        self._balanced_before: Counter[str] = Counter()

    # --- commands

    async def command(self, *words: str, about: Sequence[NodeId] = ()) -> str:
        """To its end; what it said. Raises SceneFailed when it fails."""
        self._say("quorate " + " ".join(words))
        urls = ",".join(self.cluster.url(node) for node in self._reachable())
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        async with self.deed(" ".join(words[:2]), about, command=list(words)) as told:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "quorate", *words, "--url", urls),
                cwd=ROOT,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                async with asyncio.timeout(COMMAND_S_MAX):
                    output, _ = await process.communicate()
            except TimeoutError:
                why = f"did not end within {COMMAND_S_MAX:g} s"
                raise SceneFailed(
                    f"quorate {' '.join(words)} {why}: {await self._moving()}"
                ) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            text = output.decode(errors="replace")
            told["status"] = process.returncode
            if process.returncode:
                end = " / ".join(text.strip().splitlines()[-4:])
                raise SceneFailed(
                    f"quorate {' '.join(words)} ended with status {process.returncode}: {end}"
                )
            return text

    async def groups(self) -> list[Row]:
        """Those of queues."""
        lines = (await self.command("group", "list", "--json")).splitlines()
        rows: list[Row] = [json.loads(line) for line in lines if line.startswith("{")]
        return [row for row in rows if row["name"] != CATALOG]

    async def move(self, group: str, members: Sequence[NodeId]) -> None:
        await self.command("group", "move", group, *members, about=members)

    async def send_to(self, group: str, members: Sequence[NodeId]) -> bool:
        """As `move`, without its command and without waiting; whether it was accepted."""
        urls = [self.cluster.url(node) for node in self._reachable()]
        async with self.deed("group move", members, group=group):
            with contextlib.suppress(QuorateError):
                async with Management(urls, timeout_s=ASK_S_MAX) as api:
                    await api.put("groups", group, "members", body={"members": list(members)})
                    return True
        return False

    # --- nodes that come and go

    async def let_in(self) -> NodeId:
        """A new node is let in, and started; whether it has come yet is another question."""
        node = await self.prepare()
        await self.command("node", "add", node, self.peer_address(node), about=[node])
        await self.start(node)
        return node

    async def prepare(self) -> NodeId:
        """Room for a node of a new name."""
        self._names += 1
        return await asyncio.to_thread(self.cluster.add_node, f"node-{self._names}")

    def peer_address(self, node: NodeId) -> str:
        return self.cluster.network.peer_address(node, node)

    async def start(self, node: NodeId) -> None:
        await asyncio.to_thread(self.cluster.start, node)

    async def joined(self, node: NodeId) -> None:
        """It is a full member, though it may be killed before; clients use it from now on."""
        until_s = time.monotonic() + SETTLED_S_MAX
        while (why := await why_not_whole(self.cluster, node)) is not None:
            if time.monotonic() > until_s:
                raise SceneFailed(f"{node} did not become a full member: {why}")
            await asyncio.sleep(SLOW_LOOK_S)
        self._addresses.append(self.cluster.address(node))

    def unlist(self, node: NodeId) -> None:
        """Clients do not ask it any more."""
        self._addresses[:] = [each for each in self._addresses if each.node != node]

    async def ended(self, node: NodeId) -> None:
        """By itself, and in good order."""
        if not await self.cluster.until_ended(node, timeout_s=END_S_MAX):
            raise SceneFailed(f"{node} was removed, and runs still after {END_S_MAX:g} s")
        if self.cluster.exit_code(node) != 0:
            raise SceneFailed(f"{node} was removed: {self.cluster.obituary(node)}")

    async def at_least(self, count: int) -> None:
        while len(self.cluster.nodes) < count:
            await self.joined(await self.let_in())

    # --- faults beside

    @contextlib.asynccontextmanager
    async def deed(
        self, kind: str, nodes: Sequence[NodeId], **detail: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """In the history from its begin to its end; what is put into it is told there."""
        value = {"kind": kind, "nodes": list(nodes), "detail": detail}
        begun = self._stage.history.invoke(NEMESIS, "fault", value)
        try:
            yield detail
        finally:
            self._stage.history.end(begun, "ok", {"detail": detail})

    async def together(self, *deeds: Deed) -> None:
        """All to their ends; raises what the first raised."""
        outcomes = await asyncio.gather(*deeds, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def kill(self, node: NodeId, *, down_s: float = 1.0) -> None:
        """kill -9, and start it again."""
        async with self.deed("kill", [node]):
            await asyncio.to_thread(self.cluster.kill, node)
            await asyncio.sleep(down_s)
            await self.start(node)
            await self.cluster.until_started(node)

    async def cut_off(self, node: NodeId, seconds: float) -> None:
        async with self.deed("partition", [node]):
            grudge = isolate(node, self.cluster.nodes)
            await asyncio.to_thread(self.cluster.partition, grudge)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.cluster.partition, {})

    async def pause(self, node: NodeId, seconds: float) -> None:
        async with self.deed("pause", [node]):
            await asyncio.to_thread(self.cluster.pause, node)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.cluster.resume, node)

    async def when_it_learns(
        self, node: NodeId, strike: Callable[[NodeId], Awaitable[None]], group: str | None = None
    ) -> None:
        """In any group, if none is named; its process is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_S_MAX):
                while not await self._learns(node, group):
                    await asyncio.sleep(LOOK_S)
        await strike(node)

    async def when_groups_move(self, strike: Deed) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_S_MAX):
                while not any(status["moving"] for status in await self._statuses()):
                    await asyncio.sleep(LOOK_S)
        await strike

    async def soon(self, deed: Deed, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await deed

    async def leader_of(self, group: str) -> NodeId:
        async with asyncio.timeout(SETTLED_S_MAX):
            while (node := self._stage.watch.leader_of(group)) is None:
                await asyncio.sleep(LOOK_S)
        return node

    async def kill_leader(self, group: str, *, but: NodeId | None = None) -> None:
        node = await self.leader_of(group)
        if node != but:
            await self.kill(node)

    # --- what must hold

    async def whole(self) -> None:
        """All nodes are full members, nothing moves, nobody learns."""
        for node in self.cluster.nodes:
            await self.cluster.until_ready([node], timeout_s=SETTLED_S_MAX)
        until_s = time.monotonic() + SETTLED_S_MAX
        while (why := await self._unsettled()) is not None:
            if time.monotonic() > until_s:
                raise SceneFailed(f"not whole after {SETTLED_S_MAX:g} s: {why}")
            await asyncio.sleep(SLOW_LOOK_S)
        for node in self.cluster.nodes:
            if (why := await until_whole(self.cluster, node, timeout_s=SETTLED_S_MAX)) is not None:
                raise SceneFailed(f"not whole again: {why}")

    async def held_by(self, group: str, members: Sequence[NodeId]) -> None:
        """A copy that is not wanted any more is dropped a moment after the move has ended."""
        until_s = time.monotonic() + SETTLED_S_MAX
        while (why := await self._not_held(group, members)) is not None:
            if time.monotonic() > until_s:
                raise SceneFailed(f"{group} shall be on {members}; {why}")
            await asyncio.sleep(SLOW_LOOK_S)

    async def _not_held(self, group: str, members: Sequence[NodeId]) -> str | None:
        for status in await self._statuses():
            copies = [row for row in status["groups"] if row["name"] == group]
            if bool(copies) != (status["node"] in members):
                return f"{status['node']} has {copies}"
            if copies and set(copies[0]["members"]) != set(members):
                return f"{status['node']} has it on {copies[0]['members']}"
        return None

    async def disturbed_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Groups whose terms grew since they were calm, but for those whose leader moved to the
        node that is preferred: that comes half a minute after the node, and is nobody's fault.
        """
        after = await self.terms()
        balanced = self._balanced() - self._balanced_before
        return {
            name: term
            for name, term in after.items()
            if term > before.get(name, 0) and not balanced[name]
        }

    async def terms(self) -> dict[str, int]:
        """The highest of each group."""
        found: dict[str, int] = {}
        for status in await self._statuses():
            for row in status["groups"]:
                found[row["name"]] = max(found.get(row["name"], 0), row["term"])
        return found

    async def calm_terms(self) -> dict[str, int]:
        """When none has grown for a while."""
        until_s = time.monotonic() + CALM_S_MAX
        while True:
            before = await self.terms()
            await asyncio.sleep(CALM_S)
            if await self.terms() == before:
                self._balanced_before = self._balanced()
                return before
            if time.monotonic() > until_s:
                raise SceneFailed(f"terms grew for {CALM_S_MAX:g} s though nothing happened")

    # ---

    def _balanced(self) -> Counter[str]:
        """How often each group's leader moved to the preferred node, since the nodes started."""
        lines = [
            line
            for node in self.cluster.nodes
            for line in self.cluster.log_since_start(node).splitlines()
            if '"leadership_balanced"' in line
        ]
        return Counter(json.loads(line)["group"] for line in lines)

    def _reachable(self) -> list[NodeId]:
        listed = {each.node for each in self._addresses}
        return [node for node in self.cluster.nodes if node in listed]

    async def _statuses(self) -> list[dict[str, Any]]:
        found = await asyncio.gather(*(self.cluster.status(node) for node in self.cluster.nodes))
        return [status for status in found if status is not None]

    async def _learns(self, node: NodeId, group: str | None) -> bool:
        if '"node_started"' not in self.cluster.log_since_start(node):
            return False
        return any(
            node in row["learners"]
            for status in await self._statuses()
            for row in status["groups"]
            if row["role"] == "leader" and group in (None, row["name"])
        )

    async def _unsettled(self) -> str | None:
        statuses = await self._statuses()
        members = {NodeId(node) for node in self.cluster.nodes}
        if len(statuses) < len(members):
            return "not all nodes answer"
        for status in statuses:
            if status["moving"]:
                return f"{status['node']} says that {', '.join(status['moving'])} move"
            known = {row["node"] for row in status["nodes"]}
            if known != members:
                return f"{status['node']} knows of {sorted(known)}"
            for row in status["groups"]:
                if row["learners"]:
                    return f"{', '.join(row['learners'])} learn in {row['name']}"
                if row["name"] == CATALOG and set(row["members"]) != members:
                    return f"the catalog is on {row['members']}"
        return None

    async def _moving(self) -> str:
        """For who waited in vain."""
        rows = [
            f"{row['name']}: on {status['node']}, {row['role']} of term {row['term']}, members"
            f" {row['members']}, learners {row['learners']}, lag {row['lag']}"
            for status in await self._statuses()
            for row in status["groups"]
            if row["name"] in status["moving"] or row["learners"]
        ]
        return "; ".join(rows) or (await self._unsettled() or "nothing moves")
