"""What a replay is told of streams: what came, to whom it went, who has done with it, what left."""

from __future__ import annotations

from typing import Any

from cluster.history.event_rows import Event, RowRecorder
from cluster.types import GroupId, Stamp
from tests.machine.stream.streams import Streams


class Told(Streams):
    def __init__(self, **config: Any) -> None:
        self.recorder = RowRecorder(GroupId(1))
        super().__init__(copies=False, **config)
        self.machine.record(self.recorder)

    def apply(self, command: Any) -> Any:
        self.recorder.begin(Stamp(self.index + 1, 1, self.now_ms))
        return super().apply(command)

    def rows(self) -> list[tuple[Any, ...]]:
        """What happened since the last look, and to which sequences."""
        events = [Event._make(row) for row in self.recorder.rows]
        self.recorder.rows = []
        return [
            (e.event, e.first, e.last, e.session, e.acquired if e.event == "handed" else e.reason)
            for e in events
        ]


def test_what_one_consumer_has_done_with_is_nothing_to_another_and_stays():
    s = Told()
    s.consumer("a")
    s.consumer("b")
    s.publish("x", "x", "x")
    assert s.rows() == [("published", 1, 3, None, None)]

    s.fetch(3, name="a")
    s.ack(1, 2, name="a")
    s.fetch(1, name="b")
    assert s.rows() == [
        ("handed", 1, 3, "a", 0),
        ("acked", 1, 1, "a", None),
        ("acked", 2, 2, "a", None),
        ("handed", 1, 1, "b", 0),
    ]


def test_a_work_queue_lets_go_of_what_was_acknowledged():
    s = Told(retention="workqueue")
    s.consumer("a")
    s.publish("x", "x")
    s.fetch(2, name="a")
    s.rows()

    s.ack(2, name="a")

    assert s.rows() == [("acked", 2, 2, "a", None), ("settled", 2, 2, None, "acked")]
