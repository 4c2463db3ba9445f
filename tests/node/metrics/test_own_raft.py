"""Replication as this node's metrics tell it: whole nodes under virtual time, real logs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from cluster.cluster_node import ClusterNode
from cluster.groups import group as group_module
from cluster.groups.group import Group
from cluster.raft.messages import DIGEST
from cluster.types import CATALOG_GROUP
from node.metrics import own_latencies, own_node, own_raft
from node.metrics.client_counters import Counts
from node.metrics.scrape import Scrape
from node.metrics.sources import Sources
from tests.cluster.world import World
from tests.node.metrics.exposed import Exposed

pytestmark = pytest.mark.virtual_time


def told(node: ClusterNode) -> Exposed:
    return Exposed(own_raft.collect(Sources(node, Counts(), lambda: 0), Scrape("aggregated")))


async def written(world: World, count: int, queue: str = "q") -> Group:
    """So many entries in the queue's group; the leader's copy of it."""
    await world.declare(queue)
    for number in range(count):
        await world.publish(queue, b"%d" % number)
    return world.group(world.group_of(queue))


def copies(world: World, group: Group) -> dict[str, Group]:
    return {name: node.groups[group.id] for name, node in world.nodes.items()}


# --- state digests


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "DIGEST_ENTRIES", 10)


def mismatches(world: World, group: Group) -> dict[str, float]:
    return {
        name: told(node)("quorate_raft_digest_mismatch", group=group.name)
        for name, node in world.nodes.items()
    }


async def test_copies_that_agree_are_compared_and_found_equal(world: World, often: None) -> None:
    compared: list[tuple[int, bytes, bytes]] = []
    await world.declare("q")
    group = world.group(world.group_of("q"))
    for copy in copies(world, group).values():
        copy.member.digests.on_compared = lambda *said: compared.append(said)
    await written(world, 30)
    await world.until(lambda: len(compared) >= 4)  # two followers, two indexes at least
    assert all(own == leaders and index % 10 == 0 for index, own, leaders in compared)
    assert set(mismatches(world, group).values()) == {0}


async def test_a_copy_whose_state_differs_is_named_with_index_and_digests(
    world: World, often: None
) -> None:
    group = await written(world, 15)
    bad = next(name for name in world.nodes if name != group.node)
    machine: Any = world.nodes[bad].groups[group.id].machine
    queue = machine._queues[next(iter(machine._queues))]
    queue.messages.store.chain ^= 1  # as if it had once stored another message

    with capture_logs() as logs:
        await written(world, 12)
        await world.until(lambda: mismatches(world, group)[bad] == 1)

    assert mismatches(world, group) == {name: float(name == bad) for name in world.nodes}
    said = next(each for each in logs if each["event"] == "state_diverged")
    assert (said["log_level"], said["group"], said["node"]) == ("critical", group.name, bad)
    assert said["index"] % 10 == 0
    assert len(said["digest"]) == len(said["leaders_digest"]) == 32
    assert said["digest"] != said["leaders_digest"]
    assert {each["node"] for each in logs if each["event"] == "state_diverged"} == {bad}

    copy = world.nodes[bad].groups[group.id]
    await world.until(lambda: copy.applied_index == group.applied_index)
    sound: Any = group.machine
    queue.messages.store.chain = sound._queues[queue.id].messages.store.chain
    await written(world, 12)
    await world.until(lambda: mismatches(world, group)[bad] == 0)


async def test_a_digest_that_comes_before_the_entry_was_applied_is_compared_then(
    world: World, often: None
) -> None:
    group = await written(world, 1)
    other = next(copy for name, copy in copies(world, group).items() if name != group.node)
    index = (other.applied_index // 10 + 1) * 10
    leader = other.member.leader
    assert leader is not None
    with capture_logs() as logs:
        world.links[str(group.node)].drop = lambda _peer, message: message[1] == DIGEST
        other.member.digests.on_digest(leader, index, b"x" * 16)
        assert other.diverged is None
        await written(world, 10)
        await world.until(lambda: other.applied_index >= index)
    said = [each for each in logs if each["event"] == "state_diverged"]
    assert [each["leaders_digest"] for each in said] == [(b"x" * 16).hex()]


async def test_no_more_digests_are_remembered_than_the_newest(world: World, often: None) -> None:
    group = await written(world, 1)
    other = next(copy for name, copy in copies(world, group).items() if name != group.node)
    digests, leader = other.member.digests, other.member.leader
    assert leader is not None
    for index in range(1_000_000, 1_001_000, 10):
        digests.on_digest(leader, index, bytes(16))
    assert len(digests._leaders) == 16
    assert max(digests._leaders) == 1_000_990


# --- leaders, elections, lag, snapshots


async def test_a_change_of_leader_is_counted_by_those_who_see_it(world: World) -> None:
    group = await written(world, 1)
    name, old = group.name, group.node
    before = {n: told(node) for n, node in world.nodes.items()}
    assert all(said("quorate_raft_has_leader", group=name) == 1 for said in before.values())
    world.kill(old)
    await world.until(
        lambda: all(node.leader_of(group.id) not in (None, old) for node in world.nodes.values())
    )
    changes, stood = 0.0, 0.0
    for node_name, node in world.nodes.items():
        said, then = told(node), before[node_name]
        each = said("quorate_raft_leader_changes_total", group=name)
        assert each > then("quorate_raft_leader_changes_total", group=name)
        changes += each
        stood += said("quorate_raft_elections_total", group=name)
        stood -= then("quorate_raft_elections_total", group=name)
    assert stood >= 1  # somebody stood, or nobody would lead
    assert changes >= 2


async def test_a_copy_without_a_majority_knows_no_leader(world: World) -> None:
    group = await written(world, 1)
    for name in list(world.nodes):
        if name != group.node:
            world.kill(name)
    node = world.nodes[group.node]
    await world.until(lambda: told(node)("quorate_raft_has_leader", group=group.name) == 0)


async def test_a_leader_tells_what_each_other_member_lacks_and_nobody_else_does(
    world: World,
) -> None:
    group = await written(world, 1)
    cut = next(name for name in world.nodes if name != group.node)
    world.isolate(cut)
    await written(world, 20)
    said = told(world.nodes[group.node])
    lag = "quorate_raft_replica_lag_entries"
    assert said(lag, group=group.name, replica=cut) >= 20
    others = {name for name in world.nodes if name != group.node}
    assert {
        dict(labels)["replica"]
        for name, labels in said.values
        if name == lag and dict(labels)["group"] == group.name
    } == others
    follower = next(name for name in others if name != cut)
    assert group.name not in told(world.nodes[follower]).labels(lag, "group")
    world.heal()
    await world.until(
        lambda: told(world.nodes[group.node])(lag, group=group.name, replica=cut) == 0
    )


async def test_the_age_of_a_snapshot_grows_and_a_restart_knows_it(world: World) -> None:
    group = await written(world, 3)
    node = world.nodes[group.node]
    name = "quorate_raft_snapshot_age_seconds"
    assert group.name not in told(node).labels(name, "group")
    await group._snapshots.take(group._sound_index)
    at = world.loop.time()
    first = told(node)(name, group=group.name)
    assert 0 <= first < 1
    await world.until(lambda: world.loop.time() > at + 5)
    assert 5 <= told(node)(name, group=group.name) - first < 6

    world.kill(str(group.node), power=False)
    await world.start(str(group.node))
    again = world.nodes[group.node]
    await world.until(lambda: group.id in again.groups)
    assert told(again)(name, group=group.name) >= 5


async def test_a_group_that_went_leaves_no_labels(world: World) -> None:
    group = await written(world, 1)
    node = world.nodes[next(name for name in world.nodes if name != group.node)]
    names = {copy.name for copy in node.groups.values()}
    assert told(node).labels("quorate_raft_has_leader", "group") == names
    node.drop_group(group.id)
    said = told(node)
    every = {dict(labels)["group"] for _, labels in said.values}
    assert every == names - {group.name}
    assert node.groups[CATALOG_GROUP].name in every


# --- rounds, commits, the log, links


async def test_commits_and_rounds_are_spread_once_an_entry_and_once_a_sync(world: World) -> None:
    group = await written(world, 1)
    node = world.nodes[group.node]
    sources = Sources(node, Counts(), lambda: 0)
    sources.watch.follow(logins_failed={})
    before, wal = group.last_index, node.log.wal
    syncs, records, size = node.drive_loop.syncs, wal.record_count, wal.written_bytes
    at = world.loop.time()
    await written(world, 25)
    passed = world.loop.time() - at
    entries = group.last_index - before
    said = Exposed(own_latencies.collect(sources, Scrape("aggregated")))
    commits = said("quorate_commit_seconds_count")
    assert 25 <= commits <= entries + 20  # those of other groups that it leads come beside
    # A round trip and two syncs, each: of the time that passed, most.
    assert 0.001 * 25 <= said("quorate_commit_seconds_sum") <= passed + 1
    rounds = said("quorate_round_seconds_count")
    assert rounds == node.drive_loop.syncs - syncs > 0
    assert said("quorate_round_records_sum") <= wal.record_count - records
    assert said("quorate_round_bytes_sum") <= wal.written_bytes - size
    assert said("quorate_round_records_sum") >= 25
    assert said("quorate_round_bytes_count") == rounds


async def test_the_log_and_the_links_are_told(world: World) -> None:
    await written(world, 5)
    node = world.any
    said = Exposed(own_node.collect(Sources(node, Counts(), lambda: 0), Scrape("aggregated")))
    sizes = [segment.size for segment in node.log.wal.segments.values()]
    assert said("quorate_log_bytes") == sum(sizes)
    assert said("quorate_log_segments") == len(sizes)
    assert 0 < said("quorate_log_live_ratio") < 1
    assert said("quorate_disk_free_bytes") == node.log.space().free_bytes
    others = set(world.nodes) - {node.node}
    assert said.labels("quorate_link_up", "peer") == others
    gone = others.pop()
    world.kill(gone)
    said = Exposed(own_node.collect(Sources(node, Counts(), lambda: 0), Scrape("aggregated")))
    assert said("quorate_link_up", peer=gone) == 0
    assert said("quorate_link_up", peer=others.pop()) == 1


# --- clocks


async def test_a_clock_that_is_wrong_is_told_by_its_node_and_log_time_stays_where_it_was(
    world: World,
) -> None:
    group = await written(world, 1)
    await asyncio.sleep(2)
    for name, node in world.nodes.items():
        clock_s = 8 * 86_400 if name == "n1" else 0
        node._clock.skew_ms = clock_s * 1000  # type: ignore[attr-defined]
    await asyncio.sleep(2)
    await world.publish("q", b"x")
    for name, node in world.nodes.items():
        said = Exposed(own_node.collect(Sources(node, Counts(), lambda: 0), Scrape("aggregated")))
        wrong = name == "n1"
        assert said("quorate_clock_alarm") == wrong
        assert said("quorate_clock_jumps_total") == wrong
        assert abs(said("quorate_clock_offset_seconds") - wrong * 8 * 86_400) < 1
        assert told(node)("quorate_log_time_ahead_seconds", group=group.name) < 1
