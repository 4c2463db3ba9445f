"""What may be asked of a post-mortem besides folders; what makes no sense is refused at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.postmortem.limits import Limits

_MESSAGE: Final = re.compile(r"\d+-\d+-\d+")


class WrongArgument(ValueError):
    """What was asked for makes no sense; nothing was begun."""


@dataclass(frozen=True, slots=True)
class Options:
    """What else may be asked for, checked when it is made. Times in ns since 1970."""

    limits: Limits = field(default_factory=Limits)
    history: Path | None = None  # what clients saw: history.jsonl
    confirmed: Path | None = None  # what they were told is safe: CSV or Parquet
    since_ns: int | None = None
    until_ns: int | None = None
    queue: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        """Raises WrongArgument."""
        if self.message is not None and not _MESSAGE.fullmatch(self.message):
            raise WrongArgument(f"message {self.message}: give GROUP-ENTRY-OFFSET, as in 3-1200-0")
        since_ns, until_ns = self.since_ns, self.until_ns
        if since_ns is not None and until_ns is not None and since_ns >= until_ns:
            raise WrongArgument("since is not before until: nothing lies between them")
        for name in ("history", "confirmed"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise WrongArgument(f"{name} {path}: there is no such file")


def check(paths: Sequence[str | Path]) -> None:
    """WrongArgument: there is nothing at a path; addresses of other file systems are looked at
    later.
    """
    if not paths:
        raise WrongArgument("no folder was named: give the data folders of nodes, or archives")
    for path in map(str, paths):
        if "://" not in path and not Path(path).exists():
            raise WrongArgument(f"{path}: there is no such folder")
