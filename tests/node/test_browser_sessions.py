"""Sessions of browsers, by a clock that is set by hand."""

from __future__ import annotations

from node.access.browser_sessions import (
    AGE_S_MAX,
    IDLE_S_MAX,
    SESSIONS_PER_USER_MAX,
    BrowserSessions,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_session_ends_when_it_is_idle_or_old():
    clock = Clock()
    sessions = BrowserSessions(clock)
    idle, busy = sessions.open("ann", 1), sessions.open("ann", 1)
    while clock.now_s + IDLE_S_MAX / 2 <= AGE_S_MAX:
        clock.now_s += IDLE_S_MAX / 2
        assert sessions.find(busy) is not None
    assert sessions.find(idle) is None
    clock.now_s = AGE_S_MAX + 1
    assert sessions.find(busy) is None
    assert len(sessions) == 0


def test_a_user_has_so_many_and_pushes_out_no_other():
    sessions = BrowserSessions(Clock())
    other = sessions.open("bob", 1)
    first, second = sessions.open("ann", 1), sessions.open("ann", 1)
    assert sessions.find(first) is not None  # now the second is the one that was not used longest
    for _ in range(SESSIONS_PER_USER_MAX - 1):
        sessions.open("ann", 1)
    assert sessions.find(second) is None
    assert sessions.find(first) is not None
    assert sessions.find(other) is not None
    assert len(sessions) == SESSIONS_PER_USER_MAX + 1


def test_what_was_closed_or_never_was_is_nobody():
    sessions = BrowserSessions(Clock())
    token = sessions.open("ann", 1)
    sessions.close(token)
    sessions.close(token)
    assert sessions.find(token) is None
    assert sessions.find("") is None
    assert len(sessions) == 0
