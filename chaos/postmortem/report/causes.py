"""What led to what, and what it cost: findings linked to each other, and to what users felt.

Pure, over what is collected already: findings are few. A link says that one may have caused the
other: they are about the same node, group, queue or message, and the one began no later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from chaos.postmortem.report.facts import Chain, Finding, Harm, QueueImpact
from chaos.postmortem.report.units import duration, plural

S_NS: Final = 1_000_000_000
#: Before its cause an effect may be noted, by as much as aligned clocks and notes are off.
SLACK_NS: Final = 2 * S_NS
#: Queues that a line names.
NAMED_MAX: Final = 5
#: Findings whose times are by the clock of their node; all others are in common time.
BY_OWN_CLOCK: Final = (
    "slow_sync",
    "slow_disk",
    "process_stood_still",
    "clock_jump",
    "lagging_replica",
)


@dataclass(frozen=True, slots=True)
class Link:
    """`same`: what both must be about; a group that one of them does not name fits any. `within_s`:
    how long after the end of a cause its effect may begin.
    """

    causes: tuple[str, ...]
    effects: tuple[str, ...]
    same: tuple[Literal["node", "group", "queue", "message"], ...]
    within_s: float = 0


_HELD: Final = ("slow_sync", "slow_disk", "process_stood_still")
#: What an older copy of a folder, or a lying disk, makes a node forget.
_FORGOTTEN: Final = ("missing_entry", "vote_twice", "term_back", "commit_back")
_OF_QUEUES: Final = ("settled_again", "unflagged_duplicate", "sac_overlap")

LINKS: Final = (
    Link(_HELD, ("leader_lost",), ("node",), 10),
    Link(_HELD, ("lagging_replica",), ("node",), 10),
    Link(("leader_lost",), ("lagging_replica",), ("node",), 120),
    Link(("leader_lost",), ("flapping_leader",), ("group",)),
    Link(("folder_rolled_back",), _FORGOTTEN, ("node",)),
    Link(("missing_entry", "needless_truncation"), ("minority_commit",), ("group",)),
    Link(("vote_twice",), ("two_leaders", "unelected_leader"), ("group",)),
    Link(("two_leaders", "unelected_leader", *_FORGOTTEN), ("divergence",), ("group",)),
    Link(("divergence",), ("state_mismatch", *_OF_QUEUES), ("group",)),
    Link(("state_mismatch",), _OF_QUEUES, ("group",)),
    Link(("corrupt_segment", "archive_gap"), ("not_replayed",), ("group",)),
    Link(("member_not_given", "foreign_segment", "unread_file"), ("archive_gap",), ("node",)),
    Link(("dead_letter_loop", "poison_message"), ("redelivery_storm",), ("queue",)),
    Link(("late_settle",), ("stuck_unacked",), ("queue",)),
)


def chains(
    findings: Sequence[Finding],
    harms: Iterable[Harm] = (),
    shift_ns: Mapping[str, int] | None = None,
) -> list[Chain]:
    """All findings, each in one chain; the earliest first. `shift_ns`: what to add to times of a
    node to compare them with those of others.
    """
    shift_ns = shift_ns or {}
    times = [_times(each, shift_ns) for each in findings]
    places: defaultdict[str, list[int]] = defaultdict(list)
    for at, each in enumerate(findings):
        places[each.code].append(at)
    links = {
        (cause, effect)
        for link in LINKS
        for cause in _of(places, link.causes)
        for effect in _of(places, link.effects)
        if _linked(link, findings[cause], times[cause], findings[effect], times[effect])
    }
    union = _Union(len(findings))
    for cause, effect in links:
        union.join(cause, effect)
    felt: defaultdict[int, list[Harm]] = defaultdict(list)
    for harm in harms:
        at = next((n for n in range(len(findings)) if _cost(findings[n], times[n], harm)), None)
        if at is not None:
            felt[union.of(at)].append(harm)
    together: defaultdict[int, list[int]] = defaultdict(list)
    for at in range(len(findings)):
        together[union.of(at)].append(at)
    found = [_chain(findings, times, its, links, felt[of]) for of, its in together.items()]
    return sorted(found, key=lambda chain: (chain.from_ns is None, chain.from_ns or 0))


def by_queue(harms: Iterable[Harm]) -> list[QueueImpact]:
    """Who was hit worst comes first. Times without a leader that overlap count once."""
    its: defaultdict[str, list[Harm]] = defaultdict(list)
    for harm in harms:
        for queue in harm.queues:
            its[queue].append(harm)
    found = [_impact(queue, felt) for queue, felt in its.items()]
    return sorted(found, key=lambda it: (-it.without_ms, -it.unanswered, -it.redelivered, it.queue))


def worth_telling(chains: Iterable[Chain]) -> list[Chain]:
    """Those that say more than their findings do by themselves."""
    return [each for each in chains if each.links or each.harms]


def told(finding: Finding) -> str:
    """`a slow disk on n1`, `a leader was lost on n1 (3 elections)`."""
    title = finding.title[:1].lower() + finding.title[1:]
    if finding.queue is not None:
        where = f" in {finding.queue}"
    elif finding.node is not None:
        where = f" on {finding.node}"
    else:
        where = "" if finding.group in (None, -1) else f" in group {finding.group}"
    if finding.code == "leader_lost":
        where += f" ({plural(finding.count or 1, 'election')})"
    return title + where


def told_stage(stage: Sequence[Finding]) -> list[str]:
    """What comes more than once, as often as five leaders that are lost, is one: `5 × a leader was
    lost (n1, n2)`.
    """
    by_code: defaultdict[str, list[Finding]] = defaultdict(list)
    for each in stage:
        by_code[each.code].append(each)
    return [told(its[0]) if len(its) == 1 else _several(its) for its in by_code.values()]


def _several(its: Sequence[Finding]) -> str:
    where = sorted({each.queue or each.node or "" for each in its} - {""})
    title = f"{len(its)} × {its[0].title[:1].lower()}{its[0].title[1:]}"
    return f"{title} ({named(where)})" if where else title


def told_harms(harms: Sequence[Harm]) -> list[str]:
    """What a chain cost, one line a kind."""
    lines = list[str]()
    for queues, ms in _without(harms).items():
        lines.append(f"{duration(ms)} without service: {queues}")
    for kind, what in (
        ("unanswered", "publish without an answer"),
        ("redelivered", "message delivered again"),
    ):
        its = [each for each in harms if each.kind == kind]
        if its:
            one, rest = what.split(" ", 1)
            many = one + ("es" if one.endswith("h") else "s")
            count = plural(round(sum(each.amount for each in its)), one, many)
            lines.append(f"{count} {rest}: {named(sorted({q for e in its for q in e.queues}))}")
    return lines


def named(queues: Sequence[str]) -> str:
    """The first ones, and how many more."""
    rest = len(queues) - NAMED_MAX
    return ", ".join(queues[:NAMED_MAX]) + (f" and {rest:,} more" if rest > 0 else "")


# --- how -------------------------------------------------------------------------------------


def _without(harms: Sequence[Harm]) -> dict[str, float]:
    """By queues that were without a leader for as long, to 100 ms: for how long."""
    its: defaultdict[float, list[str]] = defaultdict(list)
    longest: dict[float, float] = {}
    for each in by_queue(harms):
        if each.without_ms:
            key = round(each.without_ms, -2)
            its[key].append(each.queue)
            longest[key] = max(longest.get(key, 0), each.without_ms)
    return {named(queues): longest[key] for key, queues in its.items()}


Times = tuple[int | None, int | None]


def _times(finding: Finding, shift_ns: Mapping[str, int]) -> Times:
    if finding.from_ns is None:
        return None, None
    own = finding.code in BY_OWN_CLOCK and finding.node is not None
    shift = shift_ns.get(finding.node or "", 0) if own else 0
    return finding.from_ns + shift, max(finding.to_ns or 0, finding.from_ns) + shift


def _of(places: Mapping[str, list[int]], codes: Iterable[str]) -> list[int]:
    return [at for code in codes for at in places.get(code, ())]


def _linked(link: Link, cause: Finding, began: Times, effect: Finding, came: Times) -> bool:
    for name in link.same:
        one, other = getattr(cause, name), getattr(effect, name)
        if name == "group" and (one is None or other is None):
            continue
        if one is None or one != other:
            return False
    if began[0] is None or began[1] is None or came[0] is None or came[1] is None:
        return True
    until = began[1] + round(link.within_s * S_NS) + SLACK_NS
    return began[0] - SLACK_NS <= came[1] and came[0] <= until


def _cost(finding: Finding, times: Times, harm: Harm) -> bool:
    """Whether this harm comes of that finding."""
    if times[0] is None or times[1] is None:
        return False
    if not (harm.from_ns <= times[1] + SLACK_NS and times[0] <= harm.to_ns + SLACK_NS):
        return False
    if harm.kind == "redelivered":
        return finding.queue in harm.queues or (
            finding.code == "leader_lost" and finding.group in (None, harm.group)
        )
    return finding.code == "leader_lost" and finding.node == harm.node


def _chain(
    findings: Sequence[Finding],
    times: Sequence[Times],
    its: list[int],
    links: set[tuple[int, int]],
    felt: list[Harm],
) -> Chain:
    """In an order in which no effect comes before its cause: links lead from code to code, and no
    code leads back to itself.
    """
    causes = {at: {one for one, other in links if other == at} for at in its}
    left = sorted(its, key=lambda at: (times[at][0] or 0, findings[at].code))
    order = list[int]()
    while left:
        at = next(each for each in left if causes[each] <= set(order))
        order.append(at)
        left.remove(at)
    place = {at: nth for nth, at in enumerate(order)}
    pairs = sorted((place[one], place[other]) for one, other in links if one in place)
    pairs.sort(key=lambda pair: pair[1])
    return Chain(tuple(findings[at] for at in order), tuple(pairs), tuple(felt))


def _impact(queue: str, felt: Sequence[Harm]) -> QueueImpact:
    spans = sorted((each.from_ns, each.to_ns) for each in felt if each.kind == "without_leader")
    total_ns, end = 0, 0
    for begin, until in spans:
        total_ns += max(until - max(begin, end), 0)
        end = max(end, until)
    unanswered = [each for each in felt if each.kind == "unanswered"]
    redelivered = [each for each in felt if each.kind == "redelivered"]
    worst: dict[str, Harm] = {}
    for each in felt:
        if each.kind not in worst or each.amount > worst[each.kind].amount:
            worst[each.kind] = each
    return QueueImpact(
        queue,
        total_ns / 1e6,
        round(sum(each.amount for each in unanswered)),
        sum(each.again for each in unanswered),
        round(sum(each.amount for each in redelivered)),
        tuple(
            worst[kind] for kind in ("without_leader", "unanswered", "redelivered") if kind in worst
        ),
    )


class _Union:
    """Which belong together."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def of(self, at: int) -> int:
        while self._above[at] != at:
            self._above[at] = self._above[self._above[at]]
            at = self._above[at]
        return at

    def join(self, one: int, other: int) -> None:
        self._above[self.of(one)] = self.of(other)
