"""Settles that reach the leader, wherever it is and however often it changes.

A client that cannot be redirected says once what became of a delivery, and is not answered: this
node repeats it until a leader has decided. A repeat of what was applied already is refused by the
machine (the delivery is gone), which is as good as done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cluster.cluster_node import ClusterNode
from cluster.group import Outcome
from cluster.machine.commands import Command, Settle
from cluster.machine.replies import Ok
from cluster.types import GroupId
from node.dispatch import Counts
from node.tasks import Tasks

RETRY_S = 0.02
#: Beyond, the group has lost its majority, and its sessions will be ended when it is back.
RETRIES_MAX = 15_000


class Settler:
    """One a node."""

    def __init__(self, cluster: ClusterNode, tasks: Tasks, counts: Counts) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._counts = counts

    def tell(self, group: GroupId, command: Command, done: Callable[[], None]) -> None:
        """Settle, Return, Discard or SetCredit. `done`: decided, one way or the other."""

        def first(outcome: Outcome) -> None:
            if outcome.reply is None and outcome.code != "bad_argument":
                self._tasks.start(self._again(group, command, done), name="settle_again")
            else:
                self._count(command, outcome)
                done()

        self._cluster.propose(group, command, first)

    def _count(self, command: Command, outcome: Outcome) -> None:
        if type(command) is Settle and type(outcome.reply) is Ok:
            self._counts.settled += outcome.reply.count

    async def _again(self, group: GroupId, command: Command, done: Callable[[], None]) -> None:
        for _ in range(RETRIES_MAX):
            await asyncio.sleep(RETRY_S)
            outcome = await self._cluster.ask(group, command)
            if outcome.reply is not None:
                self._count(command, outcome)
                break
        done()
