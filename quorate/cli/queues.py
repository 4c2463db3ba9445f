"""`quorate queue ...`"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import quorate
from quorate.cli.api import with_api
from quorate.cli.asking import agree, counted
from quorate.cli.copies import copies_up
from quorate.cli.output import CommandError, addresses, emit, login, run_async, say, stdout
from quorate.cli.tables import Alarm, Row, show_rows
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from quorate.management import Management

Result = TypeVar("Result")
#: By the management API's names.
_COUNTS = {
    "messages_ready": "ready",
    "messages_unacknowledged": "unsettled",
    "consumers": "consumers",
}
_AGES = ("oldest_ready_age", "slo_oldest_age")
_COLUMNS = ("vhost", "name", "type", "exclusive", "auto_delete", *_AGES, *_COUNTS)
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
            tls=login.tls(),
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
    rows = with_client(url, lambda client: client.queues(), timeout=timeout)
    facts, groups = _facts(url, timeout=timeout), _groups(url, timeout=timeout)
    show_rows(
        [{**facts.get((row["vhost"], row["name"]), {}), **row} for row in rows],
        {
            "queue": lambda row: row["name"] + (" (paused)" if row.get("paused") else ""),
            "vhost": lambda row: row["vhost"],
            "kind": lambda row: row.get("kind"),
            "leader": lambda row: row.get("leader") or Alarm("none"),
            "copies": lambda row: groups.get(row.get("group"), len(row.get("members") or ())),
            "ready": lambda row: row.get("ready"),
            "unsettled": lambda row: row.get("unsettled"),
            "consumers": _consumer_count,
            "oldest": _oldest,
        },
        as_json=as_json,
        none="there are no queues: `quorate queue declare NAME` makes one",
    )
    return 0


def _oldest(row: Row) -> str | Alarm | None:
    """Of queues that say how old it may become: in red when it is older."""
    age_ms, limit_ms = row.get("oldest_ready_age"), row.get("slo_oldest_age")
    if age_ms is None or limit_ms is None:
        return None
    text = f"{age_ms / 1000:,.0f} s of {limit_ms / 1000:,g} s"
    return Alarm(text) if age_ms > limit_ms else text


def _consumer_count(row: Row) -> int | None:
    consumers = row.get("consumers")
    return len(cast("list[Any]", consumers)) if isinstance(consumers, list) else consumers


def _facts(url: str | None, *, timeout: float) -> dict[tuple[str, str], Row]:
    """What the asked node's copies do not tell: how queues were declared, and what is in those that
    only another node has. Nothing for users who may not see it.
    """
    try:
        rows = with_api(
            url, lambda api: api.all("queues", columns=",".join(_COLUMNS)), timeout=timeout
        )
    except QuorateError:
        return {}
    return {(row["vhost"], row["name"]): _fact(row) for row in rows}


def _groups(url: str | None, *, timeout: float) -> dict[Any, int | str]:
    """By group: how many copies of it are up, in red when there should be more. Nothing for users
    who may not see it.
    """

    async def look(api: Management) -> tuple[list[Row], list[Row]]:
        return await api.all("groups"), await api.all("nodes")

    try:
        groups, nodes = with_api(url, look, timeout=timeout)
    except QuorateError:
        return {}
    down = {row["name"] for row in nodes if not row["running"]}
    return {row["name"]: copies_up(row, down) for row in groups}


def _fact(row: Row) -> Row:
    """Exclusive and auto-delete queues are transient too: on one node, and gone with it."""
    kind = {"quorum": "replicated", "stream": "stream"}.get(row["type"], "transient")
    for word in ("auto_delete", "exclusive"):
        if row[word]:
            kind = word.replace("_", "-")
    counted = {ours: row[theirs] for theirs, ours in _COUNTS.items() if theirs in row}
    ages = {name: row[name] for name in _AGES if name in row}
    return {"kind": kind, **ages, **counted}


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
    yes: bool,
    as_json: bool,
    timeout: float,
) -> int:
    if not yes:
        about = with_client(url, lambda client: client.info(queue), timeout=timeout, vhost=vhost)
        lost = f"{counted(_held(about), 'message')} would be lost"
        agree(f"delete queue {queue}", lost, yes=yes)
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


def _held(about: Row) -> int:
    return sum(int(about.get(name) or 0) for name in ("ready", "unsettled", "delayed"))


def run_purge(
    queue: str, url: str | None, *, vhost: str, yes: bool, as_json: bool, timeout: float
) -> int:
    if not yes:
        about = with_client(url, lambda client: client.info(queue), timeout=timeout, vhost=vhost)
        if ready := int(about.get("ready") or 0):
            agree(f"purge queue {queue}", f"{counted(ready, 'message')} would be lost", yes=yes)
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
    table = Table("message", "position", "state", "bytes", "body")
    for row in rows:
        body = row.get("body", b"")
        data = body if isinstance(body, bytes) else str(body).encode()
        text = data[:60].decode("utf-8", "backslashreplace")
        table.add_row(
            str(row.get("message") or "-"),
            str(row.get("position")),
            str(row.get("state")),
            str(len(data)),
            escape(text) + ("…" if len(data) > 60 else ""),
        )
    stdout().print(table)
    return 0
