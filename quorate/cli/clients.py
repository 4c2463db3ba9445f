"""`quorate connection ...`, `quorate channel list` and `quorate consumer list`: who is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.api import AnyVhost, Cluster, Commands, no_vhost
from quorate.cli.output import CommandError
from quorate.cli.tables import Columns, Row, cell, show_rows

if TYPE_CHECKING:
    from quorate.management import Management

connection_app = Commands()
channel_app = Commands()
consumer_app = Commands()


def _show(cluster: AnyVhost, path: tuple[str, ...], columns: Columns, *, none: str) -> None:
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(rows, columns, as_json=cluster.as_json, none=none)


def _peer(connection: str) -> str:
    """The client's end, which is enough to tell connections apart."""
    return connection.partition(" -> ")[0]


def _client(row: Row) -> str:
    """What it calls itself."""
    about: Row = row["client_properties"]
    product = " ".join(str(about[name]) for name in ("product", "version") if about.get(name))
    return str(row.get("user_provided_name") or product)


@connection_app.command("list")
def connection_list(cluster: AnyVhost) -> None:
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
    path = ("connections",) if cluster.vhost is None else ("vhosts", cluster.vhost, "connections")
    _show(cluster, path, columns, none="nobody is connected")


@connection_app.command("close")
def connection_close(
    cluster: Cluster,
    connection: Annotated[str, typer.Argument(help="As the list shows it, or its whole name.")],
) -> int:
    """Close a connection: the client is told, and what it had not settled is delivered again."""

    async def close(api: Management) -> None:
        names = [row["name"] for row in await api.all("connections", columns="name")]
        names = [name for name in names if connection in (name, _peer(name))]
        if len(names) > 1:
            raise CommandError(f"{connection} is the end of several: {'; '.join(names)}", 2)
        await api.delete("connections", names[0] if names else connection)

    cluster.api(
        close, missing=f"there is no connection {connection!r}\n  next: `quorate connection list`"
    )
    words = f"connection {connection}: closed"
    return cluster.done(words, connection=connection, closed=True)


def _mode(row: Row) -> str | None:
    if row["transactional"]:
        return "transactions"
    return "confirms" if row["confirm"] else None


@channel_app.command("list")
def channel_list(cluster: AnyVhost) -> None:
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
    path = ("channels",) if cluster.vhost is None else ("vhosts", cluster.vhost, "channels")
    _show(cluster, path, columns, none="there are no channels")


def _activity(row: Row) -> str:
    status = row["activity_status"]
    return cell(row["active"]) + ("" if status == "up" else f", {status}")


def _holder(row: Row) -> str:
    """The client's end and the number of its channel, or the session of a native client."""
    details = row["channel_details"]
    peer = _peer(details["name"])
    return f"{peer} ({details['number']})" if "number" in details else peer


@consumer_app.command("list")
def consumer_list(cluster: AnyVhost) -> None:
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
    path = ("consumers",) if cluster.vhost is None else ("consumers", cluster.vhost)
    none = "there are no consumers"
    _show(cluster, path, columns, none=none)
