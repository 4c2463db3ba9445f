"""Times by the clock and the calendar."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest

from node.protocols.nats.jetstream.cron import Cron, cron_of, next_s

DAY_S = 86_400


def after(text: str, point: str, zone: str | None = None) -> str:
    tz = None if zone is None else ZoneInfo(zone)
    begin_s = int(datetime.fromisoformat(point).timestamp())
    return datetime.fromtimestamp(next_s(cron_of(text), begin_s, tz), tz or UTC).isoformat()


@pytest.mark.parametrize(
    ("text", "point", "expected"),
    [
        ("* * * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01+00:00"),
        ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00+00:00"),
        ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00+00:00"),
        ("@weekly", "2026-11-25T00:00:00Z", "2026-11-29T00:00:00+00:00"),
        ("0 30 9 * * mon-FRI", "2026-11-27T09:30:00Z", "2026-11-30T09:30:00+00:00"),
        ("5/20 * * * * *", "2026-01-01T00:00:45Z", "2026-01-01T00:01:05+00:00"),
        ("0 0 0 29 feb ?", "2025-01-01T00:00:00Z", "2028-02-29T00:00:00+00:00"),
        # A day of the month or one of the week, unless one of them has a star.
        ("0 0 0 13 * fri", "2026-11-07T00:00:00Z", "2026-11-13T00:00:00+00:00"),
        ("0 0 0 1 * fri", "2026-11-07T00:00:00Z", "2026-11-13T00:00:00+00:00"),
        ("0 0 0 */10 * fri", "2026-11-07T00:00:00Z", "2026-11-11T00:00:00+00:00"),
    ],
)
def test_the_first_time_behind_another(text: str, point: str, expected: str):
    assert after(text, point) == expected


@pytest.mark.parametrize(
    ("text", "point", "expected"),
    [
        ("0 0 9 * * *", "2026-07-01T12:00:00Z", "2026-07-01T09:00:00-04:00"),
        # The clock goes from 2 to 3: there is no half past two.
        ("0 30 2 * * *", "2026-03-07T12:00:00-05:00", "2026-03-09T02:30:00-04:00"),
        # From 2 back to 1: half past one comes twice.
        ("0 30 1 * * *", "2026-11-01T00:00:00-04:00", "2026-11-01T01:30:00-04:00"),
        ("0 30 1 * * *", "2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00"),
        ("0 30 1 * * *", "2026-11-01T01:30:00-05:00", "2026-11-02T01:30:00-05:00"),
    ],
)
def test_the_clock_of_a_time_zone(text: str, point: str, expected: str):
    assert after(text, point, "America/New_York") == expected


def slow(cron: Cron, after_s: int) -> int:
    """Second by second."""
    at_s = after_s + 1
    while True:
        at = datetime.fromtimestamp(at_s, UTC)
        if not cron.is_on(at):
            at_s += DAY_S - at_s % DAY_S
            continue
        if at.hour in cron.hours and at.minute in cron.minutes and at.second in cron.seconds:
            return at_s
        at_s += 1


@pytest.mark.parametrize("seed", range(20))
def test_as_if_each_second_was_looked_at(seed: int):
    random = Random(seed)

    def some(low: int, high: int) -> str:
        first = random.randint(low, high)
        last = random.randint(first, high)
        forms = [str(first), f"{first}-{last}", f"{first}/{random.randint(1, 9)}", "*"]
        return ",".join(random.choices(forms, k=random.randint(1, 2)))

    text = " ".join([some(0, 59), some(0, 59), some(0, 23), some(1, 28), some(1, 12), some(0, 6)])
    begin_s = 1_700_000_000 + random.randint(0, 10**8)
    assert next_s(cron_of(text), begin_s, None) == slow(cron_of(text), begin_s)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * * *",
        "60 * * * * *",
        "* * * 0 * *",
        "* * * * dez *",
        "* * * * * 7",
        "5-3 * * * * *",
        "*/0 * * * * *",
        "1-2-3 * * * * *",
        "-1 * * * * *",
        "@nightly",
    ],
)
def test_what_is_none(text: str):
    with pytest.raises(ValueError, match=r"."):
        cron_of(text)


def test_a_day_that_never_comes():
    with pytest.raises(ValueError, match="never comes"):
        next_s(cron_of("0 0 0 31 feb ?"), 0, None)
