"""`quorate node ...`: what changes the cluster is beside this; here is what runs a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quorate.cli.asking import Yes
from quorate.cli.drain import node_app
from quorate.cli.output import Json

__all__ = ["node_app"]


@node_app.command(
    "start", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def node_start(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings.")
    ] = None,
) -> int:
    """Run one node until SIGTERM, which first hands its leaderships to others.

    Every setting of docs/configuration.md is a flag, as in `--node n1 --log.retain-hours 24`, and
    an environment variable, as in QUORATE_LOG__RETAIN_HOURS. Flags win over the environment, that
    over the file.
    """
    from quorate.cli.nodes import run_node

    return run_node(config, list(context.args))


@node_app.command(
    "recover", context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def node_recover(
    context: typer.Context,
    lost: Annotated[
        list[str], typer.Option("--lost", help="A node that is gone for good; repeatable.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings of this node.")
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Go on without a majority that is lost for good. Messages may be lost: it says which.

    Run it on every node that is left, while these are stopped. Settings are given as to
    `quorate node start`.
    """
    from quorate.cli.recovery import run_recover

    return run_recover(config, list(context.args), lost, yes=yes, as_json=as_json)
