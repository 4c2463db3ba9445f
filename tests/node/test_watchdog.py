from __future__ import annotations

import asyncio
import re
import time

from structlog.testing import capture_logs

from node.operating.watchdog import Watchdog
from tests.node.nodes import until
from tests.testkit.waiting import wait_until


async def test_a_loop_that_turns_is_live():
    watchdog = Watchdog(0.2)
    watchdog.start()
    await asyncio.sleep(0.5)
    # The machine may have held it up: that it turns again is seen, too.
    await until(lambda: watchdog.why_not_live() == [])
    watchdog.stop()


async def test_a_loop_that_stood_still_is_told_of_with_the_place_and_until_it_turns_again():
    watchdog = Watchdog(0.2)
    watchdog.start()
    with capture_logs() as logs:
        reason = hold_up_the_loop(watchdog)

    assert re.match(r"the event loop stood still for \d+\.\d s;", reason)
    [line] = [line for line in logs if line["event"] == "loop_stalled"]
    assert "hold_up_the_loop" in line["stack"]
    assert line["still_s"] >= 0.2
    await until(lambda: watchdog.why_not_live() == [])
    watchdog.stop()


def hold_up_the_loop(watchdog: Watchdog) -> str:
    """For longer than it may stand still, and until its thread has seen it: what it says then."""
    time.sleep(0.6)
    return wait_until(watchdog.why_not_live)[0]
