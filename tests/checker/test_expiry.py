"""Delays and times to live, judged by the wall clock of the history where clocks are right."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.checker.expiry import expiry
from chaos.history import Op

DEAD = {"q.dead": "q"}
check = expiry(DEAD, {}, tolerance_ms=50)


def published(**how: Any) -> Op:
    value = {"queue": "q", "publisher": "p", "first": 0, "count": 1, **how}
    return Op(0, "p", "invoke", "publish", value, wall_ms=1_000)


def delivered(after_ms: int, queue: str = "q", reason: str | None = None) -> Op:
    value: dict[str, Any] = {"queue": queue, "messages": ["p:0"], "reason": reason}
    return Op(1, "c", "ok", "deliver", value, wall_ms=1_000 + after_ms)


def expired(after_ms: int) -> Op:
    return delivered(after_ms, "q.dead", "expired")


def test_a_message_comes_no_sooner_than_it_was_asked_for() -> None:
    late, early = delivered(960), delivered(900)

    assert check([published(delay_ms=1_000), late]).valid is True
    assert check([published(delay_ms=1_000), early]).counts["delivered before its delay"] == 1


def test_a_message_expires_no_sooner_than_its_time() -> None:
    assert check([published(ttl_ms=500), expired(500)]).valid is True
    assert check([published(ttl_ms=500), expired(300)]).counts["expired before its time"] == 1


@pytest.mark.parametrize(("after_ms", "valid"), [(200, True), (100, False)])
def test_the_shorter_of_two_times_counts(after_ms: int, valid: bool) -> None:
    of_queue = expiry(DEAD, {"q": 200}, tolerance_ms=50)

    assert of_queue([published(ttl_ms=500), expired(after_ms)]).valid is valid


def test_a_message_that_nobody_lets_expire_is_seen_when_it_comes_out() -> None:
    assert check([published(ttl_ms=500), delivered(20_000)]).valid is True
    late = check([published(ttl_ms=500), delivered(40_000)])
    assert late.counts["delivered long after its time"] == 1


def test_without_a_time_nothing_expires() -> None:
    assert check([published(), expired(9_000)]).counts["expired without a time"] == 1
    assert check([published(), delivered(0, "q.dead", "rejected")]).valid is True


def test_where_clocks_jump_times_are_not_judged() -> None:
    ops = [published(delay_ms=1_000, ttl_ms=500), delivered(0), expired(1)]

    verdict = expiry(DEAD, {}, tolerance_ms=None)(ops)

    assert verdict.valid is True
    assert (verdict.counts["delayed"], verdict.counts["expired"]) == (1, 1)
