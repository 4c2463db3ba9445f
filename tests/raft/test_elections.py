from __future__ import annotations

import pytest

from cluster.raft.member import Role
from tests.raft.world import World


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_a_group_of_any_size_elects_one_leader_and_commits(count: int):
    world = World(count)
    world.elect()

    index = world.commit(b"x")

    world.run(50)
    assert all(node.member.applied_index >= index for node in world.nodes.values())
