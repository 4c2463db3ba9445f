"""How much work something is, counted: a machine that is busy does not change it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def calls_of(act: Callable[[], object]) -> int:
    """Calls and returns, of C functions too."""
    calls = [0]

    def counted(_frame: Any, _event: str, _arg: Any) -> None:
        calls[0] += 1

    sys.setprofile(counted)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls[0]
