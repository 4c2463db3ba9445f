"""When the volume is nearly full, what nobody needs is given back at once, whatever its size."""

from __future__ import annotations

import asyncio

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Outcome
from cluster.log import LogOptions
from cluster.log.snapshots import SNAPSHOTS_KEPT
from cluster.log.space import MIN_FREE_BYTES
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Purge
from tests.cluster.world import MakeWorld, World, enqueue

pytestmark = pytest.mark.virtual_time

MIB = 1 << 20
GIB = 1 << 30


def small(name: str, world: World, total_bytes: int) -> int:
    """A volume of this size, nearly used up by others; its limit."""
    limit = min(MIN_FREE_BYTES, total_bytes // 5)
    disk = world.disks[name]
    disk.capacity = total_bytes
    disk.taken = max(0, total_bytes - 2 * limit - 16 * MIB)
    return limit


async def fill(world: World, node: ClusterNode, queues: list[str], body: bytes) -> int:
    """Until it is full; how many each queue got."""
    rounds = 0
    while not node.log.space().refuse_publishes:
        for queue in queues:
            await world.publish(queue, body)
        rounds += 1
    return rounds


async def purge(world: World, queue: str) -> None:
    info = await world.any.names.find("/", queue)
    assert isinstance(info, QueueInfo)
    outcome = await world.any.ask(info.group, Purge(info.queue))
    assert outcome.kind == "ok", outcome


def roomy(node: ClusterNode) -> bool:
    return not node.log.space().near


@pytest.mark.parametrize(
    ("total_bytes", "queues"),
    [(64 * MIB, 2), (64 * MIB, 60), (512 * MIB, 20), (2 * GIB, 3), (20 * GIB, 40)],
)
async def test_volumes_of_any_size_are_emptied_of_what_many_groups_need_no_more(
    make_world: MakeWorld, total_bytes: int, queues: int
) -> None:
    world = make_world(1, log=LogOptions())
    small("n1", world, total_bytes)
    await world.born()
    node = world["n1"]
    names = [f"q{number}" for number in range(queues)]
    for name in names:
        await world.declare(name, queue_group="dedicated")
    body = bytes(256 << 10)
    for _ in range(2):
        assert await fill(world, node, names, body)
        # They are idle from here on but for the purge.
        for name in names:
            await purge(world, name)
        await world.until(lambda: roomy(node), seconds=60)
    for name in names:
        await world.publish(name, body)


async def test_what_is_still_needed_survives_and_the_rest_is_given_back(
    make_world: MakeWorld,
) -> None:
    """Followers and leaders are alike: each node has a volume of its own."""
    world = make_world(3, log=LogOptions())
    for name in world.names:
        small(name, world, 64 * MIB)
    await world.born()
    await world.declare("kept", queue_group="dedicated")
    await world.declare("gone", queue_group="dedicated")
    kept = [bytes([number]) * 100_000 for number in range(20)]
    for body in kept:
        await world.publish("kept", body)
        await world.publish("gone", bytes(100_000))
    await fill(world, world["n1"], ["gone"], bytes(256 << 10))
    await purge(world, "gone")
    await world.until(lambda: all(roomy(world[name]) for name in world.names), seconds=60)
    group = world.group_of("kept")
    for name in world.names:
        assert world.ready("kept", name) == 20
        node = world[name]
        assert all(segment.size < 8 * MIB for segment in node.log.wal.segments.values())
        journal = node.log.journals[group]
        bodies = [journal.read(index) for index in range(1, journal.last_index + 1)]
        assert all(any(body in entry for entry in bodies if entry) for body in kept)
    world.kill("n2")
    await world.start("n2")
    await world.until(lambda: world.ready("kept", "n2") == 20)


async def test_the_snapshot_that_frees_most_comes_first(make_world: MakeWorld) -> None:
    world = make_world(1, log=LogOptions())
    small("n1", world, 64 * MIB)
    await world.born()
    node = world["n1"]
    sizes = {"much": 60, "some": 20, "none": 20}
    for name, count in sizes.items():
        await world.declare(name, queue_group="dedicated")
        for _ in range(count):
            await world.publish(name, bytes(100_000))
        if name != "none":
            await purge(world, name)
    frees = {name: node.groups[world.group_of(name)].snapshot_frees_bytes() for name in sizes}
    assert frees["much"] > 6_000_000 > frees["some"] > 2_000_000 - 1
    assert frees["none"] == 0
    before = {name: node.groups[world.group_of(name)].journal.base_index for name in sizes}
    # A little is wanted: the first one is enough for it.
    node.log.options = LogOptions(min_free_bytes=(node.log.space().free_bytes + MIB) // 2)
    assert node.log.space().near
    await world.until(lambda: roomy(node))
    after = {name: node.groups[world.group_of(name)].journal.base_index for name in sizes}
    assert after["much"] > before["much"]
    assert (after["some"], after["none"]) == (before["some"], before["none"])


async def test_of_older_snapshots_none_stays_while_space_is_short(make_world: MakeWorld) -> None:
    world = make_world(1, log=LogOptions(), snapshot_entries=5)
    small("n1", world, 64 * MIB)
    await world.born()
    node = world["n1"]
    await world.declare("q", queue_group="dedicated")
    group = world.group_of("q")
    while len(node.log.store.indexes().get(group, [])) < SNAPSHOTS_KEPT:
        await world.publish("q", b"x")
    node.log.options = LogOptions(min_free_bytes=64 * MIB)
    await world.until(lambda: len(node.log.store.indexes()[group]) == 1)


async def test_what_comes_after_all_is_refused_before_the_reserve_is_touched(
    make_world: MakeWorld,
) -> None:
    """Of several groups at once, as it is with what was under way when publishers had to wait."""
    world = make_world(1, log=LogOptions())
    limit = small("n1", world, 64 * MIB)
    await world.born()
    node = world["n1"]
    names = ["a", "b", "c", "d"]
    for name in names:
        await world.declare(name, queue_group="dedicated")
    answers: list[Outcome] = []
    for _ in range(400):
        for name in names:
            info = node.queue_info("/", name)
            assert info is not None
            command = enqueue(info.queue, bytes(256 << 10))
            node.propose(info.group, command, answers.append)
        await asyncio.sleep(0.001)
    await world.until(lambda: len(answers) == 1600)
    assert node.failed is None
    assert {each.code for each in answers if each.kind == "refused"} == {"disk_full"}
    assert limit * 0.4 < world.disks["n1"].free_bytes("") < limit
    for name in names:
        await purge(world, name)
    await world.until(lambda: roomy(node))
    await world.publish("a", bytes(256 << 10))
