"""`quorate upgrade ...`"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from quorate.cli.api import done
from quorate.cli.moves import LOOK_S, Anybody, Stage, watched
from quorate.cli.output import Json, Timeout, Url, run_async, say

upgrade_app = typer.Typer(
    no_args_is_help=True, help="Which versions the nodes run, and when the cluster rises to them."
)

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until all groups have risen.")]


async def _state(anybody: Anybody) -> dict[str, Any]:
    return await anybody.ask(lambda api: api.get("upgrade"))


@upgrade_app.command("status")
def status(url: Url = None, as_json: Json = False, timeout: Timeout = 30.0) -> int:
    """What every node can run, what the cluster runs, and what it waits for."""
    state = run_async(_state(Anybody(url, timeout)))
    if as_json:
        return done(as_json, "", **state)
    for node in state["nodes"]:
        say(f"{node['name']}: {node['versions'] or 'the first release, which tells no versions'}")
    behind = [name for name, version in state["groups"].items() if version < state["possible"]]
    say(f"machine version {state['machine_version']}; all nodes can run {state['possible']}")
    if state["held_at"] is not None:
        say(f"held at {state['held_at']}\n  next: `quorate upgrade finish`")
    elif behind:
        say(f"on their way to {state['possible']}: {', '.join(behind)}")
    return 0


@upgrade_app.command("hold")
def hold(url: Url = None, as_json: Json = False, timeout: Timeout = 30.0) -> int:
    """Keep what the cluster runs now, so that all nodes can go back to the older release."""

    async def work() -> int:
        anybody = Anybody(url, timeout)
        await anybody.ask(lambda api: api.put("upgrade", "hold", body={}))
        state = await _state(anybody)
        words = f"machine version {state['held_at']} is kept, whatever the nodes can run"
        return done(as_json, f"{words}\n  next: `quorate upgrade finish`", **state)

    return run_async(work())


@upgrade_app.command("finish")
def finish(
    wait: Wait = True, url: Url = None, as_json: Json = False, timeout: Timeout = 30.0
) -> int:
    """Let the cluster rise to what all nodes can run. No node can go back from there."""
    stage = Stage()

    async def work() -> int:
        anybody = Anybody(url, timeout)
        await anybody.ask(lambda api: api.delete("upgrade", "hold"))
        stage.words = "it goes on without this command: `quorate upgrade status`"
        state = await _state(anybody)
        while wait and any(v < state["possible"] for v in state["groups"].values()):
            await asyncio.sleep(LOOK_S)
            state = await _state(anybody)
        return done(as_json, f"machine version {state['machine_version']}", **state)

    return watched(work(), stage)
