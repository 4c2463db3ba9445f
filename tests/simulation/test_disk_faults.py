"""Simulated disks that are wiped, put back from a copy, damaged or full, and what nodes do then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from chaos.damage import choose
from chaos.faults import Damage
from chaos.simulator.plan import DISK_SEEDS_FROM, draw_plan
from chaos.simulator.run import Run, Status, run_seed
from chaos.simulator.sim_cluster import SimCluster
from cluster.log import LogIdentity
from cluster.log.format import encode_file_header
from cluster.types import NodeId

VICTIM = NodeId("n2")


def _cluster() -> tuple[Run, SimCluster]:
    """Three nodes that have served for a while, and snapshots that come soon."""
    run = Run(replace(draw_plan(3, nodes=3), snapshot_entries=2, stall_ms=1.0))
    for node in run.cluster.nodes:
        run.cluster.start(node)
    run.world.run(5.0)
    return run, run.cluster


def _until(run: Run, come: Callable[[], bool]) -> bool:
    run.world.run(run.world.now_s + 30.0, come)
    return come()


def test_a_node_with_a_new_disk_is_trusted_again_once_it_has_everything() -> None:
    run, cluster = _cluster()
    machine = cluster.machines[VICTIM]
    assert machine.trusted
    cluster.kill(VICTIM)
    cluster.wipe(VICTIM)
    cluster.start(VICTIM)
    assert not machine.trusted

    assert _until(run, lambda: machine.trusted)


def test_an_old_copy_is_what_the_node_had_when_it_was_made() -> None:
    run, cluster = _cluster()
    machine = cluster.machines[VICTIM]
    cluster.kill(VICTIM)
    cluster.copy_data(VICTIM)
    cluster.start(VICTIM)
    assert _until(run, lambda: machine.trusted)
    cluster.kill(VICTIM)
    newer = machine.platter.directories
    cluster.restore_data(VICTIM)
    assert machine.platter.directories != newer
    cluster.start(VICTIM)
    assert machine.cluster is not None

    assert _until(run, lambda: machine.trusted)


@pytest.mark.parametrize("kind", ["log_bit", "log_end", "snapshot_bit"])
def test_damage_is_where_it_is_said_to_be(kind: Damage) -> None:
    _, cluster = _cluster()
    assert cluster.damage(VICTIM, kind) is None, "it runs"
    cluster.kill(VICTIM)

    where = cluster.damage(VICTIM, kind)

    assert where is not None
    assert where.startswith("data/snapshots/" if kind == "snapshot_bit" else "data/0000")


def test_a_segment_whose_header_was_cut_short_is_left_alone() -> None:
    header = encode_file_header(1, 0, 0, bytes(16), LogIdentity("n1", "test"))
    for size in range(len(header)):
        assert choose("log_bit", {"data/000000000001.log": header[:size]}, {}, Random(1)) is None


def test_a_node_refuses_to_start_with_a_damaged_log_and_starts_with_a_new_disk() -> None:
    run, cluster = _cluster()
    machine = cluster.machines[VICTIM]
    cluster.kill(VICTIM)
    cluster.damage(VICTIM, "log_bit")
    cluster.start(VICTIM)
    assert _until(run, lambda: machine.refused_to_start)
    assert cluster.crashes() == [], "it was damaged on purpose"
    cluster.kill(VICTIM)
    cluster.wipe(VICTIM)
    cluster.start(VICTIM)

    assert _until(run, lambda: machine.trusted)


def test_a_node_whose_disk_is_full_ends_itself_and_comes_back() -> None:
    run, cluster = _cluster()
    machine = cluster.machines[VICTIM]
    cluster.fill_disk(VICTIM)
    leader = next(node for node in cluster.nodes if node != VICTIM)
    cluster.kill(leader)  # so that there is an election, and votes to write
    assert _until(run, lambda: machine.cluster is not None and machine.cluster.failed is not None)
    cluster.heal()
    assert not machine.alive
    for node in (VICTIM, leader):
        cluster.start(node)

    assert _until(run, lambda: machine.trusted)


def test_a_node_that_is_asked_to_end_does() -> None:
    run, cluster = _cluster()
    cluster.terminate(VICTIM)

    assert _until(run, lambda: not cluster.machines[VICTIM].alive)
    assert cluster.crashes() == []


@pytest.mark.parametrize("seed", range(DISK_SEEDS_FROM, DISK_SEEDS_FROM + 4))
def test_disks_that_forget_break_no_promise(seed: int) -> None:
    result = run_seed(seed, faults_s=8.0)

    said = [*result.violations, *(v.describe() for v in result.verdicts if v.valid is not True)]
    assert result.status is Status.OK, "\n".join([result.plan, *said])


def test_seeds_from_before_have_disks_that_remember() -> None:
    assert not any(draw_plan(seed).disk_weights for seed in range(1_100))
    assert any(draw_plan(DISK_SEEDS_FROM + seed).disk_weights for seed in range(10))
