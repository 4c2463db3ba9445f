"""Strikes at a live cluster, one episode after another, and leaves it whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from chaos.history import History
from chaos.live.live_cluster import LiveCluster, NotReadyError
from chaos.live.whole import until_whole
from chaos.nemesis import data_strikes, disk_strikes, network_strikes, process_strikes
from chaos.nemesis.episodes import Episode, Pace, draw
from chaos.nemesis.mixes import Mix, possible
from chaos.nemesis.scene import Scene, Stage
from chaos.nemesis.watch import Watch

log = structlog.stdlib.get_logger(__name__)

STRIKES: Mapping[str, Callable[[Scene], Awaitable[None]]] = {
    "kill": process_strikes.kill,
    "terminate": process_strikes.terminate,
    "pause": process_strikes.pause,
    "storm": process_strikes.storm,
    "skew_clock": process_strikes.skew_clock,
    "wrong_clock": process_strikes.wrong_clock,
    "partition": network_strikes.partition,
    "degrade": network_strikes.degrade,
    "cut_clients": network_strikes.cut_clients,
    "slow_disk": disk_strikes.slow_disk,
    "fail_fsync": disk_strikes.fail_fsync,
    "lie_fsync": disk_strikes.lie_fsync,
    "low_disk": disk_strikes.low_disk,
    "fill_disk": disk_strikes.fill_disk,
    "power_loss": disk_strikes.power_loss,
    "power_loss_all": disk_strikes.power_loss_all,
    "wipe": data_strikes.wipe,
    "old_copy": data_strikes.old_copy,
    "damage_log_bit": data_strikes.damage_log_bit,
    "damage_snapshot_bit": data_strikes.damage_snapshot_bit,
    "damage_log_end": data_strikes.damage_log_end,
}


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
        scene = Scene(self.stage, episode)
        log.info("fault", kind=episode.kind, episode=episode.name)
        try:
            await STRIKES[episode.kind](scene)
        except Exception as error:  # noqa: BLE001 -- whatever it was, half a fault must not stay
            scene.finding(f"the fault itself failed: {error!r}")
            await self._mend()
        finally:
            scene.end()

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
