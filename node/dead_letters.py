"""Dead letters whose target is in another group: carried there at least once, stored there once.

The source's machine keeps them in an outbox, numbered without gaps, until it hears that they are
safe. One worker a queue, on the leader, sends them in order under a publisher name made of the
source queue, with their numbers: a resend after a crash is known to the target. Two things break
the run of numbers at a target, a letter that went to another queue before and a target that was
full; such a letter goes under a name of its own, which names it for ever, so that it too is stored
once. Names that start with `~` are forgotten by the target after an hour, which bounds memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import structlog

from cluster.group import Group, Outcome
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_DEATHS, DeadLettersMoved, Enqueue
from cluster.machine.effects import DeadLetter
from cluster.machine.replies import NO_QUEUE, OUT_OF_SEQUENCE, QUEUE_FULL, Enqueued
from cluster.types import BodyRef, GroupId, QueueId
from node.broker import Broker
from node.errors import BrokerError, Elsewhere
from node.metrics import Metrics
from node.tasks import Tasks

log = structlog.get_logger(__name__)

LETTERS_AT_ONCE = 256
BYTES_AT_ONCE = 1 << 20
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 5.0


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter with its content, and where it goes."""

    number: int
    body: bytes
    meta: Any
    deaths: Any
    target: QueueInfo | None  # None: nowhere


class _Later(Exception):
    """The target cannot take it now."""


