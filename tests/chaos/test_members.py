"""Nodes come and go on real processes: a bounded form of `python -m chaos members`."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plan import NoSuchPlan
from chaos.report.outcome import Status
from chaos.report.series import Span
from chaos.scenes.member_scenes import BRIEF
from chaos.scenes.members import ALL, longest_s, play, scenes_of


def test_scenes_are_played_in_their_own_order():
    assert scenes_of("shrink,lost-majority,add") == ["add", "shrink", "lost-majority"]
    assert tuple(scenes_of(None)) == ALL


def test_a_scene_that_is_not_there_is_refused_by_name():
    with pytest.raises(NoSuchPlan, match="mvoe"):
        scenes_of("move,mvoe")


def test_only_what_is_inside_of_a_scene_counts_as_its_gap():
    gaps = [Span(1.0, 4.0), Span(9.0, 9.5)]

    assert longest_s(gaps, Span(3.0, 10.0)) == 1.0
    assert longest_s(gaps, Span(5.0, 6.0)) == 0.0
    assert longest_s([], Span(5.0, 6.0)) == 0.0


@pytest.mark.live
@pytest.mark.chaos
async def test_a_node_joins_a_group_moves_there_and_a_node_leaves_under_load(tmp_path: Path):
    said: list[str] = []

    outcome, rows = await play(
        [BRIEF],
        tmp_path / "run",
        seed=1,
        say=said.append,
        workloads=("w1-native", "w3-amqp", "w9-native"),
    )

    report = (tmp_path / "run" / "report.txt").read_text()
    assert outcome.status is Status.VALID, report + "\n".join(said)
    assert [(row.name, row.failure) for row in rows] == [(BRIEF, "")]
    assert outcome.totals.faults["kill"] == 1
    assert outcome.totals.confirmed > 0
