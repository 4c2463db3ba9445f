"""A wall clock that the harness sets, and monotonic time that it does not touch."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.live.clocks import ClockFile, SkewedClock


def test_a_clock_is_wrong_by_what_the_file_says(tmp_path: Path):
    file = ClockFile(tmp_path / "clock")
    clock = SkewedClock(tmp_path / "clock")

    file.set(-300_000)
    behind = clock.wall_ms() - time.time_ns() // 1_000_000
    file.set(200)
    ahead = clock.wall_ns() - time.time_ns()

    assert behind == -300_000 or abs(behind + 300_000) < 10_000
    assert abs(ahead / 1e6 - 200) < 10_000


def test_monotonic_time_does_not_jump(tmp_path: Path):
    file = ClockFile(tmp_path / "clock")
    clock = SkewedClock(tmp_path / "clock")

    before = time.monotonic_ns()
    file.set(300_000)

    assert before <= clock.monotonic_ns() <= time.monotonic_ns()


def test_a_new_file_says_that_the_clock_is_right(tmp_path: Path):
    ClockFile(tmp_path / "clock").set(5_000)
    ClockFile(tmp_path / "clock")
    before = time.time_ns()

    assert before <= SkewedClock(tmp_path / "clock").wall_ns() <= time.time_ns()
