"""Simulated nodes that are removed, as real ones behave."""

from __future__ import annotations

import random
from collections.abc import Callable

from chaos.simulator.clients import change
from chaos.simulator.plan import draw_plan
from chaos.simulator.run import Run
from cluster.machine.commands import RemoveNode
from cluster.types import NodeId

GONER = NodeId("n4")


def _until(run: Run, come: Callable[[], bool]) -> bool:
    run.world.run(run.world.now_s + 30.0, come)
    return come()


def test_a_removed_node_ends_by_itself_and_again_when_it_is_started() -> None:
    """As a real one does; one that went on would keep clients that nobody can serve."""
    run = Run(draw_plan(3, nodes=4))
    cluster, machine = run.cluster, run.cluster.machines[GONER]
    for node in cluster.nodes:
        cluster.start(node)
    assert _until(run, lambda: machine.trusted)
    run.world.kernel.spawn(change(cluster, random.Random(1), RemoveNode(GONER)), "remove")

    assert _until(run, lambda: not machine.alive)
    cluster.start(GONER)
    assert _until(run, lambda: machine.serves)
    assert _until(run, lambda: not machine.alive)
    assert cluster.crashes() == []
