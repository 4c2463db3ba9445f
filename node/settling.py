"""Settles that reach the leader, wherever it is and however often it changes.

A client that cannot be redirected says once what became of a delivery, and is not answered; nor
does anybody else repeat what a node settles by itself. This node repeats it until a leader has
decided. A repeat of what was applied already is refused by the machine (the delivery is gone),
which is as good as done.

While a group has no leader what is told to it waits, in its order, and one task looks for the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from cluster.cluster_node import ClusterNode
from cluster.machine.commands import Command, Return, Settle
from cluster.machine.replies import Ok
from cluster.outcome import FINAL, NOT_UPGRADED, Outcome
from cluster.types import GroupId
from node.dispatch import Counts
from node.tasks import Tasks

RETRY_S = 0.02
#: Beyond, the group has lost its majority, and its sessions will be ended when it is back.
PATIENCE_S = 300.0


class Told(NamedTuple):
    command: Command
    done: Callable[[], None]
    until_s: float  # loop time


class Settler:
    """Without `counts` what it settles is not counted as the clients' doing."""

    def __init__(self, cluster: ClusterNode, tasks: Tasks, counts: Counts | None) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._counts = counts
        self._waiting: dict[GroupId, list[Told]] = {}  # of groups whose leader is looked for

    def acked(self, seconds: float, count: int) -> None:
        """So many deliveries were settled so long after they were sent."""
        if self._counts is not None:
            self._counts.latencies.acked.add(seconds, count)

    def tell(
        self, group: GroupId, command: Command, done: Callable[[], None] = lambda: None
    ) -> None:
        """Settle, Return, Discard or SetCredit. `done`: decided, one way or the other."""
        told = Told(command, done, asyncio.get_running_loop().time() + PATIENCE_S)
        waiting = self._waiting.get(group)
        if waiting is None:
            self._propose(group, told)
        else:
            waiting.append(told)

    def _propose(self, group: GroupId, told: Told) -> None:
        self._cluster.propose(group, told.command, partial(self._outcome, group, told))

    def _outcome(self, group: GroupId, told: Told, outcome: Outcome) -> None:
        if outcome.code == NOT_UPGRADED and type(told.command) is Return:
            told = told._replace(command=replace(told.command, unsent=False))
            self._propose(group, told)
            return
        decided = outcome.reply is not None or outcome.code in FINAL
        if decided or self._is_over(group, told):
            self._decided(told.command, outcome)
            told.done()
            return
        waiting = self._waiting.get(group)
        if waiting is not None:
            waiting.append(told)
            return
        self._waiting[group] = [told]
        self._tasks.start(self._again(group), name="settle_again")

    def _decided(self, command: Command, outcome: Outcome) -> None:
        counts = self._counts
        if counts is not None and type(command) is Settle and type(outcome.reply) is Ok:
            counts.settled += outcome.reply.count

    def _is_over(self, group: GroupId, told: Told) -> bool:
        """Nobody will decide it: patience ended, or it was of a transient queue that is gone."""
        cluster = self._cluster
        late = asyncio.get_running_loop().time() >= told.until_s
        return late or cluster.transient.is_lost(group, cluster.catalog_machine)

    async def _again(self, group: GroupId) -> None:
        """As soon as there is a leader; what it does not answer comes back."""
        while True:
            await asyncio.sleep(RETRY_S)
            leader = self._cluster.leader_of(group)
            if leader is not None or self._is_over(group, self._waiting[group][0]):
                break
        for told in self._waiting.pop(group):
            self._propose(group, told)
