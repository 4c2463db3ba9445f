"""GET /health/...: facts that this node knows of itself, for probes that ask without a password.

| path | 503 means |
|---|---|
| live | a restart may help: the loop is stuck, or the node stopped working |
| startup | it is still reading its log |
| ready | clients should go elsewhere for now |
| quorum-critical | stopping this node now would cost a group its majority |

None of the first three depends on the other nodes. Least of all does `ready`: when a quorum is lost
all nodes would turn unready at once, their service would have no address left, and clients would
be cut off from what can still be served: reads, metrics, settles on their way, and the errors
that say what is wrong. Only at its start a node also waits, within bounds, until its copies have
caught up (`CatchUp`): it is what an update node by node goes by.
"""

from __future__ import annotations

from aiohttp import web

from cluster.cluster_node import ClusterNode
from node.broker.alarms import Alarms
from node.operating.catch_up import CatchUp
from node.operating.quorum import Quorum
from node.operating.watchdog import Watchdog


class Health:
    """One per node, which sets what it is doing."""

    def __init__(
        self,
        cluster: ClusterNode,
        *,
        alarms: Alarms,
        watchdog: Watchdog,
        catch_up: CatchUp,
        quorum: Quorum,
    ) -> None:
        self.listening = False  # the log is read, and all listeners are bound
        self.draining = False
        self.stopping = False
        self._cluster = cluster
        self._alarms = alarms
        self._watchdog = watchdog
        self._catch_up = catch_up
        self._quorum = quorum

    def why_not_live(self) -> list[str]:
        failed = self._cluster.failed
        reasons = [] if failed is None else [f"the node stopped working: {failed}"]
        return reasons + self._watchdog.why_not_live()

    def why_not_started(self) -> list[str]:
        if self.listening:
            return []
        replay = self._cluster.replay
        if replay.segments and replay.read < replay.segments:
            return [f"the log is being read: {replay.read} of {replay.segments} segments"]
        if replay.segments:
            return [f"the log is read, {replay.segments} segments; listeners are not bound yet"]
        return ["the node is starting"]

    def why_not_ready(self) -> list[str]:
        reasons = self.why_not_live()
        if self.stopping:
            reasons.append("the node is stopping")
        elif self.draining:
            reasons.append("the node is draining: `quorate node drain --undo` ends it")
        if not self.listening:
            return reasons + self.why_not_started()
        reasons += self._catch_up.why_not()
        reasons += [
            f"this node is low on {what}: see its {what}_alarm"
            for what, low in (("memory", self._alarms.memory), ("disk", self._alarms.disk))
            if low
        ]
        reasons += [
            f"group {group.name} stopped: {group.poisoned}"
            for group in (*self._cluster.groups.values(), self._cluster.transient.own)
            if group is not None and group.poisoned is not None
        ]
        reasons += [
            f"the copy of group {group.name} here has diverged from the others: `quorate group"
            f" rebuild {group.name} {group.node}` gets it anew"
            for group in self._cluster.groups.values()
            if group.member.diverged
        ]
        return reasons

    async def why_critical(self) -> list[str]:
        if not self.listening:
            return self.why_not_started()
        return [str(each) for each in await self._quorum.critical()]

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/health/live", self.live)
        app.router.add_get("/health/startup", self.startup)
        app.router.add_get("/health/ready", self.ready)
        app.router.add_get("/health/quorum-critical", self.quorum_critical)

    async def live(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_live())

    async def startup(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_started())

    async def ready(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_ready())

    async def quorum_critical(self, request: web.Request) -> web.Response:
        return _answer(await self.why_critical())


def _answer(reasons: list[str]) -> web.Response:
    return web.json_response(
        {"ok": not reasons, "reasons": reasons}, status=503 if reasons else 200
    )
