"""Faults that befall simulated nodes and real ones alike: whom they strike, what happens in which
order, and how it is mended. What each world does in its own way is a `Strike`.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from chaos.faults import Damage, Faults, Grudge, bridge, deafen, halves, isolate, ring, silence
from cluster.types import NodeId

C_co = TypeVar("C_co", bound=Faults, covariant=True)
P = ParamSpec("P")
T = TypeVar("T")

DAYS = (1, 8, 30)
DAY_MS = 86_400_000
SYNCS_MS = (20.0, 100.0, 400.0)
#: Shapes of a cut that are around one node.
AROUND: Mapping[str, Callable[[NodeId, list[NodeId]], Grudge]] = {
    "isolate": isolate,
    "deafen": deafen,
    "silence": silence,
    "bridge": bridge,
}


class Strike(ABC, Generic[C_co]):
    """One fault under way. The history of real nodes is told of it; a simulated cluster has traces
    of its own.
    """

    def __init__(self, cluster: C_co, dice: random.Random) -> None:
        self.cluster = cluster
        self.dice = dice

    @abstractmethod
    def targets(self) -> list[NodeId]:
        """Whom it strikes, drawn anew."""

    def one(self) -> NodeId:
        return self.targets()[0]

    def begin(self, nodes: Iterable[NodeId], **detail: Any) -> None:
        """Whom it strikes, and how."""

    def note(self, **seen: Any) -> None:
        """What is only known later."""

    @abstractmethod
    def finding(self, text: str) -> None:
        """Something that must not be."""

    async def do(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A call of the cluster, which may block."""
        return call(*args, **kwargs)

    @abstractmethod
    async def wait(self, seconds: float | None = None) -> None:
        """As long as a fault of this kind lasts, or so long."""

    @abstractmethod
    async def start(self, nodes: Sequence[NodeId]) -> None:
        """All of them, not quite at once."""

    @abstractmethod
    async def until_ended(self, node: NodeId, why: str) -> None:
        """Its process is gone, in good order; `why` it has to be."""

    async def until_whole(self, nodes: Iterable[NodeId]) -> bool:
        """These are full members, where the next fault waits for that."""
        return True

    async def rejoin(self, node: NodeId) -> None:
        await self.start([node])
        await self.until_whole([node])

    # --- disks that forget

    @abstractmethod
    async def may_forget(self, node: NodeId, *, its_start: bool = False) -> bool:
        """Wait until no promise is lost with this disk, not even that of the node's last start.
        False: some would be.
        """

    async def off(self, node: NodeId) -> None:
        """Down, in any way."""
        await self.do(self.cluster.kill, node)

    def forgets(self, node: NodeId) -> None:
        """From now on, until it has all again."""

    @abstractmethod
    async def refused(self, node: NodeId, place: str, kind: Damage) -> bool:
        """Whether it has seen that its data is damaged, and does not serve."""


# --- processes and machines


async def kill(strike: Strike[Faults]) -> None:
    await take_down(strike, strike.targets())


async def power_loss(strike: Strike[Faults]) -> None:
    await take_down(strike, strike.targets(), power_loss=True)


async def take_down(
    strike: Strike[Faults], nodes: Sequence[NodeId], *, power_loss: bool = False
) -> None:
    """For a while."""
    strike.begin(nodes)
    if power_loss:
        await strike.do(strike.cluster.power_loss, nodes)
    else:
        for node in nodes:
            await strike.do(strike.cluster.kill, node)
    await strike.wait()
    await strike.start(nodes)


async def terminate(strike: Strike[Faults]) -> None:
    nodes = strike.targets()
    strike.begin(nodes)
    for node in nodes:
        await strike.do(strike.cluster.terminate, node)
    for node in nodes:
        await strike.until_ended(node, "SIGTERM")
    await strike.wait()
    await strike.start(nodes)


async def pause(strike: Strike[Faults]) -> None:
    """Often longer than an election: who led wakes up and believes that it still does."""
    nodes = strike.targets()
    strike.begin(nodes)
    for node in nodes:
        await strike.do(strike.cluster.pause, node)
    await strike.wait()
    for node in nodes:
        await strike.do(strike.cluster.resume, node)


# --- network and disks


