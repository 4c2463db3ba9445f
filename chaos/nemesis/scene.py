"""What one episode works with: its targets, its dice, its place in the history."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from chaos.history import History, Op
from chaos.live.live_cluster import LiveCluster, NotReadyError
from chaos.live.whole import until_whole
from chaos.nemesis.episodes import Episode, Target, pick
from chaos.nemesis.watch import Watch
from cluster.types import NodeId

PROCESS = "nemesis"
#: A node has to end within this time, if told to or by itself.
END_S_MAX = 40.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Stage:
    """What all episodes of a run share."""

    cluster: LiveCluster
    watch: Watch
    history: History
    seed: int
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    findings: list[str] = field(default_factory=list[str])


class Scene:
    """One episode under way."""

    def __init__(self, stage: Stage, episode: Episode) -> None:
        self.cluster = stage.cluster
        self.dice = episode.dice(stage.seed)
        self.episode = episode
        self._stage = stage
        self._invoked: Op | None = None
        self._notes: dict[str, Any] = {}

    # --- the history

    def begin(self, nodes: Iterable[NodeId], **detail: Any) -> None:
        episode = self.episode
        value: dict[str, Any] = {"kind": episode.kind, "nodes": list(nodes), "detail": detail}
        if episode.variant:
            value["variant"] = episode.variant
        self._invoked = self._stage.history.invoke(PROCESS, "fault", value)

    def note(self, **seen: Any) -> None:
        """What is only known later: told when the episode ends."""
        self._notes.update(seen)

    def end(self) -> None:
        if self._invoked is not None:
            detail = {**self._invoked.value["detail"], **self._notes}
            self._stage.history.end(self._invoked, "ok", {"detail": detail})

    def finding(self, text: str) -> None:
        """Something that must not be."""
        self._stage.findings.append(f"{self.episode.kind}: {text}")
        self.note(finding=text)

    def saw(self, f: str, **value: Any) -> None:
        """Something that happens in the middle of it."""
        self._stage.history.saw(PROCESS, f, value)

    # --- whom

    def targets(self, target: Target | None = None) -> list[NodeId]:
        watch = self._stage.watch
        groups = watch.groups()
        leader = watch.leader_of(self.dice.choice(groups)) if groups else None
        return pick(target or self.episode.target, self.cluster.nodes, leader, self.dice)

    def one(self) -> NodeId:
        return self.targets()[0]

    # --- time

    async def wait(self, seconds: float | None = None) -> None:
        """As long as the episode lasts, or so long; not at all when the run is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.episode.lasts_s if seconds is None else seconds):
                await self._stage.stopping.wait()

    @property
    def stopping(self) -> bool:
        return self._stage.stopping.is_set()

    # --- deeds

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls of the cluster block: in a thread."""
        return await asyncio.to_thread(call, *args, **kwargs)

    async def start(self, nodes: Iterable[NodeId]) -> None:
        """Start them, one after the other in random order, and wait until they are ready."""
        waiting = list(nodes)
        since = time.monotonic()
        for node in self.dice.sample(waiting, len(waiting)):
            await self.do(self.cluster.start, node)
            await self.wait(self.dice.uniform(0.0, 0.5) if len(waiting) > 1 else 0.0)
        await self.until_ready(waiting)
        self.note(ready_s=round(time.monotonic() - since, 3))

    async def until_ready(self, nodes: list[NodeId]) -> None:
        try:
            await self.cluster.until_ready(nodes)
        except NotReadyError as error:
            self.finding(str(error))

    async def until_ended(self, node: NodeId) -> bool:
        return await self.cluster.until_ended(node, timeout_s=END_S_MAX)

    async def until_whole(self, nodes: Iterable[NodeId]) -> bool:
        """All these are full members; if not in time that is a finding."""
        for node in nodes:
            why = await until_whole(self.cluster, node)
            if why is not None:
                self.finding(f"not a full member again: {why}")
                return False
        return True
