"""A process that writes and syncs as it is told on its input, one line each, and answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

How = Literal["sync", "no-sync"]


class Writer:
    """The process, as a test sees it."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", Path(__file__).read_text(encoding="utf-8")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def append(self, file: Path, text: str, how: How) -> str:
        """What it says: ok, or the name of an error."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{file} {text} {how}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().split()[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def _append(path: str, text: str, how: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, text.encode())
        if how == "sync":
            os.fdatasync(fd)
            folder = os.open(os.path.dirname(path), os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    finally:
        os.close(fd)


def _main() -> None:
    for line in sys.stdin:
        began = time.monotonic()
        try:
            _append(*line.split())
        except OSError as error:
            print(os.strerror(error.errno or 0).replace(" ", "_"), flush=True)
        else:
            print("ok", time.monotonic() - began, flush=True)


if __name__ == "__main__":
    _main()
