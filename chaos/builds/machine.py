"""Builds whose queues decide wrongly, all replicas alike."""
# They reach into the machine on purpose.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chaos.builds.build import Build, Change
from cluster.groups.group import Group
from cluster.groups.outcome import Done, Outcome
from cluster.machine.admission import QueueAdmission, is_carrier
from cluster.machine.commands import Command, Enqueue
from cluster.machine.consumers import Consumer, Consumers
from cluster.machine.context import ApplyContext
from cluster.machine.messages import Messages
from cluster.machine.replies import Chunk, Enqueued, Reply
from cluster.types import QueueId


def _serve_all(honest: Callable[..., deque[Consumer] | None]) -> Callable[..., Any]:
    def serving(self: Consumers) -> deque[Consumer] | None:
        """Also those that only wait to become active: whoever holds least comes first."""
        if not self.single_active:
            return honest(self)
        able = [c for c in self.by_key.values() if c.registered and c.connected and c.room]
        return deque(sorted(able, key=lambda c: (c.held.count, c.key))) or None

    return serving


def _take_any_number(honest: Callable[..., Reply]) -> Callable[..., Reply]:
    def enqueue(self: QueueAdmission, context: ApplyContext, command: Enqueue) -> Reply:
        name = command.publisher
        if name is not None and command.seqno > 0 and not is_carrier(name):
            self.publishers.answered(name, 0, context.now_ms, ())
            known = self.publishers.known(name, context.now_ms)
            if known is not None:
                known.last, known.refused = command.seqno - 1, None
        return honest(self, context, command)

    return enqueue


def _remember_here(honest: Callable[..., None]) -> Callable[..., None]:
    def propose(self: Group, command: Command, done: Done | None = None) -> None:
        """The leader's own memory: it answers a repeated publish itself, as long as it leads."""
        if not isinstance(command, Enqueue) or command.publisher is None or done is None:
            honest(self, command, done)
            return
        taken: dict[tuple[QueueId, str], int] = vars(self).setdefault("broken_numbers", {})
        key, count = (command.queue, command.publisher), len(command.bodies)
        last = command.seqno + count - 1
        if count and last <= taken.get(key, 0):
            done(Outcome("ok", Enqueued(0, 0, count)))
            return

        def answered(outcome: Outcome) -> None:
            if outcome.kind == "ok":
                taken[key] = max(last, taken.get(key, 0))
            done(outcome)

        honest(self, command, answered)

    return propose


def _first_time_always(honest: Callable[..., list[Chunk]]) -> Callable[..., list[Chunk]]:
    def chunks_of(self: Messages, first: int, last: int, token: int) -> list[Chunk]:
        return [replace(each, acquired_count=0) for each in honest(self, first, last, token)]

    return chunks_of


SAC_WITHOUT_FENCING = Build(
    "sac-without-fencing",
    "Consumers behind the single active one are served while that one may still settle.",
    (Change(Consumers, "serving", _serve_all),),
)
DEDUP_NOT_REPLICATED = Build(
    "dedup-not-replicated",
    "Only the leader that took a publisher's numbers knows them: the next one stores them again.",
    (
        Change(QueueAdmission, "enqueue", _take_any_number),
        Change(Group, "propose", _remember_here),
    ),
)
UNFLAGGED_REDELIVERY = Build(
    "unflagged-redelivery",
    "A message that was delivered before comes as if for the first time.",
    (Change(Messages, "chunks_of", _first_time_always),),
)
