"""What a node writes down for a later reader of its log."""

from __future__ import annotations

from pathlib import Path

from cluster.log.reader import read
from tests.node.nodes import Nodes, until


async def test_roles_links_rounds_and_peer_clocks_are_in_the_log(tmp_path: Path):
    wanted = {"role", "link-up", "round", "clock"}
    async with Nodes(tmp_path, 3):

        def all_noted() -> bool:
            return wanted <= {record.kind for record in read(str(tmp_path / "n1"))}

        await until(all_noted)
