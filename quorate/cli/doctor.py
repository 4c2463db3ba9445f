"""`quorate doctor`: what is wrong with a cluster, or soon will be, and what mends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.cli.api import Cluster
from quorate.cli.asking import counted
from quorate.cli.output import emit, stdout
from quorate.cli.tables import Row, printable

if TYPE_CHECKING:
    from quorate.management import Management


def run_doctor(cluster: Cluster) -> int:
    async def ask(api: Management) -> Any:
        return await api.get("attention")

    seen: Row = cluster.api(ask)
    if cluster.as_json:
        for finding in seen["findings"]:
            emit(finding)
    else:
        _show(seen)
    return int(any(finding["level"] == "problem" for finding in seen["findings"]))


def _show(seen: Row) -> None:
    from rich.text import Text

    console = stdout()
    for finding in seen["findings"]:
        style, sign = ("red", "✗") if finding["level"] == "problem" else ("yellow", "!")
        console.print(Text(f"{sign} {printable(finding['what'])}", style=style))
        console.print(Text(f"    next: {printable(finding['next'])}", style="dim"))
    nodes, groups, queues = (counted(seen[f"{one}s"], one) for one in ("node", "group", "queue"))
    looked = f"{nodes}, {groups} and {queues} were looked at"
    if not seen["nodes"]:  # of a cluster, which has some
        looked = f"only {queues} were looked at: nodes, groups and links need the tag monitoring"
    if seen["findings"]:
        console.print(looked)
    else:
        console.print(Text(f"✓ all is well: {looked}", style="green"))
