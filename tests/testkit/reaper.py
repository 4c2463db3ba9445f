"""Ends what a test run leaves behind, however the run itself ends.

A process of its own, which no signal to the run reaches. When the run is gone, its end of a pipe
closes; then every process that has the run's mark in its environment is killed. So are programs
that are not ours (clients in other languages, brokers), which nobody can tie to their starter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

#: In the environment of everything that a run starts: its marks, and those of runs around it.
MARKS = "ENDS_WITH_TEST_RUNS"

#: What cannot be killed for so long, stays.
KILL_S_MAX = 10.0


def watch_over(environment: dict[str, str]) -> tuple[dict[str, str], subprocess.Popen[bytes]]:
    """The environment with the mark of a new run, which ends when the pipe to the reaper closes."""
    mark = uuid.uuid4().hex
    reaper = subprocess.Popen(
        [sys.executable, "-I", __file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    return {**environment, MARKS: f"{environment.get(MARKS, '')} {mark}".strip()}, reaper


def marked(mark: str) -> list[int]:
    """Processes that were started, directly or not, by the run."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is not ours
            continue
        if any(each.startswith(MARKS.encode()) and mark.encode() in each for each in variables):
            found.append(int(folder.name))
    return found


def main() -> None:
    sys.stdin.read()
    # Again, since who is killed may have started another one meanwhile.
    end_s = time.monotonic() + KILL_S_MAX
    while (left := marked(sys.argv[1])) and time.monotonic() < end_s:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


if __name__ == "__main__":
    main()
