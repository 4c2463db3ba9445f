"""All that a report shows, small, without Spark. Fields are called as the columns they come from.

Times end in `_ns` (nanoseconds since 1970) whatever clock told them; a queue is called by
`Queue.title`, which is text of its users: never trusted, always escaped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from chaos.postmortem.findings.catalogue import Rule


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: str
    title: str
    group: int | None = None
    queue: str | None = None
    first: int | None = None
    last: int | None = None
    term: int | None = None
    node: str | None = None
    file: str | None = None
    offset: int | None = None
    message: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    count: int | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One rule of the catalogue and what it found."""

    rule: Rule
    count: int
    examples: tuple[Finding, ...] = ()
    skipped: str | None = None  # why it was not judged

    @property
    def status(self) -> str:
        """pass | warn | fail | skipped"""
        if self.count:
            return "warn" if self.rule.severity == "warning" else "fail"
        return "skipped" if self.skipped else "pass"


@dataclass(frozen=True, slots=True)
class Incident:
    """A finding that has a time, as a band across all pictures. `number` names it everywhere."""

    number: int
    finding: Finding
    from_ns: int
    to_ns: int


# --- what users felt, and what led to it: see `causes`

Kind = Literal["without_leader", "unanswered", "redelivered"]


@dataclass(frozen=True, slots=True)
class Harm:
    """What users of some queues felt. `amount`: ms, publishes or messages, as the kind has it."""

    kind: Kind
    group: int
    queues: tuple[str, ...]  # their titles
    from_ns: int
    to_ns: int
    amount: float
    node: str | None = None  # without_leader, unanswered: who led before
    file: str | None = None
    offset: int | None = None
    entry: int | None = None
    again: int = 0  # unanswered: of them, came again under their numbers


