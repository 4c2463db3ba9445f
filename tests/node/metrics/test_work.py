"""What a scrape costs with very many queues: counted in queues that are looked at, not in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest

from cluster.machine import QueueMachine
from node.metrics.endpoints import exposition
from node.metrics.queue_rows import QUEUES_AT_ONCE
from node.metrics.scrape import EndpointName, Scrape
from tests.node.metrics.exposed import told
from tests.node.nodes import Client, Nodes, until

QUEUES = 10_000
AT_ONCE = 1_000


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as started:
        yield started


async def scrape(nodes: Nodes, endpoint: EndpointName) -> tuple[int, bytes, float]:
    """How many queues were looked at, the text, and the seconds of CPU that it took."""
    sources = nodes.one.metrics.sources
    before, began_s = sources.rows.looked_at, time.process_time()
    text = await exposition(sources, Scrape(endpoint))
    return sources.rows.looked_at - before, text, time.process_time() - began_s


async def test_with_10_000_queues_a_scrape_looks_only_at_those_that_changed(
    nodes: Nodes, record_property: Callable[[str, object], None]
):
    for start in range(0, QUEUES, AT_ONCE):
        each = [nodes.declare(f"q{number}") for number in range(start, start + AT_ONCE)]
        await asyncio.gather(*each)

    first, _, first_s = await scrape(nodes, "aggregated")
    idle, text, idle_s = await scrape(nodes, "aggregated")
    async with Client(nodes.url("n1")) as client:
        for request, queue in enumerate(("q7", "q8"), 1):
            await client.publish(queue, b"1", b"2", request=request)
    changed, busy_text, _ = await scrape(nodes, "aggregated")
    one_by_one, long_text, long_s = await scrape(nodes, "per-object")
    await nodes.one.broker.delete("/", "q7", if_unused=False, if_empty=False)
    deleted, last_text, _ = await scrape(nodes, "aggregated")

    assert first == QUEUES
    assert idle == 0
    assert changed == 2
    assert one_by_one == 0
    assert deleted == 1
    assert f"\nrabbitmq_queues {QUEUES}.0\n".encode() in text
    assert b"\nrabbitmq_queue_messages_ready 4.0\n" in busy_text
    assert b"\nrabbitmq_queue_messages_ready 2.0\n" in last_text
    assert long_text.count(b"\nrabbitmq_queue_messages_ready{") == QUEUES
    # An aggregated scrape has as many lines as with no queue at all.
    assert text.count(b"\n") < 1_000
    for name, seconds in (("first", first_s), ("idle", idle_s), ("one by one", long_s)):
        record_property(f"cpu_s {name}", round(seconds, 4))
        print(f"{name}: {seconds:.4f} s of CPU")


async def test_many_changed_queues_are_looked_at_a_few_at_a_time(nodes: Nodes):
    """Between those the node does its other work."""
    count = 3 * QUEUES_AT_ONCE
    await asyncio.gather(*[nodes.declare(f"q{number}") for number in range(count)])
    rows = nodes.one.metrics.sources.rows
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(rows.looked_at)
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await rows.freshen()
    watching.cancel()

    assert rows.looked_at == count
    steps = [later - earlier for earlier, later in zip(seen, [*seen[1:], count], strict=True)]
    assert max(steps) == QUEUES_AT_ONCE


async def test_what_is_kept_is_what_the_machines_say(nodes: Nodes):
    """The sums are not walked: here they are, beside what walking finds."""
    await nodes.declare("a", max_length=3, overflow="drop-head")
    await nodes.declare("b")
    async with Client(nodes.url("n1")) as client:
        for round_ in range(5):
            await client.publish("a", *[b"x" * round_] * 2, request=10 * round_ + 1)
            await client.publish("b", *[b"y" * 10] * 3, request=10 * round_ + 2)
            if round_ == 1:
                await client.ask(20, 90, "b", {"tag": "t", "credit": 2})
            if round_ == 3:
                await nodes.one.broker.purge(await nodes.one.broker.find("/", "a"))
            said = await told(nodes)
            machines = [
                group.machine
                for group in nodes.one.cluster.groups.values()
                if isinstance(group.machine, QueueMachine)
            ]
            found = [machine.overview() for machine in machines]
            for name, fields in {
                "rabbitmq_queue_messages_ready": ("ready",),
                "rabbitmq_queue_messages_unacked": ("unsettled",),
                "rabbitmq_queue_messages_bytes": ("bytes",),
                "rabbitmq_queues": ("queues",),
                "rabbitmq_queue_consumers": ("consumers",),
            }.items():
                assert said(name) == sum(each[f] for each in found for f in fields), name


async def test_a_node_that_no_longer_leads_tells_of_no_queue_and_keeps_none(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q")
        first = await nodes.leader("q")
        async with Client(nodes.url(first)) as client:
            await client.publish("q", b"1")
        assert (await told(nodes, name=first))("rabbitmq_queue_messages_ready") == 1
        info = nodes.one.broker.locate("/", "q")
        assert info is not None
        other = next(name for name in nodes.nodes if name != first)
        nodes.nodes[first].cluster.groups[info.group].transfer(nodes.nodes[other].cluster.node)
        await until(lambda: nodes.nodes[other].cluster.groups[info.group].ready)

        async def moved() -> bool:
            before, after = await told(nodes, name=first), await told(nodes, name=other)
            name = "rabbitmq_queue_messages_ready"
            return before(name) == 0 and after(name) == 1

        await until(moved)


async def test_what_changed_in_groups_that_others_lead_is_not_collected(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("q")
        leader = nodes.nodes[await nodes.leader("q")]
        info = leader.broker.locate("/", "q")
        assert info is not None
        copies = [node.cluster.groups[info.group] for node in nodes.nodes.values()]
        counted = [cast("QueueMachine", copy.machine).counters for copy in copies]
        before = sum(counters.watched for counters in counted)
        await exposition(leader.metrics.sources, Scrape("aggregated"))
        assert sum(counters.watched for counters in counted) == before + 1
        leader.cluster.groups[info.group].transfer(None)
        await until(lambda: not leader.cluster.groups[info.group].ready)
        await until(lambda: any(copy.ready for copy in copies))
        await exposition(leader.metrics.sources, Scrape("aggregated"))

        assert sum(counters.watched for counters in counted) == before
