"""What is made of a run when it is over."""

from __future__ import annotations

from chaos.history import History
from chaos.judging import load


def _history(*, delivers: bool) -> History:
    history = History()
    value = {"queue": "w1-native.orders", "publisher": "w1-native/p0", "first": 0, "count": 1}
    history.end(history.invoke("w1-native/p0", "publish", value), "ok")
    if delivers:
        history.saw("w1-native/c0", "deliver", {"queue": "w1-native.orders"})
    return history


def test_a_workload_of_which_nothing_came_out_is_no_pass():
    parts = {"w1-native": _history(delivers=False).ops}

    assert load(parts, ["w1-native"]).valid == "unknown"


def test_a_workload_that_left_nothing_in_the_history_is_no_pass():
    parts = {"w1-native": _history(delivers=True).ops}

    assert load(parts, ["w1-native"]).valid is True
    assert load(parts, ["w1-native", "w2-native"]).examples["idle"] == [
        "w2-native: 0 confirms, 0 deliveries"
    ]
