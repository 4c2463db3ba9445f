"""`quorate queue ...`"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from quorate.cli.api import AnyVhost, Cluster, Commands, InVhost, Queue
from quorate.cli.asking import Yes, agree, counted
from quorate.cli.backlogs import backlog_app
from quorate.cli.copies import copies_up
from quorate.cli.output import CommandError, emit, say, stdout
from quorate.cli.relief import relief_app
from quorate.cli.splits import split_app
from quorate.cli.tables import Alarm, Row, show_rows
from quorate.errors import QuorateError

if TYPE_CHECKING:
    from quorate.client import Client
    from quorate.management import Management

#: By the management API's names.
_COUNTS = {
    "messages_ready": "ready",
    "messages_unacknowledged": "unsettled",
    "consumers": "consumers",
}
_AGES = ("oldest_ready_age", "slo_oldest_age")
_COLUMNS = ("vhost", "name", "type", "exclusive", "auto_delete", *_AGES, *_COUNTS)
queue_app = Commands()
for _each in (backlog_app, split_app, relief_app):
    queue_app.add_typer(_each)


def arguments_of(words: list[str] | None, example: str = "x-max-length=1000") -> dict[str, Any]:
    return dict(argument(word, example) for word in words or [])


def argument(text: str, example: str) -> tuple[str, Any]:
    """`x-max-length=10` as name and value: a number, true, false or text. `example` is one that
    would do there.
    """
    name, found, value = text.partition("=")
    if not found or not name:
        raise CommandError(f"{text!r} is not KEY=VALUE, such as {example}", 2)
    try:
        parsed: Any = json.loads(value)
    except ValueError:
        return name, value
    return name, value if isinstance(parsed, str) else parsed


@queue_app.command("declare")
def queue_declare(
    cluster: InVhost,
    queue: Queue,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Such as x-max-length=1000."),
    ] = None,
) -> int:
    """Make a queue, or make sure that it exists with these arguments.

    Arguments have RabbitMQ's names: `quorate queue declare jobs x-max-priority=9
    x-message-ttl=60000`.
    """
    values = arguments_of(arguments)
    answer = cluster.client(lambda client: client.declare(queue, values))
    if cluster.as_json:
        emit({"queue": queue, **answer})
    else:
        what = "made" if answer.get("created") else "exists already"
        say(f"queue {queue}: {what}, in group {answer.get('group')}, led by {answer.get('leader')}")
    return 0


@queue_app.command("list")
def queue_list(cluster: AnyVhost) -> int:
    """All queues, with their leaders and how many messages they hold."""
    rows = cluster.client(lambda client: client.queues())
    rows = [row for row in rows if cluster.vhost in (None, row["vhost"])]
    facts, groups = _facts(cluster), _groups(cluster)
    show_rows(
        [{**facts.get((row["vhost"], row["name"]), {}), **row} for row in rows],
        {
            "queue": _name,
            "vhost": lambda row: row["vhost"],
            "kind": lambda row: row.get("kind"),
            "leader": lambda row: row.get("leader") or Alarm("none"),
            "copies": lambda row: groups.get(row.get("group"), len(row.get("members") or ())),
            "ready": lambda row: row.get("ready"),
            "unsettled": lambda row: row.get("unsettled"),
            "consumers": _consumer_count,
            "oldest": _oldest,
        },
        as_json=cluster.as_json,
        none="there are no queues: `quorate queue declare NAME` makes one",
    )
    return 0


def _name(row: Row) -> str:
    name = row["name"] + (" (paused)" if row.get("paused") else "")
    return f"{name} ({len(row['shards'])} shards)" if row.get("shards") else name


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


def _facts(cluster: Cluster) -> dict[tuple[str, str], Row]:
    """What the asked node's copies do not tell: how queues were declared, and what is in those that
    only another node has. Nothing for users who may not see it.
    """
    try:
        rows = cluster.api(lambda api: api.all("queues", columns=",".join(_COLUMNS)))
    except QuorateError:
        return {}
    return {(row["vhost"], row["name"]): _fact(row) for row in rows}


def _groups(cluster: Cluster) -> dict[Any, int | str]:
    """By group: how many copies of it are up, in red when there should be more. Nothing for users
    who may not see it.
    """

    async def look(api: Management) -> tuple[list[Row], list[Row]]:
        return await api.all("groups"), await api.all("nodes")

    try:
        groups, nodes = cluster.api(look)
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


@queue_app.command("show")
def queue_show(cluster: InVhost, queue: Queue) -> int:
    """Everything that its leader knows of a queue, behind a barrier."""
    from rich.table import Table

    about = cluster.client(lambda client: client.info(queue))
    if cluster.as_json:
        emit(about)
        return 0
    table = Table(show_header=False)
    for key, value in about.items():
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        table.add_row(key, shown)
    stdout().print(table)
    return 0


@queue_app.command("delete")
def queue_delete(
    cluster: InVhost,
    queue: Queue,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Only without consumers.")] = False,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Only without messages.")] = False,
    yes: Yes = False,
) -> int:
    """Delete a queue and all messages in it. It asks first."""
    if not yes:
        about = cluster.client(lambda client: client.info(queue))
        lost = f"{counted(_held(about), 'message')} would be lost"
        agree(f"delete queue {queue}", lost, yes=yes)
    cluster.client(lambda client: client.delete(queue, if_unused=if_unused, if_empty=if_empty))
    if cluster.as_json:
        emit({"queue": queue, "deleted": True})
    else:
        say(f"queue {queue}: deleted")
    return 0


def _held(about: Row) -> int:
    return sum(int(about.get(name) or 0) for name in ("ready", "unsettled", "delayed"))


async def _ready(client: Client, queue: str) -> int:
    """Of one that is split those of its shards, too."""
    about = await client.info(queue)
    every = [about, *[await client.info(shard) for shard in about.get("shards") or ()]]
    return sum(int(each.get("ready") or 0) for each in every)


@queue_app.command("purge")
def queue_purge(
    cluster: InVhost,
    queue: Queue,
    yes: Yes = False,
) -> int:
    """Drop all messages that nobody holds. It asks first when there are any."""
    if not yes and (ready := cluster.client(lambda client: _ready(client, queue))):
        agree(f"purge queue {queue}", f"{counted(ready, 'message')} would be lost", yes=yes)
    count = cluster.client(lambda client: client.purge(queue))
    if cluster.as_json:
        emit({"queue": queue, "purged": count})
    else:
        say(f"queue {queue}: {count:,} messages dropped")
    return 0


@queue_app.command("pause")
def queue_pause(
    cluster: InVhost,
    queue: Queue,
    resume: Annotated[bool, typer.Option("--resume", help="Deliver again.")] = False,
) -> int:
    """Stop deliveries of a queue; publishing goes on. `--resume` ends it."""
    paused = not resume
    cluster.client(lambda client: client.pause(queue, paused))
    if cluster.as_json:
        emit({"queue": queue, "paused": paused})
    else:
        say(f"queue {queue}: {'paused' if paused else 'delivers again'}")
    return 0


@queue_app.command("peek")
def queue_peek(
    cluster: InVhost,
    queue: Queue,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="At most so many.")] = 10,
    start: Annotated[int, typer.Option("--start", min=1, help="From this position on.")] = 1,
    state: Annotated[
        str | None, typer.Option("--state", help="Only ready, unsettled or delayed ones.")
    ] = None,
) -> int:
    """Look at messages without taking them."""
    from rich.markup import escape
    from rich.table import Table

    rows = cluster.client(lambda client: client.peek(queue, start=start, count=count, state=state))
    if cluster.as_json:
        for row in rows:
            emit(row)
        return 0
    in_shards = any(row.get("queue", queue) != queue for row in rows)
    shard = ("shard",) if in_shards else ()
    table = Table("message", *shard, "position", "state", "bytes", "body")
    for row in rows:
        body = row.get("body", b"")
        data = body if isinstance(body, bytes) else str(body).encode()
        text = data[:60].decode("utf-8", "backslashreplace")
        table.add_row(
            str(row.get("message") or "-"),
            *((row["queue"],) if in_shards else ()),
            str(row.get("position")),
            str(row.get("state")),
            str(len(data)),
            escape(text) + ("…" if len(data) > 60 else ""),
        )
    stdout().print(table)
    return 0
