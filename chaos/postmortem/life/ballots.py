"""Votes, terms and leaders of one group, as its nodes wrote them down: what Raft never lets happen.

Dead records may be missing wherever segments were dropped, so a vote that is not seen proves
nothing unless the log shows, without a hole, that the node was in an earlier term before and in
a later one behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: What two nodes noted at one time may be this far apart, clocks corrected.
SLACK_NS: Final = 2_000_000_000

TWICE: Final = "vote_twice"
TERM_BACK: Final = "term_back"
UNELECTED: Final = "unelected_leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """A hard state, the role of a leader, or the end of this node's copy of the group."""

    node: str
    kind: str  # hard-state | role | group-removed
    disk: int
    holes: int
    place: int  # in its log
    ref_ns: int
    at_ns: int
    index: int
    term: int
    vote: str | None  # of a hard state
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Known:
    """One node's log, as far as it was given."""

    begins_ns: int  # the disk that it begins with; times by the common clock
    ends_ns: int
    ended: bool  # its process ended, so nothing comes behind
    whole: bool  # from the first segment of that disk on


@dataclass(frozen=True, slots=True)
class Config:
    """Who votes from this entry on. committed: for sure; else perhaps only for a while."""

    index: int
    voters: frozenset[str]
    committed: bool = True


@dataclass(frozen=True, slots=True)
class Members:
    """Of one group. lost: nodes that a person gave up, from which term on."""

    configs: Sequence[Config] = ()
    lost: Sequence[tuple[int, frozenset[str]]] = ()

    def at(self, index: int, term: int) -> list[frozenset[str]]:
        """The voters there may be for whoever has entries up to `index`; empty: not known."""
        before = [each for each in self.configs if each.index <= index]
        sure = max((each.index for each in before if each.committed), default=-1)
        found = [each.voters for each in before if each.index >= sure]
        lost = frozenset[str]().union(*(names for since, names in self.lost if since <= term))
        return [voters - lost for voters in found if voters - lost]


@dataclass(frozen=True, slots=True)
class Breach:
    code: str
    at: Noted
    detail: str


@dataclass
class Ballots:
    """Of one group."""

    logs: Mapping[str, Known]
    members: Members = field(default_factory=Members)
    absent: frozenset[str] = frozenset()  # members of the cluster of which no log was given

    def judge(self, noted: Iterable[Noted]) -> list[Breach]:
        by_node = dict[str, list[Noted]]()
        for each in sorted(noted, key=lambda each: (each.node, each.place)):
            by_node.setdefault(each.node, []).append(each)
        found = [breach for own in by_node.values() for breach in self._of_node(own)]
        votes = {
            node: [each for each in own if each.kind == "hard-state"]
            for node, own in by_node.items()
        }
        seen = set[tuple[str, int]]()
        for own in by_node.values():
            for each in own:
                if each.kind == "role" and (each.node, each.term) not in seen:
                    seen.add((each.node, each.term))
                    found += self._of_leader(each, votes)
        return found

    def _of_node(self, own: Sequence[Noted]) -> Iterable[Breach]:
        voted, before = dict[int, Noted](), None
        for each in own:
            if each.kind == "group-removed":
                before = None
            if each.kind != "hard-state":
                continue
            first = voted.setdefault(each.term, each) if each.vote is not None else each
            if first.vote != each.vote:
                told = f"it voted for {first.vote} ({first.file} at {first.offset})"
                yield Breach(TWICE, each, f"{told}, then for {each.vote} in the same term")
                voted[each.term] = each
            if before is not None and before.disk == each.disk and each.term < before.term:
                told = f"it was in term {before.term} ({before.file} at {before.offset})"
                yield Breach(TERM_BACK, each, f"{told}, then in term {each.term}")
            before = each

    def _of_leader(self, leads: Noted, votes: Mapping[str, Sequence[Noted]]) -> Iterable[Breach]:
        known = self.members.at(leads.index, leads.term)
        # Where nobody says who the members are, whoever has a copy, or may have one, is one.
        told = ""
        for voters in known or [frozenset(votes) | self.absent]:
            shown = {node for node in voters if _voted(votes.get(node, ()), leads)}
            silent = {node for node in voters - shown if self._is_silent(node, leads, votes)}
            open_ = voters - shown - silent
            if len(shown) + len(open_) > len(voters) // 2:
                return
            told = f"of its {len(voters)} voters {_named(shown)} voted for it"
            told += f", {_named(silent)} did not"
            told += f", the log of {_named(open_)} does not say" if open_ else ""
        yield Breach(UNELECTED, leads, told)

    def _is_silent(self, node: str, leads: Noted, votes: Mapping[str, Sequence[Noted]]) -> bool:
        """Its log shows that it did not vote for that leader in that term."""
        log, own = self.logs.get(node), votes.get(node, ())
        if log is None:
            return False
        if any(each.term == leads.term and each.vote is not None for each in own):
            return True  # for somebody else
        reached = log.ended or log.ends_ns >= leads.ref_ns + SLACK_NS
        there = log.whole and log.begins_ns <= leads.ref_ns - SLACK_NS
        if not own:
            return there and reached
        # What was written without a hole, on one disk; an earlier one may have held the vote.
        last = own[-1].disk, own[-1].holes
        for part in {(each.disk, each.holes) for each in own}:
            rows = [each for each in own if (each.disk, each.holes) == part]
            begun = any(
                each.term <= leads.term and each.ref_ns <= leads.ref_ns for each in rows
            ) or (there and part[0] == own[0].disk == last[0] and not part[1])
            if begun and (rows[-1].term > leads.term or (part == last and reached)):
                return True
        return False


def _voted(own: Sequence[Noted], leads: Noted) -> bool:
    return any(each.term == leads.term and each.vote == leads.node for each in own)


def _named(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes)) or "nobody"
