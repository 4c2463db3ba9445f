"""Where a connection is in its life."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """Of the connection as a whole."""

    STARTING = "starting"
    RUNNING = "running"
    CLOSING = "closing"  # only an answer to our close is looked for
    CLOSED = "closed"
