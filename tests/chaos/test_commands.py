"""Whatever tells a campaign to end, it leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testkit.waiting import WAIT_S

ROOT = Path(__file__).parents[2]
#: A campaign that says what it does, in the place of one that needs to be root.
CAMPAIGN = """
import asyncio, signal, sys
from chaos import commands

async def work():
    print("begun", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("cleaned", flush=True)

def run(arguments):
    asyncio.run(work())
    return 0

commands.QUIET.add("incident")
sys.modules["chaos.incident"] = type(sys)("chaos.incident")
sys.modules["chaos.incident"].main = run
sys.exit(commands.main(["incident"]))
"""


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_cleans_up_also_where_a_shell_has_it_ignore_interrupts(
    number: signal.Signals, ignored: bool
):
    before = signal.getsignal(signal.SIGINT)
    if ignored:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # children inherit it
    try:
        campaign = subprocess.Popen(
            [sys.executable, "-c", CAMPAIGN],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with campaign:
        assert campaign.stdout is not None
        try:
            assert campaign.stdout.readline() == "begun\n"
            campaign.send_signal(number)
            said, complained = campaign.communicate(timeout=WAIT_S)
        finally:
            campaign.kill()
    assert (said, complained, campaign.returncode) == ("cleaned\n", "ended before its time\n", 2)
