"""Does the event loop still turn? A thread looks, since a loop that is stuck cannot.

When the loop has not turned for too long the thread logs where it stands, and `why_not_live` says
so until it has turned in time for as long again: a loop that answers between two stalls is not
well. When not even the thread ran, the whole process stood still.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

TICK_S_MAX = 0.5
FRAMES_MAX = 30
#: A stall of the loop is told from this on.
REPORT_S_MIN = 1.0


class Watchdog:
    """One per node; `start` and `stop` are called on the loop that it watches."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._period_s = min(TICK_S_MAX, stall_s / 4)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_s = 0.0
        self._stalled_s: float | None = None  # when the last stall was seen, until it is over
        self._longest_s = 0.0  # of the stalls since then
        #: Told, on the loop, how long it did not turn, and how long of that nothing ran at all.
        self.on_stall: Callable[[float, float], None] = lambda _loop_s, _process_s: None
        self._over_s: float | None = None  # how long the loop stood still just now
        self._overslept_s = 0.0  # of the thread, the longest since the loop last turned in time

    def start(self) -> None:
        self._ticked_s = time.monotonic()
        self._tick()
        watched = threading.get_ident()
        self._thread = threading.Thread(
            target=self._watch, args=(watched,), name="watchdog", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def why_not_live(self) -> list[str]:
        stalled_s = self._stalled_s
        if stalled_s is None or time.monotonic() - stalled_s > self._stall_s:
            return []
        still = f"the event loop stood still for {self._longest_s:.1f} s"
        return [f"{still}; the log says where (loop_stalled)"]

    def _tick(self) -> None:
        now = time.monotonic()
        late_s = now - self._ticked_s - self._period_s
        self._ticked_s = now
        if late_s >= REPORT_S_MIN:
            self._over_s = late_s
        elif self._over_s is not None:  # a tick later, since the thread may be behind the loop
            self.on_stall(self._over_s, min(self._overslept_s, self._over_s))
            self._over_s = None
            self._overslept_s = 0.0
        elif self._overslept_s:
            self._overslept_s = 0.0
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._tick)

    # --- the thread -------------------------------------------------------------------------------

    def _watch(self, watched: int) -> None:
        reported_s = 0.0  # the tick after which it was told already
        before_s = time.monotonic()
        while not self._ended.wait(self._period_s):
            now, ticked_s = time.monotonic(), self._ticked_s
            over_s = now - before_s - self._period_s
            before_s = now
            if over_s >= REPORT_S_MIN:
                self._overslept_s = max(self._overslept_s, over_s)
            still_s = now - ticked_s
            if still_s <= self._stall_s:
                continue
            if self._stalled_s is None or now - self._stalled_s > self._stall_s:
                self._longest_s = 0.0
            self._longest_s = max(self._longest_s, still_s)
            self._stalled_s = now
            if reported_s != ticked_s:
                reported_s = ticked_s
                log.error("loop_stalled", still_s=round(still_s, 1), stack=_stack_of(watched))


def _stack_of(thread: int) -> str:
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage] -- documented
    if frame is None:
        return "the thread is gone"
    return "".join(traceback.format_stack(frame)[-FRAMES_MAX:])
