"""Nodes are killed, and the rules must notice: that rules fit what real nodes tell."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from quorate.local import LocalCluster
from tests.acceptance.ops.prom.checks import ASK_AGAIN_S, Outcome, Verdict
from tests.acceptance.ops.prom.server import Prometheus

#: What must become pending or fire when this many of three nodes are dead; how long each has to
#: last before it fires is a matter of the rules' own tests.
EXPECTED: Mapping[int, tuple[str, ...]] = {
    1: ("QuorateNodeDown", "QuorateScrapeFails", "QuorateQuorumCritical"),
    2: ("QuorateNoLeader",),
}


async def deaths(server: Prometheus, cluster: LocalCluster, *, patience: float) -> list[Verdict]:
    found: list[Verdict] = []
    for dead, names in EXPECTED.items():
        await cluster.kill(cluster.nodes[-dead])
        until = time.monotonic() + patience
        for name in names:
            noticed = await _noticed(server, name, until)
            outcome = Outcome.OK if noticed else Outcome.FAILED
            detail = noticed or "stays inactive"
            found.append(Verdict(f"{dead} of 3 nodes dead", name, outcome, detail))
    return found


async def _noticed(server: Prometheus, name: str, until: float) -> str:
    """Its state, and of what; "" when it stays inactive."""
    while True:
        for rule in await server.rules():
            if rule["name"] == name and rule["state"] != "inactive":
                labels = rule["alerts"][0]["labels"]
                about = labels.get("peer") or labels.get("group") or labels["instance"]
                return f"{rule['state']}: {about}"
        if time.monotonic() > until:
            return ""
        await asyncio.sleep(ASK_AGAIN_S)
