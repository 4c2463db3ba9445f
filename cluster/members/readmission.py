"""Nodes that were declared lost: they are let in again with an empty folder, and with no other.

The members of a group ask each such node that shows up what its folder holds of the group. Until it
says "nothing of before the recovery", they do not listen to it and do not make it a member again.
A folder of before must not serve anybody: its node stops, and says what to do.

Who was away may have been given the order though others hold the group by now, and would stop them.
So nobody asks before its catalog shows that the group goes on with this copy: it names the recovery
already, or was just read, and those that hold the group are all known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from cluster.catalog.cluster_parts import ClusterParts
from cluster.groups.group import Group
from cluster.log.errors import LogError
from cluster.raft.configuration import Configuration, Configurations
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.messages import NODE_LEVEL
from cluster.types import CATALOG_GROUP, GroupId, NodeId

GIVEN_UP = "given-up"  # [[group, era], ...]: the receiver was declared lost there
EMPTY = "empty"  # [group, ...]: the sender's folder holds nothing of before the recovery of these
#: Between two reads of the catalog.
READ_AGAIN_S = 0.5


class GivenUp(LogError):
    """The others went on without this node's data."""

    def __init__(self, node: NodeId, by: NodeId, group: str) -> None:
        super().__init__(
            f"{node} was declared lost by `quorate node recover`: {by} and others went on without"
            f" what this folder holds of {group}. Move the folder away (keep it: messages that only"
            " it has can be read with `quorate log dump`), and start the node with an empty one"
        )


class Readmission:
    """One per node."""

    def __init__(
        self,
        cluster: ClusterParts,
        *,
        read_catalog: Callable[[], Awaitable[bool]],  # all that is in it now is in our copy then
    ) -> None:
        self._cluster = cluster
        self._read_catalog = read_catalog
        self._unsure = asyncio.Event()  # what is to be done depends on a read of the catalog
        #: The start of the process that said that its folder holds nothing of the group.
        self._empty: dict[tuple[GroupId, NodeId], int] = {}
        #: In which era this process said so of its own folder: what is in it since, others sent.
        self._reported_empty: dict[GroupId, int] = {}

    def refused(self, group: Group) -> set[NodeId]:
        """Lost nodes that must not be members of the group, as far as is known now."""
        return {node for node in group.configuration.lost if not self.is_empty(group.id, node)}

    def ask(self) -> None:
        """Those lost nodes that are up and have not answered."""
        for node in self._silent():
            if not self._ask(node, [group for group in self._asking(node) if self._sure(group)]):
                self.want_catalog()

    def ask_node(self, node: NodeId) -> None:
        """The catalog was just read."""
        self._ask(node, [group for group in self._asking(node) if self._goes_on(group)])

    def want_catalog(self) -> None:
        self._unsure.set()

    async def run(self) -> None:
        """Reads the catalog for what must not be done without."""
        while True:
            await self._unsure.wait()
            self._unsure.clear()
            if await self._read_catalog():
                for node in self._silent():
                    self.ask_node(node)
            await asyncio.sleep(READ_AGAIN_S)

    def _silent(self) -> list[NodeId]:
        groups = self._cluster.groups.values()
        lost = {node for group in groups for node in self.refused(group)}
        return [node for node in sorted(lost) if self._cluster.peers.is_up(node)]

    def _asking(self, node: NodeId) -> list[Group]:
        return [group for group in self._cluster.groups.values() if node in self.refused(group)]

    def _ask(self, node: NodeId, groups: Sequence[Group]) -> bool:
        """Whether these are all that want to know."""
        if groups:
            requested = [[group.id, group.configuration.era] for group in groups]
            self._cluster.links.send(node, [NODE_LEVEL, GIVEN_UP, requested])
            self._cluster.links.flush()
        return len(groups) == len(self._asking(node))

    def _sure(self, group: Group) -> bool:
        """However old our catalog is: it names the recovery, and eras never go back. Of the
        catalog's own group nobody but a person can say it.
        """
        if group.id == CATALOG_GROUP:
            return True
        info = self._cluster.catalog_machine.group(group.id)
        return info is not None and info.held_era >= group.configuration.era

    def _goes_on(self, group: Group) -> bool:
        """By a catalog that is up to date."""
        if self._sure(group):
            return True
        info, known = self._cluster.catalog_machine.group(group.id), group.configuration
        here = known.era, group.configured_at, {*known.members, *known.lost}
        return info is not None and info.is_newer(*here)

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
