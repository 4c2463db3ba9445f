"""Proposals that wait for a leader."""

from __future__ import annotations

import asyncio
import random

import pytest

from cluster.groups.outcome import Done, Outcome, refused
from cluster.machine.commands import Barrier, Command
from cluster.peers.forwarding import AGAIN_S, Retries
from cluster.types import GroupId, NodeId

pytestmark = pytest.mark.virtual_time

GROUP = GroupId(1)


class Leader:
    """Nobody leads, until the test says so."""

    def __init__(self) -> None:
        self.name: NodeId | None = None
        self.asked: list[Command] = []
        self.retries = Retries(self._propose, lambda _: self.name, random.Random(0))

    def _propose(self, _: GroupId, command: Command, done: Done) -> None:
        if self.name is None:
            done(refused("no_leader", "nobody leads"))
        else:
            self.asked.append(command)

    async def elected(self) -> None:
        self.name = NodeId("n1")
        await asyncio.sleep(2 * AGAIN_S)


async def test_what_is_over_is_not_proposed_to_the_next_leader() -> None:
    leader, told, wanted = Leader(), list[Outcome](), Barrier()
    over = False
    leader.retries.propose(GROUP, Barrier(), told.append, unwanted=lambda: over)
    leader.retries.propose(GROUP, wanted, told.append)
    over = True

    await leader.elected()

    assert [command is wanted for command in leader.asked] == [True]
    assert [each.code for each in told] == ["no_leader"]


async def test_who_is_cancelled_while_there_is_no_leader_asks_no_more() -> None:
    leader = Leader()
    asking = asyncio.create_task(leader.retries.ask(GROUP, Barrier()))
    await asyncio.sleep(0)
    asking.cancel()

    await leader.elected()

    assert leader.asked == []
