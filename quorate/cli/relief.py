"""`quorate queue relieve`: what a queue holds too much of waits in another one meanwhile.

Four levels, so that it does not start and stop all the time. Over the highest the oldest messages
go to the other queue, until the queue is below a lower one; when it has nearly run empty they come
back, until it holds some again. Each level is of messages and of bytes: one starts when either
measure is over it, and what ends by a lower level ends when both are below, so that one measure
that is low and one that is high do not undo each other's work.

The other queue is one of the same cluster, or of another broker: then shovels carry the messages.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from quorate.cli.api import Commands, InVhost, Queue
from quorate.cli.backlogs import AT_ONCE, Moving, Rate, carry, missing
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


relief_app = Commands()


@relief_app.command("relieve")
def queue_relieve(
    cluster: InVhost,
    queue: Queue,
    to: Annotated[str, typer.Argument(help="Name of the queue where they wait meanwhile.")],
    above: Annotated[
        int, typer.Option("--above", min=1, help="Messages over which the oldest go there.")
    ] = 20_000_000,
    above_bytes: Annotated[
        int, typer.Option("--above-bytes", min=1, help="Or so many bytes.")
    ] = 10_000_000_000,
    until: Annotated[
        int | None, typer.Option("--until", min=1, help="Default: a twentieth of --above.")
    ] = None,
    back_below: Annotated[
        int | None,
        typer.Option(
            "--back-below",
            min=1,
            help="Messages below which they come back. Default: a two-hundredth of --above.",
        ),
    ] = None,
    back_until: Annotated[
        int | None, typer.Option("--back-until", min=1, help="Default: a twentieth of --above.")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            "--uri",
            metavar="amqp://...",
            help="The broker that has the other queue, if not this cluster. Shovels carry messages"
            " there and back.",
        ),
    ] = None,
    rate: Rate = None,
    once: Annotated[bool, typer.Option("--once", help="End when there is nothing to do.")] = False,
) -> int:
    """Keep a queue between levels: when it holds too much its oldest messages wait in another one,
    and come back when it has nearly run empty. It goes on until it is ended, which harms nothing.
    """
    levels = Levels.of(above, above_bytes).with_messages(
        stop=until, back=back_below, full=back_until
    )
    wrong = levels.wrong()
    if wrong is None and uri is not None and rate is not None:
        wrong = "--rate holds for moves within a cluster; a shovel goes as fast as both sides do"
    if wrong is None and uri is None and queue == to:
        wrong = f"queue {to} would get its own messages: name another queue"
    if wrong is None and uri is not None and not uri.startswith(("amqp://", "amqps://")):
        wrong = f"--uri {uri!r} is no amqp:// or amqps:// address, such as amqp://user@host:5672"
    if wrong is not None:
        raise CommandError(wrong, 2)
    here = [queue] if uri is not None else [queue, to]
    for name in here:
        row = cluster.api(
            lambda api: api.get("queues", cluster.vhost, name, columns="name,shards"),  # noqa: B023 -- asked here
            missing=missing(name),
        )
        if shards := row.get("shards"):
            raise CommandError(
                f"queue {name} is split, and each of its shards has levels of its own: relieve"
                f" {', '.join(shards)}, each with another queue",
                2,
            )
    if uri is None:
        relief = Moves(cluster, queue, to, levels, rate)
    else:
        relief = Shovels(cluster, queue, to, levels, uri)
    cluster.api(
        lambda api: _run(relief, api, once=once, as_json=cluster.as_json),
        missing=f"there is no queue {queue} or {to}: see `quorate queue list`",
    )
    return 0


async def _run(relief: Relief, api: Management, *, once: bool, as_json: bool) -> None:
    phase: Phase = "rest"
    seen = True
    while True:
        try:
            here, there = await relief.here(api), await relief.there(api)
        except OtherUnreachable as error:
            if once:
                raise
            if seen:
                say(f"{error}; it is asked again")
            seen = False
            await asyncio.sleep(LOOK_S)
            continue
        seen = True
        before, phase = phase, next_phase(phase, here, there, relief.levels)
        if phase != before:
            _tell(relief, phase, here, there, as_json=as_json)
        moved = await relief.carry(api, phase, here)
        if phase == "rest" and once:
            return
        if not moved:
            await asyncio.sleep(LOOK_S)


def _tell(relief: Relief, phase: Phase, here: Held, there: Held, *, as_json: bool) -> None:
    queue, other = relief.queue, relief.other
    if as_json:
        emit({"phase": phase, queue: here._asdict(), other: there._asdict()})
        return
    what = {"out": f"messages go to {other}", "back": f"they come back from {other}"}
    say(
        f"queue {queue}: {what.get(phase, 'at rest')}; it holds {here.messages:,} messages"
        f" ({here.bytes:,} bytes), {other} {there.messages:,}"
        + (f" ({there.bytes:,} bytes)" if there.bytes else "")
    )


class OtherUnreachable(CommandError):
    """The broker that has the other queue does not say how much is in it."""


class Relief(ABC):
    """How messages go from one queue to the other, and back."""

    def __init__(self, cluster: InVhost, queue: str, other: str, levels: Levels) -> None:
        self.cluster, self.vhost = cluster, cluster.vhost
        self.queue, self.other, self.levels = queue, other, levels

    async def here(self, api: Management) -> Held:
        return await _held(api, self.vhost, self.queue)

    @abstractmethod
    async def there(self, api: Management) -> Held: ...

    @abstractmethod
    async def carry(self, api: Management, phase: Phase, here: Held) -> bool:
        """Some of what the phase asks for. False: it goes by itself, or not now."""

    def count(self, phase: Phase, here: Held) -> int:
        """About as many as lead to the level at which the phase ends; by size, if these messages
        are all alike.
        """
        stop, full = self.levels.stop, self.levels.full
        if phase == "back":
            return max(1, full.messages - here.messages + 1)
        by_size = (here.bytes - stop.bytes) * here.messages // max(1, here.bytes)
        return max(1, here.messages - stop.messages + 1, by_size)


class Moves(Relief):
    """Within a cluster: each message is in one of both at any time."""

    def __init__(
        self, cluster: InVhost, queue: str, other: str, levels: Levels, rate: float | None
    ) -> None:
        super().__init__(cluster, queue, other, levels)
        self._rate = rate

    async def there(self, api: Management) -> Held:
        return await _held(api, self.vhost, self.other)

    async def carry(self, api: Management, phase: Phase, here: Held) -> bool:
        if phase == "rest":
            return False
        ends = (self.queue, self.other) if phase == "out" else (self.other, self.queue)
        count = min(BETWEEN_LOOKS, self.count(phase, here))
        moving = Moving(self.cluster, *ends, {}, count=count, rate=self._rate)
        moved = await carry(api, moving, shown=False)
        return bool(moved["done"])  # else it is full, or a consumer was faster


class Shovels(Relief):
    """To another broker: a shovel with so many messages to carry, which ends by itself."""

    def __init__(self, cluster: InVhost, queue: str, other: str, levels: Levels, uri: str) -> None:
        super().__init__(cluster, queue, other, levels)
        self._uri = uri
        self._name = f"relieve {queue}"

    async def here(self, api: Management) -> Held:
        """With those that are on their way: what a shovel has taken may come back."""
        found: dict[str, Any] = await api.get("queues", self.vhost, self.queue)
        return Held(found.get("messages", 0), found.get("message_bytes", 0))

    async def there(self, api: Management) -> Held:
        """How many bytes these are a client of AMQP is not told."""
        import aiormq

        try:
            connection = await aiormq.connect(self._uri)
            try:
                channel = await connection.channel()
                found = await channel.queue_declare(self.other, passive=True)
                return Held(found.message_count or 0, 0)
            finally:
                await connection.close()
        except (OSError, aiormq.AMQPError) as error:
            why = f"queue {self.other} of the other broker cannot be looked at: {error}"
            raise OtherUnreachable(why, 4) from error

    async def carry(self, api: Management, phase: Phase, here: Held) -> bool:
        running = await api.find("parameters", "shovel", self.vhost, self._name)
        ours, theirs = ("src", "dest") if phase == "out" else ("dest", "src")
        if running is not None and (
            phase == "rest" or running["value"][f"{ours}-queue"] != self.queue
        ):
            await api.delete("shovels", "vhost", self.vhost, self._name)
            running = None
        if running is None and phase != "rest":
            value: dict[str, Any] = {
                f"{ours}-uri": "amqp://",
                f"{ours}-queue": self.queue,
                f"{theirs}-uri": self._uri,
                f"{theirs}-queue": self.other,
                "src-delete-after": self.count(phase, here),
            }
            path = ("parameters", "shovel", self.vhost, self._name)
            await api.put(*path, body={"value": value})
        return False


async def _held(api: Management, vhost: str, queue: str) -> Held:
    found: dict[str, Any] = await api.get("queues", vhost, queue)
    return Held(found.get("messages_ready", 0), found.get("message_bytes_ready", 0))
