from __future__ import annotations

import pytest

from cluster.turns import TURN_S, until_turn
from tests.testkit.clocks import FakeClock


@pytest.mark.parametrize("period_s", [TURN_S, 0.25, 0.375, 1.0, 5.0])
@pytest.mark.parametrize("late_ms", [-1.0, 0.0, 0.4, 1.0, 90.0, 199.0])
def test_a_sleep_ends_with_the_last_turn_within_the_period(late_ms: float, period_s: float) -> None:
    clock = FakeClock()  # at a turn
    clock.pass_ms(late_ms)

    s = until_turn(clock, period_s)

    ends_s = clock.ns / 1e9 + s
    assert ends_s / TURN_S == pytest.approx(round(ends_s / TURN_S), abs=1e-6)
    assert period_s - TURN_S < s <= period_s + 0.002  # what comes early has had its turn


def test_what_is_shorter_than_a_turn_stays_so() -> None:
    assert until_turn(FakeClock(), 0.05) == 0.05
