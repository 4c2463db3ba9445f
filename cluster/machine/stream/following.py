"""Streams that a stream follows: the one that it mirrors, or those that it sources.

The node that leads the stream reads the others and proposes what it read, with its sequences there.
How far each was taken is state, so a batch that comes twice, or from two who each believe to lead,
is taken once. So is since when each is followed: a batch that was read before it was taken out and
put back begins in its middle, and what lies before would never be taken. A mirror keeps sequences
and times; what is sourced is stored like a publish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cluster.machine.admission import BODIES_MAX, NAME_CHARS_MAX
from cluster.machine.commands import Enqueue, Origin
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import REFUSED
from cluster.machine.replies import BAD_ARGUMENT, NOT_ALLOWED, OUT_OF_SEQUENCE, Refused, Reply
from cluster.machine.stream import errors
from cluster.machine.stream.appending import Appending, Asked, Outcome
from cluster.machine.stream.publishers import Answer
from cluster.machine.stream.settings import (
    ASKED_ID,
    ASKED_MARKER,
    ASKED_ROLLUP,
    ASKED_TTL_MS,
    FIRST_SEQ_MAX,
    StreamSettings,
)
from cluster.types import QueueId

#: Why the rest of a batch is not taken, and comes again later.
_LATER: Final = frozenset({errors.NO_ROOM, errors.SEALED})
#: A key has the names and subjects of one of a stream's sources.
KEY_CHARS_MAX: Final = 1 << 16


class Taken(NamedTuple):
    """How far another stream was taken."""

    queue: QueueId
    last: int  # of its sequences


@dataclass(eq=False, slots=True)
class Following:
    appending: Appending
    taken: dict[str, Taken] = field(default_factory=dict[str, Taken])
    #: The log's index of the change that put each there; without: the stream began with it.
    since: dict[str, int] = field(default_factory=dict[str, int])
    #: Somebody is to be told that there are others to follow.
    is_news: bool = False

    @property
    def settings(self) -> StreamSettings:
        return self.appending.settings

    def configured(self, before: StreamSettings | None, index: int) -> None:
        """None: the stream was just made. `index`: of the change."""
        origins = self.settings.origins
        if before is None or before.origins != origins:
            self.is_news |= bool(origins or before is not None)
            self.taken = {key: self.taken[key] for key in origins if key in self.taken}
            kept = origins if before is None else before.origins
            new = {key: index for key in origins if key not in kept}
            self.since = {key: self.since[key] for key in origins if key in self.since} | new

    def take_news(self) -> bool:
        news, self.is_news = self.is_news, False
        return news

    def take(self, context: ApplyContext, command: Enqueue, origin: Origin) -> Reply:
        """Store what is wanted next of another stream."""
        keeps_times = self.settings.mirror is not None
        objection = _malformed(command, origin, keeps_times=keeps_times)
        objection = objection or self._out_of_place(origin)
        if objection is not None:
            return objection
        count = len(command.bodies)
        batch = self.appending.read(command, 0) if count else None
        if isinstance(batch, Refused):
            return batch
        outcome, last = Outcome(), origin.last
        if batch is not None:
            sequences = [at for first, end in origin.sequences for at in range(first, end + 1)]
            self.appending.forget_ids(context)
            for place, sequence in enumerate(sequences):
                subject, size, asked = batch.message(place)
                subject, asked = self.appending.kept_as(subject), self._allowed(asked)
                answer = self._objection(context, subject, size, asked)
                if answer is not None and answer[0] in _LATER:
                    outcome.answers += [(each, answer) for each in range(place, count)]
                    last = sequence - 1
                    break
                if place in batch.large:
                    self.appending.uploads.end(batch.large[place][0])
                if answer is not None:
                    outcome.answers.append((place, answer))
                    if answer[0] != errors.DUPLICATE:
                        self.appending.leaving.count(context, REFUSED, 1)
                    continue
                now_ms = context.now_ms
                if keeps_times:
                    retained = self.appending.retained
                    retained.skip(sequence - retained.next)
                    now_ms = max(origin.times_ms[place], retained.last_ms)
                stored = self.appending.store(
                    context, command, place, subject, size, batch.large, now_ms
                )
                outcome.store(place, place, stored)
                self.appending.do_asked(context, subject, stored, asked, now_ms)
        self.taken[origin.key] = Taken(origin.queue, last)
        return outcome.reply()

    def _out_of_place(self, origin: Origin) -> Refused | None:
        if origin.key not in self.settings.origins:
            name = self.appending.identity.name
            return Refused(NOT_ALLOWED, f"stream {name} does not follow {origin.key}")
        if origin.since != self.since.get(origin.key, 0):
            key = origin.key[:NAME_CHARS_MAX]
            return Refused(NOT_ALLOWED, f"{key} was taken out, and put back since")
        known = self.taken.get(origin.key)
        wanted = origin.after + 1
        if known is not None and origin.queue <= known.queue:
            wanted = known.last + 1
            if origin.queue < known.queue:
                return _out_of_sequence(origin, wanted)
        if self.settings.mirror is not None:
            wanted = max(wanted, self.appending.retained.next)
        return None if origin.after + 1 == wanted else _out_of_sequence(origin, wanted)

    def _allowed(self, asked: Asked) -> Asked:
        """What else a message asks for was looked at by the other stream, or is of no meaning here:
        nobody waits for an answer.
        """
        settings = self.settings
        allowed: dict[int, Any] = {}
        if ASKED_ID in asked and settings.mirror is None and settings.dedup_window_ms:
            allowed[ASKED_ID] = asked[ASKED_ID]
        if ASKED_TTL_MS in asked and settings.message_ttl:
            allowed[ASKED_TTL_MS] = asked[ASKED_TTL_MS]
        if ASKED_MARKER in asked:
            allowed[ASKED_MARKER] = True
        if ASKED_ROLLUP in asked and settings.rollup and not settings.deny_purge:
            allowed[ASKED_ROLLUP] = asked[ASKED_ROLLUP]
        return allowed

    def _objection(
        self, context: ApplyContext, subject: bytes, size: int, asked: Asked
    ) -> Answer | None:
        """Why a message is not stored."""
        settings, appending = self.settings, self.appending
        if settings.sealed:
            return errors.SEALED, 0
        known = appending.ids.find(asked[ASKED_ID]) if asked.get(ASKED_ID) else 0
        if known:
            return errors.DUPLICATE, known
        if settings.message_bytes_max is not None and size > settings.message_bytes_max:
            return errors.MESSAGE_TOO_LARGE, 0
        if settings.discard_new and not context.decided:
            rolls_up = appending.rolls_up(context, asked)
            return appending.lacks_room(subject, size, None, rolls_up=rolls_up)
        return None

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[list[Any]]:
        """A queue that is None: nothing was taken yet."""
        rows: list[list[Any]] = []
        for key in sorted(self.taken.keys() | self.since.keys()):
            since = [self.since[key]] if key in self.since else []
            rows.append([key, *self.taken.get(key, (None, 0)), *since])
        return rows

    def load(self, rows: Sequence[Any]) -> None:
        self.taken = {
            key: Taken(QueueId(queue), last) for key, queue, last, *_ in rows if queue is not None
        }
        self.since = {key: since for key, _, _, *more in rows for since in more}

    def invariants(self) -> None:
        origins = set(self.settings.origins)
        assert self.taken.keys() <= origins, "taken of what is not followed"
        assert self.since.keys() <= origins, "it is known since when something is not followed"
        if self.settings.mirror is not None:
            last = max((each.last for each in self.taken.values()), default=0)
            assert self.appending.retained.next - 1 <= last, "a mirror is ahead of the other stream"


def _malformed(command: Enqueue, origin: Origin, *, keeps_times: bool) -> Refused | None:
    count = len(command.bodies)
    if count > BODIES_MAX or command.publisher is not None or command.atomic:
        return Refused(
            BAD_ARGUMENT, f"a batch of another stream has at most {BODIES_MAX} bodies, and no name"
        )
    if not 0 < len(origin.key) <= KEY_CHARS_MAX:
        return Refused(BAD_ARGUMENT, f"a key has 1 to {KEY_CHARS_MAX} characters")
    before, found = origin.after, 0
    for first, end in origin.sequences:
        if not before < first <= end:
            return Refused(BAD_ARGUMENT, "sequences ascend, and lie behind what was taken before")
        before, found = end, found + end - first + 1
    if found != count or not 0 <= before <= origin.last <= FIRST_SEQ_MAX:
        return Refused(BAD_ARGUMENT, "each body has a sequence, and the last one none above it")
    if keeps_times and len(origin.times_ms) != count:
        return Refused(BAD_ARGUMENT, "a mirror needs the time of each body")
    return None


def _out_of_sequence(origin: Origin, wanted: int) -> Refused:
    reason = f"of {origin.key[:NAME_CHARS_MAX]} sequence {wanted} is wanted next"
    return Refused(OUT_OF_SEQUENCE, reason, wanted)
