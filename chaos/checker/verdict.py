"""Three-valued verdicts, and how they add up: one false makes all false, else one unknown makes all
unknown.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from chaos.history import Op

Valid = Literal[True, False, "unknown"]

#: Most examples of one anomaly that a verdict carries; the counts are always whole.
EXAMPLES_MAX = 8


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one checker says of a history, with the evidence."""

    checker: str
    valid: Valid
    counts: dict[str, int] = field(default_factory=dict[str, int])
    examples: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def describe(self) -> str:
        word = {True: "valid", False: "VIOLATED", "unknown": "unknown"}[self.valid]
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        lines = [f"{self.checker}: {word}" + (f" ({counts})" if counts else "")]
        lines += [
            f"  {name}: {example}" for name, found in self.examples.items() for example in found
        ]
        return "\n".join(lines)


Checker = Callable[[Sequence[Op]], Verdict]


def judge(
    checker: str,
    anomalies: Mapping[str, Sequence[Any]],
    *,
    reported: Mapping[str, int] | None = None,
    undecided: Mapping[str, Sequence[Any]] | None = None,
) -> Verdict:
    """False when any anomaly has an example; unknown when only undecided ones have; counts of all
    of them.
    """
    undecided = undecided or {}
    found = {name: seen for name, seen in {**anomalies, **undecided}.items() if seen}
    valid: Valid = True
    if any(undecided.values()):
        valid = "unknown"
    if any(anomalies.values()):
        valid = False
    counts = {name: len(seen) for name, seen in {**anomalies, **undecided}.items()}
    return Verdict(
        checker,
        valid,
        {**(reported or {}), **counts},
        {name: list(seen[:EXAMPLES_MAX]) for name, seen in found.items()},
    )


def check_all(ops: Sequence[Op], checkers: Mapping[str, Checker]) -> list[Verdict]:
    """Every checker's verdict. One that crashes knows nothing: that is never a pass."""
    verdicts: list[Verdict] = []
    with _uncollected():
        for name, checker in checkers.items():
            try:
                verdicts.append(checker(ops))
            except Exception:  # noqa: BLE001 -- a checker's own bug must not look like a verdict
                crash = traceback.format_exc(limit=3)
                verdicts.append(Verdict(name, "unknown", {}, {"crashed": [crash]}))
    return verdicts


@contextmanager
def _uncollected() -> Generator[None]:
    """Millions of small things and no cycles: looking for garbage takes longer than judging."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def merge(verdicts: Sequence[Verdict]) -> Valid:
    if any(verdict.valid is False for verdict in verdicts):
        return False
    if any(verdict.valid == "unknown" for verdict in verdicts):
        return "unknown"
    return True
