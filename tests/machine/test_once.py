"""Ids that every queue takes once, from machine version 5 on."""

from __future__ import annotations

import pytest

from cluster.machine import QueueMachine, admission
from cluster.machine.commands import (
    ATTR_DEDUP_ID,
    Command,
    CreateQueue,
    Enqueue,
    QueueConfig,
    UpgradeMachine,
)
from cluster.machine.replies import Enqueued, Reply
from cluster.types import QueueId, Stamp

QUEUE = QueueId(1)


class Log:
    def __init__(self, config: QueueConfig, version: int = 5) -> None:
        self.machine = QueueMachine()
        self.index = 0
        self.now_ms = 1_000
        self.apply(UpgradeMachine(version))
        self.apply(CreateQueue(QUEUE, "/", "q", config))

    def apply(self, command: Command) -> Reply | None:
        self.index += 1
        reply = self.machine.apply(Stamp(self.index, 1, self.now_ms), command).reply
        self.machine.invariants()
        return reply

    def takes(self, dedup_id: str) -> bool:
        attrs = {ATTR_DEDUP_ID: dedup_id}
        reply = self.apply(Enqueue(QUEUE, None, 0, [b"x"], None, attrs))
        assert isinstance(reply, Enqueued)
        assert reply.stored + reply.duplicates == 1
        return reply.stored == 1


def test_every_queue_takes_such_an_id_once_and_others_as_often_as_they_come():
    log = Log(QueueConfig())

    assert [log.takes(each) for each in ("once:a", "once:b", "once:a")] == [True, True, False]
    assert [log.takes("plain") for _ in range(2)] == [True, True]
    log.now_ms += admission.ONCE_WINDOW_MS
    assert log.takes("once:a")
    copy = QueueMachine()
    copy.restore(log.machine.snapshot())
    log.machine = copy
    assert not log.takes("once:a")


def test_before_version_5_such_an_id_is_none():
    log = Log(QueueConfig(), version=4)

    assert [log.takes("once:a") for _ in range(2)] == [True, True]


def test_a_queue_that_keeps_duplicates_out_does_so_within_its_own_window():
    log = Log(QueueConfig(dedup_window_ms=50))

    assert [log.takes("once:a"), log.takes("once:a"), log.takes("b")] == [True, False, True]
    log.now_ms += 50
    assert log.takes("once:a")


def test_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "ONCE_IDS_MAX", 2)
    log = Log(QueueConfig())
    assert all(log.takes(f"once:{each}") for each in "abc")

    assert not log.takes("once:c")
    assert log.takes("once:a")
