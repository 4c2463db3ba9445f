"""The suite sees what it should: a lost message in a history, and broken nodes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chaos.builds import BUILDS
from chaos.builds.selftest import (
    LOST_MESSAGE,
    Caught,
    Row,
    show,
    try_build,
    try_lost_message,
    without_one,
)
from chaos.builds.trials import TRIALS
from chaos.checker import total_queue
from chaos.history import History, Op


def _history() -> list[Op]:
    history = History()
    value: dict[str, Any] = {"queue": "q", "publisher": "p", "first": 0, "count": 3}
    history.end(history.invoke("p", "publish", value), "ok")
    for first, messages in ((1, ["p:0", "p:1"]), (3, ["p:2"])):
        delivery = {"queue": "q", "consumer": 1, "token": first, "first": first}
        counts = {"delivery_count": 0, "acquired_count": 0}
        history.saw("c", "deliver", {**delivery, **counts, "messages": messages})
    history.saw("c", "drain", {"queue": "q"})
    return history.ops


def test_a_history_without_one_message_lost_exactly_that_one() -> None:
    assert total_queue(_history()).valid is True

    verdict = total_queue(without_one(_history()))

    assert (verdict.valid, verdict.counts["lost"]) == (False, 1)
    assert "p:1" in verdict.examples["lost"][0]


def test_every_build_is_tried() -> None:
    assert {trial.build for trial in TRIALS} == {*BUILDS}


def test_the_table_says_who_caught_what_and_what_was_not_tried() -> None:
    console = Console(width=160, file=io.StringIO(), record=True)
    rows = [
        Row("a", [Caught("total-queue", "lost", "q p:1")], 12.0, 1),
        Row("b", (), 90.0, 4),
        Row("c", (), 0.0, 0, "partition: nodes share loopback"),
    ]

    show(rows, console)

    text = console.export_text()
    assert "total-queue: lost" in text
    assert "NOT CAUGHT" in text
    assert "nodes share loopback" in text


@pytest.mark.live
@pytest.mark.chaos
async def test_a_real_history_without_one_message_is_seen(tmp_path: Path) -> None:
    row = await try_lost_message(tmp_path)

    assert (row.build, [each.anomaly for each in row.caught]) == (LOST_MESSAGE, ["lost"])


@pytest.mark.live
@pytest.mark.chaos
async def test_a_broken_node_is_caught_as_a_real_process(tmp_path: Path) -> None:
    (trial,) = [trial for trial in TRIALS if trial.build == "forget-the-vote"]

    row = await try_build(trial, tmp_path, Console(quiet=True))

    assert "log-safety" in {each.checker for each in row.caught}
