"""What a node that was declared lost says of its folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.log import Log
from cluster.members.readmission import EMPTY, GIVEN_UP, GivenUp, Readmission
from cluster.raft.configuration import Configuration, encode
from cluster.types import NodeId, first_term_of
from tests.log.support import World

GROUP, ERA = 1, 1


class Lost:
    """A node that was declared lost, and what it answers."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.answers: list[tuple[str, Any]] = []

        def send(peer: str, message: Any) -> None:
            self.answers.append((peer, message))

        links = SimpleNamespace(send=send, flush=lambda: None)
        cluster: Any = SimpleNamespace(node="n1", log=log, links=links, groups={})

        async def read_catalog() -> bool:
            return True

        self._readmission = Readmission(cluster, read_catalog=read_catalog)

    def asked(self, peer: str) -> None:
        self._readmission.on_message(NodeId(peer), [-1, GIVEN_UP, [[GROUP, ERA]]])

    def gets_entries(self) -> None:
        """Of before the recovery: the leader sends from the beginning."""
        journal = self.log.journal(GROUP)
        journal.set_term(1, None)
        for index in range(2, 7):
            journal.add(b"\0entry", index, 1)

    def gets_members(self, configuration: Configuration) -> None:
        journal = self.log.journal(GROUP)
        index = journal.last_index + 1
        journal.add(encode(configuration), index, first_term_of(ERA))
        journal.memberships.append((index, encode(configuration)))  # as if it was read at a start


async def test_entries_that_it_gets_are_no_folder_of_before() -> None:
    """One member has let it in, and another asks while it learns."""
    lost = Lost(await World().open())
    lost.asked("n2")
    lost.gets_entries()

    lost.asked("n3")

    assert lost.answers == [("n2", [-1, EMPTY, [GROUP]]), ("n3", [-1, EMPTY, [GROUP]])]


async def test_a_folder_of_before_is_told_from_an_empty_one() -> None:
    lost = Lost(await World().open())
    lost.gets_entries()

    with pytest.raises(GivenUp, match="n1 was declared lost"):
        lost.asked("n2")


async def test_a_folder_of_after_the_recovery_holds_nothing_of_before() -> None:
    """It was let in, and started again: a member that comes later asks it."""
    lost = Lost(await World().open())
    lost.gets_entries()
    lost.gets_members(Configuration((NodeId("n1"), NodeId("n2")), (NodeId("n3"),), (), ERA))

    lost.asked("n3")

    assert lost.answers == [("n3", [-1, EMPTY, [GROUP]])]


async def test_two_that_declared_each_other_lost_never_listen_to_each_other() -> None:
    lost = Lost(await World().open())
    lost.gets_entries()
    lost.gets_members(Configuration((NodeId("n1"),), (), (NodeId("n2"), NodeId("n3")), ERA))

    lost.asked("n2")

    assert lost.answers == []
