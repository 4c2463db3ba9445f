"""`quorate user ...` and `quorate permission ...`: who may come, and what they may do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.api import AnyVhost, Cluster, Commands, InVhost, exchange_word, shown_exchange
from quorate.cli.asking import Yes, agree
from quorate.cli.output import CommandError, say
from quorate.cli.passwords import new_password
from quorate.cli.tables import show_rows

if TYPE_CHECKING:
    from quorate.management import Management

user_app = Commands()
permission_app = Commands()

#: The last one lets a client name others as senders of its messages; the others are of the
#: management API.
TAGS = ("administrator", "monitoring", "policymaker", "management", "impersonator")
#: A pattern that matches no name.
NOTHING = "^$"

Name = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
Tags = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TAG]...", help="administrator, monitoring, policymaker, management; none: none."
    ),
]
NewPassword = Annotated[
    Path | None,
    typer.Option(
        "--new-password-file",
        help="File with the new password; - is standard input. Default: asked for.",
    ),
]


def _missing(user: str) -> str:
    return f"there is no user {user!r}\n  next: `quorate user list`, or `quorate user add {user}`"


def _name_idle(cluster: Cluster, tags: list[str] | None) -> None:
    """RabbitMQ keeps any tag, and so do we."""
    idle = [tag for tag in tags or [] if tag not in TAGS]
    if idle and not cluster.as_json:
        known = ", ".join(TAGS)
        say(f"{', '.join(idle)}: no tag that says anything here; those are {known}")


@user_app.command("list")
def user_list(cluster: Cluster) -> None:
    """All users, with their tags and limits."""
    users = cluster.api(lambda api: api.all("users"))
    # What is listed ends up in logs, where hashes have no business.
    rows = [
        {
            "name": user["name"],
            "tags": user["tags"],
            "password": bool(user["password_hash"]),
            "limits": user["limits"],
            **({"nkeys": user["nkeys"]} if user.get("nkeys") else {}),
        }
        for user in users
    ]
    show_rows(
        rows,
        {
            "user": lambda row: row["name"],
            "tags": lambda row: row["tags"],
            "password": lambda row: row["password"],
            "limits": lambda row: row["limits"],
        },
        as_json=cluster.as_json,
        none="there are no users",
    )


@user_app.command("add")
def user_add(
    cluster: Cluster, user: Name, tags: Tags = None, new_password_file: NewPassword = None
) -> int:
    """Make a user, with a password that is asked for.

    Nobody may do anything before `quorate permission set` says so.
    """

    async def add(api: Management) -> None:
        if await api.find("users", user) is not None:
            raise CommandError(
                f"user {user!r} exists already\n  next: `quorate user password {user}`"
                f" or `quorate user tags {user} ...` change it"
            )
        password = new_password(user, new_password_file)
        await api.put("users", user, body={"password": password, "tags": tags or []})

    cluster.api(add)
    _name_idle(cluster, tags)
    words = f"user {user}: made; `quorate permission set {user} ...` says what it may do"
    return cluster.done(words, user=user, created=True, tags=tags or [])


@user_app.command("delete")
def user_delete(cluster: Cluster, user: Name, yes: Yes = False) -> int:
    """Delete a user and its permissions. It asks first."""
    if not yes:
        cluster.api(lambda api: api.get("users", user), missing=_missing(user))
        agree(f"delete user {user}", "its clients could no longer log in", yes=yes)
    cluster.api(lambda api: api.delete("users", user), missing=_missing(user))
    return cluster.done(f"user {user}: deleted", user=user, deleted=True)


@user_app.command("password")
def user_password(cluster: Cluster, user: Name, new_password_file: NewPassword = None) -> int:
    """Give a user another password. Connections that are open stay."""

    async def change(api: Management) -> None:
        known = await api.get("users", user)
        password = new_password(user, new_password_file)
        await api.put("users", user, body={"password": password, "tags": known["tags"]})

    cluster.api(change, missing=_missing(user))
    return cluster.done(f"user {user}: has another password", user=user, changed=True)


@user_app.command("tags")
def user_tags(cluster: Cluster, user: Name, tags: Tags = None) -> int:
    """Set the tags of a user, which say what it may do in the management API; without any, it has
    none.
    """

    async def change(api: Management) -> None:
        known = await api.get("users", user)
        kept = {name: known[name] for name in ("password_hash", "hashing_algorithm")}
        await api.put("users", user, body={**kept, "tags": tags or []})

    cluster.api(change, missing=_missing(user))
    _name_idle(cluster, tags)
    words = f"user {user}: " + (f"tags {', '.join(tags)}" if tags else "no tags")
    return cluster.done(words, user=user, tags=tags or [])


@user_app.command("nkeys")
def user_nkeys(
    cluster: Cluster,
    user: Name,
    nkeys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NKEY]...", help="Public keys, U...; none: it has none."),
    ] = None,
) -> int:
    """Set the public keys of a user: NATS's clients log in by the seed of one of them."""

    async def change(api: Management) -> None:
        known = await api.get("users", user)
        kept = {name: known[name] for name in ("password_hash", "hashing_algorithm", "tags")}
        await api.put("users", user, body={**kept, "nkeys": nkeys or []})

    cluster.api(change, missing=_missing(user))
    words = f"user {user}: " + (f"nkeys {', '.join(nkeys)}" if nkeys else "no nkeys")
    return cluster.done(words, user=user, nkeys=nkeys or [])


