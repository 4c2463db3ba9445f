"""`quorate node drain`: leaderships and clients leave a node that is about to be stopped."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorate.cli.api import Cluster, Place, no_node
from quorate.cli.members import node_app
from quorate.cli.output import CommandError, complain, emit, explain, run_async, say
from quorate.cli.tables import show_rows

if TYPE_CHECKING:
    from node.settings.settings import Settings
    from quorate.management import Management

TIMEOUT_S = 60.0
#: What the node may take beyond waiting for the others: leaderships, and goodbyes to clients.
WORK_S_MAX = 15.0
_UNITS_S = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")

Span = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="60s",
        help="How long to wait while the other nodes cannot do without this one.",
    ),
]


@node_app.command("drain")
def node_drain(
    place: Place,
    node: Annotated[
        str | None,
        typer.Argument(metavar="[NODE]", help="Default: the node of --config, on this machine."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file with its settings: no password is needed then."),
    ] = None,
    timeout: Span = None,
    force: Annotated[
        bool, typer.Option("--force", help="Though groups lose their majority by it.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take it back: it serves again.")] = False,
    pre_stop: Annotated[
        bool,
        typer.Option(
            "--pre-stop",
            help="For Kubernetes' preStop: bounded by half of drain.grace_ms, and always exits"
            " with 0.",
        ),
    ] = False,
    skip_file: Annotated[
        Path | None,
        typer.Option("--skip-file", help="With --pre-stop: do nothing while it is not empty."),
    ] = None,
) -> int:
    """Before a node is stopped: its leaderships go to others, then its clients.

    Waits until the other nodes can do without it. Its probe /health/ready says `draining`
    afterwards, its copies go on. `--undo` or its next start ends it.
    """
    if pre_stop:
        return _pre_stop(config, timeout, skip_file, as_json=place.as_json)
    wait_s = TIMEOUT_S if timeout is None else seconds(timeout)
    return _drain(place, node, config, wait_s, force=force, undo=undo)


def seconds(text: str, option: str = "--timeout") -> float:
    """`90`, `90s`, `1.5m`, `500ms`. CommandError."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise CommandError(f"{option} {text}: not a time; allowed: such as 90s, 2m or 500ms", 2)
    return float(found[1]) * _UNITS_S[found[2]]


def _drain(
    place: Place,
    node: str | None,
    config: Path | None,
    wait_s: float,
    *,
    force: bool,
    undo: bool,
) -> int:
    async def work(api: Management) -> dict[str, Any]:
        assert node is not None
        return await _ask(api, node, wait_s, force=force, undo=undo)

    if config is not None:
        settings = _settings(config)
        node = node or settings.node
        most_s = wait_s + WORK_S_MAX
        done = _on_this_machine(settings, node, wait_s, most_s, force=force, undo=undo)
    elif node is None:
        raise CommandError("which node? Name it, or its settings with --config FILE", 2)
    else:
        cluster = Cluster(place.url, place.as_json, wait_s + WORK_S_MAX)
        done = cluster.api(work, missing=no_node(node))
    if place.as_json:
        emit(done)
    elif undo:
        say(f"node {node}: serves again")
    else:
        _show(done)
    return 0


async def _ask(
    api: Management, node: str, wait_s: float, *, force: bool, undo: bool
) -> dict[str, Any]:
    path = ("nodes", node, "drain")
    if undo:
        await api.delete(*path)
        return {"node": node, "draining": False}
    return await api.put_and_get(*path, body={"timeout_ms": round(wait_s * 1000), "force": force})


def _settings(config: Path) -> Settings:
    from node.settings.settings import load

    return load(file=config)


def _on_this_machine(
    settings: Settings, node: str, wait_s: float, most_s: float, *, force: bool, undo: bool
) -> dict[str, Any]:
    """By the token in the node's data folder; `most_s` later at most it is unknown."""
    from node.protocols import local_token
    from quorate.management import Management

    try:
        local = local_token.read(Path(settings.data_dir))
    except (OSError, ValueError, KeyError) as error:
        raise CommandError(
            f"the node of {settings.data_dir} does not run, or its folder may not be read: {error}"
            "\n  next: run this as the node's user while it runs, or name it with --url"
        ) from error

    async def work() -> dict[str, Any]:
        async with Management(
            [local.url], token=local.token, timeout_s=most_s, tls=_of_this_machine()
        ) as api:
            return await _ask(api, node, wait_s, force=force, undo=undo)

    return run_async(work())


def _of_this_machine() -> ssl.SSLContext:
    """No certificate names the address by which a machine reaches itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _show(done: dict[str, Any]) -> None:
    leads: dict[str, str | None] = done["leaderships"]
    kept: list[str] = done["leaderships_kept"]
    to = sorted({successor for successor in leads.values() if successor})
    rows: list[tuple[str, object, str]] = [
        ("leaderships handed over", len(leads), f"to {', '.join(to)}" if to else ""),
        ("leaderships kept", len(kept), ", ".join(kept)),
        ("AMQP connections closed", done["amqp_connections"], ""),
        ("AMQP consumers cancelled", done["consumers_cancelled"], ""),
        ("NATS connections closed", done.get("nats_connections", 0), ""),
        ("native clients sent away", done["native_connections"], ""),
        ("transient queues that end with it", done["transient_queues"], ""),
    ]
    show_rows(
        [{"what": what, "count": count, "detail": detail} for what, count, detail in rows],
        {
            "what": lambda row: row["what"],
            "count": lambda row: row["count"],
            "": lambda row: row["detail"],
        },
        as_json=False,
        none="",
    )
    say(
        f"node {done['node']}: drained, waited {done['waited_ms']} ms for others,"
        f" took {done['took_ms']} ms; stop it now, or --undo"
    )


def _pre_stop(
    config: Path | None, timeout: str | None, skip_file: Path | None, *, as_json: bool
) -> int:
    """Whatever happens, the stop that follows must not wait for it."""
    try:
        if config is None:
            raise CommandError("--pre-stop needs --config FILE", 2)
        settings = _settings(config)
        asked = skip_file or (settings.drain.skip_file and Path(settings.drain.skip_file))
        if asked and asked.is_file() and asked.stat().st_size:
            say(f"not drained: {asked} is not empty, the whole cluster is to go")
            return 0
        # The node is asked for less, so that its own work fits in too.
        half_s = settings.drain.grace_ms / 2000 if timeout is None else seconds(timeout)
        wait_s = max(0.0, half_s - WORK_S_MAX) if half_s > 2 * WORK_S_MAX else half_s / 2
        done = _on_this_machine(settings, settings.node, wait_s, half_s, force=False, undo=False)
    except Exception as error:  # noqa: BLE001 -- said, and no reason not to stop
        if explain(error) is None:
            complain(f"not drained: {type(error).__name__}: {error}")
        return 0
    if as_json:
        emit(done)
    else:
        _show(done)
    return 0
