"""What the report is about: asked for, given, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from chaos.postmortem.limits import Limits

#: By exit status (`findings.catalogue`): one word for machines, one sentence for people.
WORDS: Mapping[int, str] = {0: "clean", 1: "warnings", 5: "violation", 3: "unreadable"}
VERDICTS: Mapping[int, str] = {
    0: "Nothing found",
    1: "Warnings: no promise was broken",
    3: "Not everything could be read",
    5: "A promise was broken",
}


@dataclass(frozen=True, slots=True)
class About:
    """One run of `quorate postmortem`."""

    inputs: tuple[str, ...]  # as they were given
    from_ns: int  # what was read lies in this time; both 0: nothing was
    to_ns: int
    status: int  # the exit status
    version: str
    seconds: float  # that it took
    limits: Limits = field(default_factory=Limits)
    history: str | None = None  # of the clients
    confirmed: str | None = None  # their record of it
    message: str | None = None  # GROUP-ENTRY-OFFSET: whose history is asked for
    queue: str | None = None
    since: str | None = None
    until: str | None = None
    options: Mapping[str, str] = field(default_factory=dict[str, str])  # others that matter
    #: Codes of rules that could not be judged, and why: they neither pass nor fail.
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def word(self) -> str:
        return WORDS.get(self.status, "failed")

    @property
    def verdict(self) -> str:
        return VERDICTS.get(self.status, "The post-mortem itself failed")
