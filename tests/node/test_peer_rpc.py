"""News and questions between nodes: how they are taken."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.cluster_node import BROKER_LEVEL
from cluster.types import NodeId
from node.errors import OutcomeUnknown, Refused
from node.peer_rpc import PeerRpc
from node.tasks import Tasks
from tests.node.nodes import Nodes, until
from tests.testkit.waiting import stays


async def test_news_may_be_taken_by_a_coroutine(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        peer_rpc = nodes.one.peer_rpc
        taken: list[Any] = []

        async def handler(_: NodeId, fields: list[Any]) -> None:
            await asyncio.sleep(0)
            taken.extend(fields)

        peer_rpc.on("test", handler)
        peer_rpc.notify(NodeId("n1"), "test", 1, 2)
        await until(lambda: taken == [1, 2])


async def test_news_that_are_refused_do_not_cost_the_link(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        heard: list[NodeId] = []

        def handler(peer: NodeId, _: list[Any]) -> None:
            heard.append(peer)
            raise Refused("bad_argument", "not understood")

        nodes.nodes["n2"].peer_rpc.on("test", handler)
        link = nodes.nodes["n1"].cluster.peers.states[NodeId("n2")]
        nodes.nodes["n1"].peer_rpc.notify(NodeId("n2"), "test")
        await until(lambda: heard)
        await stays(lambda: nodes.nodes["n1"].cluster.peers.states[NodeId("n2")] is link)


@pytest.mark.parametrize("answer", ["\ud800", ValueError("a bug"), object()])
async def test_who_asked_is_told_at_once_that_no_answer_comes(tmp_path: Path, answer: Any):
    """Of one that cannot be written, too: who waits for all nodes would wait in vain."""
    async with Nodes(tmp_path, 3) as nodes:
        here, there = nodes.nodes["n1"], nodes.nodes["n2"]

        def handler(_: NodeId, __: list[Any]) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        there.peer_rpc.on("test", handler)
        with pytest.raises(OutcomeUnknown, match="node n2 failed"):
            await here.peer_rpc.request(NodeId("n2"), "test", wait_s=math.inf)
        with pytest.raises(Refused, match="cannot be written"):
            await here.peer_rpc.request(NodeId("n2"), "test", "\ud800")


def process(incarnation: int) -> tuple[PeerRpc, list[Any], list[Any]]:
    """One start of node n1: what it says to n2, and who listens to n2."""
    said: list[Any] = []
    listeners: list[Any] = []
    lost: list[Any] = []

    def send(_: NodeId, message: list[Any]) -> bool:
        said.append(message)
        return True

    cluster: Any = SimpleNamespace(
        node=NodeId("n1"),
        links=SimpleNamespace(incarnation=incarnation),
        peers=SimpleNamespace(is_up=lambda node: True),
        on_node_message=listeners,
        on_link_lost=lost,
        send=send,
    )
    return PeerRpc(cluster, Tasks()), said, listeners


async def test_an_answer_to_the_process_before_is_not_taken() -> None:
    before, first, _ = process(3)
    again, second, (hear,) = process(4)
    lost = asyncio.create_task(before.request(NodeId("n2"), "what"))
    asked = asyncio.create_task(again.request(NodeId("n2"), "what else"))
    await asyncio.sleep(0)

    hear(NodeId("n2"), [BROKER_LEVEL, "told", first[0][2], True, "old"])
    hear(NodeId("n2"), [BROKER_LEVEL, "told", second[0][2], True, "new"])

    assert await asked == "new"
    lost.cancel()
