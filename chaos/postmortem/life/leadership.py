"""Who led a group, from when until when and why no longer, and what every election was about: a
fold over what the nodes noted of that one group. Times are by one clock; see `Noted.ref_ns`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

#: What two nodes noted at one time may be this far apart, clocks corrected.
SLACK_NS: Final = 500_000_000
LEADER: Final = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What a node wrote down. shift_ns: to be added to its own time."""

    node: str
    boot: str
    place: tuple[int, int]  # in its log: segment, offset
    at_ns: int
    shift_ns: int
    term: int
    file: str

    @property
    def ref_ns(self) -> int:
        return self.at_ns + self.shift_ns

    @property
    def offset(self) -> int:
        return self.place[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said(Noted):
    """It took a role. asked_by: the leader that told this candidate to take over."""

    role: str
    leader: str | None
    index: int
    asked_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote(Noted):
    candidate: str


@dataclass(frozen=True, slots=True)
class Life:
    """Of a process."""

    node: str
    boot: str
    from_ns: int
    to_ns: int
    ended: str


@dataclass(frozen=True, slots=True)
class Away:
    """A node could not be heard, by one peer or by all (None)."""

    node: str
    peer: str | None
    from_ns: int
    to_ns: int


@dataclass(slots=True)
class Reign:
    """One leader's time. ended: see the table `leaders`."""

    began: Said
    to_ns: int
    ended: str
    after: Reign | None = field(default=None, repr=False)  # the next one, of a later term

    @property
    def leader(self) -> str:
        return self.began.node

    @property
    def term(self) -> int:
        return self.began.term


@dataclass(slots=True)
class Candidacy:
    """See the table `elections`."""

    term: int
    candidate: str
    first: Noted
    votes: list[Vote]
    won: Said | None = None
    led_by: str | None = None
    cause: str = "contested"
    before: str | None = None
    without_leader_ms: float | None = None


class Leadership:
    """Of one group."""

    def __init__(
        self, noted: Iterable[Noted], lives: Sequence[Life], away: Sequence[Away] = ()
    ) -> None:
        in_order = sorted(noted, key=lambda each: (each.term, each.ref_ns, each.node, each.place))
        self._said = [each for each in in_order if isinstance(each, Said)]
        self._votes = _first_votes(each for each in in_order if isinstance(each, Vote))
        self._lives = {(life.node, life.boot): life for life in lives}
        self._by_process: dict[tuple[str, str], list[Said]] = {}
        self._asked: dict[str, list[int]] = {}  # terms in which somebody stood because of it
        for said in self._said:
            self._by_process.setdefault((said.node, said.boot), []).append(said)
            if said.asked_by is not None:
                self._asked.setdefault(said.asked_by, []).append(said.term)
        for own in self._by_process.values():
            own.sort(key=_place)
        self._away = away
        self.reigns = self._reigns()

    # --- reigns

    def _reigns(self) -> list[Reign]:
        found: list[Reign] = []
        for said in self._said:
            known = found and (found[-1].leader, found[-1].term) == (said.node, said.term)
            if said.role == LEADER and not known:
                found.append(Reign(said, 0, "open"))
        later: Reign | None = None
        for reign in reversed(found):
            if later is not None:
                reign.after = later if later.term > reign.term else later.after
            self._end(reign)
            later = reign
        return found

    def _end(self, reign: Reign) -> None:
        began, after = reign.began, reign.after
        left = self._left(began)
        life = self._lives.get((began.node, began.boot))
        dead = life is not None and life.ended != "open" and left is None
        next_ns = None if after is None else after.began.ref_ns
        ends = [
            *([] if left is None else [left.ref_ns]),
            *([life.to_ns] if life is not None and dead else []),
            *([] if next_ns is None else [next_ns]),
        ]
        last = life.to_ns if life is not None else began.ref_ns
        reign.to_ns = max(min(ends, default=last), began.ref_ns)

        def in_time(ns: int) -> bool:
            return next_ns is None or ns <= next_ns + SLACK_NS

        if self._handed_over(reign):
            reign.ended = "handed over"
        elif left is not None and left.term == reign.term and in_time(left.ref_ns):
            reign.ended = "stepped down"
        elif life is not None and dead and in_time(life.to_ns):
            reign.ended = "stopped" if life.ended == "orderly" else "killed"
        elif ends:
            reign.ended = "deposed"

    def _left(self, began: Said) -> Said | None:
        """When the same process said that it leads no more."""
        own = self._by_process[began.node, began.boot]
        after = bisect_right(own, began.place, key=_place)
        first = own[after] if after < len(own) else None
        return None if first is None or first.role == LEADER else first

    def _handed_over(self, reign: Reign) -> bool:
        """It told somebody to take over, who stood for it before another one led."""
        last = reign.term + 1 if reign.after is None else reign.after.term
        terms = self._asked.get(reign.leader, [])
        next_one = bisect_right(terms, reign.term)
        return next_one < len(terms) and terms[next_one] <= last

    # --- elections

    def elections(self) -> list[Candidacy]:
        found = self._candidacies()
        by_term: dict[int, list[Reign]] = {}
        before: dict[int, Reign] = {}
        for reign in self.reigns:
            by_term.setdefault(reign.term, []).append(reign)
            if reign.after is not None:
                before[id(reign.after)] = reign
        for each in found:
            winners = by_term.get(each.term, [])
            own = next((reign for reign in winners if reign.leader == each.candidate), None)
            each.led_by = each.candidate if own else winners[0].leader if winners else None
            if own is not None:
                each.won = own.began
                self._explain(each, own, before.get(id(own)), found)
        return found

    def _candidacies(self) -> list[Candidacy]:
        by_key: dict[tuple[int, str], list[Noted]] = {}
        for vote in self._votes:
            by_key.setdefault((vote.term, vote.candidate), []).append(vote)
        for said in self._said:
            if said.role in (LEADER, "candidate"):
                by_key.setdefault((said.term, said.node), []).append(said)
        found: list[Candidacy] = []
        for (term, candidate), noted in sorted(by_key.items()):
            own = [each for each in noted if each.node == candidate]
            first = min(own or noted, key=lambda each: (each.ref_ns, each.place))
            votes = [each for each in noted if isinstance(each, Vote)]
            found.append(Candidacy(term, candidate, first, votes))
        return sorted(found, key=lambda each: (each.term, each.first.ref_ns))

    def _explain(
        self, won: Candidacy, reign: Reign, before: Reign | None, found: list[Candidacy]
    ) -> None:
        if before is None:
            founding = reign.began.index <= 1 and reign is self.reigns[0]
            won.cause = "first" if founding else "unknown"
            return
        won.before = before.leader
        won.cause = "silent" if before.ended == "deposed" else before.ended
        if before.ended == "stepped down" and self._left_alone(before):
            won.cause = "stopped"
        first, last = (bisect_right(found, term, key=_term) for term in (before.term, won.term))
        lost_ns = self._lost_ns(before, found[first:last])
        won.without_leader_ms = max(0.0, (reign.began.ref_ns - lost_ns) / 1e6)

    def _left_alone(self, reign: Reign) -> bool:
        """Others had been stopped in order, and none of them was killed."""
        newest: dict[str, Life] = {}
        for life in self._lives.values():
            if life.node != reign.leader and life.from_ns <= reign.to_ns:
                known = newest.get(life.node)
                if known is None or known.from_ns < life.from_ns:
                    newest[life.node] = life
        down = {life.ended for life in newest.values() if life.to_ns <= reign.to_ns}
        return down & {"orderly", "killed"} == {"orderly"}

    def _lost_ns(self, before: Reign, vacant: Sequence[Candidacy]) -> int:
        """From when on the group was without it."""
        if before.ended != "deposed" or not vacant:
            return before.to_ns
        stood = min(vacant, key=lambda each: each.first.ref_ns)
        stood_ns = stood.first.ref_ns
        away = [
            each.from_ns
            for each in self._away
            if each.node == before.leader
            and each.peer in (None, stood.candidate)
            and each.from_ns <= stood_ns <= each.to_ns + SLACK_NS
        ]
        since = min(away, default=min(stood_ns, before.to_ns))
        return max(since, before.began.ref_ns)


def _place(noted: Noted) -> tuple[int, int]:
    return noted.place


def _term(candidacy: Candidacy) -> int:
    return candidacy.term


def _first_votes(votes: Iterable[Vote]) -> list[Vote]:
    """A node votes once a term; its log may say so again."""
    first: dict[tuple[str, int, str], Vote] = {}
    for vote in votes:
        key = vote.node, vote.term, vote.candidate
        if key not in first or vote.place < first[key].place:
            first[key] = vote
    return sorted(first.values(), key=lambda vote: (vote.term, vote.ref_ns, vote.node))


def as_rows(group: int, found: Leadership) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of the tables `leaders` and `elections`."""
    leaders = [
        {
            "group": group,
            "term": reign.term,
            "leader": reign.leader,
            "from_ns": reign.began.at_ns,
            "to_ns": reign.to_ns - reign.began.shift_ns,
            "ended": reign.ended,
            "file": reign.began.file,
            "offset": reign.began.offset,
        }
        for reign in found.reigns
    ]
    elections = [
        {
            "group": group,
            "term": each.term,
            "candidate": each.candidate,
            "at_ns": each.first.at_ns,
            "voters": [
                {"node": v.node, "at_ns": v.at_ns, "file": v.file, "offset": v.offset}
                for v in each.votes
            ],
            "leader": each.led_by,
            "led_ns": None if each.won is None else each.won.at_ns,
            "cause": each.cause,
            "before": each.before,
            "without_leader_ms": each.without_leader_ms,
            "file": each.first.file,
            "offset": each.first.offset,
        }
        for each in found.elections()
    ]
    return leaders, elections
