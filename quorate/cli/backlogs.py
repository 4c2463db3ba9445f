"""`quorate queue why`, `move` and their kin: what piles up, and what is done about it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from quorate.cli.api import Commands, InVhost, Queue
from quorate.cli.drain import seconds
from quorate.cli.output import CommandError, emit, say, stdout
from quorate.cli.progress import Bar
from quorate.cli.tables import Row, printable, show_rows
from quorate.errors import OutcomeUnknown, Refused, Unreachable

if TYPE_CHECKING:
    from quorate.client import Client
    from quorate.management import Management

Result = TypeVar("Result")
How = Literal["move", "copy", "split"]

backlog_app = Commands()
delayed_app = Commands(help="Messages that are not ready yet, one by one.")
backlog_app.add_typer(delayed_app, name="delayed")

Target = Annotated[str, typer.Argument(help="Name of the queue that gets them.")]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="NAME=VALUE,...",
        help="Only those with this key, exchange, header.NAME, priority, state (ready, delayed),"
        " reason (of their death), older-than or younger-than (1h); repeatable, all must hold.",
    ),
]
Count = Annotated[
    int | None, typer.Option("--count", "-n", min=1, help="At most so many. Default: all.")
]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="At most so many a second.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many it would be.")]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="As `delayed list` shows; or positions.")
]

#: What is not ready for longer was put aside until it is fetched.
DEFERRED_S_MIN = 5 * 365 * 86_400
#: Messages that one request names.
AT_ONCE = 256
#: A target that is full is tried again after this, by `drain-to`.
FULL_S = 0.5
AGAIN_S = 0.2
_FILTERS = ("key", "exchange", "reason", "state", "priority", "older-than", "younger-than")
_AGES = {"older-than": "older-than-ms", "younger-than": "younger-than-ms"}


def missing(queue: str) -> str:
    return f"there is no queue {queue}: see `quorate queue list`"


@backlog_app.command("why")
def queue_why(cluster: InVhost, queue: Queue) -> int:
    """Why its messages do not move, in plain words, and what to do. Exit status 1: there is a
    reason; 0: nothing holds them up.
    """
    found: Row = cluster.api(
        lambda api: api.get("queues", cluster.vhost, queue, "why"), missing=missing(queue)
    )
    findings: list[Row] = found["findings"]
    if cluster.as_json:
        emit(found)
    elif not findings:
        say(f"queue {queue}: nothing keeps its messages from moving")
    else:
        for each in findings:
            say(f"queue {each.get('shard', queue)}: {each['code']}: {printable(each['sentence'])}")
            say(f"  next: {each['next']}")
    return 1 if findings else 0


@backlog_app.command("extend")
def queue_extend(
    cluster: InVhost,
    queue: Queue,
    span_text: Annotated[
        str, typer.Option("--by", metavar="30m", help="Time to settle, from now; 0: any.")
    ],
) -> int:
    """Give consumers longer to settle all that they hold now."""
    body = {"timeout_ms": int(seconds(span_text, "--by") * 1000)}
    found: Row = cluster.api(
        lambda api: api.post("queues", cluster.vhost, queue, "extend", body=body),
        missing=missing(queue),
    )
    span = f"{span_text} from now" if body["timeout_ms"] else "any time"
    words = f"queue {queue}: consumers have {span} for {found['extended']:,} messages"
    return cluster.done(words, **found)


# --- moving ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moving:
    """What is moved, whereto and how fast."""

    cluster: InVhost
    source: str
    target: str | None  # None: dead letters, back to where they died
    where: Row
    how: How = "move"
    count: int | None = None  # at most so many
    start: int = 1  # from this position on
    rate: float | None = None  # messages a second
    until_empty: bool = False
    operation: str = ""  # of a copy: what has this name is copied once


@backlog_app.command("move")
def queue_move(
    cluster: InVhost,
    queue: Queue,
    to: Target,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
) -> int:
    """Move messages that wait to another queue, in their order. Each is in one of both at any
    time, so it may be ended and run again.
    """
    moving = Moving(cluster, queue, to, conditions(where or []), count=count, rate=rate)
    return _run(moving, dry_run=dry_run)


@backlog_app.command("copy")
def queue_copy(
    cluster: InVhost,
    queue: Queue,
    to: Target,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    start: Annotated[
        int, typer.Option("--start", min=1, help="From this position of the queue on.")
    ] = 1,
    operation: Annotated[
        str | None,
        typer.Option(
            "--operation",
            help="A name; what was copied under it is not copied again. Default: a new one.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Copy messages that wait to another queue, in their order."""
    moving = Moving(
        cluster,
        queue,
        to,
        conditions(where or []),
        how="copy",
        count=count,
        start=start,
        rate=rate,
        operation=operation or new_operation(),
    )
    return _run(moving, dry_run=dry_run)


