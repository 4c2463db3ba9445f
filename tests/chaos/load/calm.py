"""A workload on a cluster that nothing befalls, and what its checkers say of that."""

from __future__ import annotations

import asyncio

from chaos.checker import check_all
from chaos.load.workload import Scene, Workload


async def runs_and_drains(
    workload: Workload, scene: Scene, *, load_s: float = 5.0, drain_s_max: float = 120.0
) -> dict[str, int]:
    """Its checkers are all content; returns what they counted."""
    async with asyncio.timeout(60):
        await workload.prepare()
    running = asyncio.create_task(workload.run())
    await asyncio.wait((running,), timeout=load_s)
    scene.ending.set()
    async with asyncio.timeout(60):
        await running
    async with asyncio.timeout(drain_s_max):
        await workload.drain()
    scene.recorder.close()
    assert {op.process.partition("/")[0] for op in scene.recorder} == {workload.name}
    verdicts = check_all(list(scene.recorder), workload.checkers)
    assert all(verdict.valid is True for verdict in verdicts), "\n".join(
        verdict.describe() for verdict in verdicts
    )
    return {
        f"{verdict.checker} {name}": number
        for verdict in verdicts
        for name, number in verdict.counts.items()
    }
