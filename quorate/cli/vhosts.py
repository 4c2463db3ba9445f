"""`quorate vhost ...`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.api import Cluster, Commands
from quorate.cli.asking import Yes, agree, counted
from quorate.cli.output import CommandError
from quorate.cli.queues import arguments_of
from quorate.cli.tables import pairs, show_rows
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.management import Management

vhost_app = Commands()

#: Of a virtual host, in the management API.
PROTECTED = "protected_from_deletion"
LIMITS = ("max-bytes", "max-connections", "max-queue-bytes", "max-queues")

Name = Annotated[str, typer.Argument(metavar="VHOST", help="Name of the virtual host.")]


def _missing(vhost: str) -> str:
    return f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`"


@vhost_app.command("list")
def vhost_list(cluster: Cluster) -> None:
    """Virtual hosts that you may see, with what is in their queues."""

    async def found(api: Management) -> list[dict[str, Any]]:
        limits = {each["vhost"]: each["value"] for each in await api.all("vhost-limits")}
        return [{**row, "limits": limits.get(row["name"], {})} for row in await api.all("vhosts")]

    show_rows(
        cluster.api(found),
        {
            "vhost": lambda row: row["name"],
            "description": lambda row: row["description"],
            "tags": lambda row: row["tags"],
            "protected": lambda row: row.get(PROTECTED, False),
            "ready": lambda row: row["messages_ready"],
            "unsettled": lambda row: row["messages_unacknowledged"],
            "limits": lambda row: row["limits"],
        },
        as_json=cluster.as_json,
        none="there is no virtual host that you may see",
    )


@vhost_app.command("add")
def vhost_add(
    cluster: Cluster,
    vhost: Name,
    description: Annotated[str | None, typer.Option("--description", help="For people.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="For people; repeatable.")] = None,
) -> int:
    """Make a virtual host. Who makes it may use all of it."""
    body: dict[str, Any] = {}
    if description is not None:
        body["description"] = description
    if tags:
        body["tags"] = tags
    created = cluster.api(lambda api: api.put("vhosts", vhost, body=body))
    words = f"vhost {vhost}: " + (
        f"made; `quorate permission set USER --vhost {vhost} ...` lets others in"
        if created
        else "exists already"
    )
    return cluster.done(words, vhost=vhost, created=created)


@vhost_app.command("delete")
def vhost_delete(cluster: Cluster, vhost: Name, yes: Yes = False) -> int:
    """Delete a virtual host and all that is in it: queues with their messages, exchanges, bindings,
    policies and permissions. It asks first.
    """
    if not yes:
        agree(f"delete vhost {vhost}", _lost(cluster, vhost), yes=yes)
    cluster.api(lambda api: api.delete("vhosts", vhost), missing=_missing(vhost))
    return cluster.done(f"vhost {vhost}: deleted", vhost=vhost, deleted=True)


def _lost(cluster: Cluster, vhost: str) -> str:
    async def found(api: Management) -> tuple[int, int]:
        row = await api.get("vhosts", vhost)
        if row.get(PROTECTED):
            raise CommandError(
                f"vhost {vhost}: it is protected from deletion"
                f"\n  next: `quorate vhost protect {vhost} --undo`"
            )
        queues = await api.all("queues", vhost, columns="name")
        return len(queues), int(row.get("messages") or 0)

    queues, messages = cluster.api(found, missing=_missing(vhost))
    return f"{counted(queues, 'queue')} and {counted(messages, 'message')} would be lost"


@vhost_app.command("protect")
def vhost_protect(
    cluster: Cluster,
    vhost: Name,
    undo: Annotated[bool, typer.Option("--undo", help="It may be deleted again.")] = False,
) -> int:
    """Keep a virtual host from being deleted, by whatever tool, until `--undo`."""
    path = ("vhosts", vhost, "deletion", "protection")

    async def change(api: Management) -> None:
        if undo:
            await api.delete(*path)
        else:
            await api.post(*path, body={})

    cluster.api(change, missing=_missing(vhost))
    words = "may be deleted" if undo else "is protected from deletion"
    return cluster.done(f"vhost {vhost}: {words}", vhost=vhost, protected=not undo)


@vhost_app.command("limits")
def vhost_limits(
    cluster: Cluster,
    vhost: Name,
    limits: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="max-queues=100 or max-connections=50; -1 takes a limit away.",
        ),
    ] = None,
) -> int:
    """Show the limits of a virtual host, or set some."""
    wanted = arguments_of(limits, "max-queues=100")
    for name, value in wanted.items():
        if name not in LIMITS or type(value) is not int:
            raise CommandError(
                f"{name}={value} is no limit: allowed are {', '.join(LIMITS)}, whole numbers", 2
            )

    async def change(api: Management) -> dict[str, int]:
        for name, value in wanted.items():
            if value >= 0:
                await api.put("vhost-limits", vhost, name, body={"value": value})
            else:
                await _take_away(api, vhost, name)
        rows: list[dict[str, Any]] = await api.get("vhost-limits", vhost)
        return rows[0]["value"] if rows else {}

    now = cluster.api(change, missing=_missing(vhost))
    return cluster.done(
        f"vhost {vhost}: {pairs(now) if now else 'no limits'}", vhost=vhost, limits=now
    )


async def _take_away(api: Management, vhost: str, name: str) -> None:
    try:
        await api.delete("vhost-limits", vhost, name)
    except Refused as refused:
        if refused.code != "not_found":
            raise
        await api.get("vhosts", vhost)  # which is missing, or else had no such limit
