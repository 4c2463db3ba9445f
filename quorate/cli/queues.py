"""`quorate queue ...`"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import quorate
from quorate.cli.output import CommandError, addresses, emit, login, run_async, say, stdout

Result = TypeVar("Result")
#: Seconds after which a cluster of which no node answers is taken for stopped.
REACH_S_MAX = 3.0


def with_client(
    url: str | None,
    work: Callable[[quorate.Client], Awaitable[Result]],
    *,
    timeout: float,
    vhost: str = "/",
) -> Result:
    """Connect, do it, close."""
    urls = addresses(url)

    async def connected() -> Result:
        async with quorate.connect(
            urls,
            vhost=vhost,
            timeout=timeout,
            name="quorate-cli",
            user=login.user,
            password=login.password,
        ) as client:
            # A cluster that is not there is said soon; one that changes its leader has all the
            # time.
            await client.reach(min(timeout, REACH_S_MAX))
            return await work(client)

    return run_async(connected())


def argument(text: str) -> tuple[str, Any]:
    """`x-max-length=10` as name and value: a number, true, false or text."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise CommandError(f"{text!r} is not KEY=VALUE, such as x-max-length=1000", 2)
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        return name, value
    return name, value if isinstance(parsed, str) else parsed


def run_declare(
    queue: str, arguments: list[str], url: str | None, *, vhost: str, as_json: bool, timeout: float
) -> int:
    values = dict(map(argument, arguments))
    answer = with_client(
        url, lambda client: client.declare(queue, values), timeout=timeout, vhost=vhost
    )
    if as_json:
        emit({"queue": queue, **answer})
    else:
        what = "made" if answer.get("created") else "exists already"
        say(f"queue {queue}: {what}, in group {answer.get('group')}, led by {answer.get('leader')}")
    return 0


def run_list(url: str | None, *, as_json: bool, timeout: float) -> int:
    from rich.table import Table

    rows = with_client(url, lambda client: client.queues(), timeout=timeout)
    if as_json:
        for row in rows:
            emit(row)
        return 0
    if not rows:
        say("there are no queues: `quorate queue declare NAME` makes one")
        return 0
    table = Table("queue", "vhost", "group", "leader", "ready", "unsettled", "consumers")
    for row in rows:
        consumers = row.get("consumers", "-")
        table.add_row(
            str(row.get("name")) + (" (paused)" if row.get("paused") else ""),
            str(row.get("vhost", "/")),
            str(row.get("group", "-")),
            str(row.get("leader") or "none"),
            _count(row.get("ready")),
            _count(row.get("unsettled")),
            _length(consumers),
        )
    stdout().print(table)
    return 0


def _length(value: Any) -> str:
    return str(len(cast("list[Any]", value)) if isinstance(value, list) else value)


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def run_show(queue: str, url: str | None, *, vhost: str, as_json: bool, timeout: float) -> int:
    from rich.table import Table

    about = with_client(url, lambda client: client.info(queue), timeout=timeout, vhost=vhost)
    if as_json:
        emit(about)
        return 0
    table = Table(show_header=False)
    for key, value in about.items():
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        table.add_row(key, shown)
    stdout().print(table)
    return 0


def run_delete(
    queue: str,
    url: str | None,
    *,
    vhost: str,
    if_unused: bool,
    if_empty: bool,
    as_json: bool,
    timeout: float,
) -> int:
    with_client(
        url,
        lambda client: client.delete(queue, if_unused=if_unused, if_empty=if_empty),
        timeout=timeout,
        vhost=vhost,
    )
    if as_json:
        emit({"queue": queue, "deleted": True})
    else:
        say(f"queue {queue}: deleted")
    return 0


def run_purge(queue: str, url: str | None, *, vhost: str, as_json: bool, timeout: float) -> int:
    count = with_client(url, lambda client: client.purge(queue), timeout=timeout, vhost=vhost)
    if as_json:
        emit({"queue": queue, "purged": count})
    else:
        say(f"queue {queue}: {count:,} messages dropped")
    return 0


def run_pause(
    queue: str, url: str | None, *, vhost: str, paused: bool, as_json: bool, timeout: float
) -> int:
    with_client(url, lambda client: client.pause(queue, paused), timeout=timeout, vhost=vhost)
    if as_json:
        emit({"queue": queue, "paused": paused})
    else:
        say(f"queue {queue}: {'paused' if paused else 'delivers again'}")
    return 0


def run_peek(
    queue: str,
    url: str | None,
    *,
    vhost: str,
    start: int,
    count: int,
    state: str | None,
    as_json: bool,
    timeout: float,
) -> int:
    from rich.markup import escape
    from rich.table import Table

    rows = with_client(
        url,
        lambda client: client.peek(queue, start=start, count=count, state=state),
        timeout=timeout,
        vhost=vhost,
    )
    if as_json:
        for row in rows:
            emit(row)
        return 0
    table = Table("position", "state", "bytes", "body")
    for row in rows:
        body = row.get("body", b"")
        data = body if isinstance(body, bytes) else str(body).encode()
        text = data[:60].decode("utf-8", "backslashreplace")
        table.add_row(
            str(row.get("position")),
            str(row.get("state")),
            str(len(data)),
            escape(text) + ("…" if len(data) > 60 else ""),
        )
    stdout().print(table)
    return 0
