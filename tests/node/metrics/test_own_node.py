"""What a node has and lacks, on real nodes."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from cluster.types import NodeId
from node.memory import resident_bytes
from tests.node.metrics.exposed import told
from tests.node.nodes import Nodes, until


async def test_limits_and_what_is_used_of_them(tmp_path: Path):
    async with Nodes(tmp_path, **{"log.min_free_bytes": 1 << 20}) as nodes:
        said = await told(nodes)
        assert said("quorate_disk_limit_bytes") == 1 << 20
        assert said("quorate_disk_free_bytes") > 1 << 20
        used = resident_bytes()
        assert used / 2 < said("quorate_memory_bytes") < used * 2
        assert said("quorate_memory_limit_bytes") == nodes.one.alarms.memory_bytes_max
        for alarm in ("disk", "memory"):
            assert said("quorate_alarm", alarm=alarm) == 0


async def test_an_alarm_is_told_by_the_node_that_has_it(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        nodes.nodes["n2"].alarms.memory_bytes_max = 1  # as if its limit had been that low

        async def alarmed() -> bool:
            said = await told(nodes, name="n2")
            return said("quorate_alarm", alarm="memory") == 1

        await until(alarmed)
        assert (await told(nodes, name="n2"))("quorate_alarm", alarm="disk") == 0
        assert (await told(nodes, name="n1"))("quorate_alarm", alarm="memory") == 0


async def test_logins_that_fail_are_counted_by_protocol(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        wrong = {"Authorization": aiohttp.encode_basic_auth("guest", "wrong")}
        url = f"{nodes.url('n1')}/api/overview"
        async with aiohttp.ClientSession() as http, http.get(url, headers=wrong) as answer:
            assert answer.status == 401
        said = await told(nodes)
        assert said("quorate_logins_failed_total", protocol="http") == 1
        assert said("quorate_logins_failed_total", protocol="amqp") == 0
        assert said.labels("quorate_logins_failed_total", "protocol") == {
            "amqp",
            "http",
            "native",
            "nats",
        }


async def test_links_to_nodes_that_are_down_are_0_and_dropped_messages_are_counted(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        said = await told(nodes)
        for peer in ("n2", "n3"):
            assert said("quorate_link_up", peer=peer) == 1
            assert said("quorate_link_dropped_total", peer=peer) == 0
        # Who calls, and is no member as far as this node knows, is not waited for.
        nodes.one.cluster.unknown_peers.on_member(NodeId("n9"), "127.0.0.1:1")
        said = await told(nodes)
        assert said.labels("quorate_link_up", "peer") == {"n2", "n3"}
        await nodes.stop("n3", transfer=False)

        async def down() -> bool:
            said = await told(nodes)
            return [said("quorate_link_up", peer=peer) for peer in ("n2", "n3")] == [1, 0]

        await until(down)


async def test_an_idle_scrape_looks_at_no_queue(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        for number in range(300):
            await nodes.declare(f"q{number}")
        await told(nodes)
        rows = nodes.one.metrics.sources.rows
        looked_at = rows.looked_at
        said = await told(nodes)
        assert rows.looked_at == looked_at
        assert said("quorate_oldest_ready_seconds") == 0
