"""How faults befall real nodes, and those that only they can have."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from chaos.faults import FAIR, Damage, Weather
from chaos.history import History, Op
from chaos.live.live_cluster import EXIT_DAMAGED, LiveCluster, NotReadyError
from chaos.live.loop_disks import LOW_BYTES
from chaos.live.whole import until_whole
from chaos.nemesis import strikes
from chaos.nemesis.episodes import Episode, pick
from chaos.nemesis.strikes import P, Strike, T, damage, partition, wrong_clock
from chaos.nemesis.watch import Watch
from chaos.report.series import NEMESIS
from cluster.types import NodeId

#: A node has to end within this time, if told to or by itself.
END_S_MAX = 40.0
#: Exit status of a node that ended itself because something failed.
EXIT_FAILED = 1
#: Where a node says that its data is damaged.
PLACE = re.compile(r"(/\S+) at offset (\d+): ")
RESET_SHARE = 0.5
STORM_TURNS_MAX = 12
#: From before the log is read until after the node is ready.
STORM_S = (0.05, 1.5)
DELAYS_MS = (5.0, 25.0, 100.0)
LOSSES = (0.02, 0.1, 0.3)
BANDWIDTHS = (50_000.0, 500_000.0)
#: What nodes log.
PUBLISHERS_WAIT, PUBLISHERS_GO_ON = "publishers_wait", "publishers_go_on"
#: How long until all nodes know that a disk is low, or is not any more.
ALARM_S_MAX = 30.0
#: How long publishers wait at least: settles go on meanwhile.
LOW_S_MIN = 3.0
JUMPS_MS = (200, 1_000, 5_000, 60_000, 300_000)
JUMPS_MAX = 4


@dataclass
class Stage:
    """What all episodes of a run share."""

    cluster: LiveCluster
    watch: Watch
    history: History
    seed: int
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    findings: list[str] = field(default_factory=list[str])


class LiveStrike(Strike[LiveCluster]):
    """One episode under way. Disks forget one at a time, and only while all others are whole: of
    what is lost on most disks at once no broker can know.
    """

    def __init__(self, stage: Stage, episode: Episode) -> None:
        super().__init__(stage.cluster, episode.dice(stage.seed))
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
        self._invoked = self._stage.history.invoke(NEMESIS, "fault", value)

    def note(self, **seen: Any) -> None:
        self._notes.update(seen)

    def end(self) -> None:
        if self._invoked is not None:
            detail = {**self._invoked.value["detail"], **self._notes}
            self._stage.history.end(self._invoked, "ok", {"detail": detail})

    def finding(self, text: str) -> None:
        self._stage.findings.append(f"{self.episode.kind}: {text}")
        self.note(finding=text)

    def saw(self, f: str, **value: Any) -> None:
        """Something that happens in the middle of it."""
        self._stage.history.saw(NEMESIS, f, value)

    # --- whom, when and how

    def targets(self) -> list[NodeId]:
        watch = self._stage.watch
        groups = watch.groups()
        leader = watch.leader_of(self.dice.choice(groups)) if groups else None
        owners = self._owners() if self.episode.target == "owner" else ()
        return pick(self.episode.target, self.cluster.nodes, leader, self.dice, owners)

    def _owners(self) -> Sequence[NodeId]:
        """Of links, when they were last looked at. The workloads about links tell."""
        by_workload = {
            op.process: op.value["nodes"] for op in self._stage.history if op.f == "runs-links"
        }
        return sorted({node for nodes in by_workload.values() for node in nodes})

    async def wait(self, seconds: float | None = None) -> None:
        """Not at all when the run is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.episode.lasts_s if seconds is None else seconds):
                await self._stage.stopping.wait()

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: it blocks."""
        return await asyncio.to_thread(call, *args, **kwargs)

    async def start(self, nodes: Sequence[NodeId]) -> None:
        """In random order, and wait until they are ready."""
        since = time.monotonic()
        for node in self.dice.sample(nodes, len(nodes)):
            await self.do(self.cluster.start, node)
            await self.wait(self.dice.uniform(0.0, 0.5) if len(nodes) > 1 else 0.0)
        try:
            await self.cluster.until_ready(nodes)
        except NotReadyError as error:
            self.finding(str(error))
        self.note(ready_s=round(time.monotonic() - since, 3))

    async def until_ended(self, node: NodeId, why: str, status: int = 0) -> None:
        if not await self.cluster.until_ended(node, timeout_s=END_S_MAX):
            self.finding(f"{node} did not end within {END_S_MAX:g} s of {why}")
            await self.do(self.cluster.kill, node)
        elif self.cluster.exit_code(node) != status:
            self.finding(f"{why}: {self.cluster.obituary(node)}")

    async def until_whole(self, nodes: Iterable[NodeId]) -> bool:
        """If not in time that is a finding."""
        for node in nodes:
            why = await until_whole(self.cluster, node)
            if why is not None:
                self.finding(f"not a full member again: {why}")
                return False
        return True

    # --- disks that forget

    async def may_forget(self, node: NodeId, *, its_start: bool = False) -> bool:
        return await self.until_whole(self.cluster.nodes)

    async def refused(self, node: NodeId, place: str, kind: Damage) -> bool:
        """It has to name the place; of a snapshot that is any, if there are more of them."""
        await self.cluster.until_started(node)
        if self.cluster.exit_code(node) != EXIT_DAMAGED:
            if kind == "log_bit":
                self.finding(f"{node} started in spite of damage at {place}")
            return False
        found = PLACE.search(self.cluster.log_since_start(node))
        said = None if found is None else f"{found[1]}:{found[2]}"
        self.note(said=said)
        if said is None or (kind == "log_bit" and said != place):
            self.finding(f"damage at {place} is not named: {self.cluster.obituary(node)}")
        return True


# --- processes and network


async def _storm(strike: LiveStrike) -> None:
    """Killed while they start, again and again, in any order."""
    nodes, cluster = strike.targets(), strike.cluster
    turns = strike.dice.randint(3, STORM_TURNS_MAX)
    strike.begin(nodes, turns=turns)
    for node in nodes:
        await strike.do(cluster.kill, node)
    up: set[NodeId] = set()
    for _ in range(turns):
        node = strike.dice.choice(nodes)
        if node in up and not cluster.running(node):
            strike.finding(cluster.obituary(node))
        await strike.do(cluster.kill if node in up else cluster.start, node)
        up ^= {node}
        await strike.wait(strike.dice.uniform(*STORM_S))
    await strike.start(nodes)


async def _drain(strike: LiveStrike) -> None:
    """As before an upgrade, but the node stays. The others may not be able to do without it yet."""
    node = strike.one()
    strike.begin([node])
    why_not = await strike.cluster.drain(node)
    strike.note(**({"drained": True} if why_not is None else {"drained": False, "why": why_not}))
    await strike.wait()
    if (why_not := await strike.cluster.undo_drain(node)) is not None:
        strike.finding(f"the drain of {node} cannot be taken back: {why_not}")


async def _partition(strike: LiveStrike) -> None:
    resets = "partition:reset" not in strike.cluster.missing
    shape = strike.episode.variant.partition("_")[0]
    await partition(strike, shape, reset_share=RESET_SHARE if resets else 0.0)


async def _degrade(strike: LiveStrike) -> None:
    dice = strike.dice
    match strike.episode.variant:
        case "delay":
            delay_ms = dice.choice(DELAYS_MS)
            weather = Weather(delay_ms=delay_ms, jitter_ms=delay_ms / 5)
        case "loss":
            weather = Weather(loss=dice.choice(LOSSES))
        case _:
            weather = Weather(bytes_per_s=dice.choice(BANDWIDTHS))
    strike.begin(strike.cluster.nodes, **asdict(weather))
    await strike.do(strike.cluster.degrade, weather)
    await strike.wait()
    await strike.do(strike.cluster.degrade, FAIR)


async def _cut_clients(strike: LiveStrike) -> None:
    node = strike.one()
    strike.begin([node])
    await strike.do(strike.cluster.cut_clients, node)
    await strike.wait()
    await strike.do(strike.cluster.heal)


# --- disks


async def _fail_fsync(strike: LiveStrike) -> None:
    """After a failed sync nobody knows what is on the disk: the node has to end itself."""
    node = strike.one()
    strike.begin([node])
    await strike.do(strike.cluster.fail_fsync, node)
    await strike.until_ended(node, "a failed fsync", EXIT_FAILED)
    strike.note(exit_code=strike.cluster.exit_code(node))
    await strike.do(strike.cluster.heal_disk, node)
    await strike.wait()
    await strike.start([node])


async def _lie_fsync(strike: LiveStrike) -> None:
    """The process dies, the machine does not: what was written is there, synced or not."""
    node = strike.one()
    strike.begin([node])
    await strike.do(strike.cluster.lie_fsync, node)
    await strike.wait()
    await strike.do(strike.cluster.kill, node)
    await strike.do(strike.cluster.heal_disk, node)
    await strike.start([node])


async def _low_disk(strike: LiveStrike) -> None:
    """Some room is left, less than nodes want: no node takes publishes, settles go on. What clients
    see between the two signs is for a checker to judge.
    """
    node, cluster = strike.one(), strike.cluster
    before = {each: _alarms(strike, each) for each in cluster.nodes}
    strike.begin([node])
    await strike.do(cluster.fill_disk, node, leave_bytes=LOW_BYTES)
    for each in cluster.nodes:
        if not await cluster.until_said(
            each, PUBLISHERS_WAIT, count=before[each][0] + 1, timeout_s=ALARM_S_MAX
        ):
            strike.finding(f"the disk of {node} is low, and publishers of {each} go on")
            break
    else:
        strike.saw("alarm", node=node, on=True)
        await strike.wait(max(strike.episode.lasts_s, LOW_S_MIN))
        strike.saw("alarm", node=node, on=False)
    await strike.do(cluster.heal_disk, node)
    for each in cluster.nodes:
        if not await cluster.until_said(
            each, PUBLISHERS_GO_ON, count=before[each][1] + 1, timeout_s=ALARM_S_MAX
        ):
            strike.finding(f"the disk of {node} has room again, and publishers of {each} wait")


def _alarms(strike: LiveStrike, node: NodeId) -> tuple[int, int]:
    said = strike.cluster.times_said
    return said(node, PUBLISHERS_WAIT), said(node, PUBLISHERS_GO_ON)


async def _fill_disk(strike: LiveStrike) -> None:
    """It may end itself when not one byte more can be written."""
    node = strike.one()
    strike.begin([node])
    await strike.do(strike.cluster.fill_disk, node)
    await strike.wait()
    await strike.do(strike.cluster.heal_disk, node)
    if not await strike.cluster.live(node):
        await strike.cluster.until_ended(
            node, timeout_s=END_S_MAX
        )  # what it began before there was room again
    strike.note(exit_code=strike.cluster.exit_code(node))
    await strike.start([node])


# --- clocks


async def _skew_clock(strike: LiveStrike) -> None:
    nodes = strike.targets()
    jumps = strike.dice.randint(1, JUMPS_MAX)
    plan = [
        {node: strike.dice.choice(JUMPS_MS) * strike.dice.choice((-1, 1)) for node in nodes}
        for _ in range(jumps)
    ]
    strike.begin(nodes, offsets_ms=plan)
    for offsets in plan:
        for node, offset_ms in offsets.items():
            strike.cluster.skew_clock(node, offset_ms)
        await strike.wait(strike.episode.lasts_s / jumps)
    for node in nodes:
        strike.cluster.skew_clock(node, 0)


async def _wrong_clock(strike: LiveStrike) -> None:
    await wrong_clock(strike, strike.targets()[:1])


STRIKES: Mapping[str, Callable[[LiveStrike], Awaitable[None]]] = {
    **strikes.STRIKES,
    "storm": _storm,
    "drain": _drain,
    "skew_clock": _skew_clock,
    "wrong_clock": _wrong_clock,
    "partition": _partition,
    "degrade": _degrade,
    "cut_clients": _cut_clients,
    "fail_fsync": _fail_fsync,
    "lie_fsync": _lie_fsync,
    "low_disk": _low_disk,
    "fill_disk": _fill_disk,
    "damage_log_bit": partial(damage, kinds=("log_bit",)),
    "damage_snapshot_bit": partial(damage, kinds=("snapshot_bit",)),
    "damage_log_end": partial(damage, kinds=("log_end",)),
}
