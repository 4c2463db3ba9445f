"""News that another node tells: how they are taken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cluster.types import NodeId
from node.errors import Refused
from tests.node.nodes import Nodes, until


async def test_news_may_be_taken_by_a_coroutine(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        questions = nodes.one.questions
        taken: list[Any] = []

        async def handler(_: NodeId, fields: list[Any]) -> None:
            await asyncio.sleep(0)
            taken.extend(fields)

        questions.on("test", handler)
        questions.tell(NodeId("n1"), "test", 1, 2)
        await until(lambda: taken == [1, 2])


async def test_news_that_are_refused_do_not_cost_the_link(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        heard: list[NodeId] = []

        def handler(peer: NodeId, _: list[Any]) -> None:
            heard.append(peer)
            raise Refused("bad_argument", "not understood")

        nodes.nodes["n2"].questions.on("test", handler)
        link = nodes.nodes["n1"].cluster.peers.states[NodeId("n2")]
        nodes.nodes["n1"].questions.tell(NodeId("n2"), "test")
        await until(lambda: heard)
        await asyncio.sleep(0.2)

        assert nodes.nodes["n1"].cluster.peers.states[NodeId("n2")] is link
