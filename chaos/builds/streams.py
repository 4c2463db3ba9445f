"""Builds whose streams decide wrongly, most of them all replicas alike."""
# They reach into the machine on purpose.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from chaos.builds.build import Build, Change
from cluster.machine.commands import Acknowledge, Enqueue, Origin
from cluster.machine.context import ApplyContext
from cluster.machine.replies import Ok, Reply
from cluster.machine.stream.appending import Appending
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.following import Following
from cluster.machine.stream.publishers import MessageIds
from cluster.machine.stream.retained import Retained
from cluster.machine.stream.settings import ASKED_LAST_SUBJECT
from cluster.machine.stream.table import ConsumerTable

#: Of the appends of one replica.
SKIPPED_SHARE = 0.02
#: Of all acknowledgements one in so many is answered and forgotten.
FORGOTTEN_EVERY = 3
#: Of all entries that bring a batch of another stream.
PASSED_EVERY = 3


def _skip_some(honest: Callable[..., int]) -> Callable[..., int]:
    dice = random.Random()

    def append(self: Retained, *about: Any) -> int:
        if dice.random() < SKIPPED_SHARE:
            self.skip(1)
        return honest(self, *about)

    return append


def _forget_some(honest: Callable[..., Reply]) -> Callable[..., Reply]:
    def acknowledge(self: ConsumerTable, context: ApplyContext, command: Acknowledge) -> Reply:
        if context.index % FORGOTTEN_EVERY == 0:
            return Ok(1)
        return honest(self, context, command)

    return acknowledge


def _due_at_once(_honest: Any) -> Callable[..., int]:
    def due_ms(self: StreamConsumer, deliveries: int, now_ms: int) -> int:
        return now_ms + 1

    return due_ms


def _compare_nothing(honest: Callable[..., Any]) -> Callable[..., Any]:
    def objection(self: Appending, subject: bytes, asked: Mapping[int, Any], *about: Any) -> Any:
        kept = {key: value for key, value in asked.items() if key != ASKED_LAST_SUBJECT}
        return honest(self, subject, kept, *about)

    return objection


def _find_none(_honest: Any) -> Callable[..., int]:
    def find(self: MessageIds, message_id: str) -> int:
        return 0

    return find


def _pass_over_some(honest: Callable[..., Reply]) -> Callable[..., Reply]:
    def take(self: Following, context: ApplyContext, command: Enqueue, origin: Origin) -> Reply:
        if self.settings.mirror is not None and command.bodies and not context.index % PASSED_EVERY:
            sequences, times_ms = origin.sequences[:-1], origin.times_ms[:-1]
            origin = replace(origin, sequences=sequences, times_ms=times_ms)
            some = {name: getattr(command, name)[:-1] for name in ("bodies", "meta", "attrs")}
            command = replace(command, origin=origin, **some)
        return honest(self, context, command, origin)

    return take


def _take_some_twice(honest: Callable[..., Reply]) -> Callable[..., Reply]:
    def take(self: Following, context: ApplyContext, command: Enqueue, origin: Origin) -> Reply:
        reply = honest(self, context, command, origin)
        known = self.taken.get(origin.key)
        if self.settings.mirror is None and known and not context.index % PASSED_EVERY:
            self.taken[origin.key] = known._replace(last=known.last - 1)
        return reply

    return take


SEQUENCES_OF_ITS_OWN = Build(
    "sequences-of-its-own",
    "Each replica of a stream leaves out a sequence now and then, no two the same ones.",
    (Change(Retained, "append", _skip_some),),
)
FORGOTTEN_ACKS = Build(
    "forgotten-acks",
    "A stream answers each acknowledgement, and forgets one of three.",
    (Change(ConsumerTable, "acknowledge", _forget_some),),
)
HANDED_TO_TWO = Build(
    "handed-to-two",
    "What one client of a consumer works on the next one who asks is handed, too.",
    (Change(StreamConsumer, "_due_ms", _due_at_once),),
)
COMPARE_NOTHING = Build(
    "compare-nothing",
    "A stream ignores which last sequence of its subject a publish expects.",
    (Change(Appending, "_objection", _compare_nothing),),
)
PASSED_OVER = Build(
    "passed-over",
    "A mirror passes over the last message of a batch now and then.",
    (Change(Following, "take", _pass_over_some),),
)
TAKEN_TWICE = Build(
    "taken-twice",
    "A stream forgets now and then that it took the last message of a batch of a source.",
    (Change(Following, "take", _take_some_twice),),
)
FORGOTTEN_IDS = Build(
    "forgotten-ids",
    "A stream stores a message again whose id it has stored a moment ago.",
    (Change(MessageIds, "find", _find_none),),
)