class DeadLetters:
    """Workers of the queues that this node leads."""

    def __init__(self, broker: Broker, tasks: Tasks, metrics: Metrics) -> None:
        self._broker = broker
        self._tasks = tasks
        self._metrics = metrics
        self._working: set[QueueId] = set()
        self._attempts: dict[tuple[QueueId, int], int] = {}

    def ready(self, group: GroupId, queue: QueueId) -> None:
        """The outbox of this queue is not empty."""
        if queue not in self._working:
            self._working.add(queue)
            self._tasks.start(self._work(group, queue), name="dead_letters")

    async def _work(self, group: GroupId, queue: QueueId) -> None:
        backoff_s = BACKOFF_S_MIN
        try:
            while True:
                letters = self._letters(group, queue)
                if not letters:
                    return
                moved = await self._move(queue, letters)
                if moved:
                    await self._broker.ask(group, DeadLettersMoved(queue, moved))
                if moved == letters[-1].number:
                    backoff_s = BACKOFF_S_MIN
                    continue
                await asyncio.sleep(backoff_s)
                backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)
        except Elsewhere:
            return  # the next leader is told on_leader
        finally:
            self._working.discard(queue)
            for key in [key for key in self._attempts if key[0] == queue]:
                del self._attempts[key]

    def _letters(self, group_id: GroupId, queue: QueueId) -> list[Letter]:
        group = self._broker.led(group_id)
        machine = self._broker.machine(group_id)
        view = machine.queue(queue)
        if view is None:
            return []
        letters: list[Letter] = []
        size = 0
        for dead in machine.dead_letters(queue)[:LETTERS_AT_ONCE]:
            letter = self._read(group, dead, view.vhost, view.name)
            size += len(letter.body)
            if letters and size > BYTES_AT_ONCE:
                break
            letters.append(letter)
        return letters

    def _read(self, group: Group, dead: DeadLetter, vhost: str, name: str) -> Letter:
        found = group.read_bodies(BodyRef(dead.index, dead.offset, 1))
        if not found:
            log.error("dead_letter_unreadable", queue=name, number=dead.number, index=dead.index)
            return Letter(dead.number, b"", None, None, None)
        body, meta = found[0]
        key = dead.routing_key
        if key is None:
            own = cast("dict[str, Any]", meta).get("key") if type(meta) is dict else None
            key = own if type(own) is str else name
        targets = self.route(vhost, dead.exchange, key)
        if not targets:
            log.warning("dead_letter_dropped", queue=name, exchange=dead.exchange, key=key)
        return Letter(dead.number, body, meta, dead.deaths, targets[0] if targets else None)

    def route(self, vhost: str, exchange: str, key: str) -> Sequence[QueueInfo]:
        """The queues a message goes to. The default exchange, "": the one that the key names."""
        if exchange != "":
            return ()
        info = self._broker.locate(vhost, key)
        return () if info is None else (info,)

    # --- sending ----------------------------------------------------------------------------------

    async def _move(self, queue: QueueId, letters: Sequence[Letter]) -> int:
        """The highest number up to which all are safe or dropped; 0: none."""
        moved = 0
        for target, run in runs(letters):
            if target is None:
                self._metrics.dead_letters_dropped += len(run)
                moved = run[-1].number
                continue
            try:
                for number in await self._send(queue, target, run):
                    moved = number
            except _Later as later:
                log.info("dead_letters_wait", target=target.name, reason=str(later))
                return max(moved, later.args[1])
            moved = run[-1].number
        return moved

    async def _send(self, queue: QueueId, target: QueueInfo, run: Sequence[Letter]) -> list[int]:
        """All of a run, or _Later(reason, highest number that is safe)."""
        outcome = await self._ask(target, f"dlx:{queue}", run[0].number, run)
        reply = outcome.reply
        if outcome.kind == "ok" and isinstance(reply, Enqueued):
            if not reply.refused or _handles_refused(target):
                self._metrics.dead_letters_moved += reply.stored
                return [run[-1].number]
            self._metrics.dead_letters_moved += reply.stored
            refused = [
                letter
                for offset, letter in enumerate(run)
                if any(first <= offset <= last for first, last in reply.refused)
            ]
            return await self._send_each(queue, target, refused, run)
        if outcome.kind == "refused" and outcome.code in {OUT_OF_SEQUENCE, QUEUE_FULL}:
            return await self._send_each(queue, target, run, run)
        if outcome.kind == "refused" and outcome.code == NO_QUEUE:
            raise _Later("the target was deleted", 0)
        raise _Later(outcome.reason or outcome.kind, 0)

    async def _send_each(
        self,
        queue: QueueId,
        target: QueueInfo,
        letters: Sequence[Letter],
        run: Sequence[Letter],
    ) -> list[int]:
        """One by one, each under its own name; its seqno counts the attempts at a full target."""
        for letter in letters:
            attempt = self._attempts.get((queue, letter.number), 1)
            name = f"~dlx:{queue}:{letter.number}"
            outcome = await self._ask(target, name, attempt, [letter])
            reply = outcome.reply
            if outcome.kind == "ok" and isinstance(reply, Enqueued) and not reply.refused:
                self._metrics.dead_letters_moved += reply.stored
                self._attempts.pop((queue, letter.number), None)
                continue
            if outcome.code == OUT_OF_SEQUENCE:  # an earlier leader tried less often: begin again
                self._attempts[queue, letter.number] = 1
            elif outcome.kind == "ok" or outcome.code == QUEUE_FULL:
                self._attempts[queue, letter.number] = attempt + 1
            safe = letter.number - 1 if letter.number > run[0].number else 0
            raise _Later(outcome.reason or "the target is full", safe)
        return [run[-1].number]

    async def _ask(
        self, target: QueueInfo, publisher: str, seqno: int, letters: Sequence[Letter]
    ) -> Outcome:
        command = Enqueue(
            target.queue,
            publisher,
            seqno,
            [letter.body for letter in letters],
            [letter.meta for letter in letters],
            [{ATTR_DEATHS: letter.deaths} for letter in letters],
        )
        try:
            return await self._broker.cluster.ask(target.group, command)
        except BrokerError as error:
            raise _Later(error.reason, 0) from error


def runs(letters: Sequence[Letter]) -> Iterator[tuple[QueueInfo | None, Sequence[Letter]]]:
    """Neighbours with the same target."""
    start = 0
    for position, letter in enumerate(letters):
        if letter.target != letters[start].target:
            yield letters[start].target, letters[start:position]
            start = position
    if letters:
        yield letters[start].target, letters[start:]


def _handles_refused(target: QueueInfo) -> bool:
    """Does the target dead-letter what it refuses itself?"""
    return target.arguments.get("x-overflow") == "reject-publish-dlx"
