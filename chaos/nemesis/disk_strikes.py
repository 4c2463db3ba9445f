"""Disks that are slow, full, broken or lie, and machines that lose their power."""

from __future__ import annotations

from chaos.nemesis.scene import END_S_MAX, Scene

SYNCS_MS = (20.0, 100.0, 400.0)


async def slow_disk(scene: Scene) -> None:
    node, sync_ms = scene.one(), scene.dice.choice(SYNCS_MS)
    scene.begin([node], sync_ms=sync_ms)
    await scene.do(scene.cluster.slow_disk, node, sync_ms)
    await scene.wait()
    await scene.do(scene.cluster.heal_disk, node)


async def fail_fsync(scene: Scene) -> None:
    """After a failed sync nobody knows what is on the disk: the node has to end itself."""
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.fail_fsync, node)
    if not await scene.until_ended(node):
        scene.finding(f"{node} did not end itself within {END_S_MAX:g} s of a failed fsync")
        await scene.do(scene.cluster.kill, node)
    scene.note(exit_code=scene.cluster.exit_code(node))
    await scene.do(scene.cluster.heal_disk, node)
    await scene.wait()
    await scene.start([node])


async def lie_fsync(scene: Scene) -> None:
    """The process dies, the machine does not: what was written is there, synced or not."""
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.lie_fsync, node)
    await scene.wait()
    await scene.do(scene.cluster.kill, node)
    await scene.do(scene.cluster.heal_disk, node)
    await scene.start([node])


async def fill_disk(scene: Scene) -> None:
    """It may end itself when not one byte more can be written."""
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.fill_disk, node)
    await scene.wait()
    await scene.do(scene.cluster.heal_disk, node)
    if not await scene.cluster.live(node):
        await scene.until_ended(node)  # what it began before there was room again
    scene.note(exit_code=scene.cluster.exit_code(node))
    await scene.start([node])


async def power_loss(scene: Scene) -> None:
    node = scene.one()
    scene.begin([node])
    await scene.do(scene.cluster.kill, node, power_loss=True)
    await scene.wait()
    await scene.start([node])


async def power_loss_all(scene: Scene) -> None:
    nodes = scene.cluster.nodes
    scene.begin(nodes)
    await scene.do(scene.cluster.power_loss_all)
    await scene.wait(scene.dice.uniform(0.1, 1.0))
    await scene.start(nodes)