@backlog_app.command("drain-to")
def queue_drain_to(
    cluster: InVhost,
    queue: Queue,
    to: Target,
    where: Where = None,
    rate: Rate = None,
) -> int:
    """Move all messages to another queue until none is left, also those that come meanwhile; a
    target that is full is waited for.
    """
    moving = Moving(cluster, queue, to, conditions(where or []), rate=rate, until_empty=True)
    return _run(moving, dry_run=False)


@backlog_app.command("replay-dead-letters")
def queue_replay(
    cluster: InVhost,
    queue: Queue,
    to: Annotated[
        str | None, typer.Option("--to", help="All to this queue. Default: where each has died.")
    ] = None,
    count: Count = None,
    where: Where = None,
    rate: Rate = None,
    dry_run: DryRun = False,
) -> int:
    """Move dead letters back to the queues in which they died last."""
    moving = Moving(cluster, queue, to, conditions(where or []), count=count, rate=rate)
    return _run(moving, dry_run=dry_run)


def _run(moving: Moving, *, dry_run: bool) -> int:
    if moving.target is not None:
        _check_target(moving, moving.target)
    if dry_run:
        found = moving.cluster.api(lambda api: _would(api, moving), missing=missing(moving.source))
        words = f"{found['count']:,} messages, {found['bytes']:,} bytes, would be affected"
        return moving.cluster.done(f"queue {moving.source}: {words}", **found)
    found = moving.cluster.api(
        lambda api: _carry_all(api, moving),
        missing=missing(moving.source),
    )
    verb = "moved" if moving.how == "move" else "copied"
    to = f"to {moving.target}" if moving.target else "back to where they died"
    words = f"queue {moving.source}: {found['done']:,} messages {verb} {to}"
    left_in = found.pop("left_in", moving.source)
    for name, why in (
        ("gone", "were taken by somebody else meanwhile"),
        ("skipped", "were left: too large, or their queue is gone"),
    ):
        if found[name]:
            words += f"; {found[name]:,} {why}"
    if found["full"]:
        rest = f"from position {found['next']} on"
        if left_in != moving.source:
            rest += f" of {left_in}, and behind that"
        more = f" --operation {moving.operation} --start {found['next']}"
        again = more if moving.how == "copy" and left_in == moving.source else ""
        words += f"; {found['full']} is full: what is left, {rest}, is as it was"
        words += f"\n  next: make room there, and run it again{again}"
    moving.cluster.done(words, **found)
    return 1 if found["full"] else 0


def _check_target(moving: Moving, target: str) -> None:
    """Said before there is anything to move. CommandError."""
    if target == moving.source:
        raise CommandError(f"queue {target} would get its own messages: name another queue", 2)
    moving.cluster.api(
        lambda api: api.get("queues", moving.cluster.vhost, target, columns="name"),
        missing=f"{missing(target)}, or make it: `quorate queue declare {target}`",
    )


async def _would(api: Management, moving: Moving) -> Row:
    total: Row = {"count": 0, "bytes": 0}
    for part in await _parts(api, moving):
        start: int | None = part.start
        while start is not None and (moving.count is None or total["count"] < moving.count):
            found = await _select(api, part, start, total["count"])
            for name in total:
                total[name] += found[name]
            start = found["next"]
    return total


async def _parts(api: Management, moving: Moving) -> list[Moving]:
    """Of a split queue what is in itself and in each of its shards. CommandError."""
    row = await api.get("queues", moving.cluster.vhost, moving.source, columns="name,shards")
    shards: list[str] = [name for name in row.get("shards") or () if name != moving.target]
    if shards and moving.start > 1:
        raise CommandError(
            f"queue {moving.source} is split, and positions count in each of its shards: name one"
            f" of {', '.join(shards)} with --start",
            2,
        )
    return [moving, *[replace(moving, source=name) for name in shards]]


