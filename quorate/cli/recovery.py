"""`node recover`: a majority is lost for good, and a person says that the rest shall go on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorate.cli.asking import answer
from quorate.cli.output import CommandError, emit, say, stdout

if TYPE_CHECKING:
    from cluster.recovery.lost_majority import LostMajority
    from node.operating.recovery import Survey


#: Names of queues that are listed of a group without a copy; --json has all.
QUEUES_SHOWN = 10


def run_recover(
    config: Path | None, flags: list[str], lost: list[str], *, yes: bool, as_json: bool
) -> int:
    from cluster.log import LogError
    from node.operating.recovery import recover, survey
    from node.settings.settings import SettingsError, load, parse_flags

    try:
        settings = load(file=config, flags=parse_flags(flags))
        found = asyncio.run(survey(settings, lost))
        if as_json:
            emit(_as_json(found))
        else:
            _show(found)
        if not any(group.name not in found.elsewhere for group in found.groups):
            say("nothing to do: no group on this node lacks a majority without them")
            return 0
        asked = f"To go on, type the name of the cluster ({settings.cluster}):"
        if not yes and answer(asked) != settings.cluster:
            say("nothing was changed")
            return 1
        asyncio.run(recover(settings, lost))
    except SettingsError as error:
        raise CommandError(str(error), error.exit_code) from error
    except LogError as error:
        raise CommandError(str(error), 3) from error
    _next_steps(found)
    return 0


def _as_json(found: Survey) -> dict[str, Any]:
    return {
        "node": found.node,
        "lost": list(found.lost),
        "groups": [
            {
                "group": group.name,
                "voters": list(group.voters),
                "survivors": list(group.survivors),
                "counts": group.name not in found.elsewhere,
                "last_index": group.last_index,
                "commit_index": group.commit_index,
                "last_ms": group.last_ms,
            }
            for group in found.groups
        ],
        "without_copy": [
            {
                "group": group.name,
                "homes": list(group.homes),
                "queues": [{"vhost": vhost, "name": name} for vhost, name in group.queues],
            }
            for group in found.gone
        ],
    }


def _show(found: Survey) -> None:
    from rich.table import Table

    table = Table("group", "voters", "goes on with", "this copy ends at", "written")
    for group in found.groups:
        table.add_row(
            group.name,
            " ".join(group.voters),
            _goes_on_with(found, group),
            f"entry {group.last_index}, {group.last_index - group.commit_index} of them in doubt",
            _time(group),
        )
    console = stdout()
    console.print(table)
    console.print(
        "[bold red]What may be lost[/bold red]: every message that, when it was confirmed, only"
        f" {', '.join(found.lost)} had; and settles, so messages may come again. All that the"
        " survivors' copies hold stays, also what was never confirmed."
    )
    console.print(
        "Do this only when the lost nodes can never come back with their data. If one of them can,"
        " start it instead: then nothing is lost. Afterwards a lost node is let in with an empty"
        " folder only: on its old one it stops."
    )
    if found.elsewhere:
        console.print(
            f"This node's copy of {', '.join(found.elsewhere)} does not count: it does not say of"
            " itself that it is one, or it was moved to nodes of which some are left. The others'"
            " tables say who goes on; if they name this node, it"
            " is brought up to date. What only such a copy has is lost, too."
        )
    _show_gone(found)


def _show_gone(found: Survey) -> None:
    if not found.gone:
        return
    console = stdout()
    for group in found.gone:
        names = [name if vhost == "/" else f"{vhost}:{name}" for vhost, name in group.queues]
        shown = ", ".join(names[:QUEUES_SHOWN]) + (", ..." if len(names) > QUEUES_SHOWN else "")
        console.print(
            f"[bold red]No copy is left of {group.name}[/bold red] ({', '.join(group.homes)} had"
            f" them): all that it held is gone. Its queues ({len(names)}): {shown or 'none'}",
            markup=True,
            highlight=False,
        )
    console.print(
        "Such a group stays without a leader, and what is asked of its queues is refused"
        " (no_leader). If a lost node can come back with its folder, start it, and do not go on."
        " Otherwise restore a backup into a new cluster (quorate restore), or go on and declare"
        " queues under other names, with an x-queue-group of their own: a new queue without one"
        " may be put into such a group."
    )


def _goes_on_with(found: Survey, group: LostMajority) -> str:
    if group.name in found.elsewhere:
        return "[dim]see the others[/dim]"  # what it says of the members may be long over
    return " ".join(group.survivors)


def _time(group: LostMajority) -> str:
    if group.last_ms is None:
        return "-"
    return datetime.fromtimestamp(group.last_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _next_steps(found: Survey) -> None:
    others = sorted({node for group in found.groups for node in group.survivors} - {found.node})
    say(f"done on {found.node}, and noted in its folder (given-up.jsonl).")
    step = 1
    if others:
        say(f"{step}. run the same on {', '.join(others)}, with the same lost nodes")
        step += 1
        say(f"{step}. start all survivors: the first leader of a group is elected by all of them,")
        say("   so that it lacks nothing that one of them has")
    else:
        say(f"{step}. start {found.node}")
    removals = "; ".join(f"quorate node remove {node}" for node in found.lost)
    say(f"{step + 1}. let the others go for good: {removals}")
    say("   or start them with empty folders under their old names: they are brought up to date")
