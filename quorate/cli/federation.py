"""`quorate federation ...`: links to clusters that exchanges and queues are federated with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.api import AnyVhost, Cluster, Commands, no_vhost
from quorate.cli.output import CommandError
from quorate.cli.tables import Row, show_rows

if TYPE_CHECKING:
    from quorate.management import Management

federation_app = Commands()


def _what(row: Row) -> str:
    return f"{row['type']} {row[row['type']]}"


def _upstream(row: Row) -> str:
    """The parameter, and what is there under another name."""
    there = row[f"upstream_{row['type']}"]
    return row["upstream"] + ("" if there == row[row["type"]] else f" ({there})")


@federation_app.command("list")
def federation_list(cluster: AnyVhost) -> None:
    """All links, with the node that runs each, and what is wrong."""
    path = ("federation-links",) if cluster.vhost is None else ("federation-links", cluster.vhost)
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(
        rows,
        {
            "id": lambda row: row["id"],
            "federated": _what,
            "vhost": lambda row: row["vhost"],
            "upstream": _upstream,
            "node": lambda row: row["node"],
            "status": lambda row: row["status"],
            "messages": lambda row: row["messages"],
            "error": lambda row: row.get("error"),
        },
        as_json=cluster.as_json,
        none="nothing is federated: a policy names what is, and parameters name upstreams",
    )


@federation_app.command("restart")
def federation_restart(
    cluster: Cluster,
    link: Annotated[str, typer.Argument(metavar="ID", help="As the list shows it.")],
) -> int:
    """Connect a link anew."""

    async def restart(api: Management) -> None:
        for row in await api.all("federation-links"):
            if row["id"] == link:
                path = ("federation-links", "vhost", row["vhost"], link, str(row["node"]))
                await api.delete(*path, "restart")
                return
        raise CommandError(f"there is no link {link!r}\n  next: `quorate federation list`", 1)

    cluster.api(
        restart, missing=f"no node runs link {link!r} now\n  next: `quorate federation list`"
    )
    return cluster.done(f"link {link}: connects anew", id=link, restarted=True)
