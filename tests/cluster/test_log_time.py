"""Time as the log tells it goes on whatever wall clocks do."""

from __future__ import annotations

from cluster.agreed_time import LogTime
from tests.testkit.clocks import FakeClock


def test_it_is_the_wall_clock() -> None:
    clock = FakeClock()
    time = LogTime(clock)
    for ms in (0, 10, 500):
        clock.pass_ms(ms)
        assert time.now_ms() == clock.wall
        time.saw(time.now_ms())


def test_it_goes_on_at_half_its_speed_while_the_clock_is_behind() -> None:
    clock = FakeClock()
    time = LogTime(clock)
    clock.skew_ms += 300_000
    ahead = time.now_ms()
    time.saw(ahead)
    clock.skew_ms -= 300_000
    for step in range(1, 1_000):  # entries every 0.6 ms
        clock.ns += 600_000
        time.saw(time.now_ms())
        assert time.now_ms() == ahead + step * 3 // 10


def test_log_time_that_is_ahead_comes_back_without_going_back() -> None:
    clock = FakeClock()
    time = LogTime(clock)
    time.saw(clock.wall + 8_000)
    seen = [time.now_ms()]
    for _ in range(20):
        clock.pass_ms(1_000)
        time.saw(time.now_ms())
        seen.append(time.now_ms())
    assert seen == sorted(seen)
    assert seen[15] > clock.wall - 5_000, "8 s are made up in 16 s, no sooner"
    assert seen[16:] == [clock.wall - 4_000 + 1_000 * n for n in range(5)]


def test_a_new_leader_goes_on_where_the_entries_of_the_old_one_ended() -> None:
    clock = FakeClock()
    time = LogTime(clock)
    ahead = clock.wall + 60_000
    time.saw(ahead)
    assert time.now_ms() == ahead
    clock.pass_ms(250)
    assert time.now_ms() == ahead + 125
    time.saw(clock.wall)  # an older entry, applied late
    assert time.now_ms() == ahead + 125
    clock.skew_ms += 90_000
    assert time.now_ms() == clock.wall
