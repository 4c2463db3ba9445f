"""`quorate queue why`, `move` and their kin: what piles up, and what is done about it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from quorate.cli.api import done, with_api
from quorate.cli.drain import seconds
from quorate.cli.output import CommandError, emit, say
from quorate.cli.progress import Bar
from quorate.cli.tables import Row, printable, show_rows
from quorate.errors import OutcomeUnknown, Refused, Unreachable

if TYPE_CHECKING:
    from quorate.management import Management

Result = TypeVar("Result")
How = Literal["move", "copy"]

#: Messages that one request names.
AT_ONCE = 256
#: A target that is full is tried again after this, by `drain-to`.
FULL_S = 0.5
AGAIN_S = 0.2
_AGES = {"older-than": "older-than-ms", "younger-than": "younger-than-ms"}


def _missing(queue: str) -> str:
    return f"there is no queue {queue}: see `quorate queue list`"


def run_why(queue: str, url: str | None, *, vhost: str, as_json: bool, timeout: float) -> int:
    found: Row = with_api(
        url,
        lambda api: api.get("queues", vhost, queue, "why"),
        timeout=timeout,
        missing=_missing(queue),
    )
    findings: list[Row] = found["findings"]
    if as_json:
        emit(found)
    elif not findings:
        say(f"queue {queue}: nothing keeps its messages from moving")
    else:
        for each in findings:
            say(f"queue {queue}: {each['code']}: {printable(each['sentence'])}")
            say(f"  next: {each['next']}")
    return 1 if findings else 0


# --- moving ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moving:
    """What is moved, whereto and how fast."""

    source: str
    target: str | None  # None: dead letters, back to where they died
    vhost: str
    where: Row
    how: How = "move"
    count: int | None = None  # at most so many
    start: int = 1  # from this position on
    rate: float | None = None  # messages a second
    until_empty: bool = False
    operation: str = ""  # of a copy: what has this name is copied once
    timeout: float = 30.0


def run_move(moving: Moving, url: str | None, *, dry_run: bool, as_json: bool) -> int:
    if dry_run:
        found = with_api(
            url,
            lambda api: _would(api, moving),
            timeout=moving.timeout,
            missing=_missing(moving.source),
        )
        words = f"{found['count']:,} messages, {found['bytes']:,} bytes, would be affected"
        return done(as_json, f"queue {moving.source}: {words}", **found)
    names = moving.source if moving.target is None else f"{moving.source} or {moving.target}"
    found = with_api(
        url,
        lambda api: carry(api, moving, shown=not as_json),
        timeout=moving.timeout,
        missing=_missing(names),
    )
    verb = "moved" if moving.how == "move" else "copied"
    to = f"to {moving.target}" if moving.target else "back to where they died"
    words = f"queue {moving.source}: {found['done']:,} messages {verb} {to}"
    for name, why in (
        ("gone", "were taken by somebody else meanwhile"),
        ("skipped", "were left: too large, or their queue is gone"),
    ):
        if found[name]:
            words += f"; {found[name]:,} {why}"
    if found["full"]:
        rest = f"from position {found['next']} on"
        more = f" --operation {moving.operation} --start {found['next']}"
        again = more if moving.how == "copy" else ""
        words += f"; {found['full']} is full: what is left, {rest}, is as it was"
        words += f"\n  next: make room there, and run it again{again}"
    done(as_json, words, **found)
    return 1 if found["full"] else 0


async def _would(api: Management, moving: Moving) -> Row:
    total: Row = {"count": 0, "bytes": 0}
    start: int | None = moving.start
    while start is not None and (moving.count is None or total["count"] < moving.count):
        found = await _select(api, moving, start, total["count"])
        for name in total:
            total[name] += found[name]
        start = found["next"]
    return total


async def _select(api: Management, moving: Moving, start: int, so_far: int) -> Row:
    count = AT_ONCE if moving.count is None else min(AT_ONCE, moving.count - so_far)
    body = {"where": moving.where, "start": start, "count": count}
    return await _again(
        lambda: api.post("queues", moving.vhost, moving.source, "select", body=body),
        moving.timeout,
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
                answer = await _again(
                    lambda: api.post(
                        "queues",
                        moving.vhost,
                        moving.source,
                        moving.how,
                        body={**body, "positions": found["positions"]},  # noqa: B023 -- asked here
                    ),
                    moving.timeout,
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


async def _again(ask: Callable[[], Awaitable[Result]], timeout: float) -> Result:
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
        if name in _AGES:
            where[_AGES[name]] = round(1000 * seconds(value))
        else:
            where[name] = value
    return where


def new_operation() -> str:
    return secrets.token_hex(8)


# --- delayed messages -----------------------------------------------------------------------------


def run_delayed_list(
    queue: str,
    url: str | None,
    *,
    vhost: str,
    start: int,
    count: int,
    as_json: bool,
    timeout: float,
) -> int:
    async def look(api: Management) -> list[Row]:
        query = {"start": str(start), "count": str(count)}
        found: list[Row] = await api.get("queues", vhost, queue, "delayed", **query)
        return found

    rows = with_api(url, look, timeout=timeout, missing=_missing(queue))
    now_ms = time.time() * 1000
    show_rows(
        rows,
        {
            "id": lambda row: row["id"],
            "position": lambda row: row["position"],
            "ready in": lambda row: f"{max(0, row['due_ms'] - now_ms) / 1000:,.0f} s",
            "key": lambda row: row["routing_key"],
            "bytes": lambda row: row["payload_bytes"],
            "payload": lambda row: row["payload"][:60],
        },
        as_json=as_json,
        none=f"queue {queue}: no message is delayed",
    )
    return 0


def run_delayed_change(
    queue: str,
    ids: list[str],
    url: str | None,
    *,
    vhost: str,
    delay: str | None,
    as_json: bool,
    timeout: float,
) -> int:
    """`delay` None: cancelled. 1: some of them do not wait any more."""

    async def change(api: Management) -> list[str]:
        gone: list[str] = []
        for each in ids:
            path = ("queues", vhost, queue, "delayed", each)
            try:
                if delay is None:
                    await api.delete(*path)
                else:
                    await api.patch(*path, body={"delay_ms": round(1000 * seconds(delay))})
            except Refused as refused:
                if refused.code != "not_found":
                    raise
                gone.append(each)
        return gone

    gone = with_api(url, change, timeout=timeout)
    verb = "cancelled" if delay is None else f"ready in {delay}"
    words = f"queue {queue}: {len(ids) - len(gone)} of {len(ids)} messages {verb}"
    if gone:
        words += f"; not there: {', '.join(gone)}"
    done(as_json, words, changed=len(ids) - len(gone), gone=gone)
    return 1 if gone else 0
