"""A build that believes one clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.builds.build import Build, Change
from cluster.agreed_time import LogTime


def _alone(honest: Callable[..., None]) -> Callable[..., None]:
    def init(self: LogTime, clock: Any, agreed: Any = None) -> None:
        honest(self, clock, None)

    return init


OWN_CLOCK = Build(
    "own-clock",
    "A leader stamps what its own wall clock says, whatever those of the others say.",
    (Change(LogTime, "__init__", _alone),),
)
