"""`quorate upgrade ...`"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from quorate.cli.api import Cluster, Commands
from quorate.cli.moves import LOOK_S, Anybody, Stage, watched
from quorate.cli.output import CommandError, Json, run_async, say
from quorate.cli.tables import show_rows

#: This release would come to another state than the one that wrote the log.
EXIT_DIFFERS = 3

upgrade_app = Commands()

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until all groups have risen.")]


async def _state(anybody: Anybody) -> dict[str, Any]:
    return await anybody.ask(lambda api: api.get("upgrade"))


@upgrade_app.command("status")
def status(cluster: Cluster) -> int:
    """What every node can run, what the cluster runs, and what it waits for."""
    state = run_async(_state(Anybody(cluster)))
    if cluster.as_json:
        return cluster.done("", **state)
    for node in state["nodes"]:
        say(f"{node['name']}: {node['versions'] or 'the first release, which tells no versions'}")
    behind = [name for name, version in state["groups"].items() if version < state["possible"]]
    say(f"machine version {state['machine_version']}; all nodes can run {state['possible']}")
    if state["held_at"] is not None:
        say(f"held at {state['held_at']}\n  next: `quorate upgrade finish`")
    elif behind:
        say(f"on their way to {state['possible']}: {', '.join(behind)}")
    return 0


@upgrade_app.command("check")
def check(
    directory: Annotated[
        Path, typer.Argument(help="The data folder of a node, which may be running.")
    ],
    as_json: Json = False,
) -> int:
    """Replay a node's log with this release, and compare the states: before a node runs it.

    Reads only. Exit status 3 when this release would come to another state.
    """
    from cluster.recovery.rehearsing import rehearse
    from quorate.cli.nodes import log_folder

    if not directory.is_dir():
        raise CommandError(f"{directory} is no folder: give a node's data folder", 2)
    found = list(rehearse(str(log_folder(directory))))
    show_rows(
        [{**asdict(each), "sound": each.sound} for each in found],
        {
            "group": lambda row: row["group"],
            "entries": lambda row: f"{row['first'] + 1} to {row['last']}",
            "states compared": lambda row: row["compared"],
            "differ at": lambda row: ", ".join(map(str, row["differing"])) or None,
            "problem": lambda row: row["problem"],
        },
        as_json=as_json,
        none=f"{directory} holds no log",
    )
    return 0 if found and all(each.sound for each in found) else EXIT_DIFFERS


@upgrade_app.command("hold")
def hold(cluster: Cluster) -> int:
    """Keep what the cluster runs now, so that all nodes can go back to the older release."""

    async def work() -> int:
        anybody = Anybody(cluster)
        await anybody.ask(lambda api: api.put("upgrade", "hold", body={}))
        state = await _state(anybody)
        words = f"machine version {state['held_at']} is kept, whatever the nodes can run"
        return cluster.done(f"{words}\n  next: `quorate upgrade finish`", **state)

    return run_async(work())


@upgrade_app.command("finish")
def finish(cluster: Cluster, wait: Wait = True) -> int:
    """Let the cluster rise to what all nodes can run. No node can go back from there."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(cluster)
        await anybody.ask(lambda api: api.delete("upgrade", "hold"))
        stage.words = "it goes on without this command: `quorate upgrade status`"
        state = await _state(anybody)
        while wait and any(v < state["possible"] for v in state["groups"].values()):
            await asyncio.sleep(LOOK_S)
            state = await _state(anybody)
        return cluster.done(f"machine version {state['machine_version']}", **state)

    return watched(work(), stage)
