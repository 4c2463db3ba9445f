"""Folders that are gone, old or damaged. One at a time, and only while all others are whole: of
what is lost on most disks at once no broker can know.
"""

from __future__ import annotations

import re

from chaos.faults import Damage
from chaos.live.live_cluster import EXIT_DAMAGED
from chaos.nemesis.scene import Scene
from cluster.types import NodeId

PLACE = re.compile(r"(/\S+) at offset (\d+): ")


async def wipe(scene: Scene) -> None:
    if not await scene.until_whole(scene.cluster.nodes):
        return
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.kill, node)
    await scene.wait()
    await _rebuild(scene, node)


async def old_copy(scene: Scene) -> None:
    """The folder as it was some time ago: promises that were made since are forgotten."""
    if not await scene.until_whole(scene.cluster.nodes):
        return
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.kill, node)
    await scene.do(scene.cluster.copy_data, node)
    await scene.start([node])
    await scene.wait()
    if await scene.until_whole(scene.cluster.nodes):
        await scene.do(scene.cluster.kill, node)
        await scene.do(scene.cluster.restore_data, node)
        await scene.start([node])
        await scene.until_whole([node])


async def damage_log_bit(scene: Scene) -> None:
    await _damage(scene, "log_bit")


async def damage_snapshot_bit(scene: Scene) -> None:
    await _damage(scene, "snapshot_bit")


async def damage_log_end(scene: Scene) -> None:
    await _damage(scene, "log_end")


async def _damage(scene: Scene, kind: Damage) -> None:
    """A flipped bit of the log must be seen. A snapshot may have an older one to stand in for it,
    and an end that is cut off looks like one that a crash has torn.
    """
    cluster = scene.cluster
    if not await scene.until_whole(cluster.nodes):
        return
    node = scene.one()
    scene.begin([node])
    await scene.do(cluster.kill, node)
    await scene.wait()
    # An end that is missing may not be seen, so the others must have all that was in it.
    if not await scene.until_whole(other for other in cluster.nodes if other != node):
        await scene.start([node])
        return
    place = await scene.do(cluster.damage, node, kind)
    scene.note(place=place)
    await scene.do(cluster.start, node)
    if place is not None and await _refused(scene, node):
        said = PLACE.search(cluster.log_since_start(node))
        scene.note(said=None if said is None else f"{said[1]}:{said[2]}")
        if said is None or (kind == "log_bit" and f"{said[1]}:{said[2]}" != place):
            scene.finding(f"damage at {place} is not named: {cluster.obituary(node)}")
        await _rebuild(scene, node)
        return
    if place is not None and kind == "log_bit":
        scene.finding(f"{node} started in spite of damage at {place}")
    await scene.until_whole([node])


async def _refused(scene: Scene, node: NodeId) -> bool:
    """Whether it ends, and says that it is because of its data, before it is ready."""
    await scene.cluster.until_started(node)
    return scene.cluster.exit_code(node) == EXIT_DAMAGED


async def _rebuild(scene: Scene, node: NodeId) -> None:
    """From nothing, by its peers."""
    await scene.do(scene.cluster.wipe, node)
    await scene.start([node])
    await scene.until_whole([node])
