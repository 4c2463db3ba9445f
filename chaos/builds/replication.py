"""Builds whose replicas agree on less than they say."""
# They reach into the members on purpose.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.builds.build import Build, Change
from cluster.groups.group import Group
from cluster.groups.outcome import Done, Outcome
from cluster.machine.commands import Barrier, Command
from cluster.machine.replies import Ok
from cluster.raft import replication
from cluster.raft.following import Following
from cluster.raft.progress import Progress
from cluster.raft.pysyncobj_core import Peer
from cluster.raft.replication import Replication
from cluster.types import Stamp

#: Small appends, so that several are under way.
APPEND_BYTES = 2_048


def _truncate_first(honest: Callable[..., None]) -> Callable[..., None]:
    def on_append(
        self: Following,
        peer: Peer,
        prev: int,
        prev_term: int,
        commit: int,
        entries: list[Any] | None,
    ) -> None:
        journal = self._member.journal
        if journal.commit_index <= prev < journal.last_index:
            journal.truncate_from(prev + 1)
        honest(self, peer, prev, prev_term, commit, entries)

    return on_append


def _send_again(honest: Callable[..., None]) -> Callable[..., None]:
    def matched(self: Progress, index: int) -> None:
        """As the stock leader: what is not acknowledged is sent once more at each answer."""
        honest(self, index)
        self.next = self.match + 1

    return matched


def _count_itself(_honest: Any) -> Callable[..., None]:
    def advance_commit(self: Replication, now: float, upto: int | None = None) -> None:
        member = self._member
        index = member.journal.synced_index
        noop = member.core.noop_index
        if index > member.commit_index and noop is not None and index >= noop:
            member.commit(index)
            self._commit_unsent_since = min(self._commit_unsent_since, now)

    return advance_commit


def _lead_on(_honest: Any) -> Callable[..., bool]:
    def heard_by_majority(self: Replication, now: float) -> bool:
        return True

    return heard_by_majority


def _read_own_copy(honest: Callable[..., None]) -> Callable[..., None]:
    def propose(self: Group, command: Command, done: Done | None = None) -> None:
        if isinstance(command, Barrier) and done is not None and self.ready:
            done(Outcome("ok", Ok(), Stamp(self.applied_index, self.term, 0, 0, 0)))
        else:
            honest(self, command, done)

    return propose


TRUNCATE_WITHOUT_CONFLICT = Build(
    "truncate-without-conflict",
    "A follower drops all behind the entry that an append follows, though it is equal.",
    (
        Change(Following, "on_append", _truncate_first),
        Change(Progress, "matched", _send_again),
        Change(replication, "APPEND_BYTES_MAX", lambda _: APPEND_BYTES),
    ),
)
COMMIT_BY_ONE = Build(
    "commit-by-one",
    "A leader takes its own disk for a majority.",
    (Change(Replication, "advance_commit", _count_itself),),
)
STALE_READS = Build(
    "stale-reads",
    "A leader that is cut off leads on, and answers reads from its own copy.",
    (
        Change(Replication, "heard_by_majority", _lead_on),
        Change(Group, "propose", _read_own_copy),
    ),
)
