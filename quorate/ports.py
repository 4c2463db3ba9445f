"""Free ports of loopback: never the same one to two processes that are both about to listen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

HOST = "127.0.0.1"
#: Below those that the kernel gives to outgoing connections: one of these, made while a node is
#: down or about to start, would take its place, or even reach itself.
PORT_MIN, PORT_MAX = 12_000, 32_000


def free_port() -> int:
    """The next port that nobody listens at. Processes of one user take turns: whoever asked last is
    noted in a file, since a port shows no mark between being found free and being listened at.

    Raises OSError when no port in the range is free, or that file cannot be written.
    """
    # Nobody else's: not through a link, nor for others to hold.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(_turns(), flags, 0o600), "r+b") as turns:
        fcntl.flock(turns, fcntl.LOCK_EX)
        last = turns.read()
        first = int(last) + 1 if last.isdigit() else random.randrange(PORT_MIN, PORT_MAX)
        for step in range(PORT_MAX - PORT_MIN):
            port = PORT_MIN + (first - PORT_MIN + step) % (PORT_MAX - PORT_MIN)
            if is_free(port):
                turns.seek(0)
                turns.truncate()
                turns.write(str(port).encode())
                return port
    raise OSError(f"no port of {HOST} from {PORT_MIN} to {PORT_MAX - 1} is free")


def claim(port: int) -> IO[str] | None:
    """This port is the caller's among the processes of one user until it closes what it gets; None
    when it is another's, or somebody listens there. Raises OSError when no claim can be noted.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    held = open(os.open(_claims() / str(port), flags, 0o600))  # noqa: SIM115 (the caller's)
    with contextlib.suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_free(port):
            return held
    held.close()
    return None


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return True
    return False


def _claims() -> Path:
    folder = Path(tempfile.gettempdir()) / f"quorate-claims-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _turns() -> Path:
    return Path(tempfile.gettempdir()) / f"quorate-ports-{os.getuid()}"
