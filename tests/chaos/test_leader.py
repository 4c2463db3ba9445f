from __future__ import annotations

import pytest

from chaos.history import Op
from chaos.leader import gaps_after_kills, spread_of


def test_a_gap_is_from_the_last_confirm_before_the_kill_to_the_first_of_what_was_asked_after_it():
    ops: list[Op] = []

    def publish(asked_ms: int, confirmed_ms: int, ended: bool = True) -> None:
        client, asked = "leader-amqp/p0", len(ops)
        ops.append(Op(asked, client, "invoke", "publish", monotonic_ns=asked_ms * 10**6))
        end_ns = confirmed_ms * 10**6
        kind = "ok" if ended else "unknown"
        ops.append(Op(asked + 1, client, kind, "publish", monotonic_ns=end_ns, invoke=asked))

    publish(900, 910)
    publish(920, 950, ended=False)  # out when the leader is killed
    ops.insert(3, Op(3, "nemesis", "invoke", "fault", {"kind": "kill"}, monotonic_ns=930 * 10**6))
    ops[4:] = []
    ops.append(Op(4, "leader-amqp/p0", "unknown", "publish", monotonic_ns=950 * 10**6, invoke=2))
    publish(960, 1210)
    publish(1220, 1230)

    (gap,) = gaps_after_kills(ops)

    assert (gap.kill, gap.protocol, gap.client) == (1, "amqp", "leader-amqp/p0")
    assert gap.gap_ms == pytest.approx(300)


def test_the_p95_of_few_is_the_highest():
    spread = spread_of([30.0, 10.0, 20.0])

    assert (spread.min_ms, spread.median_ms, spread.p95_ms, spread.max_ms) == (10, 20, 30, 30)


def test_the_p95_of_many_leaves_a_twentieth_out():
    assert spread_of([float(each) for each in range(1, 101)]).p95_ms == 95


@pytest.mark.parametrize(("gaps", "good"), [([300.0] * 20, True), ([301.0] * 20, False)])
def test_the_median_has_a_target(gaps: list[float], good: bool):
    assert spread_of(gaps).on_target is good


def test_the_p95_has_a_target():
    assert spread_of([100.0] * 18 + [1001.0] * 2).on_target is False
