"""Processes that end with the one that started them, however that one ends.

A harness that is killed cannot stop its nodes any more; the kernel can.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

#: In the environment of a process: the number of the one that it shall not outlive.
STARTER = "ENDS_WITH_PROCESS"
#: For prctl(2).
_PR_SET_PDEATHSIG = 1


def tied(environment: dict[str, str]) -> dict[str, str]:
    """For a child that begins with `end_with_starter`."""
    return {**environment, STARTER: str(os.getpid())}


def end_with_starter() -> None:
    """When somebody asked for it by `tied`: see `end_with`."""
    starter = os.environ.pop(STARTER, "")
    if starter.isdecimal():
        end_with(int(starter))


def end_with(starter: int) -> None:
    """From now on we are killed when the process that started us ends.

    Only Linux does that; elsewhere nothing happens.
    """
    if os.getppid() == starter:
        _kill_me_after_my_parent()
    if not _runs(starter):  # it ended before we had said so
        os._exit(1)


def _kill_me_after_my_parent() -> None:
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    except (AttributeError, OSError):
        return


def _runs(process: int) -> bool:
    """One that has ended, and that nobody has waited for yet, does not."""
    with suppress(OSError):  # without /proc, or gone
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
