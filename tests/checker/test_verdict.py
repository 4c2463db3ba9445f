from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chaos.checker import Verdict, check_all, merge
from chaos.history import Op, line_of, read_history
from tests.checker.histories import Told


def test_a_checker_that_crashes_knows_nothing() -> None:
    def crash(_ops: Sequence[Op]) -> Verdict:
        raise KeyError("queue")

    (verdict,) = check_all([], {"crash": crash})

    assert verdict.valid == "unknown"
    assert "KeyError" in verdict.examples["crashed"][0]


def test_false_outweighs_unknown_and_unknown_outweighs_true() -> None:
    good, bad, unsure = Verdict("a", True), Verdict("b", False), Verdict("c", "unknown")

    assert merge([good, unsure, bad]) is False
    assert merge([good, unsure]) == "unknown"
    assert merge([good, good]) is True
    assert merge([]) is True


def test_a_verdict_says_what_it_found() -> None:
    verdict = Verdict("total-queue", False, {"lost": 1}, {"lost": ["q p:2"]})

    assert verdict.describe() == "total-queue: VIOLATED (lost 1)\n  lost: q p:2"


def test_a_history_is_the_same_after_a_file(tmp_path: Path) -> None:
    told = Told()
    told.publish(1, 2, ended="unknown")
    told.deliver("p:1", token=1)

    lines = "".join(map(line_of, told.ops))
    (tmp_path / "history.jsonl").write_text(lines, encoding="utf-8")

    assert read_history(tmp_path / "history.jsonl") == told.ops
