"""Cuts between nodes, bad weather, and a node that its clients do not reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from chaos.faults import (
    FAIR,
    Grudge,
    Weather,
    bridge,
    deafen,
    halves,
    isolate,
    ring,
    silence,
)
from chaos.nemesis.scene import Scene
from cluster.types import NodeId

_AROUND: Mapping[str, Callable[[NodeId, list[NodeId]], Grudge]] = {
    "isolate": isolate,
    "isolate_leader": isolate,
    "deafen": deafen,
    "silence": silence,
    "bridge": bridge,
}
DELAYS_MS = (5.0, 25.0, 100.0)
LOSSES = (0.02, 0.1, 0.3)
BANDWIDTHS = (50_000.0, 500_000.0)


async def partition(scene: Scene) -> None:
    nodes = scene.cluster.nodes
    if len(nodes) < 2:
        return
    shape = scene.episode.variant
    struck = scene.targets()
    if shape == "halves":
        shuffled = scene.dice.sample(nodes, len(nodes))
        struck = shuffled[: scene.dice.randint(1, len(nodes) - 1)]
        grudge = halves(struck, [node for node in nodes if node not in struck])
    elif shape == "ring":
        struck = scene.dice.sample(nodes, len(nodes))
        grudge = ring(struck)
    else:
        grudge = _AROUND[shape](struck[0], nodes)
    reset = "partition:reset" not in scene.cluster.missing and scene.dice.random() < 0.5
    scene.begin(struck, reset=reset)
    await scene.do(scene.cluster.partition, grudge, reset=reset)
    await scene.wait()
    await scene.do(scene.cluster.partition, {}, reset=False)


async def degrade(scene: Scene) -> None:
    dice = scene.dice
    match scene.episode.variant:
        case "delay":
            delay_ms = dice.choice(DELAYS_MS)
            weather = Weather(delay_ms=delay_ms, jitter_ms=delay_ms / 5)
        case "loss":
            weather = Weather(loss=dice.choice(LOSSES))
        case _:
            weather = Weather(bytes_per_s=dice.choice(BANDWIDTHS))
    scene.begin(scene.cluster.nodes, **asdict(weather))
    await scene.do(scene.cluster.degrade, weather)
    await scene.wait()
    await scene.do(scene.cluster.degrade, FAIR)


async def cut_clients(scene: Scene) -> None:
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.cut_clients, node)
    await scene.wait()
    await scene.do(scene.cluster.heal)
