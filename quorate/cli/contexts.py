"""`quorate context ...`"""

from __future__ import annotations

from typing import Annotated

import typer

from quorate.cli.api import Commands, Place, done
from quorate.cli.output import CommandError, Json, addresses, login
from quorate.cli.tables import show_rows
from quorate.places import Context, Contexts

context_app = Commands()

Name = Annotated[str, typer.Argument(metavar="CONTEXT", help="Name of the context.")]


@context_app.command("add")
def context_add(
    place: Place,
    name: Name,
    use: Annotated[bool, typer.Option("--use", help="Go there from now on.")] = False,
) -> int:
    """Name a cluster, or give a name to another one: `quorate context add live --url
    broker-1:8081,broker-2:8081 --user ops --password-file ~/live`. Passwords stay in their files.
    """
    if not place.url:
        raise CommandError("where is it? give --url HOST:PORT, or HOST:PORT,HOST:PORT", 2)
    addresses(place.url)  # wrong ones are said now
    files = (login.password_file, login.ca, login.cert)
    contexts = Contexts.read()
    contexts.contexts[name] = Context(
        place.url,
        login.user,
        *(None if file is None else file.expanduser().resolve() for file in files),
    )
    if use:
        contexts.current = name
    contexts.write()
    used = name == contexts.current
    words = f"context {name}: {place.url}" + (", used from now on" if use else "")
    return place.done(words, context=name, url=place.url, used=used)


@context_app.command("use")
def context_use(
    name: Annotated[
        str | None, typer.Argument(metavar="[CONTEXT]", help="Without it: none from now on.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Go to this cluster where neither --url nor --context says another one, and `quorate up` has
    started none here.
    """
    contexts = Contexts.read()
    if name is not None:
        contexts.named(name)
    contexts.current = name
    contexts.write()
    words = "no context is used" if name is None else f"context {name} is used from now on"
    return done(as_json, words, context=name)


@context_app.command("list")
def context_list(as_json: Json = False) -> int:
    """All contexts."""
    contexts = Contexts.read()
    show_rows(
        [
            {
                "context": name,
                "used": name == contexts.current,
                "url": context.url,
                "user": context.user,
            }
            for name, context in sorted(contexts.contexts.items())
        ],
        {
            "context": lambda row: row["context"],
            "used": lambda row: "yes" if row["used"] else None,
            "url": lambda row: row["url"],
            "user": lambda row: row["user"],
        },
        as_json=as_json,
        none="there are no contexts: `quorate context add NAME --url HOST:PORT` makes one",
    )
    return 0


@context_app.command("remove")
def context_remove(name: Name, as_json: Json = False) -> int:
    """Forget a context. Nothing happens to the cluster."""
    contexts = Contexts.read()
    if contexts.contexts.pop(name, None) is None:
        raise CommandError(f"there is no context {name!r} (there are: {contexts.names})")
    if contexts.current == name:
        contexts.current = None
    contexts.write()
    return done(as_json, f"context {name}: removed", context=name, removed=True)
