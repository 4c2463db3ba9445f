from __future__ import annotations

from chaos.checker import low_disk
from tests.checker.histories import Told


def _alarm(told: Told, *, on: bool) -> None:
    told.saw("nemesis", "alarm", {"node": "node-1", "on": on})


def test_what_is_refused_and_settled_under_an_alarm_is_right() -> None:
    told = Told()
    _alarm(told, on=True)
    told.publish(1, ended="refused")
    told.settle("p:0", token=1)
    _alarm(told, on=False)
    told.publish(2)

    verdict = low_disk(told.ops)

    assert verdict.valid is True
    assert verdict.counts["publishes refused"] == verdict.counts["settled"] == 1


def test_a_publish_of_an_alarm_may_not_be_confirmed_within_it() -> None:
    told = Told()
    _alarm(told, on=True)
    told.publish(1)
    _alarm(told, on=False)

    assert low_disk(told.ops).counts["confirmed without room"] == 1


def test_a_publish_that_an_alarm_overtakes_may_be_confirmed() -> None:
    told = Told()
    value = {"queue": "q", "publisher": "p", "first": 1, "count": 1}
    before = told.invoke("p", "publish", value)
    _alarm(told, on=True)
    told.end(before, "ok")
    within = told.invoke("p", "publish", {**value, "first": 2})
    _alarm(told, on=False)
    told.end(within, "ok")

    assert low_disk(told.ops).valid is True


def test_settles_go_on_under_an_alarm() -> None:
    told = Told()
    told.settle("p:0", token=1)
    _alarm(told, on=True)
    for number in range(1, 6):
        told.settle(f"p:{number}", token=number, ended="unknown")
    _alarm(told, on=False)

    assert low_disk(told.ops).counts["settles stuck"] == 1


def test_who_is_never_told_of_settles_says_nothing_of_them() -> None:
    told = Told()
    _alarm(told, on=True)
    for number in range(1, 6):
        told.settle(f"p:{number}", token=number, ended="unknown")
    _alarm(told, on=False)

    assert low_disk(told.ops).valid is True