# --- permissions ----------------------------------------------------------------------------------

Exchange = Annotated[
    str | None,
    typer.Option(
        "--exchange", help="Topic permission: which routing keys, on this topic exchange."
    ),
]


@permission_app.command("list")
def permission_list(
    cluster: AnyVhost,
    user: Annotated[str | None, typer.Argument(help="Only those of this user.")] = None,
) -> None:
    """Patterns of the names that users may configure, write and read; with an exchange, of the
    routing keys.
    """

    async def found(api: Management) -> list[dict[str, Any]]:
        of = () if user is None else ("users", user)
        return await api.all(*of, "permissions") + await api.all(*of, "topic-permissions")

    rows = cluster.api(found, missing=_missing(user or ""))
    rows = [row for row in rows if cluster.vhost in (None, row["vhost"])]
    show_rows(
        sorted(rows, key=lambda row: (row["user"], row["vhost"], row.get("exchange", ""))),
        {
            "user": lambda row: row["user"],
            "vhost": lambda row: row["vhost"],
            "exchange": lambda row: shown_exchange(row["exchange"]) if "exchange" in row else None,
            "configure": lambda row: row.get("configure"),
            "write": lambda row: row["write"],
            "read": lambda row: row["read"],
        },
        as_json=cluster.as_json,
        none="there are no permissions: `quorate permission set USER` gives some",
    )


@permission_app.command("set")
def permission_set(
    cluster: InVhost,
    user: Name,
    configure: Annotated[
        str | None, typer.Option("--configure", help="What it may declare and delete.")
    ] = None,
    write: Annotated[str, typer.Option("--write", help="What it may publish to.")] = NOTHING,
    read: Annotated[str, typer.Option("--read", help="What it may consume from.")] = NOTHING,
    exchange: Exchange = None,
) -> int:
    """Say what a user may do in a virtual host: regular expressions, each for names of queues and
    exchanges. What is left away matches nothing.
    """
    patterns = {"write": write, "read": read}
    if exchange is None:
        patterns = {"configure": NOTHING if configure is None else configure, **patterns}
        where = f"vhost {cluster.vhost}"
        setting = cluster.api(
            lambda api: api.put("permissions", cluster.vhost, user, body=patterns),
            missing=_no_place(user, cluster.vhost),
        )
    else:
        if configure is not None:
            raise CommandError("a topic permission is about --write and --read only", 2)
        where = f"keys of exchange {shown_exchange(exchange)} in vhost {cluster.vhost}"
        setting = cluster.api(
            lambda api: api.put(
                "topic-permissions",
                cluster.vhost,
                user,
                body={"exchange": exchange_word(exchange), **patterns},
            ),
            missing=_no_place(user, cluster.vhost),
        )
    words = f"user {user}, {where}: " + ", ".join(
        f"{name} nothing" if pattern == NOTHING else f"{name} '{pattern}'"
        for name, pattern in patterns.items()
    )
    facts: dict[str, Any] = {"user": user, "vhost": cluster.vhost, **patterns, "created": setting}
    return cluster.done(words, **facts, **({} if exchange is None else {"exchange": exchange}))


def _no_place(user: str, vhost: str) -> str:
    return (
        f"there is no user {user!r} or no virtual host {vhost!r}\n  next: `quorate user list`,"
        " `quorate vhost list`"
    )


@permission_app.command("clear")
def permission_clear(cluster: InVhost, user: Name, exchange: Exchange = None) -> int:
    """Take the permissions of a user in a virtual host away, or those on the keys of an
    exchange.
    """
    path = ("permissions", cluster.vhost, user)
    if exchange is not None:
        path = ("topic-permissions", cluster.vhost, user, exchange_word(exchange))
    cluster.api(
        lambda api: api.delete(*path),
        missing=f"user {user!r} has none there\n  next: `quorate permission list`",
    )
    return cluster.done(
        f"user {user}: permissions cleared", user=user, vhost=cluster.vhost, cleared=True
    )