async def _carry_all(api: Management, moving: Moving) -> Row:
    """As `carry`, of a split queue from all of it."""
    shown = not moving.cluster.as_json
    parts = await _parts(api, moving)
    if len(parts) == 1:
        return await carry(api, moving, shown=shown)
    total: Row = {"done": 0, "gone": 0, "skipped": 0, "full": "", "next": moving.start}
    while True:
        before = total["done"]
        for part in parts:
            left = None if moving.count is None else moving.count - total["done"]
            if left == 0:
                break
            found = await carry(api, replace(part, count=left), shown=shown)
            for name in ("done", "gone", "skipped"):
                total[name] += found[name]
            if found["full"]:
                return {**total, **found, "left_in": part.source, "done": total["done"]}
        if not moving.until_empty or total["done"] == before:
            return total


async def _select(api: Management, moving: Moving, start: int, so_far: int) -> Row:
    count = AT_ONCE if moving.count is None else min(AT_ONCE, moving.count - so_far)
    body = {"where": moving.where, "start": start, "count": count}
    return await again(
        lambda: api.post("queues", moving.cluster.vhost, moving.source, "select", body=body),
        moving.cluster.timeout,
    )


async def carry(api: Management, moving: Moving, *, shown: bool) -> Row:
    """In batches that may be repeated: whenever this ends, each message is in one place."""
    total: Row = {"done": 0, "gone": 0, "skipped": 0, "full": "", "next": moving.start}
    body: Row = {"to": moving.target or ""}
    if moving.how == "copy":
        body["operation"] = moving.operation
    began_s, in_pass = time.monotonic(), 0
    known = None if moving.count is None else moving.count
    with Bar(moving.source, known, shown=shown) as bar:
        while moving.count is None or total["done"] < moving.count:
            found = await _select(api, moving, total["next"], total["done"])
            if found["positions"]:
                answer = await again(
                    lambda: api.post(
                        "queues",
                        moving.cluster.vhost,
                        moving.source,
                        moving.how,
                        body={**body, "positions": found["positions"]},  # noqa: B023 -- asked here
                    ),
                    moving.cluster.timeout,
                )
                for name in ("done", "gone", "skipped"):
                    total[name] += answer[name]
                in_pass += answer["done"]
                bar.add(answer["done"])
                if answer["full"]:
                    if moving.until_empty:
                        await asyncio.sleep(FULL_S)
                        continue  # from the same position on
                    total["full"] = answer["full"]
                    break
            if found["next"] is None:
                if not moving.until_empty or not in_pass:
                    break
                in_pass, total["next"] = 0, moving.start  # what came meanwhile
                continue
            total["next"] = found["next"]
            if moving.rate is not None:
                ahead_s = total["done"] / moving.rate - (time.monotonic() - began_s)
                await asyncio.sleep(max(0.0, ahead_s))
    return total


async def again(ask: Callable[[], Awaitable[Result]], timeout: float) -> Result:
    """Until a node answers: what is asked may be repeated."""
    deadline_s = time.monotonic() + timeout
    while True:
        try:
            return await ask()
        except (OutcomeUnknown, Unreachable):
            if time.monotonic() > deadline_s:
                raise
        await asyncio.sleep(AGAIN_S)


def conditions(given: list[str]) -> Row:
    """`key=a,header.x=1` and `older-than=1h`, as the API takes them. CommandError."""
    where: Row = {}
    for text in (each for some in given for each in some.split(",") if each):
        name, found, value = text.partition("=")
        if not found or not name:
            raise CommandError(f"{text!r} is not NAME=VALUE, such as key=eu.orders", 2)
        if name not in _FILTERS and not name.startswith("header."):
            names = ", ".join((*_FILTERS, "header.NAME"))
            raise CommandError(f"there is no {name!r} to choose by, only {names}", 2)
        if name in _AGES:
            where[_AGES[name]] = round(1000 * seconds(value, name))
        else:
            where[name] = value
    return where


def new_operation() -> str:
    return secrets.token_hex(8)


# --- delayed messages -----------------------------------------------------------------------------


@delayed_app.command("list")
def delayed_list(
    cluster: InVhost,
    queue: Queue,
    start: Annotated[int, typer.Option("--start", min=1, help="From this position on.")] = 1,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1000, help="At most so many.")
    ] = 100,
) -> int:
    """Delayed messages, by position."""

    async def look(api: Management) -> list[Row]:
        query = {"start": str(start), "count": str(count)}
        found: list[Row] = await api.get("queues", cluster.vhost, queue, "delayed", **query)
        return found

    rows = cluster.api(look, missing=missing(queue))
    now_ms = time.time() * 1000
    show_rows(
        rows,
        {
            "id": lambda row: row["id"],
            "position": lambda row: row["position"],
            "ready in": lambda row: _left(row["due_ms"] - now_ms),
            "key": lambda row: row["routing_key"],
            "bytes": lambda row: row["payload_bytes"],
            "payload": lambda row: row["payload"][:60],
        },
        as_json=cluster.as_json,
        none=f"queue {queue}: no message is delayed",
    )
    return 0


