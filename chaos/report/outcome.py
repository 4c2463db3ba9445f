"""How a run ended, in numbers and words: what tables and `verdicts.json` are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

from chaos.checker.verdict import Verdict, merge
from chaos.history import HANDING, Op
from chaos.nemesis.mixes import title_of
from chaos.report.series import clients, delivered_by, gaps_of, published_by


class Status(IntEnum):
    """How a run ended."""

    VALID = 0
    VIOLATED = 1  # a promise was broken
    UNKNOWN = 2  # not shown to hold, and not shown to be broken
    CRASHED = 3  # the harness itself failed: nothing is known

    @property
    def word(self) -> str:
        return self.name if self is Status.VIOLATED else self.name.lower()


#: Verdicts of what belongs to no workload.
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Totals:
    """Of one run."""

    operations: int
    confirmed: int
    unknown: int  # messages published, nobody knows whether
    delivered: int
    longest_gap_s: float
    faults: Counter[str]  # by kind, or `kind:variant`
    counts: Counter[str]  # of all verdicts: lost, unexpected, ...


@dataclass(eq=False)
class Outcome:
    """What one run showed."""

    seed: int
    mix: str
    workloads: Sequence[str]
    seconds: float
    folder: Path
    command: str  # runs it again
    network: str
    disks: str
    status: Status
    totals: Totals
    #: By workload, or CLUSTER.
    verdicts: Mapping[str, Sequence[Verdict]]
    #: Faults that could not be had, and why.
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    crash: str = ""

    @property
    def title(self) -> str:
        """Of the mix."""
        return title_of(self.mix)

    def as_json(self) -> dict[str, Any]:
        totals = _fields(self.totals)
        verdicts = {name: [asdict(each) for each in mine] for name, mine in self.verdicts.items()}
        about = {**_fields(self), "totals": totals, "verdicts": verdicts}
        return {**about, "status": self.status.word, "folder": str(self.folder)}


def _fields(value: Totals | Outcome) -> dict[str, Any]:
    """The fields as they are: `asdict` cannot copy a Counter."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _faults(ops: Sequence[Op]) -> Iterator[Op]:
    """Their beginnings, but for those that had nothing to strike."""
    nothing = {
        op.invoke
        for op in ops
        if op.f == "fault" and op.value.get("detail", {}).get("place", "") is None
    }
    for op in ops:
        begins = op.f == "fault" and (op.type == "invoke" or op.invoke is None)
        if begins and op.index not in nothing:
            yield op


def _name(op: Op) -> str:
    """`kind:variant`, where it has one."""
    kind, variant = str(op.value.get("kind", "?")), op.value.get("variant")
    return f"{kind}:{variant}" if variant else kind


def status_of(verdicts: Mapping[str, Sequence[Verdict]], crash: str) -> Status:
    """A broken promise is known whatever crashed after it; without verdicts nothing is known."""
    valid = merge([verdict for mine in verdicts.values() for verdict in mine])
    if valid is False:
        return Status.VIOLATED
    if crash:
        return Status.CRASHED
    return Status.VALID if valid is True and verdicts else Status.UNKNOWN


def totals_of(ops: Sequence[Op], verdicts: Mapping[str, Sequence[Verdict]]) -> Totals:
    operations = confirmed = unknown = delivered = 0
    for op in clients(ops):
        if op.type == "invoke":
            operations += 1
        elif op.f in HANDING:
            delivered += delivered_by(op)
        elif op.type == "ok":
            confirmed += published_by(op)
        elif op.type == "unknown":
            unknown += published_by(op)
    counts: Counter[str] = Counter()
    for mine in verdicts.values():
        for verdict in mine:
            counts.update(verdict.counts)
    return Totals(
        operations,
        confirmed,
        unknown,
        delivered,
        max((gap.seconds for gaps in gaps_of(ops).values() for gap in gaps), default=0.0),
        Counter(_name(op) for op in _faults(ops)),
        counts,
    )