@dataclass(frozen=True, slots=True)
class QueueImpact:
    """All that users of one queue felt. `evidence`: of each kind the worst."""

    queue: str
    without_ms: float
    unanswered: int
    again: int
    redelivered: int
    evidence: tuple[Harm, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Findings that belong together, causes first. `links`: pairs of places in `findings`."""

    findings: tuple[Finding, ...]
    links: tuple[tuple[int, int], ...] = ()
    harms: tuple[Harm, ...] = ()

    @property
    def stages(self) -> list[list[Finding]]:
        """Each behind all that led to it."""
        stage = [0] * len(self.findings)
        for cause, effect in self.links:  # causes come first, so theirs are known
            stage[effect] = max(stage[effect], stage[cause] + 1)
        found: defaultdict[int, list[Finding]] = defaultdict(list)
        for at, finding in enumerate(self.findings):
            found[stage[at]].append(finding)
        return [found[at] for at in sorted(found)]

    @property
    def roots(self) -> list[Finding]:
        return self.stages[0]

    @property
    def from_ns(self) -> int | None:
        return min(
            (each.from_ns for each in self.findings if each.from_ns is not None), default=None
        )


# --- what stands beside each other on the time axis


@dataclass(frozen=True, slots=True)
class Life:
    node: str
    boot: str
    from_ns: int
    to_ns: int
    ended: str  # orderly | killed | open


@dataclass(frozen=True, slots=True)
class Standstill:
    node: str
    from_ns: int
    to_ns: int
    ms: float
    syncing: bool
    cause: str = "unknown"  # process | loop | machine | unknown


@dataclass(frozen=True, slots=True)
class Lead:
    group: int
    term: int
    leader: str
    from_ns: int
    to_ns: int
    ended: str


#: Causes of elections that somebody asked for.
PLANNED: Final = ("first", "handed over", "stopped")


@dataclass(frozen=True, slots=True)
class Election:
    group: int
    term: int
    candidate: str
    at_ns: int
    voters: tuple[str, ...]
    leader: str | None
    led_ns: int | None
    cause: str | None
    before: str | None
    without_leader_ms: float | None
    file: str | None
    offset: int | None

    @property
    def planned(self) -> bool:
        return self.cause in PLANNED

    @property
    def in_vain(self) -> bool:
        """Nobody won it, as far as is known: the leader stayed, or there was a next one."""
        return self.leader is None and not self.planned

    @property
    def unplanned(self) -> bool:
        return self.leader is not None and not self.planned


@dataclass(frozen=True, slots=True)
class Queue:
    group: int
    queue: int
    vhost: str
    name: str

    @property
    def title(self) -> str:
        return self.name if self.vhost == "/" else f"{self.vhost}/{self.name}"


@dataclass(frozen=True, slots=True)
class Active:
    """A single active consumer's time."""

    queue: Queue
    consumer: int | None
    session: str | None
    token: int
    from_ns: int
    to_ns: int | None
    until_token: int | None
    entry: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at one time on one node: a clock that jumped, a snapshot."""

    node: str
    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class Curve:
    """Values by bucket of time; None, or no point at all: nothing was measured."""

    name: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class QueueTraffic:
    """Messages a second by bucket. Buckets without a row had none."""

    queue: Queue | None  # None: of all queues
    published: Curve
    delivered: Curve
    redelivered: Curve


@dataclass(frozen=True, slots=True)
class Window:
    """A time, and how finely it is looked at."""

    from_ns: int
    to_ns: int
    bucket_ns: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn under one time axis."""

    window: Window
    traffic: tuple[QueueTraffic, ...] = ()  # the first one: of all queues
    commit_p50: tuple[Curve, ...] = ()  # by leader, ms
    commit_p99: tuple[Curve, ...] = ()
    sync: tuple[Curve, ...] = ()  # by node, the longest, ms
    lag: tuple[Curve, ...] = ()  # by node, entries


# --- tables


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What was given of a node, from its log folder or from an archive. files 0: nothing was."""

    node: str
    source: str
    files: int
    copies: int
    unsound: int
    bytes: int
    records: int
    entries: int
    from_ns: int | None
    to_ns: int | None
    segments: str = ""  # their numbers
    unread: int = 0  # files beside them of which nothing was read


@dataclass(frozen=True, slots=True)
class Damage:
    node: str | None
    file: str | None
    offset: int | None
    group: int | None
    first: int | None
    last: int | None
    kind: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class QueueRow:
    queue: Queue
    published: int
    delivered: int
    redelivered: int
    settled: int
    dead: int
    held: int = 0  # with consumers at the end
    oldest_ns: int | None = None  # since when the oldest of them
    longest_ms: int | None = None
    p99: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # by kind, the worst minute's
    longest: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Storm:
    queue: Queue
    minute_ns: int
    delivered: int
    redelivered: int
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True)
class ClockRow:
    node: str
    peer: str
    lowest_ms: float
    highest_ms: float
    bound_ms: float
    samples: int


@dataclass(frozen=True, slots=True)
class ReplayRow:
    group: int
    spans: int
    first: int | None
    last: int | None
    entries: int
    messages: int
    failed: str | None
    agreed: int = 0  # digests and snapshots that say the same
    differed: int = 0


@dataclass(frozen=True, slots=True)
class ClientRow:
    checker: str
    kind: str
    count: int
    example: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a message's history."""

    at_ns: int
    index: int
    term: int
    event: str
    consumer: int | None = None
    session: str | None = None
    token: int | None = None
    acquired: int | None = None
    failed: int | None = None
    publisher: str | None = None
    seqno: int | None = None
    reason: str | None = None
    goes: bool | None = None


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """In one queue: a dead letter of it has a history of its own. queue None: it was not found."""

    id: str
    queue: Queue | None = None
    position: int | None = None
    published_ns: int | None = None
    confirm_ms: float | None = None
    deliveries: int = 0
    redeliveries: int = 0
    outcome: str | None = None
    outcome_ns: int | None = None
    reason: str | None = None
    publisher: str | None = None
    seqno: int | None = None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Long lists are cut: `more` says by how many rows, by the name of the field."""

    checks: Sequence[Check] = ()
    incidents: Sequence[Incident] = ()
    impact: Sequence[QueueImpact] = ()
    chains: Sequence[Chain] = ()
    pictures: Sequence[Picture] = ()  # the whole time first, then closer looks
    lives: Sequence[Life] = ()
    standstills: Sequence[Standstill] = ()
    moments: Sequence[Moment] = ()
    leaders: Sequence[Lead] = ()
    elections: Sequence[Election] = ()
    active: Sequence[Active] = ()
    nodes: Sequence[NodeRow] = ()
    damages: Sequence[Damage] = ()
    queues: Sequence[QueueRow] = ()
    storms: Sequence[Storm] = ()
    clocks: Sequence[ClockRow] = ()
    replays: Sequence[ReplayRow] = ()
    clients: Sequence[ClientRow] = ()
    messages: Sequence[MessageHistory] = ()  # the one that was asked for, then its dead letters
    rows: Mapping[str, int] = field(default_factory=dict[str, int])  # of each table
    more: Mapping[str, int] = field(default_factory=dict[str, int])
