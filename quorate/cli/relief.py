"""`quorate queue relieve`: what a queue holds too much of waits in another one meanwhile.

Four levels, so that it does not start and stop all the time. Over the highest the oldest messages
go to the other queue, until the queue is below a lower one; when it has nearly run empty they come
back, until it holds some again. Each level is of messages and of bytes: one starts when either
measure is over it, and what ends by a lower level ends when both are below, so that one measure
that is low and one that is high do not undo each other's work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from quorate.cli.api import with_api
from quorate.cli.backlogs import AT_ONCE, Moving, carry
from quorate.cli.output import CommandError, emit, say

if TYPE_CHECKING:
    from quorate.management import Management

Phase = Literal["rest", "out", "back"]

LOOK_S = 1.0
#: Messages moved between two looks at how much there is.
BETWEEN_LOOKS = 8 * AT_ONCE


class Held(NamedTuple):
    """What waits in a queue, or a level of it."""

    messages: int
    bytes: int

    def over(self, level: Held) -> bool:
        """In either measure."""
        return self.messages > level.messages or self.bytes > level.bytes

    def below(self, level: Held) -> bool:
        """In both."""
        return self.messages < level.messages and self.bytes < level.bytes


@dataclass(frozen=True, slots=True)
class Levels:
    start: Held  # over it messages go out
    stop: Held  # until it is below this
    back: Held  # below it they come back
    full: Held  # until it is over this

    @classmethod
    def of(cls, messages: int, size: int) -> Levels:
        """A twentieth and a two-hundredth of where it starts."""

        def share(part: int) -> Held:
            return Held(max(1, messages // part), max(1, size // part))

        return cls(share(1), share(20), share(200), share(20))

    def with_messages(self, **levels: int | None) -> Levels:
        """Of those that are named, so many messages."""
        given = {name: count for name, count in levels.items() if count is not None}
        changed: dict[str, Held] = {
            name: Held(count, getattr(self, name).bytes) for name, count in given.items()
        }
        return replace(self, **changed)

    def wrong(self) -> str | None:
        for lower, higher, words in (
            (self.stop, self.start, "--until must be below --above"),
            (self.back, self.full, "--back-below must be below --back-until"),
            (self.full, self.start, "--back-until must be below --above"),
        ):
            if not (lower.messages <= higher.messages and lower.bytes <= higher.bytes):
                return words
        return None


def next_phase(phase: Phase, here: Held, there: Held, levels: Levels) -> Phase:
    """What is to be done now, with so much in the queue and in the other one."""
    if here.over(levels.start):
        return "out"
    if phase == "out" and not here.below(levels.stop):
        return "out"
    if not there.messages:
        return "rest"
    if phase == "back":
        return "rest" if here.over(levels.full) else "back"
    return "back" if here.below(levels.back) else "rest"


def run_relieve(
    queue: str,
    other: str,
    levels: Levels,
    url: str | None,
    *,
    vhost: str,
    rate: float | None,
    once: bool,
    as_json: bool,
    timeout: float,
) -> int:
    """`once`: until there is nothing to do. Otherwise for ever."""
    wrong = levels.wrong()
    if wrong is not None:
        raise CommandError(wrong, 2)
    work = Relief(queue, other, vhost, levels, rate, timeout, as_json=as_json)
    with_api(
        url,
        lambda api: work.run(api, once=once),
        timeout=timeout,
        missing=f"there is no queue {queue} or {other}: see `quorate queue list`",
    )
    return 0


class Relief:
    def __init__(
        self,
        queue: str,
        other: str,
        vhost: str,
        levels: Levels,
        rate: float | None,
        timeout: float,
        *,
        as_json: bool,
    ) -> None:
        self._levels = levels
        self._out = Moving(queue, other, vhost, {}, count=BETWEEN_LOOKS, rate=rate, timeout=timeout)
        self._back = replace(self._out, source=other, target=queue)
        self._as_json = as_json

    async def run(self, api: Management, *, once: bool) -> None:
        phase: Phase = "rest"
        while True:
            here, there = await self._held(api, self._out), await self._held(api, self._back)
            before, phase = phase, next_phase(phase, here, there, self._levels)
            if phase != before:
                self._tell(phase, here, there)
            if phase == "rest":
                if once:
                    return
                await asyncio.sleep(LOOK_S)
                continue
            moving = self._out if phase == "out" else self._back
            moved = await carry(api, self._as_much(moving, phase, here), shown=False)
            if not moved["done"]:
                await asyncio.sleep(LOOK_S)  # full, or a consumer was faster

    def _as_much(self, moving: Moving, phase: Phase, here: Held) -> Moving:
        """No more than leads to the level at which it ends."""
        levels = self._levels
        if phase == "out":
            left = here.messages - levels.stop.messages + 1
        else:
            left = levels.full.messages - here.messages + 1
        return replace(moving, count=max(1, min(BETWEEN_LOOKS, left)))

    async def _held(self, api: Management, moving: Moving) -> Held:
        found: dict[str, Any] = await api.get("queues", moving.vhost, moving.source)
        return Held(found.get("messages_ready", 0), found.get("message_bytes_ready", 0))

    def _tell(self, phase: Phase, here: Held, there: Held) -> None:
        queue, other = self._out.source, self._back.source
        if self._as_json:
            emit({"phase": phase, queue: here._asdict(), other: there._asdict()})
            return
        what = {"out": f"messages go to {other}", "back": f"they come back from {other}"}
        say(
            f"queue {queue}: {what.get(phase, 'at rest')}; it holds {here.messages:,} messages"
            f" ({here.bytes:,} bytes), {other} {there.messages:,} ({there.bytes:,} bytes)"
        )
