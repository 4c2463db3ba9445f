"""Every name of RabbitMQ's is there, with its type and its labels; and no other of that kind."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from node.metrics.detailed import FAMILIES
from tests.node.metrics import names
from tests.node.nodes import Client, Nodes, until

Told = dict[str, tuple[str, frozenset[str]]]

ENDPOINTS = {
    "metrics": names.AGGREGATED,
    "metrics/per-object": names.PER_OBJECT,
    **{
        f"metrics/detailed?family={family}": {**names.IDENTITY, **table}
        for family, table in names.DETAILED.items()
    },
}
#: What promtool would like to be called otherwise. They are RabbitMQ's names, which its dashboards
#: and alerts ask for.
DISLIKED = {
    "rabbitmq_unreachable_cluster_peers_count": '"_count" suffix',
}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """Two of three nodes, so that each has a peer; and a queue with something in it."""
    async with Nodes(tmp_path, 2) as started:
        await started.declare("orders", quorum_initial_group_size=2)
        leader = await started.leader("orders")
        async with Client(started.url(leader)) as client:
            await client.publish("orders", b"a body")
        yield started


async def text_of(nodes: Nodes, path: str, node: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"{nodes.url(node)}/{path}") as answer:
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/plain"
        return await answer.text()


def told(text: str) -> Told:
    found: Told = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if name.startswith(("rabbitmq_", "erlang_")):
            assert name not in found, f"{name} is there twice"
            found[name] = family.type, labels_of(family)
    return found


def labels_of(family: Metric) -> frozenset[str]:
    """Of all samples the same, but for the bounds of a histogram."""
    every = {frozenset(sample.labels) - {"le"} for sample in family.samples}
    assert len(every) == 1, f"{family.name} has {every or 'no samples'}"
    return every.pop()


async def test_each_endpoint_has_the_names_types_and_labels_of_the_table(nodes: Nodes):
    leader = await nodes.leader("orders")
    for path, table in ENDPOINTS.items():
        assert told(await text_of(nodes, path, leader)) == table, path


def test_the_table_has_every_family_that_can_be_asked_for():
    assert names.DETAILED.keys() == {f for f in FAMILIES if not f.startswith("quorate_")}


async def test_the_identity_is_there_once_and_says_which_endpoint_it_is(nodes: Nodes):
    for path, endpoint in (
        ("metrics", "aggregated"),
        ("metrics/per-object", "per-object"),
        ("metrics/detailed?family=queue_metrics", "detailed"),
    ):
        text = await text_of(nodes, path, "n1")
        lines = [line for line in text.split("\n") if line.startswith("rabbitmq_identity_info")]
        assert len(lines) == 1
        for label in (
            'rabbitmq_node="n1"',
            'rabbitmq_cluster="test"',
            'rabbitmq_cluster_permanent_id="test"',
            f'rabbitmq_endpoint="{endpoint}"',
        ):
            assert label in lines[0]


async def test_promtool_finds_nothing_but_names_that_are_rabbitmqs(nodes: Nodes):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool: checks names and help texts; apt-get install prometheus")
    leader = await nodes.leader("orders")
    complaints: set[str] = set()
    for path in ENDPOINTS:
        text = await text_of(nodes, path, leader)
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        complaints |= set((done.stdout + done.stderr).strip().split("\n")) - {""}

    left = {line for line in complaints if not any(_is(line, name) for name in DISLIKED)}
    assert left == set()
    assert all(any(_is(line, name) for line in complaints) for name in DISLIKED)


def _is(line: str, name: str) -> bool:
    return line.startswith(f"{name} ") and DISLIKED[name] in line


async def test_a_family_that_nobody_knows_is_refused_by_name(nodes: Nodes):
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"{nodes.url('n1')}/metrics/detailed?family=queue_metricks") as answer,
    ):
        assert answer.status == 400
        reason = (await answer.json())["reason"]

    assert "'queue_metricks'" in reason
    assert "queue_metrics" in reason


async def test_families_of_rabbitmq_that_have_no_values_here_are_empty(nodes: Nodes):
    text = await text_of(nodes, "metrics/detailed?family=channel_metrics", "n1")

    assert told(text) == names.IDENTITY


async def test_the_text_is_compressed_for_who_asks(nodes: Nodes):
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        url = f"{nodes.url('n1')}/metrics"
        async with http.get(url, headers={"Accept-Encoding": "gzip"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            text = gzip.decompress(await answer.read())
        async with http.get(url, headers={"Accept-Encoding": "identity"}) as answer:
            assert "Content-Encoding" not in answer.headers
            assert (await answer.read()).startswith(b"# HELP rabbitmq_identity_info")
    assert text.startswith(b"# HELP rabbitmq_identity_info")


async def test_every_peer_that_is_up_is_a_link_and_one_that_is_down_is_none(nodes: Nodes):
    def links(text: str) -> list[str]:
        return [line for line in text.split("\n") if line.startswith("erlang_vm_dist_node_state{")]

    assert links(await text_of(nodes, "metrics", "n1")) == [
        'erlang_vm_dist_node_state{peer="n2"} 3'
    ]
    await nodes.stop("n2", transfer=False)

    async def gone() -> bool:
        return links(await text_of(nodes, "metrics", "n1")) == []

    await until(gone)
    assert "rabbitmq_unreachable_cluster_peers_count 1.0" in await text_of(nodes, "metrics", "n1")
