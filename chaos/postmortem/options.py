"""What may be asked of a post-mortem besides folders; what makes no sense is refused at once."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.postmortem.limits import Limits, WrongArgument

__all__ = ["Options", "WrongArgument", "check", "check_master", "check_output"]

_MESSAGE: Final = re.compile(r"\d+-\d+-\d+")
_LOCAL: Final = re.compile(r"(file:(//)?)?(?![A-Za-z][A-Za-z0-9+.-]+:)")
_MASTER: Final = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|.+://.+")


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
        if self.queue == "":
            raise WrongArgument("the queue has no name: give NAME, or VHOST/NAME")
        since_ns, until_ns = self.since_ns, self.until_ns
        if since_ns is not None and since_ns > time.time_ns():
            raise WrongArgument("since lies in the future: nothing can be later")
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
        if not path:
            raise WrongArgument("a folder is named by nothing: give a path, or an address")
        here = _here(path)
        if here is not None and not here.exists():
            raise WrongArgument(f"{path}: there is no such folder")


def check_output(out: str | Path, tables: str | None) -> None:
    """WrongArgument: what is found could not be written there. Nothing is made."""
    for name, path in (("out", str(out)), ("tables", tables)):
        if path == "":
            raise WrongArgument(f"{name}: name a folder")
        here = None if path is None else _here(path)
        if here is None:
            continue
        there = next(each for each in (here, *here.absolute().parents) if each.exists())
        if not there.is_dir():
            raise WrongArgument(f"{name} {path}: {there} is no folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise WrongArgument(f"{name} {path}: nothing can be written to {there}")


def check_master(master: str | None) -> None:
    """WrongArgument: Spark would not know what it is."""
    if master is not None and not _MASTER.fullmatch(master):
        raise WrongArgument(
            f"master {master}: give one of Spark's, as in local[4] or spark://HOST:7077"
        )


def _here(path: str) -> Path | None:
    """None: it is an address of another file system."""
    local = _LOCAL.match(path)
    return None if local is None else Path(path[local.end() :])
