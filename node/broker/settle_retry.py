"""Settles, proposed to the leader: for the clients of every listener, and by the node for clients
that need not settle themselves.

A settle is proposed until a leader has decided (`cluster.peers.forwarding`). A repetition may find
that an earlier try was carried out; the machine refuses it then, and nobody knows which of the two
it was: the outcome is unknown. A settle names positions, and only its token keeps a repetition from
a later delivery of the same message. So without one, it is repeated only when surely nothing was
done. A repetition comes after what was said meanwhile: a credit that would undo a later one is
dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import ELSEWHERE, NOT_UPGRADED, Done, Outcome, called_back, decided
from cluster.machine.commands import Discard, Extend, Return, SetCredit, Settle
from cluster.machine.replies import Ok
from cluster.peers.forwarding import Ends, Unwanted
from cluster.types import ConsumerKey, GroupId, QueueId
from node.metrics.client_counters import Counts, DeliveryCounters

#: For callers that get no answer. Beyond, the group has lost its majority, and its sessions will be
#: ended when it is back.
PATIENCE_S = 300.0
#: For callers that wait for an answer.
ANSWER_S_MAX = 15.0

#: How long acks that nobody waits for wait for other work of this node's groups, to share its write
#: and its fsync, or for each other.
SOON_S = 0.005

#: What may be said of deliveries; the last two are no settles, and go the same way, in its order.
SettleCommand = Settle | Return | Discard | Extend | SetCredit


class SettleRetry:
    """One per node: proposes settles until a leader has decided."""

    def __init__(self, cluster: ClusterNode, counts: Counts) -> None:
        self._cluster = cluster
        self._counts = counts
        self._retries = cluster.forwarder.new_retries()
        #: The latest of each consumer, until it is decided.
        self._credits: dict[tuple[GroupId, QueueId, ConsumerKey], SetCredit] = {}
        self._soon: list[Callable[[], None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def soon(self, settle: Callable[[], None]) -> None:
        """Call `settle` within `SOON_S`: with the next work of the groups of this node."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._settle_soon)
            self._cluster.drive_loop.join(self._settle_soon)
        self._soon.append(settle)

    def _settle_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        soon, self._soon = self._soon, []
        for settle in soon:
            settle()

    def settle(
        self,
        group: GroupId,
        command: SettleCommand,
        done: Done | None = None,
        *,
        by_client: bool = True,
        within_s: float = PATIENCE_S,
        redirected: bool = False,
        served: DeliveryCounters | None = None,
    ) -> None:
        """`done` is told what was decided. Only what is said `by_client` counts as settled, for
        `served` too. A client that is `redirected` asks the next leader itself.
        """
        ends: Ends = decided
        unwanted: Unwanted = partial(self._is_lost, group)
        if type(command) is SetCredit:
            self._credits[group, command.queue, command.consumer] = command
            unwanted = partial(self._is_lost_or_outdated, group, command)
            unguarded = False
        else:
            unguarded = getattr(command, "token", None) is None
        if redirected or unguarded:
            ends = partial(_ends, redirected, unguarded)
        self._retries.propose(
            group,
            command,
            partial(self._outcome, group, command, done, by_client, served),
            within_s=within_s,
            unwanted=unwanted,
            ends=ends,
        )

    async def ask(
        self,
        group: GroupId,
        command: SettleCommand,
        *,
        redirected: bool = False,
        served: DeliveryCounters | None = None,
    ) -> Outcome:
        """The same, for callers that wait for an answer."""
        return await called_back(
            lambda done: self.settle(
                group, command, done, within_s=ANSWER_S_MAX, redirected=redirected, served=served
            )
        )

    def _outcome(
        self,
        group: GroupId,
        command: SettleCommand,
        done: Done | None,
        by_client: bool,
        served: DeliveryCounters | None,
        outcome: Outcome,
    ) -> None:
        if type(command) is SetCredit:
            if self._is_latest(group, command):
                del self._credits[group, command.queue, command.consumer]
            elif not decided(outcome):  # whatever became of it, the later one holds
                outcome = Outcome("ok", Ok())
        reply = outcome.reply
        if by_client and type(command) is Settle and type(reply) is Ok:
            self._counts.settled += reply.count
            if served is not None:
                served.acknowledged += reply.count
        elif outcome.kind == "refused":
            if outcome.code == NOT_UPGRADED and type(command) is Return and command.unsent:
                known = replace(command, unsent=False)
                self.settle(group, known, done, by_client=by_client, served=served)
                return
            if outcome.in_doubt:
                reason = f"it was asked for again, and then refused: {outcome.reason}"
                outcome = Outcome("unknown", code="unknown", reason=reason)
        if done is not None:
            done(outcome)

    def _is_lost(self, group: GroupId) -> bool:
        """It was of a transient queue, which went with its node."""
        return self._cluster.transient.is_lost(group, self._cluster.catalog_machine)

    def _is_lost_or_outdated(self, group: GroupId, command: SetCredit) -> bool:
        return self._is_lost(group) or not self._is_latest(group, command)

    def _is_latest(self, group: GroupId, command: SetCredit) -> bool:
        return self._credits.get((group, command.queue, command.consumer)) is command


def _ends(redirected: bool, unguarded: bool, outcome: Outcome) -> bool:
    """`unguarded`: said twice, it may hit a later delivery than the first time."""
    if redirected and outcome.code in ELSEWHERE:
        return True
    return decided(outcome) or (unguarded and outcome.kind == "unknown")
