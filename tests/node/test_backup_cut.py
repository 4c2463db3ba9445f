"""A cut is one moment of the whole cluster, or none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster.recovery.backup import cut
from cluster.types import GroupId, NodeId
from node.errors import Refused
from tests.node.nodes import Nodes, until


@pytest.fixture(autouse=True)
def a_slow_machine_holds_back_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.operating.backup.HOLD_S", 60.0)


async def test_a_node_that_does_not_hold_back_might_come_to_lead(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        first, last = nodes.nodes["n1"], nodes.nodes["n3"]
        await until(lambda: all(node.catch_up.done for node in nodes.nodes.values()))
        await last.drain.drain(NodeId("n3"), timeout_s=60.0, force=True, by="test")
        assert not any(group.ready for group in last.cluster.groups.values())
        assert await first.backups.cut()

        await last.peer_rpc.request(NodeId("n3"), "backup", "hold", "another")
        with pytest.raises(Refused, match="n3"):
            await first.backups.cut()


async def test_a_leader_that_was_replaced_after_its_answer_is_not_believed(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        asker = nodes.nodes["n1"]
        group = max(asker.cluster.groups)
        original = asker.peer_rpc.request_all
        times: list[int] = []

        async def ask_all(kind: str, *fields: Any) -> dict[NodeId, Any]:
            answers = await original(kind, *fields)
            if fields[0] == "hold" and not times:
                times.append(await replace_leader(nodes, group))
            return answers

        asker.peer_rpc.request_all = ask_all
        cuts = {cut.group: cut for cut in await asker.backups.cut()}
        assert cuts[group].term >= times[0]


async def replace_leader(nodes: Nodes, group: GroupId) -> int:
    """The new one does not hold back: it is as if it had not been asked yet. Its term."""
    copies = {name: node.cluster.groups[group] for name, node in nodes.nodes.items()}
    old = next(copy for copy in copies.values() if copy.ready)
    successor = next(copy for copy in copies.values() if copy is not old)
    successor.held = False
    old.transfer(successor.node)
    await until(lambda: successor.ready)
    return successor.term


async def test_a_leader_that_was_let_go_too_early_says_nothing(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        group = max(nodes.one.cluster.groups)
        copies = [node.cluster.groups[group] for node in nodes.nodes.values()]
        leader = await until(lambda: next((copy for copy in copies if copy.ready), None))
        leader.held = True
        leader.member.append_no_op()  # not applied yet
        cutting = asyncio.create_task(cut(leader))
        await asyncio.sleep(0)
        leader.held = False
        assert (await leader.barrier()).kind == "ok"  # it and others are behind what is cut

        assert await cutting is None


async def test_the_groups_are_those_of_the_catalog_as_it_is(tmp_path: Path):
    """A copy of the catalog that is behind would not know that one is missing."""
    async with Nodes(tmp_path, 3) as nodes:
        asker = nodes.nodes["n1"]
        asked: list[bool] = []
        barrier = asker.cluster.names.barrier

        async def watched() -> bool:
            asked.append(True)
            return await barrier()

        asker.cluster.names.barrier = watched
        await asker.backups.cut()
        assert asked
