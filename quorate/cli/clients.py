"""`quorate connection ...`, `quorate channel list` and `quorate consumer list`: who is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.api import AnyVhost, done, with_api
from quorate.cli.output import CommandError, Json, Timeout, Url
from quorate.cli.tables import Columns, Row, cell, show_rows

if TYPE_CHECKING:
    from quorate.management import Management

connection_app = typer.Typer(no_args_is_help=True)
channel_app = typer.Typer(no_args_is_help=True)
consumer_app = typer.Typer(no_args_is_help=True)


def _show(
    path: tuple[str, ...],
    vhost: str | None,
    url: str | None,
    columns: Columns,
    *,
    as_json: bool,
    timeout: float,
    none: str,
) -> None:
    rows = with_api(
        url,
        lambda api: api.all(*path),
        timeout=timeout,
        missing=f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`",
    )
    show_rows(rows, columns, as_json=as_json, none=none)


def _peer(connection: str) -> str:
    """The client's end, which is enough to tell connections apart."""
    return connection.partition(" -> ")[0]


def _client(row: Row) -> str:
    """What it calls itself."""
    about: Row = row["client_properties"]
    product = " ".join(str(about[name]) for name in ("product", "version") if about.get(name))
    return str(row.get("user_provided_name") or product)


@connection_app.command("list")
def connection_list(
    vhost: AnyVhost = None, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> None:
    """Connections to all nodes: everybody's with the tag monitoring, else your own."""
    columns: Columns = {
        "connection": lambda row: _peer(row["name"]),
        "client": _client,
        "user": lambda row: row["user"],
        "vhost": lambda row: row["vhost"],
        "node": lambda row: row["node"],
        "state": lambda row: row["state"] + (", tls" if row["ssl"] else ""),
        "channels": lambda row: row["channels"],
    }
    path = ("connections",) if vhost is None else ("vhosts", vhost, "connections")
    _show(path, vhost, url, columns, as_json=as_json, timeout=timeout, none="nobody is connected")


@connection_app.command("close")
def connection_close(
    connection: Annotated[str, typer.Argument(help="As the list shows it, or its whole name.")],
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Close a connection: the client is told, and what it had not settled is delivered again."""

    async def close(api: Management) -> None:
        names = [row["name"] for row in await api.all("connections", columns="name")]
        names = [name for name in names if connection in (name, _peer(name))]
        if len(names) > 1:
            raise CommandError(f"{connection} is the end of several: {'; '.join(names)}", 2)
        await api.delete("connections", names[0] if names else connection)

    with_api(
        url,
        close,
        timeout=timeout,
        missing=f"there is no connection {connection!r}\n  next: `quorate connection list`",
    )
    words = f"connection {connection}: closed"
    return done(as_json, words, connection=connection, closed=True)


def _mode(row: Row) -> str | None:
    if row["transactional"]:
        return "transactions"
    return "confirms" if row["confirm"] else None


@channel_app.command("list")
def channel_list(
    vhost: AnyVhost = None, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> None:
    """Channels of all connections, with what they have in hand."""
    columns: Columns = {
        "channel": lambda row: f"{_peer(row['connection_details']['name'])} ({row['number']})",
        "user": lambda row: row["user"],
        "vhost": lambda row: row["vhost"],
        "mode": _mode,
        "consumers": lambda row: row["consumer_count"],
        "unsettled": lambda row: row["messages_unacknowledged"],
        "unconfirmed": lambda row: row["messages_unconfirmed"],
    }
    path = ("channels",) if vhost is None else ("vhosts", vhost, "channels")
    _show(path, vhost, url, columns, as_json=as_json, timeout=timeout, none="there are no channels")


def _activity(row: Row) -> str:
    status = row["activity_status"]
    return cell(row["active"]) + ("" if status == "up" else f", {status}")


def _holder(row: Row) -> str:
    """The client's end and the number of its channel, or the session of a native client."""
    details = row["channel_details"]
    peer = _peer(details["name"])
    return f"{peer} ({details['number']})" if "number" in details else peer


@consumer_app.command("list")
def consumer_list(
    vhost: AnyVhost = None, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> None:
    """Consumers of all queues: which are active, how much each may hold, and how it settles."""
    columns: Columns = {
        "queue": lambda row: row["queue"]["name"],
        "vhost": lambda row: row["queue"]["vhost"],
        "tag": lambda row: row["consumer_tag"],
        "client": _holder,
        "active": _activity,
        "acks": lambda row: "manual" if row["ack_required"] else "automatic",
        "prefetch": lambda row: row["prefetch_count"] or None,
    }
    path = ("consumers",) if vhost is None else ("consumers", vhost)
    none = "there are no consumers"
    _show(path, vhost, url, columns, as_json=as_json, timeout=timeout, none=none)
