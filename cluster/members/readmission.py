"""Nodes that were declared lost: they are let in again with an empty folder, and with no other.

The members of a group ask each such node that shows up what its folder holds of the group. Until it
says "nothing of before the recovery", they do not listen to it and do not make it a member again.
A folder of before must not serve anybody: its node stops, and says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from cluster.catalog.cluster_parts import ClusterParts
from cluster.groups.group import Group
from cluster.log.errors import LogError
from cluster.peers.forwarding import NODE_LEVEL
from cluster.raft.configuration import Configuration, Configurations
from cluster.raft.journal import RaftJournal
from cluster.types import GroupId, NodeId

GIVEN_UP = "given-up"  # [[group, era], ...]: the receiver was declared lost there
EMPTY = "empty"  # [group, ...]: the sender's folder holds nothing of before the recovery of these

log = structlog.stdlib.get_logger(__name__)


class GivenUp(LogError):
    """The others went on without this node's data."""

    def __init__(self, node: NodeId, by: NodeId, group: str) -> None:
        super().__init__(
            f"{node} was declared lost by `quorate node recover`: {by} and others went on without"
            f" what this folder holds of {group}. Move the folder away (keep it: messages that only"
            " it has can be read with `quorate log dump`), and start the node with an empty one"
        )


class Readmission:
    """One a node."""

    def __init__(self, cluster: ClusterParts) -> None:
        self._cluster = cluster
        #: The start of the process that said that its folder holds nothing of the group.
        self._empty: dict[tuple[GroupId, NodeId], int] = {}
        #: In which era this process said so of its own folder: what is in it since, others sent.
        self._reported_empty: dict[GroupId, int] = {}

    def refused(self, group: Group) -> set[NodeId]:
        """Lost nodes that must not be members of the group, as far as is known now."""
        return {node for node in group.configuration.lost if not self.is_empty(group.id, node)}

    def ask(self) -> None:
        """Those lost nodes that are up and have not answered."""
        groups = self._cluster.groups.values()
        for node in sorted({node for group in groups for node in self.refused(group)}):
            if self._cluster.peers.is_up(node):
                self.ask_node(node)

    def ask_node(self, node: NodeId) -> None:
        groups = self._cluster.groups.values()
        requested = [[g.id, g.configuration.era] for g in groups if node in self.refused(g)]
        if requested:
            self._cluster.links.send(node, [NODE_LEVEL, GIVEN_UP, requested])
            self._cluster.links.flush()

    def is_empty(self, group: GroupId, node: NodeId) -> bool:
        """The process that is up there said that it holds nothing of before the recovery."""
        state = self._cluster.peers.states.get(node)
        reported = self._empty.get((group, node))
        return state is not None and state.up and state.incarnation == reported

    def on_message(self, peer: NodeId, message: list[Any]) -> None:
        """GivenUp: this node must not go on."""
        match message:
            case [_, word, [*requested]] if word == GIVEN_UP:
                self._answer(peer, requested)
            case [_, word, [*groups]] if word == EMPTY:
                incarnation = self._cluster.peers.states[peer].incarnation
                for group in groups:
                    self._empty[GroupId(group), peer] = incarnation
            case _:
                pass

    def _answer(self, peer: NodeId, requested: Sequence[Sequence[int]]) -> None:
        cluster = self._cluster
        kept = cluster.log.groups()
        empty: list[int] = []
        for group, era in requested:
            journal = cluster.log.journal(group) if group in kept else None
            reported = self._reported_empty.get(GroupId(group), -1)
            if journal is None or journal.last_index == 1 or era <= reported:
                self._reported_empty[GroupId(group)] = max(era, reported)
                empty.append(group)
                continue
            found = cluster.groups.get(GroupId(group))
            known = _known(journal) if found is None else found.member.configurations
            if known.era < era:
                name = f"group {group}" if found is None else found.name
                raise GivenUp(cluster.node, peer, name)
            # It was let in again since, on an empty folder, and whoever asks has yet to hear of it;
            # unless each of the two was declared lost by the other.
            if peer not in known.current.lost:
                empty.append(group)
        if empty:
            cluster.links.send(peer, [NODE_LEVEL, EMPTY, empty])
            cluster.links.flush()


def _known(journal: RaftJournal) -> Configurations:
    snapshot = journal.load_snapshot()
    return Configurations(Configuration(()), journal, None if snapshot is None else snapshot.data)
