"""`quorate federation ...`: links to clusters that exchanges and queues are federated with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quorate.cli.api import AnyVhost, done, with_api
from quorate.cli.output import CommandError, Json, Timeout, Url
from quorate.cli.tables import Row, show_rows

if TYPE_CHECKING:
    from quorate.management import Management

federation_app = typer.Typer(no_args_is_help=True)


def _what(row: Row) -> str:
    return f"{row['type']} {row[row['type']]}"


def _upstream(row: Row) -> str:
    """The parameter, and what is there under another name."""
    there = row[f"upstream_{row['type']}"]
    return row["upstream"] + ("" if there == row[row["type"]] else f" ({there})")


@federation_app.command("list")
def federation_list(
    vhost: AnyVhost = None, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> None:
    """All links, with the node that runs each, and what is wrong."""
    path = ("federation-links",) if vhost is None else ("federation-links", vhost)
    rows = with_api(
        url,
        lambda api: api.all(*path),
        timeout=timeout,
        missing=f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`",
    )
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
        as_json=as_json,
        none="nothing is federated: a policy names what is, and parameters name upstreams",
    )


@federation_app.command("restart")
def federation_restart(
    link: Annotated[str, typer.Argument(metavar="ID", help="As the list shows it.")],
    url: Url = None,
    as_json: Json = False,
    timeout: Timeout = 30.0,
) -> int:
    """Connect a link anew."""

    async def restart(api: Management) -> None:
        for row in await api.all("federation-links"):
            if row["id"] == link:
                path = ("federation-links", "vhost", row["vhost"], link, str(row["node"]))
                await api.delete(*path, "restart")
                return
        raise CommandError(f"there is no link {link!r}\n  next: `quorate federation list`", 1)

    with_api(
        url,
        restart,
        timeout=timeout,
        missing=f"no node runs link {link!r} now\n  next: `quorate federation list`",
    )
    return done(as_json, f"link {link}: connects anew", id=link, restarted=True)
