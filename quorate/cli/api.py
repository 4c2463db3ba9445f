"""What the commands on the management API share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from quorate.cli.output import CommandError, addresses, emit, login, run_async, say
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.management import Management

Result = TypeVar("Result")
#: A path's word for the exchange that has no name.
DEFAULT_EXCHANGE = "amq.default"

AnyVhost = Annotated[
    str | None,
    typer.Option("--vhost", help="Only of this virtual host. Default: of all that you may see."),
]
Vhost = Annotated[str, typer.Option("--vhost", help="Virtual host in which it is.")]


def with_api(
    url: str | None,
    work: Callable[[Management], Awaitable[Result]],
    *,
    timeout: float,
    missing: str | None = None,
) -> Result:
    """Ask the management API. `missing`: what to say, with the next step, when what the path names
    does not exist.
    """
    from quorate.management import Management

    urls = addresses(url)

    async def asked() -> Result:
        try:
            api = Management(
                urls,
                user=login.user,
                password=login.password,
                timeout_s=timeout,
                tls=login.tls(),
            )
        except ValueError as error:
            raise CommandError(str(error), 2) from error
        async with api:
            return await work(api)

    try:
        return run_async(asked())
    except Refused as refused:
        if refused.code == "not_found" and missing is not None:
            raise CommandError(f"refused (not_found): {missing}") from refused
        raise


def done(as_json: bool, words: str, **facts: object) -> int:
    """What a change did."""
    if as_json:
        emit(facts)
    else:
        say(words)
    return 0


def exchange_word(name: str) -> str:
    return name or DEFAULT_EXCHANGE


def shown_exchange(name: str) -> str:
    return name or "(default)"
