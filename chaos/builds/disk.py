"""Builds that promise what is on no disk."""
# They reach into the log on purpose.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaos.builds.build import Build, Change
from cluster.log.journal import Journal
from cluster.log.wal import Wal, Written
from cluster.members.registration import Registration


def _sync_nothing(_honest: Any) -> Callable[..., Any]:
    async def sync_active(self: Wal, *, mark: bool = True) -> None:
        """All as after a sync, but for the sync. No mark in the log says so: it would have the
        next start refuse the folder, where a broken program should lose what it confirmed.
        """
        active, size = self.active, self.active.size
        if size == active.synced:
            return
        written, self._written, self._urgent = self._written, set[Written](), False
        active.synced = size
        for journal in written:
            journal.syncing_index = journal.synced_index = journal.written_index

    return sync_active


def _only_in_memory(_honest: Any) -> Callable[..., Any]:
    def set_term(self: Journal, term: int, voted_for: str | None) -> None:
        self.current_term, self.voted_for = term, voted_for

    return set_term


def _believe_the_disk(_honest: Any) -> Callable[..., Any]:
    def on_known_incarnation(self: Registration, incarnation: int) -> None:
        """Whatever the others know of: this disk is believed."""

    return on_known_incarnation


ACK_BEFORE_FSYNC = Build(
    "ack-before-fsync",
    "The log says that it synced, and did not: what is confirmed is on no disk.",
    (Change(Wal, "_sync_active", _sync_nothing),),
)
FORGET_THE_VOTE = Build(
    "forget-the-vote",
    "Term and vote are not written: a node that starts again votes a second time.",
    (Change(Journal, "set_term", _only_in_memory),),
)
WIPED_DISK_VOTES = Build(
    "wiped-disk-votes",
    "A node whose folder is new or an old copy votes as if it had forgotten nothing.",
    (Change(Registration, "on_known_incarnation", _believe_the_disk),),
)
