"""Strikes at a live cluster, one episode after another, and leaves it whole."""

from __future__ import annotations

import asyncio

import structlog

from chaos.history import History
from chaos.live.live_cluster import LiveCluster, NotReadyError
from chaos.live.whole import until_whole
from chaos.nemesis.episodes import Episode, Pace, draw
from chaos.nemesis.live_strikes import STRIKES, LiveStrike, Stage
from chaos.nemesis.mixes import Mix, possible
from chaos.nemesis.watch import Watch

log = structlog.stdlib.get_logger(__name__)


class Nemesis:
    """`start` it beside the workloads, `stop` it before the drain. `not_tried` says what this
    machine does not allow, `findings` what nodes did that they must not do.
    """

    def __init__(
        self,
        cluster: LiveCluster,
        watch: Watch,
        history: History,
        *,
        seed: int,
        mix: Mix,
        pace: Pace | None = None,
        shuffled: bool = True,
    ) -> None:
        self.mix, self.not_tried = possible(mix, cluster.missing)
        self.stage = Stage(cluster, watch, history, seed)
        self._episodes = draw(
            seed, self.mix, pace or Pace(), without=self.not_tried, shuffled=shuffled
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def findings(self) -> list[str]:
        return self.stage.findings

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="nemesis")

    async def stop(self) -> list[str]:
        """The episode under way comes to its end; then everything is healed and started. Who does
        not come back as a full member, and why.
        """
        self.stage.stopping.set()
        if self._task is not None:
            await self._task
            await self._raise_dead()
        return await self._mend()

    async def strike(self, episode: Episode) -> None:
        """One episode, from its begin to its end."""
        strike = LiveStrike(self.stage, episode)
        log.info("fault", kind=episode.kind, episode=episode.name)
        try:
            await STRIKES[episode.kind](strike)
        except Exception as error:  # noqa: BLE001 -- whatever it was, half a fault must not stay
            strike.finding(f"the fault itself failed: {error!r}")
            await self._mend()
        finally:
            strike.end()

    async def _run(self) -> None:
        stopping = self.stage.stopping
        for episode in self._episodes:
            try:
                async with asyncio.timeout(episode.quiet_s):
                    await stopping.wait()
            except TimeoutError:
                await self._raise_dead()
                together = [episode] if episode.company is None else [episode, episode.company]
                await asyncio.gather(*(self.strike(each) for each in together))
                await self._raise_dead()
            else:
                return

    async def _raise_dead(self) -> None:
        """Between two faults all nodes run: who does not has ended by itself, and must not have."""
        cluster = self.stage.cluster
        for node in cluster.nodes:
            if not cluster.running(node):
                self.findings.append(f"by itself, {cluster.obituary(node)}")
                await asyncio.to_thread(cluster.start, node)

    async def _mend(self) -> list[str]:
        cluster = self.stage.cluster
        await asyncio.to_thread(cluster.heal)
        for node in cluster.nodes:
            await asyncio.to_thread(cluster.start, node)
        left: list[str] = []
        for node in cluster.nodes:
            try:
                await cluster.until_ready([node])
            except NotReadyError as error:
                left.append(str(error))
            else:
                why = await until_whole(cluster, node)
                if why is not None:
                    left.append(why)
        return left
