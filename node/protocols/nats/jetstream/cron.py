"""Times by the clock and the calendar: six fields, from seconds to days of the week. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

#: A day that no year has within so many days never comes.
DAYS_MAX: Final = 5 * 366
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS: Final = "sun mon tue wed thu fri sat"
_PREDEFINED: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
#: Lowest and highest of each field, and its names.
_FIELDS: Final[list[tuple[int, int, dict[str, int]]]] = [
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, {name: number for number, name in enumerate(_MONTHS.split(), 1)}),
    (0, 6, {name: number for number, name in enumerate(_DAYS.split())}),
]


class Cron(NamedTuple):
    seconds: list[int]
    minutes: list[int]
    hours: list[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # Sunday is 0
    either_day: bool  # a day of the month or one of the week; else both

    def is_on(self, day: datetime) -> bool:
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.either_day else in_month and in_week


def cron_of(text: str) -> Cron:
    """ValueError: it is none."""
    words = _PREDEFINED.get(text, text).split()
    if len(words) != len(_FIELDS):
        raise ValueError(f"{len(_FIELDS)} fields are needed")
    each = [_field(word, *about) for word, about in zip(words, _FIELDS, strict=True)]
    seconds, minutes, hours, days, months, weekdays = (values for values, _ in each)
    any_day = each[3][1] or each[5][1]
    return Cron(
        sorted(seconds),
        sorted(minutes),
        sorted(hours),
        frozenset(days),
        frozenset(months),
        frozenset(weekdays),
        not any_day,
    )


def _field(word: str, low: int, high: int, names: dict[str, int]) -> tuple[set[int], bool]:
    """Its values, and whether it has a star."""
    found: set[int] = set()
    star = False
    for part in filter(None, word.split(",")):
        span, slash, step_text = part.partition("/")
        step = _number(step_text, {}) if slash else 1
        if span in ("*", "?"):
            first, last = low, high
            star |= step == 1
        else:
            begin, hyphen, end = span.partition("-")
            first = _number(begin, names)
            last = _number(end, names) if hyphen else high if slash else first
        if not low <= first <= last <= high or step < 1:
            raise ValueError(f"{part!r} is not within {low}-{high}")
        found.update(range(first, last + 1, step))
    return found, star


def _number(text: str, names: dict[str, int]) -> int:
    named = names.get(text.lower())
    if named is not None:
        return named
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"{text!r} is no number")
    return int(text)


def next_s(cron: Cron, after_s: int, zone: ZoneInfo | None) -> int:
    """The first time behind this one, in seconds since the epoch. ValueError: it never comes. An
    hour that a clock leaves out does not come, one that it repeats comes twice.
    """
    tz = zone or UTC
    try:
        day = datetime.fromtimestamp(after_s, tz).replace(hour=0, minute=0, second=0, fold=0)
        for _ in range(DAYS_MAX):
            if cron.is_on(day):
                for start_s in sorted(_hours(cron, day)):
                    if start_s + 3_600 > after_s and (found := _within(cron, start_s, after_s)):
                        return found
            day = (day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=tz)
    except OverflowError:
        pass
    raise ValueError("it never comes")


def _hours(cron: Cron, day: datetime) -> set[int]:
    """When its hours begin on this day."""
    found: set[int] = set()
    for hour in cron.hours:
        for fold in (0, 1):
            local = day.replace(hour=hour, fold=fold)
            at_s = int(local.timestamp())
            if datetime.fromtimestamp(at_s, day.tzinfo).hour == hour:
                found.add(at_s)
    return found


def _within(cron: Cron, start_s: int, after_s: int) -> int:
    """In this hour; 0: none."""
    for minute in cron.minutes:
        for second in cron.seconds:
            at_s = start_s + 60 * minute + second
            if at_s > after_s:
                return at_s
    return 0
