"""Processes that end, stop or start again and again, and clocks that are wrong."""

from __future__ import annotations

from chaos.nemesis.scene import END_S_MAX, Scene
from cluster.types import NodeId

STORM_TURNS_MAX = 12
#: From before the log is read until after the node is ready.
STORM_S = (0.05, 1.5)
JUMPS_MS = (200, 1_000, 5_000, 60_000, 300_000)
JUMPS_MAX = 4
DAY_MS = 86_400_000
DAYS = (1, 8, 30)
MOMENT_S = 0.2


async def kill(scene: Scene) -> None:
    nodes = scene.targets()
    scene.begin(nodes)
    for node in nodes:
        await scene.do(scene.cluster.kill, node)
    await scene.wait()
    await scene.start(nodes)


async def terminate(scene: Scene) -> None:
    nodes = scene.targets()
    scene.begin(nodes)
    for node in nodes:
        await scene.do(scene.cluster.terminate, node)
    for node in nodes:
        if not await scene.until_ended(node):
            scene.finding(f"{node} did not end within {END_S_MAX:g} s of SIGTERM")
            await scene.do(scene.cluster.kill, node)
        elif scene.cluster.exit_code(node) != 0:
            scene.finding(f"SIGTERM: {scene.cluster.obituary(node)}")
    await scene.wait()
    await scene.start(nodes)


async def pause(scene: Scene) -> None:
    """Often longer than an election: who led wakes up and believes that it still does."""
    nodes = scene.targets()
    scene.begin(nodes)
    for node in nodes:
        await scene.do(scene.cluster.pause, node)
    await scene.wait()
    for node in nodes:
        await scene.do(scene.cluster.resume, node)


async def storm(scene: Scene) -> None:
    """Killed while they start, again and again, in any order."""
    nodes, cluster = scene.targets(), scene.cluster
    turns = scene.dice.randint(3, STORM_TURNS_MAX)
    scene.begin(nodes, turns=turns)
    for node in nodes:
        await scene.do(cluster.kill, node)
    up: set[NodeId] = set()
    for _ in range(turns):
        node = scene.dice.choice(nodes)
        if node in up and not cluster.running(node):
            scene.finding(cluster.obituary(node))
        await scene.do(cluster.kill if node in up else cluster.start, node)
        up ^= {node}
        await scene.wait(scene.dice.uniform(*STORM_S))
    await scene.start(nodes)


async def skew_clock(scene: Scene) -> None:
    nodes = scene.targets()
    jumps = scene.dice.randint(1, JUMPS_MAX)
    plan = [
        {node: scene.dice.choice(JUMPS_MS) * scene.dice.choice((-1, 1)) for node in nodes}
        for _ in range(jumps)
    ]
    scene.begin(nodes, offsets_ms=plan)
    for offsets in plan:
        for node, offset_ms in offsets.items():
            scene.cluster.skew_clock(node, offset_ms)
        await scene.wait(scene.episode.lasts_s / jumps)
    for node in nodes:
        scene.cluster.skew_clock(node, 0)


async def wrong_clock(scene: Scene) -> None:
    """Days off, for moments or for all of the episode; all other clocks are right."""
    nodes = scene.targets()[:1]
    moments = scene.dice.random() < 0.5
    plan = [
        scene.dice.choice(DAYS) * scene.dice.choice((1, 1, -1)) * DAY_MS
        for _ in range(scene.dice.randint(1, JUMPS_MAX))
    ]
    scene.begin(nodes, offsets_ms=plan, moments=moments)
    for offset_ms in plan:
        for node in nodes:
            scene.cluster.skew_clock(node, offset_ms)
        await scene.wait(MOMENT_S if moments else scene.episode.lasts_s / len(plan))
        for node in nodes:
            scene.cluster.skew_clock(node, 0)
        if moments:
            await scene.wait(scene.episode.lasts_s / len(plan))
