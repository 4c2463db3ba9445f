"""Schedules: what a message says of when it is due and of what is then made of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from cluster.machine.commands import ATTR_ASKED, ATTR_SUBJECT
from cluster.machine.stream.errors import NO_SCHEDULES, NO_TTL
from cluster.machine.stream.settings import (
    ASKED_DUE_MS,
    ASKED_ENDS,
    ASKED_MET,
    ASKED_ROLLUP,
    ASKED_TTL_MS,
    overlap,
)
from node.messages.nats_headers import lines
from node.messages.subjects import is_literal, is_subject
from node.protocols.nats.jetstream.batching import Member
from node.protocols.nats.jetstream.cron import Cron, cron_of, next_s
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.headers import ttl_ms_of
from node.protocols.nats.jetstream.times import (
    NS_PER_MS,
    NS_PER_S,
    ms_of_text,
    ns_of_span,
    text_of_ms,
)

PATTERN: Final = b"Nats-Schedule"
SCHEDULER: Final = b"Nats-Scheduler"
NEXT: Final = b"Nats-Schedule-Next"
PURGE: Final = b"purge"
_AT: Final = "@at "
_EVERY: Final = "@every "
_S_MS: Final = 1_000
#: What a message that is made does not take over from the one that it is made of.
_LEFT_OUT: Final = (PATTERN, b"Nats-Expected-")
_LEFT_OUT_WHOLE: Final = frozenset({b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup"})


class Schedule(NamedTuple):
    at_ms: int | None  # once
    every_ms: int | None
    cron: Cron | None
    zone: ZoneInfo | None
    target: bytes
    source: bytes  # the subject whose last message it copies
    ttl: bytes
    rollup: bytes

    def first_ms(self, now_ms: int) -> int:
        """ValueError: it never comes."""
        return self.at_ms if self.at_ms is not None else self._behind(now_ms)

    def next_ms(self, due_ms: int, now_ms: int) -> int:
        """After the one that is due, times that have passed left out; 0: none."""
        if self.at_ms is not None:
            return 0
        try:
            found = self._behind(due_ms)
            return found if found >= now_ms else max(self._behind(now_ms), due_ms + 1)
        except ValueError:
            return 0

    def _behind(self, ms: int) -> int:
        if self.every_ms is not None:
            return (ms + _S_MS // 2) // _S_MS * _S_MS + self.every_ms
        assert self.cron is not None
        return next_s(self.cron, ms // _S_MS, self.zone) * _S_MS


def schedule_of(given: dict[bytes, bytes]) -> Schedule | None:
    """By a message's headers. ApiError: it cannot be."""
    pattern = given.get(PATTERN, b"").decode(errors="replace")
    if not pattern:
        return None
    name = given.get(b"Nats-Schedule-Time-Zone")
    zone = None if name is None else _zone(name.decode(errors="replace"))
    at_ms = every_ms = cron = None
    if pattern.startswith(_AT):
        at_ms = ms_of_text(pattern.removeprefix(_AT))
        wrong = at_ms is None or zone is not None
    elif pattern.startswith(_EVERY):
        ns = ns_of_span(pattern.removeprefix(_EVERY))
        wrong = ns is None or ns < NS_PER_S or zone is not None
        every_ms = (ns or 0) // NS_PER_MS
    else:
        try:
            cron, wrong = cron_of(pattern), False
        except ValueError:
            wrong = True
    if wrong:
        raise known(10189)
    return Schedule(
        at_ms,
        every_ms,
        cron,
        zone,
        given.get(b"Nats-Schedule-Target", b""),
        given.get(b"Nats-Schedule-Source", b""),
        given.get(b"Nats-Schedule-TTL", b""),
        given.get(b"Nats-Schedule-Rollup", b""),
    )


@lru_cache(256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise known(10223) from None


def asked_by(
    given: dict[bytes, bytes], subject: bytes, config: Mapping[str, Any], now_ms: int
) -> dict[int, Any]:
    """What a message on this subject asks of a stream of schedules, by its headers. ApiError: it
    cannot be.
    """
    allowed = bool(config.get("allow_msg_schedules"))
    if given.get(PATTERN) and not allowed:
        raise known(NO_SCHEDULES)
    schedule = schedule_of(given)
    if schedule is not None:
        _check(schedule, subject, config)
        if given.get(b"Nats-Rollup", b"sub") != b"sub":
            raise known(10192)
        try:
            return {ASKED_DUE_MS: schedule.first_ms(now_ms), ASKED_ROLLUP: "sub"}
        except ValueError:
            raise known(10189) from None
    ends = _ending(given, subject)
    if ends is not None and not allowed:
        raise known(NO_SCHEDULES)
    return {} if ends is None else {ASKED_ENDS: ends}


def _check(schedule: Schedule, subject: bytes, config: Mapping[str, Any]) -> None:
    if schedule.ttl:
        try:
            ttl_ms_of(schedule.ttl)
        except ApiError:
            raise known(10191) from None
        if not config.get("allow_msg_ttl"):
            raise known(NO_TTL)
    if schedule.rollup not in (b"", b"sub"):
        raise known(10192)
    target, source = schedule.target, schedule.source
    held = [each.encode() for each in config["subjects"]]

    def is_held(one: bytes) -> bool:
        return is_subject(one) and is_literal(one) and any(overlap(one, each) for each in held)

    if target == subject or not is_held(target):
        raise known(10190)
    if source and (source in (target, subject) or not is_held(source)):
        raise known(10203)


def made(
    schedule: Schedule,
    subject: bytes,
    met: tuple[int, int, int],
    body: bytes,
    block: bytes,
) -> Member:
    """What is due of the schedule on this subject, from this body and header. `met`: as
    `ASKED_MET` has it.
    """
    fields = [
        (key, value)
        for key, value in (lines(block) if block else ())
        if not key.startswith(_LEFT_OUT) and key not in _LEFT_OUT_WHOLE
    ]
    next_ms = met[2]
    fields.append((SCHEDULER, subject))
    fields.append((NEXT, text_of_ms(next_ms).encode() if next_ms else PURGE))
    asked: dict[int, Any] = {ASKED_MET: list(met)}
    if schedule.ttl:
        fields.append((b"Nats-TTL", schedule.ttl))
        asked[ASKED_TTL_MS] = ttl_ms_of(schedule.ttl)
    if schedule.rollup:
        fields.append((b"Nats-Rollup", schedule.rollup))
        asked[ASKED_ROLLUP] = schedule.rollup.decode()
    header = b"NATS/1.0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % each for each in fields)
    attrs = {ATTR_SUBJECT: schedule.target, ATTR_ASKED: asked}
    return Member(body, header, attrs, len(body) + len(header))


def _ending(given: dict[bytes, bytes], subject: bytes) -> bytes | None:
    """The subject of a schedule that is to go."""
    scheduler, then = given.get(SCHEDULER), given.get(NEXT)
    if not scheduler and not then:
        return None
    if then != PURGE or not scheduler or scheduler == subject:
        raise known(10212)
    if not (is_subject(scheduler) and is_literal(scheduler)):
        raise known(10212)
    return scheduler
