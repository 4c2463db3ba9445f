"""What must hold of the replicated logs after every step, whoever replicates them.

- election safety: one leader a term
- one vote: a member votes for one candidate a term, restarts included
- log matching: an entry with the same index and term has the same history on every member (hashes
  are chained)
- promises: while its term lasts, no member's log ever ends before an entry it acknowledged to that
  term's leader
- committed never changes: whoever commits an index commits the same history up to it
- leader completeness: a new leader's log holds everything that was ever committed
- commit never goes back while a process lives
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Protocol

from cluster.types import NodeId


class LogView(Protocol):
    """One member's log as the watch sees it."""

    @property
    def term(self) -> int: ...
    @property
    def leads(self) -> bool: ...
    @property
    def last_index(self) -> int: ...
    @property
    def commit_index(self) -> int: ...
    def hash_at(self, index: int) -> bytes | None: ...
    def term_at(self, index: int) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and when."""

    at_s: float
    invariant: str
    text: str

    def describe(self) -> str:
        return f"{self.at_s:9.3f}s  {self.invariant}: {self.text}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A member's state at the last look."""

    term: int
    leads: bool
    last_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a member since the last look: for the trace and the counters."""

    before: Seen | None
    after: Seen

    @property
    def became_leader(self) -> bool:
        return self.after.leads and (
            self.before is None or not self.before.leads or self.before.term != self.after.term
        )


class LogWatch:
    """Looks at members whenever they may have changed; remembers what was promised."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.now_s = 0.0
        self._seen: dict[tuple[NodeId, int], Seen] = {}
        self._leaders: dict[tuple[int, int], NodeId] = {}
        self._votes: dict[tuple[NodeId, int, int], NodeId] = {}
        self._promised: dict[tuple[NodeId, int], tuple[int, int]] = {}  # (term, index)
        self._entries: dict[
            tuple[int, int, int], bytes
        ] = {}  # (group, index, term) -> chained hash
        self._committed: dict[int, dict[int, bytes]] = {}  # group -> index -> chained hash
        self._committed_order: dict[int, list[int]] = {}
        self._committed_in: dict[
            tuple[int, int], int
        ] = {}  # (group, index) -> in this term or before

    def committed_last(self, group: int) -> int:
        order = self._committed_order.get(group)
        return order[-1] if order else 0

    def _broken(self, invariant: str, text: str) -> None:
        self.violations.append(Violation(self.now_s, invariant, text))

    # --- what members say to others

    def voted(self, node: NodeId, group: int, term: int, candidate: NodeId) -> None:
        before = self._votes.setdefault((node, group, term), candidate)
        if before != candidate:
            self._broken(
                "one vote", f"{node} voted for {before} and {candidate} in term {term} of {group}"
            )

    def acknowledged(self, node: NodeId, group: int, term: int, index: int) -> None:
        promised = self._promised.get((node, group), (0, 0))
        self._promised[node, group] = max(promised, (term, index))

    def lost_disk(self, node: NodeId) -> None:
        """Its log may end anywhere from now on. Votes stay: a disk that forgot casts none again."""
        for key in [key for key in self._promised if key[0] == node]:
            del self._promised[key]

    def dropped(self, node: NodeId, group: int) -> None:
        """Its copy counted for nothing any more."""
        self._promised.pop((node, group), None)
        self._seen.pop((node, group), None)

    # --- what members are

    def forget(self, node: NodeId) -> None:
        """Its process ended: commit index and role start anew, promises stay."""
        for key in [key for key in self._seen if key[0] == node]:
            del self._seen[key]

    def look(self, node: NodeId, group: int, view: LogView) -> Change | None:
        """Check one member; None when nothing changed since the last look."""
        seen = Seen(view.term, view.leads, view.last_index, view.commit_index)
        before = self._seen.get((node, group))
        if before == seen:
            return None
        self._seen[node, group] = seen
        change = Change(before, seen)
        if change.became_leader:
            self._check_leader(node, group, view, seen)
        if before is not None and seen.commit_index < before.commit_index:
            self._broken(
                "commit goes forward",
                f"{node} group {group}: commit index {before.commit_index} -> {seen.commit_index}",
            )
        if before is None or before.last_index != seen.last_index or before.term != seen.term:
            self._check_end(node, group, view, seen)
        if before is None or before.commit_index != seen.commit_index:
            self._check_commit(node, group, view, seen.commit_index)
        return change

    def _check_leader(self, node: NodeId, group: int, view: LogView, seen: Seen) -> None:
        other = self._leaders.setdefault((group, seen.term), node)
        if other != node:
            self._broken(
                "election safety", f"{other} and {node} both lead group {group} in term {seen.term}"
            )
        # A member may find the votes of an old term after a later leader has committed more.
        order = reversed(self._committed_order.get(group, ()))
        last = next((i for i in order if self._committed_in[group, i] < seen.term), 0)
        if not last:
            return
        held = view.hash_at(last)
        if seen.last_index < last or (held is not None and held != self._committed[group][last]):
            self._broken(
                "leader completeness",
                f"{node} leads group {group} in term {seen.term}, its log ends at"
                f" {seen.last_index}, but it lacks entries committed up to {last}",
            )

    def _check_end(self, node: NodeId, group: int, view: LogView, seen: Seen) -> None:
        term, index = self._promised.get((node, group), (0, 0))
        if seen.term == term and seen.last_index < index:
            self._broken(
                "promises",
                f"{node} group {group}: log ends at {seen.last_index},"
                f" but it acknowledged {index} in this term {term}",
            )
        last_term, chained = view.term_at(seen.last_index), view.hash_at(seen.last_index)
        if last_term is None or chained is None:
            return
        known = self._entries.setdefault((group, seen.last_index, last_term), chained)
        if known != chained:
            self._broken(
                "log matching",
                f"{node} group {group}: entry {seen.last_index} of term {last_term}"
                " follows another history",
            )

    def _check_commit(self, node: NodeId, group: int, view: LogView, index: int) -> None:
        committed = self._committed.setdefault(group, {})
        order = self._committed_order.setdefault(group, [])
        at = bisect_right(order, index)
        if at:
            known = order[at - 1]
            held = view.hash_at(known)
            if held is not None and held != committed[known]:
                self._broken(
                    "committed never changes",
                    f"{node} group {group}: its commit index {index} covers another entry {known}",
                )
        chained = view.hash_at(index)
        if index > 1 and chained is not None and index not in committed:
            committed[index] = chained
            self._committed_in[group, index] = view.term
            order.insert(at, index)