def _left(left_ms: float) -> str:
    """Until it is ready. Who defers a message says mostly no time, which means ten years."""
    left_s = max(0, round(left_ms / 1000))
    if left_s > DEFERRED_S_MIN:
        return "deferred"
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if left_s >= 2 * size_s:
            return f"{left_s // size_s} {unit}"
    return f"{left_s} s"


@delayed_app.command("fetch")
def delayed_fetch(
    cluster: InVhost,
    queue: Queue,
    ids: Ids,
    keep: Annotated[
        bool, typer.Option("--keep", help="Show them, and give them back: they are ready then.")
    ] = False,
) -> int:
    """Take messages out now, deferred or delayed ones, and write their bodies, each as a line."""

    async def look(api: Management) -> tuple[dict[str, list[int]], list[str]]:
        positions: dict[str, list[int]] = {}  # of a split queue by shard
        gone: list[str] = []
        for each in ids:
            try:
                row = await api.get("queues", cluster.vhost, queue, "delayed", each)
                positions.setdefault(row.get("queue", queue), []).append(row["position"])
            except Refused as refused:
                if refused.code != "not_found":
                    raise
                gone.append(each)
        if not positions:  # or is it the queue that is not there?
            await api.get("queues", cluster.vhost, queue, "delayed", count="1")
        return positions, gone

    async def fetch(client: Client) -> int:
        found = [
            delivery
            for name, some in positions.items()
            for delivery in await client.fetch(name, some)
        ]
        for delivery in found:
            body = delivery.body.decode(errors="replace")
            if cluster.as_json:
                emit({"position": delivery.position, "key": delivery.key, "body": delivery.body})
            else:
                stdout().print(printable(body), markup=False, highlight=False, soft_wrap=True)
            await (delivery.return_() if keep else delivery.settle())
        return len(found)

    positions, gone = cluster.api(look, missing=missing(queue))
    count = cluster.client(fetch)
    words = f"queue {queue}: {count} of {len(ids)} messages {'shown' if keep else 'fetched'}"
    if gone:
        words += f"; not deferred or delayed: {', '.join(gone)}"
    say(words)
    return 0 if count == len(ids) else 1


@delayed_app.command("cancel")
def delayed_cancel(
    cluster: InVhost,
    queue: Queue,
    ids: Ids,
) -> int:
    """Drop messages before they are delivered."""
    return _change(cluster, queue, ids, None)


@delayed_app.command("retime")
def delayed_retime(
    cluster: InVhost,
    queue: Queue,
    ids: Ids,
    delay: Annotated[
        str, typer.Option("--in", metavar="10m", help="Ready after this, from now; 0: at once.")
    ],
) -> int:
    """Deliver messages earlier or later. It may also put one off that is ready."""
    return _change(cluster, queue, ids, delay)


def _change(cluster: InVhost, queue: str, ids: list[str], delay: str | None) -> int:
    """`delay` None: cancelled. 1: some of them do not wait any more."""

    delay_ms = None if delay is None else round(1000 * seconds(delay, "--in"))

    async def change(api: Management) -> list[str]:
        gone: list[str] = []
        for each in ids:
            path = ("queues", cluster.vhost, queue, "delayed", each)
            try:
                if delay_ms is None:
                    await api.delete(*path)
                else:
                    await api.patch(*path, body={"delay_ms": delay_ms})
            except Refused as refused:
                if refused.code != "not_found":
                    raise
                gone.append(each)
        if len(gone) == len(ids):  # or is it the queue that is not there?
            await api.get("queues", cluster.vhost, queue, "delayed", count="1")
        return gone

    gone = cluster.api(change, missing=missing(queue))
    verb = "cancelled" if delay is None else f"ready in {delay}"
    words = f"queue {queue}: {len(ids) - len(gone)} of {len(ids)} messages {verb}"
    if gone:
        words += f"; not there: {', '.join(gone)}"
    cluster.done(words, changed=len(ids) - len(gone), gone=gone)
    return 1 if gone else 0
