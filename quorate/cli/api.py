"""What commands share that talk to a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from quorate.cli.output import (
    CommandError,
    Json,
    Timeout,
    Url,
    addresses,
    emit,
    login,
    run_async,
    say,
)
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.client import Client
    from quorate.management import Management

Result = TypeVar("Result")
#: A path's word for the exchange that has no name.
DEFAULT_EXCHANGE = "amq.default"

Queue = Annotated[str, typer.Argument(help="Name of the queue.")]
#: Seconds after which a cluster of which no node answers is taken for stopped.
REACH_S_MAX = 3.0
F = TypeVar("F", bound=Callable[..., Any])


class Commands(typer.Typer):
    """Commands whose dataclasses stand for their fields: options that several commands share."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)

    def command(self, *args: Any, **settings: Any) -> Callable[[F], F]:
        register = super().command(*args, **settings)

        def registered(function: F) -> F:
            register(_with_fields(function))
            return function

        return registered


def _with_fields(function: Callable[..., Any]) -> Callable[..., Any]:
    hints = get_type_hints(function, include_extras=True)
    own: list[Parameter] = []
    shared: list[Parameter] = []
    grouped: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        kind = hints[name]
        if not is_dataclass(kind):
            own.append(parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY))
            continue
        grouped[name] = kind
        of_fields = get_type_hints(kind, include_extras=True)
        shared += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=Parameter.empty if field.default is MISSING else field.default,
                annotation=of_fields[field.name],
            )
            for field in fields(kind)
        ]

    def command(**given: Any) -> Any:
        for name, kind in grouped.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        return function(**given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
    command.__signature__ = Signature([*own, *shared])  # pyright: ignore[reportFunctionMemberAccess] -- it is what inspect asks for
    return command


def done(as_json: bool, words: str, **facts: object) -> int:
    """What a change did."""
    if as_json:
        emit(facts)
    else:
        say(words)
    return 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command goes, and how it shows what came of it."""

    url: Url = None
    as_json: Json = False

    def done(self, words: str, **facts: object) -> int:
        return done(self.as_json, words, **facts)


@dataclass(frozen=True, slots=True)
class Cluster(Place):
    """It talks to a cluster."""

    timeout: Timeout = 30.0

    def api(
        self, work: Callable[[Management], Awaitable[Result]], *, missing: str | None = None
    ) -> Result:
        """Ask the management API. `missing`: what to say, with the next step, when what the path
        names does not exist.
        """
        from quorate.management import Management

        urls = addresses(self.url)

        async def asked() -> Result:
            try:
                api = Management(
                    urls,
                    user=login.user,
                    password=login.password,
                    timeout_s=self.timeout,
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

    def client(self, work: Callable[[Client], Awaitable[Result]]) -> Result:
        """Connect, do it, close."""
        import quorate

        urls = addresses(self.url)

        async def connected() -> Result:
            async with quorate.connect(
                urls,
                vhost=getattr(self, "vhost", None) or "/",
                timeout=self.timeout,
                name="quorate-cli",
                user=login.user,
                password=login.password,
                tls=login.tls(),
            ) as client:
                # A cluster that is not there is said soon; one that changes its leader has all the
                # time.
                await client.reach(min(self.timeout, REACH_S_MAX))
                return await work(client)

        return run_async(connected())


@dataclass(frozen=True, slots=True)
class Patient(Cluster):
    """For what may take longer."""

    timeout: Timeout = 60.0


@dataclass(frozen=True, slots=True)
class InVhost(Cluster):
    """What a command is about is in one virtual host."""

    vhost: Annotated[str, typer.Option("--vhost", help="Virtual host in which it is.")] = "/"


@dataclass(frozen=True, slots=True)
class PatientInVhost(InVhost):
    timeout: Timeout = 60.0


@dataclass(frozen=True, slots=True)
class AnyVhost(Cluster):
    """A command is about a virtual host, or all."""

    vhost: Annotated[
        str | None,
        typer.Option(
            "--vhost", help="Only of this virtual host. Default: of all that you may see."
        ),
    ] = None


def no_vhost(vhost: str | None) -> str:
    return f"there is no virtual host {vhost!r}\n  next: `quorate vhost list`"


def no_node(node: str) -> str:
    return f"there is no node {node!r} in the cluster\n  next: `quorate node list`"


def exchange_word(name: str) -> str:
    return name or DEFAULT_EXCHANGE


def shown_exchange(name: str) -> str:
    return name or "(default)"
