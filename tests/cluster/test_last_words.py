"""What the log of a node says of how it ended, and of why leaderships went elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from cluster.log.reader import Record, detail, read
from cluster.types import CATALOG_GROUP
from tests.cluster.world import World

pytestmark = pytest.mark.virtual_time


def records(world: World, name: str) -> list[Record]:
    return list(read("/data", disk=world.disks[name]))


async def test_a_stop_in_order_is_the_last_word_and_who_took_over_says_who_asked_for_it(
    world: World,
) -> None:
    leader = world.leading() or ""
    node = world.nodes[leader]
    led = [group.id for group in node.groups.values() if group.ready]
    assert CATALOG_GROUP in led
    await node.stop()
    del world.nodes[leader], world.links[leader]
    world.disks[leader] = world.disks[leader].after_crash()  # it is on stable storage
    await world.until(lambda: world.leading() is not None)
    await asyncio.sleep(1)  # until the others have written what they noted

    own = records(world, leader)
    kinds = [record.kind for record in own]
    assert kinds.count("stopped") == 1
    assert set(kinds[kinds.index("stopped") + 1 :]) <= {"synced"}
    stopped = own[kinds.index("stopped")]
    assert (stopped.group, stopped.index, stopped.term) == (0, 0, 0)

    others = [r for name in world.nodes for r in records(world, name) if r.kind == "role"]
    for group in led:
        newest = max(record.term for record in others if record.group == group)
        said = [detail(r) for r in others if (r.group, r.term) == (group, newest)]
        assert ["candidate", None, leader] in said


async def test_who_is_killed_has_no_last_word_and_nobody_was_asked_to_take_over(
    world: World,
) -> None:
    leader = world.leading() or ""
    term = world.group(CATALOG_GROUP).term
    world.kill(leader)
    await world.until(lambda: world.leading() is not None)
    await asyncio.sleep(1)

    assert "stopped" not in {record.kind for record in records(world, leader)}
    others = [r for name in world.nodes for r in records(world, name) if r.kind == "role"]
    catalog = [detail(r) for r in others if r.group == CATALOG_GROUP and r.term > term]
    assert ["candidate", None] in catalog
    assert ["candidate", None, leader] not in catalog
