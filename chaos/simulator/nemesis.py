"""When what befalls a simulated cluster. A majority may be down: safety must hold still.

Faults of disks have dice of their own, so that a seed means without them what it always meant.
"""

from __future__ import annotations

import asyncio
import random

from chaos.simulator.backups import Backups
from chaos.simulator.sim_cluster import SimCluster
from chaos.simulator.strikes import DISKS_WAIT_S, STRIKES, SimStrike

Weights = tuple[tuple[str, int], ...]


class Nemesis:
    """Strikes at random until told to stop."""

    def __init__(self, cluster: SimCluster, backups: Backups) -> None:
        self.cluster = cluster
        self._backups = backups

    async def run(self) -> None:
        """Faults overlap: each mends itself after a while, in a task of its own."""
        plan = self.cluster.plan
        dice = random.Random(f"nemesis/{plan.seed}")
        while True:
            await asyncio.sleep(dice.expovariate(1.0) * plan.fault_every_s)
            self._strike(dice, plan.nemesis_weights)

    async def run_on_disks(self) -> None:
        """One after another, and in tasks of their own, too: what is begun is mended."""
        plan = self.cluster.plan
        dice = random.Random(f"disks/{plan.seed}")
        while True:
            await asyncio.sleep(dice.uniform(0.3, 2.0))
            strike = self._strike(dice, plan.disk_weights)
            while not strike.done():
                await asyncio.sleep(DISKS_WAIT_S[0])

    def _strike(self, dice: random.Random, weights: Weights) -> asyncio.Task[None]:
        kind = dice.choices([kind for kind, _ in weights], [weight for _, weight in weights])[0]
        strike = SimStrike(self.cluster, dice, kind, self._backups)
        return self.cluster.world.kernel.spawn(_strike(strike), kind)


async def _strike(strike: SimStrike) -> None:
    await STRIKES[strike.kind](strike)
