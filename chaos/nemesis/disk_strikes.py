"""Disks that are slow, full, broken or lie, and machines that lose their power."""

from __future__ import annotations

from chaos.live.loop_disks import LOW_BYTES
from chaos.nemesis.scene import END_S_MAX, Scene
from cluster.types import NodeId

SYNCS_MS = (20.0, 100.0, 400.0)
#: Exit status of a node that ended itself because something failed.
EXIT_FAILED = 1
#: What nodes log.
PUBLISHERS_WAIT, PUBLISHERS_GO_ON = "publishers_wait", "publishers_go_on"
#: How long until all nodes know that a disk is low, or is not any more.
ALARM_S_MAX = 30.0
#: How long publishers wait at least: settles go on meanwhile.
LOW_S_MIN = 3.0


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
    elif scene.cluster.exit_code(node) != EXIT_FAILED:
        scene.finding(f"a failed fsync: {scene.cluster.obituary(node)}")
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


async def low_disk(scene: Scene) -> None:
    """Some room is left, less than nodes want: no node takes publishes, settles go on. What clients
    see between the two signs is for a checker to judge.
    """
    node, cluster = scene.one(), scene.cluster
    before = {each: _alarms(scene, each) for each in cluster.nodes}
    scene.begin([node])
    await scene.do(cluster.fill_disk, node, leave_bytes=LOW_BYTES)
    for each in cluster.nodes:
        if not await cluster.until_said(
            each, PUBLISHERS_WAIT, count=before[each][0] + 1, timeout_s=ALARM_S_MAX
        ):
            scene.finding(f"the disk of {node} is low, and publishers of {each} go on")
            break
    else:
        scene.saw("alarm", node=node, on=True)
        await scene.wait(max(scene.episode.lasts_s, LOW_S_MIN))
        scene.saw("alarm", node=node, on=False)
    await scene.do(cluster.heal_disk, node)
    for each in cluster.nodes:
        if not await cluster.until_said(
            each, PUBLISHERS_GO_ON, count=before[each][1] + 1, timeout_s=ALARM_S_MAX
        ):
            scene.finding(f"the disk of {node} has room again, and publishers of {each} wait")


def _alarms(scene: Scene, node: NodeId) -> tuple[int, int]:
    said = scene.cluster.times_said
    return said(node, PUBLISHERS_WAIT), said(node, PUBLISHERS_GO_ON)


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
