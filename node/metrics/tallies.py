"""What hot paths count: plain integers, read when somebody scrapes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tallies:
    """Since this process started. Add to them once a batch, not once a message."""
