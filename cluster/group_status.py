"""One group's copy, as people and tests see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.group_facts import GroupFacts


def group_status(group: GroupFacts) -> dict[str, Any]:
    """Indexes are of the group's log; `lag` counts entries, and only a leader knows it."""
    return {
        "id": group.id,
        "name": group.name,
        "members": list(group.members),
        "learners": list(group.configuration.learners),
        "withholds_votes": group.withholds_votes,
        "role": group.role.name.lower(),
        "leader": group.leader,
        "term": group.term,
        "commit": group.commit_index,
        "applied": group.applied_index,
        "last": group.last_index,
        "base": group.journal.base_index,
        "lag": group.lag(),
        "poisoned": group.poisoned,
        "skipped": group.skipped,
        "diverged": group.member.diverged,
        "machine_version": group.machine.version,
        "needs_version": None if group.needs_newer is None else group.needs_newer.needed,
        "pending_bytes": group.pending_bytes,
        "machine": group.machine.overview(),
    }
