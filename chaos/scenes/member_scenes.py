"""Scenes of nodes that come and go, and of groups that move, each with faults beside it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from chaos.nemesis.episodes import Pace, draw
from chaos.nemesis.mixes import possible
from chaos.scenes.member_stage import CALM_S, CATALOG, MemberStage, Row, SceneFailed
from cluster.types import NodeId

#: So that a group can have a whole majority elsewhere.
NODES = 5
COPIES = 3
STORM_S = 60.0
STORM = ("kill", "terminate", "pause", "partition", "degrade", "power_loss", "storm", "slow_disk")
STORM_PACE = Pace(quiet_s=(0.2, 1.5), lasts_s=(0.5, 4.0))
#: Not one of those that are played when none is named.
BRIEF = "brief"


async def add(stage: MemberStage) -> str:
    """From three nodes to five, and groups on all of them."""
    first = await stage.let_in()
    await stage.together(stage.joined(first), stage.when_it_learns(first, stage.kill))
    second = await stage.let_in()
    await stage.together(
        stage.joined(second),
        stage.when_it_learns(second, lambda node: stage.cut_off(node, 3.0)),
        stage.soon(stage.kill_leader(CATALOG), 1.0),
    )
    await stage.whole()
    paused = stage.dice.choice(stage.cluster.nodes)
    await stage.together(
        stage.command("group", "spread"), stage.when_groups_move(stage.pause(paused, 3.0))
    )
    await stage.whole()
    copies = _copies(await stage.groups())
    idle = [node for node in stage.cluster.nodes if not copies[node]]
    if idle:
        raise SceneFailed(f"groups were spread, and {idle} have none: {copies}")
    return (
        f"{first}: killed while it learned; {second}: cut off while it learned, the catalog's"
        f" leader killed; spread, {paused} paused"
    )


async def move(stage: MemberStage) -> str:
    """A group goes to other nodes and back, twice."""
    await stage.at_least(NODES)
    row = max(await stage.groups(), key=lambda row: row.get("last") or 0)
    group, home = row["name"], [NodeId(node) for node in row["members"]]
    others = [node for node in stage.cluster.nodes if node not in home]
    away = [*others, *home][: len(home)]
    await stage.together(stage.move(group, away), stage.soon(stage.kill_leader(group), 1.0))
    await _moved(stage, group, away)
    coming = next(node for node in home if node not in away)
    await stage.together(stage.move(group, home), stage.when_it_learns(coming, stage.kill, group))
    await _moved(stage, group, home)
    await stage.together(
        stage.move(group, away),
        stage.when_it_learns(others[0], lambda node: stage.cut_off(node, 4.0), group),
    )
    await _moved(stage, group, away)
    await stage.together(
        stage.move(group, home),
        stage.when_it_learns(coming, lambda node: stage.pause(node, 3.0), group),
        stage.soon(stage.kill_leader(CATALOG, but=coming), 1.0),
    )
    await _moved(stage, group, home)
    return (
        f"{group} to {', '.join(away)} and back, twice: its leader killed, a new member killed, cut"
        " off, paused; the catalog's leader killed"
    )


async def remove(stage: MemberStage) -> str:
    """The node that leads most, and it comes back on its old folder."""
    await stage.at_least(4)
    led = Counter(NodeId(str(row["leader"])) for row in await stage.groups())
    node = led.most_common(1)[0][0]
    await stage.together(
        _removed(stage, node), stage.soon(stage.kill_leader(CATALOG, but=node), 2.0)
    )
    await stage.ended(node)
    stage.cluster.retire(node)
    await stage.whole()
    before = await stage.calm_terms()
    async with stage.deed("start removed", [node]):
        await stage.start(node)
        await stage.ended(node)
        await asyncio.sleep(CALM_S)
        await _undisturbed(stage, before, node)
    return f"{node}, which led {led[node]} groups; catalog's leader killed; {node} started again"


async def replace(stage: MemberStage) -> str:
    """A node is dead; another takes its place, and the dead one comes back."""
    await stage.at_least(4)
    old = stage.dice.choice(stage.cluster.nodes)
    await asyncio.to_thread(stage.cluster.kill, old)
    stage.unlist(old)
    new = await stage.prepare()
    await stage.start(new)
    await stage.together(
        stage.command(
            *("node", "replace", old, new, stage.peer_address(new), "--yes"), about=[old, new]
        ),
        stage.when_it_learns(new, stage.kill),
    )
    await stage.joined(new)
    stage.cluster.retire(old)
    await stage.whole()
    before = await stage.calm_terms()
    async with stage.deed("start removed", [old]):
        await stage.start(old)
        await stage.cluster.until_started(old)
        await asyncio.sleep(2 * CALM_S)
        await _undisturbed(stage, before, old)
        await asyncio.to_thread(stage.cluster.kill, old)
    return f"{old} killed, {new} in its place, killed while it learned; {old} started again"


async def wipe(stage: MemberStage) -> str:
    """A node loses its disk and comes back under its name, with no vote until it has all again."""
    node = stage.dice.choice(stage.cluster.nodes)
    cluster = stage.cluster
    async with stage.deed("wipe", [node]) as told:
        await asyncio.to_thread(cluster.kill, node)
        await asyncio.to_thread(cluster.wipe, node)
        await stage.start(node)
        watching = asyncio.create_task(_never_leads_without_votes(stage, node))
        try:
            await cluster.until_ready([node])
            told["suspended"] = suspended = '"votes_suspended"' in cluster.log_since_start(node)
            await stage.whole()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if not watching.cancelled() and (error := watching.exception()) is not None:
            raise error
    if not suspended:
        raise SceneFailed(f"{node} came back with an empty folder, and suspended no votes")
    return f"{node} on an empty folder: suspended its votes until it had all again"


async def shrink(stage: MemberStage) -> str:
    """From five nodes to three."""
    await stage.at_least(NODES)
    await stage.command("group", "spread")
    first, second = stage.dice.sample(stage.cluster.nodes, 2)
    busy = max(await stage.groups(), key=lambda row: row.get("last") or 0)["name"]
    await stage.together(
        _removed(stage, first), stage.soon(stage.kill_leader(busy, but=first), 2.0)
    )
    await stage.ended(first)
    stage.cluster.retire(first)
    await stage.whole()
    other = stage.dice.choice([node for node in stage.cluster.nodes if node != second])
    await stage.together(_removed(stage, second), stage.soon(stage.cut_off(other, 3.0), 2.0))
    await stage.ended(second)
    stage.cluster.retire(second)
    return f"{first}: a leader killed; {second}: {other} cut off"


async def storm(stage: MemberStage) -> str:
    """Groups are sent about at random while the nemesis strikes as in any run."""
    await stage.at_least(NODES)
    until_s = time.monotonic() + STORM_S
    names = [row["name"] for row in await stage.groups()]
    wanted: dict[str, list[NodeId]] = {}
    moves = strikes = 0

    async def move_about() -> None:
        nonlocal moves
        while time.monotonic() < until_s:
            members = stage.dice.sample(stage.cluster.nodes, COPIES)
            name = stage.dice.choice(names)
            wanted.pop(name, None)  # without an answer nobody knows what is wanted
            if await stage.send_to(name, members):
                wanted[name] = members
                moves += 1
            await asyncio.sleep(stage.dice.uniform(0.5, 2.5))

    async def strike() -> None:
        nonlocal strikes
        mix, _ = possible(tuple((kind, 1.0) for kind in STORM), stage.cluster.missing)
        for episode in draw(stage.seed, mix, STORM_PACE):
            await asyncio.sleep(episode.quiet_s)
            if time.monotonic() > until_s:
                return
            await stage.nemesis.strike(episode)
            strikes += 1

    await stage.together(move_about(), strike())
    await stage.whole()
    for name, members in wanted.items():
        await stage.held_by(name, members)
    return f"{moves} moves at random, {strikes} faults beside them"


async def brief(stage: MemberStage) -> str:
    """A little of all."""
    new = await stage.let_in()
    await stage.joined(new)
    row = max(await stage.groups(), key=lambda row: row.get("last") or 0)
    group, home = row["name"], [NodeId(node) for node in row["members"]]
    away = [new, *home[1:]]
    await stage.together(stage.move(group, away), stage.when_it_learns(new, stage.kill, group))
    await _moved(stage, group, away)
    await _removed(stage, home[0])
    await stage.ended(home[0])
    stage.cluster.retire(home[0])
    return f"{new} let in, {group} moved there, killed while it learned; {home[0]} removed"


SCENES: Mapping[str, Callable[[MemberStage], Awaitable[str]]] = {
    "add": add,
    "move": move,
    "remove": remove,
    "replace": replace,
    "wipe": wipe,
    "storm": storm,
    "shrink": shrink,
    BRIEF: brief,
}


async def _moved(stage: MemberStage, group: str, members: list[NodeId]) -> None:
    await stage.whole()
    await stage.held_by(group, members)


async def _removed(stage: MemberStage, node: NodeId) -> None:
    await stage.command("node", "remove", node, "--yes", about=[node])
    stage.unlist(node)


async def _undisturbed(stage: MemberStage, before: Mapping[str, int], by: NodeId) -> None:
    """By a node that is no member any more."""
    if grown := await stage.disturbed_since(before):
        raise SceneFailed(f"{by} was removed, and came back: terms grew from {before}: {grown}")
    if '"node_registered"' in stage.cluster.log_since_start(by):
        raise SceneFailed(f"{by} was removed, and was let in again")


async def _never_leads_without_votes(stage: MemberStage, node: NodeId) -> None:
    while True:
        status = await stage.cluster.status(node)
        for row in () if status is None else status["groups"]:
            if row["withholds_votes"] and row["role"] == "leader":
                raise SceneFailed(f"{node} leads {row['name']} though its votes are suspended")
        await asyncio.sleep(0.05)


def _copies(rows: list[Row]) -> Counter[str]:
    return Counter(node for row in rows for node in row["members"])
