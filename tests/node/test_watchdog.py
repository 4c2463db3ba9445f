from __future__ import annotations

import asyncio
import time

from structlog.testing import capture_logs

from node.watchdog import Watchdog
from tests.node.nodes import until


async def test_a_loop_that_turns_is_live():
    watchdog = Watchdog(0.2)
    watchdog.start()
    await asyncio.sleep(0.5)
    watchdog.stop()

    assert watchdog.why_not_live() == []


async def test_a_loop_that_stood_still_is_told_of_with_the_place_and_until_it_turns_again():
    watchdog = Watchdog(0.2)
    watchdog.start()
    with capture_logs() as logs:
        hold_up_the_loop()
    [reason] = watchdog.why_not_live()

    assert "the event loop stood still for 0." in reason
    [line] = [line for line in logs if line["event"] == "loop_stalled"]
    assert "hold_up_the_loop" in line["stack"]
    assert line["still_s"] >= 0.2
    await until(lambda: watchdog.why_not_live() == [])
    watchdog.stop()


def hold_up_the_loop() -> None:
    time.sleep(0.6)
