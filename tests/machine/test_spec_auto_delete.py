"""Queues that go with their last consumer."""

from __future__ import annotations

import pytest

from tests.machine.told import told


def test_it_is_not_dropped_before_it_had_a_consumer():
    q = told("queue q auto_delete=true", "publish q 1")

    assert q.says("due") == ["never"]
    assert q.says("at 100000") == ["ok"]
    assert q.says("leader") == ["-"]


@pytest.mark.parametrize("end", ["cancel q a/t", "close a"])
def test_it_is_to_be_dropped_with_the_last_consumer_only(end: str):
    q = told("queue q auto_delete=true", "session a", "session b")
    q("subscribe q a/t", "subscribe q b/t")

    assert "q: expired" not in q.says("cancel q b/t")
    assert "q: expired" in q.says(end)
    assert q.says("leader") == ["q: expired"]


def test_it_is_said_again_until_it_is_dropped():
    q = told("queue q auto_delete=true", "session a", "subscribe q a/t", "cancel q a/t")

    assert q.says("due") == ["10000"]
    assert q.says("at 10000") == ["ok", "q: expired"]
    assert q.says("delete q if-unused")[0].startswith("ok")
    assert q.says("due") == ["never"]


def test_a_new_consumer_keeps_it():
    q = told("queue q auto_delete=true", "session a", "subscribe q a/t", "cancel q a/t")
    q("subscribe q a/u")

    assert q.says("leader") == ["-"]
    assert q.says("at 100000") == ["ok"]
    assert "in_use" in q.says("delete q if-unused")[0]
    assert "q: expired" in q.says("cancel q a/u")


def test_what_a_cancelled_consumer_still_holds_does_not_keep_it():
    q = told("queue q auto_delete=true", "session a", "subscribe q a/t", "publish q 1")

    assert "q: expired" in q.says("cancel q a/t")


def test_other_queues_stay_without_consumers():
    q = told("queue q", "session a", "subscribe q a/t", "cancel q a/t")

    assert q.says("due") == ["never"]
