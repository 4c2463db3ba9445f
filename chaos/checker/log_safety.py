"""What all replicas promised each other, judged from the logs that they left.

- two replicas never have different entries committed at one index; nor different states there
- a term has at most one leader, and a majority of the voters recorded its vote for it
- a member votes once a term, and neither its term nor its commit index goes back
- nothing that was committed is truncated

Only what must still be in the logs is missed: the cleaner drops old segments, and what a node's
disk lost on purpose is no news.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from chaos.checker.replica_log import Lead, NodeLog
from chaos.checker.verdict import Verdict, judge
from cluster.types import NodeId

Voters = Mapping[int, Collection[NodeId]]  # by group


class _Committed:
    """The first to say what is committed at an index is right; who differs is found out."""

    def __init__(self) -> None:
        self.node = NodeId("")
        self.different: list[str] = []
        self._known: dict[int, dict[int, tuple[int, bytes | None, NodeId]]] = {}

    def say(self, group: int, index: int, term: int, digest: bytes | None) -> None:
        entries = self._known.setdefault(group, {})
        known = entries.get(index)
        if known is None or (known[1] is None and digest is not None and known[0] == term):
            entries[index] = (term, digest, self.node)
        elif known[0] != term or (digest is not None and known[1] not in (None, digest)):
            self.different.append(
                f"group {group} index {index}: {known[2]} has {_entry(known[0], known[1])},"
                f" {self.node} has {_entry(term, digest)}"
            )

    @property
    def count(self) -> int:
        return sum(map(len, self._known.values()))


def log_safety(
    folders: Mapping[NodeId, Path],
    *,
    voters: Voters | None = None,
    damaged: Collection[NodeId] = (),
    forgetful: Collection[NodeId] = (),
) -> Verdict:
    """Of the data folders of all nodes, none of which runs.

    `voters` of groups whose membership never changed, if the caller knows them. `damaged`: nodes
    whose files were changed behind their back, so that they may be unreadable. `forgetful`: nodes
    whose disk was wiped, lied or went back in time, so that votes may be gone from it.
    """
    committed = _Committed()
    logs: dict[NodeId, NodeLog] = {}
    unreadable: list[str] = []
    damage = 0
    local: dict[str, list[str]] = {}
    for node, folder in sorted(folders.items()):
        committed.node = node
        log = logs[node] = NodeLog(folder, committed.say)
        if node in damaged or node in forgetful:
            damage += len(log.unreadable)
        else:
            unreadable += [f"{node}: {reason}" for reason in log.unreadable]
        local.setdefault("hash chain broken", []).extend(f"{node}: {e}" for e in log.chain_broken)
        for group in log.groups.values():
            for rule, text in group.broken:
                local.setdefault(rule, []).append(f"{node}: {text}")
    elections = _Elections(logs, voters or {}, {*damaged, *forgetful})
    elections.judge()
    anomalies = {
        "different entries committed": committed.different,
        "different states": _different_states(logs),
        "two leaders in a term": elections.two_leaders,
        "leader without a majority's votes": elections.unelected,
        "committed entries truncated": [],
        "truncated without a conflict": [],
        "commit went back": [],
        "term went back": [],
        "voted twice": [],
        **local,
    }
    empty = [] if any(log.records for log in logs.values()) else ["no node has any record"]
    return judge(
        "log-safety",
        anomalies,
        undecided={"unreadable": unreadable, "nothing to judge": empty},
        reported={
            "records": sum(log.records for log in logs.values()),
            "entries committed": committed.count,
            "elections": elections.judged,
            "elections not judged": elections.unjudged,
            "damaged on purpose": damage,
        },
    )


class _Elections:
    """Leaders of all terms, and who voted for them."""

    def __init__(
        self, logs: Mapping[NodeId, NodeLog], voters: Voters, forgetful: Collection[NodeId]
    ) -> None:
        self.two_leaders: list[str] = []
        self.unelected: list[str] = []
        self.judged = self.unjudged = 0
        self._logs = logs
        self._told = voters
        self._forgetful = forgetful

    def judge(self) -> None:
        numbers = {number for log in self._logs.values() for number in log.groups}
        for number in sorted(numbers):
            leaders: dict[int, tuple[NodeId, Lead]] = {}
            for node, log in self._logs.items():
                for lead in log.groups[number].leads if number in log.groups else ():
                    other, _ = leaders.setdefault(lead.term, (node, lead))
                    if other != node:
                        text = f"group {number} term {lead.term}: {other} and {node}"
                        self.two_leaders.append(text)
            voters = self._unchanged_voters(number)
            for _, (node, lead) in sorted(leaders.items()):
                self._election(number, node, lead, lead.voters or voters)

    def _unchanged_voters(self, number: int) -> Collection[NodeId]:
        """Of a group whose log never speaks of them; empty: not known."""
        copies = {
            node: log.groups[number] for node, log in self._logs.items() if number in log.groups
        }
        if any(copy.says_members for copy in copies.values()):
            return ()
        if number in self._told:
            return self._told[number]
        # With a segment gone, an entry that changed them may be gone too.
        return tuple(copies) if all(copy.whole for copy in copies.values()) else ()

    def _election(self, number: int, node: NodeId, lead: Lead, voters: Collection[NodeId]) -> None:
        if not voters:
            self.unjudged += 1
            return
        votes = {voter: self._vote(number, voter, lead.term) for voter in voters}
        for_it = [voter for voter, vote in votes.items() if vote == node]
        unsure = [voter for voter, vote in votes.items() if vote is False]
        needed = len(voters) if lead.by_all else len(voters) // 2 + 1
        if len(for_it) >= needed:
            self.judged += 1
        elif len(for_it) + len(unsure) >= needed:
            self.unjudged += 1  # those who may have voted for it have no record of it any more
        else:
            self.judged += 1
            self.unelected.append(
                f"group {number} term {lead.term}: {node} leads with the votes of {sorted(for_it)}"
                f" of {sorted(voters)}"
            )

    def _vote(self, number: int, voter: NodeId, term: int) -> NodeId | bool | None:
        """False: not known."""
        log = self._logs.get(voter)
        if log is None or number not in log.groups:
            return False
        vote = log.groups[number].vote(term)
        return False if vote is None and voter in self._forgetful else vote


def _different_states(logs: Mapping[NodeId, NodeLog]) -> list[str]:
    found: list[str] = []
    known: dict[tuple[int, int], tuple[NodeId, bytes]] = {}
    for node, log in logs.items():
        for number, group in log.groups.items():
            for index, digest in group.digests.items():
                other, its = known.setdefault((number, index), (node, digest))
                if its != digest:
                    found.append(
                        f"group {number} after {index}: {other} {its.hex()}, {node} {digest.hex()}"
                    )
    return found


def _entry(term: int, digest: bytes | None) -> str:
    return f"term {term} hash {'unknown' if digest is None else digest.hex()}"
