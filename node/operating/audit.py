"""Who did what to the cluster, from where, and whether it was let: one line for each act of an
administrator. Lines hold names and paths, never what was in a body: that may be a password.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from node.data_folder import private
from node.settings.settings import SettingsError

log = structlog.get_logger(__name__)

#: What others send, and a line repeats, is cut to this.
CHARACTERS_MAX: Final = 500
#: Lines that a node remembers, to show them; the file has all.
RECENT_MAX: Final = 1_000

#: refused: surely nothing happened. failed: it was let, and did not succeed.
Outcome = Literal["ok", "refused", "failed", "unknown"]


class Audit:
    """One per node: to the log, and to a file of its own where the settings name one."""

    def __init__(self, node: str, path: str | None) -> None:
        """SettingsError: the file cannot be written."""
        self._node = node
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)  # since its start
        self._path = None if path is None else Path(path)
        if self._path is None:
            return
        try:
            os.close(private(self._path, os.O_WRONLY | os.O_APPEND))
        except OSError as error:
            raise SettingsError(
                f"audit_file: cannot write {path}: {error.strerror}; "
                "allowed: a file in a folder that this process may write to"
            ) from error

    async def write(
        self, *, who: str, address: str, what: str, target: str, outcome: Outcome, reason: str = ""
    ) -> None:
        """Returns when the line is written, so that an answer never comes before it."""
        line = {
            "who": who[:CHARACTERS_MAX],
            "from": address,
            "what": what,
            "target": target[:CHARACTERS_MAX],
            "outcome": outcome,
        }
        if reason:
            line["reason"] = reason[:CHARACTERS_MAX]
        log.info("audit", **line)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "node": self._node, "event": "audit", **line}
        self._remember(line)
        if self._path is None:
            return
        try:
            await asyncio.to_thread(self._append, f"{json.dumps(line)}\n".encode())
        except OSError as error:
            log.error("audit_file_failed", file=str(self._path), reason=str(error))

    def _remember(self, line: dict[str, Any]) -> None:
        """What is done again and again, such as the batches of a move, is one line, so that it does
        not push out all others.
        """
        last = self.recent[-1] if self.recent else {}
        if last.keys() - {"times"} == line.keys() and all(
            last[name] == line[name] for name in line if name != "time"
        ):
            self.recent[-1] = {**line, "times": last.get("times", 1) + 1}
        else:
            self.recent.append(line)

    def _append(self, data: bytes) -> None:
        """Opened each time, so that the file may be moved away; one write, so lines stay whole."""
        assert self._path is not None
        file = private(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, data)
        finally:
            os.close(file)
