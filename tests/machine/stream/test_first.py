from __future__ import annotations

from tests.machine.stream.streams import MS, Streams


def test_smoke():
    s = Streams(max_msgs=5)
    s.consumer()
    assert s.stored("a", "b", "a") == 1
    assert s.changed == 1
    assert s.fetch(2) == [1, 2]
    assert s.fetch(2) == [3]
    assert s.fetch(2) == []
    assert s.ack(1, 3) == 2
    assert s.of().info().floor_stream == 1
    s.at(30_000)
    assert s.changed == 1
    assert s.fetch() == [2]
    assert s.stored("a", "b", "a", "c", "d", "e") == 4
    assert list(s.held()) == [5, 6, 7, 8, 9]
    assert s.of().info().ack_pending == 0
    assert s.fetch() == [5, 6, 7, 8, 9]
    s.configure(max_msgs=3, max_age=100 * MS)
    assert s.of().info().ack_pending == 3
    s.at(31_000)
    assert not s.held()