async def partition(strike: Strike[Faults], shape: str, *, reset_share: float) -> None:
    """`reset_share`: of the cuts, those that reset connections instead of being silent."""
    nodes, dice = strike.cluster.nodes, strike.dice
    if shape == "halves":
        shuffled = dice.sample(nodes, len(nodes))
        middle = dice.randint(1, max(1, len(nodes) - 1))
        struck, grudge = shuffled[:middle], halves(shuffled[:middle], shuffled[middle:])
    elif shape == "ring":
        struck = dice.sample(nodes, len(nodes))
        grudge = ring(struck)
    else:
        struck = strike.targets()
        grudge = AROUND[shape](struck[0], nodes)
    if len(nodes) < 2:
        return
    reset = reset_share > 0.0 and dice.random() < reset_share
    strike.begin(struck, reset=reset)
    await strike.do(strike.cluster.partition, grudge, reset=reset)
    await strike.wait()
    await strike.do(strike.cluster.partition, {})


async def slow_disk(strike: Strike[Faults]) -> None:
    node, sync_ms = strike.one(), strike.dice.choice(SYNCS_MS)
    strike.begin([node], sync_ms=sync_ms)
    await strike.do(strike.cluster.slow_disk, node, sync_ms)
    await strike.wait()
    await strike.do(strike.cluster.slow_disk, node, None)


async def wrong_clock(strike: Strike[Faults], struck: Sequence[NodeId]) -> None:
    """Days off for a moment or for longer: one clock, the only wrong one; seldom all."""
    dice, skew = strike.dice, strike.cluster.skew_clock
    days = dice.choice(DAYS) * dice.choice((1, 1, -1))
    strike.begin(struck, days=days)
    for node in struck:
        await strike.do(skew, node, days * DAY_MS)
    lasts_s = dice.choice(((0.0, 0.3), (1.0, 8.0)))
    if len(struck) > 1:  # for longer they would be believed
        lasts_s = (0.0, 0.3)
    await strike.wait(dice.uniform(*lasts_s))
    for node in struck:
        await strike.do(skew, node, 0)


# --- data


async def wipe(strike: Strike[Faults]) -> None:
    node = strike.one()
    if await strike.may_forget(node):
        strike.begin([node])
        await strike.off(node)
        strike.forgets(node)
        await strike.do(strike.cluster.wipe, node)
        await strike.wait()
        await strike.rejoin(node)


async def old_copy(strike: Strike[Faults]) -> None:
    """The folder is copied, and some time later the copy takes its place: promises that were made
    since are forgotten. All others must know of the start in between by then: if the only one that
    does is away, nobody can tell that the folder is old.
    """
    node = strike.one()
    if not await strike.may_forget(node):
        return
    strike.begin([node])
    await strike.off(node)
    await strike.do(strike.cluster.copy_data, node)
    await strike.start([node])
    await strike.wait()
    if await strike.may_forget(node, its_start=True):
        await strike.off(node)
        strike.forgets(node)
        await strike.do(strike.cluster.restore_data, node)
        await strike.wait(strike.dice.uniform(0.0, 1.0))
        await strike.rejoin(node)


async def damage(strike: Strike[Faults], kinds: Sequence[Damage]) -> None:
    """The node must see it and refuse to start, and gets a new folder then. A snapshot may have an
    older one to stand in for it, and an end that is cut off looks like one that a crash has torn.
    """
    node, cluster = strike.one(), strike.cluster
    if not await strike.may_forget(node):
        return
    strike.begin([node])
    await strike.off(node)
    kind = strike.dice.choice(kinds)
    # An end that is missing may not be seen, so the others must have all that was in it.
    others_whole = await strike.until_whole(each for each in cluster.nodes if each != node)
    place = await strike.do(cluster.damage, node, kind) if others_whole else None
    strike.note(place=place)
    await strike.do(cluster.start, node)
    if place is not None:
        strike.forgets(node)
        if await strike.refused(node, place, kind):
            await strike.wait()
            await strike.off(node)
            await strike.do(cluster.wipe, node)
            await strike.start([node])
    await strike.until_whole([node])


STRIKES: Mapping[str, Callable[[Strike[Faults]], Awaitable[None]]] = {
    "kill": kill,
    "terminate": terminate,
    "pause": pause,
    "slow_disk": slow_disk,
    "power_loss": power_loss,
    "power_loss_all": power_loss,
    "wipe": wipe,
    "old_copy": old_copy,
}
