"""From the members that a group has to those that it shall have, one safe change at a time. Pure.

A new member learns first and votes when it has caught up; an old one goes when all the new ones
vote. So at every step a majority of disks has everything.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cluster.raft.configuration import Configuration
from cluster.types import NodeId


@dataclass(frozen=True, slots=True)
class Transfer:
    """Somebody else must lead before the leader itself can go."""

    to: NodeId


def next_step(
    configuration: Configuration,
    wanted: Collection[NodeId],
    *,
    leader: NodeId,
    ready: Collection[NodeId],
    up: Collection[NodeId],
    refused: Collection[NodeId] = (),
) -> Configuration | Transfer | None:
    """None: nothing is to be done now, or it must wait for somebody to come or to catch up.

    `ready` are the members that lack next to nothing, on disks that count; `up` those heard;
    `refused` those that must not be members yet: old ones stay for them, perhaps as the only copy.
    """
    voters, learners = configuration.voters, configuration.learners
    for node in learners:
        if node not in wanted:
            return configuration.without(node)
        if node in ready:
            return configuration.with_voter(node)
    missing = [node for node in wanted if node not in voters and node not in learners]
    if admitted := [node for node in missing if node not in refused]:
        return configuration.with_learner(min(admitted, key=lambda node: (node not in up, node)))
    if learners or missing:
        return None
    extra = [node for node in voters if node not in wanted]
    going = min(
        (node for node in extra if node != leader), key=lambda n: (n in up, n), default=None
    )
    if going is not None:
        after = configuration.without(going)
        sound = sum(node == leader or node in ready for node in after.voters)
        return after if sound >= after.quorum else None
    successors = [node for node in voters if node in wanted and node in ready and node in up]
    return Transfer(min(successors)) if extra and successors else None
