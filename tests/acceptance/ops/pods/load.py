"""The clients: publishers that wait for confirms and consumers, of both protocols, who know nothing
but the name of the service. Runs in their namespace; lines on its standard input and output say how
far it is: `flowing`, then it is told `end`, then `drained`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from chaos.history import Recorder
from chaos.load.addresses import Address
from chaos.load.client import Client, Handle, close_all, publish_until
from chaos.load.draining import Left, drain
from chaos.load.driver import Consumption, Protocols, Received
from chaos.load.drivers import Drivers
from chaos.load.workload import Scene

HISTORY = "history.jsonl"
PROTOCOLS: Sequence[Protocols] = ("amqp", "native")
PUBLISHERS = 2  # of each protocol
PUBLISHES_PER_S = 50.0  # of each publisher, one message each: so its own gap is seen
BACKLOG_MAX = 5_000
FLOWING = 20  # deliveries of each protocol
PREPARE_S_MAX = 120.0
DRAIN_S_MAX = 120.0
LOOK_S = 0.02


class Flow:
    """One protocol's publishers and consumer, and their queue."""

    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = f"pods-{protocol}"
        self.queue = f"{self.name}.orders"
        self.delivered = 0
        self._ending = scene.ending
        self._publishers = [
            Client(scene, f"{self.name}/p{number}", protocol) for number in range(PUBLISHERS)
        ]
        self._consumer = Client(scene, f"{self.name}/c0", protocol)
        self._left = Left()

    async def prepare(self) -> None:
        """As soon as the service answers."""
        async with asyncio.timeout(PREPARE_S_MAX):
            while not (await self._consumer.declare(self.queue, {})).ok:
                await asyncio.sleep(LOOK_S)

    async def run(self) -> None:
        publishing = [
            publish_until(self._ending, client, PUBLISHES_PER_S, partial(self._publish, client))
            for client in self._publishers
        ]
        await asyncio.gather(
            *publishing, self._consumer.consume(self.queue, self._ending, self._take)
        )

    async def drain(self) -> None:
        await close_all(self._publishers)
        takers: dict[str, tuple[Client, Handle]] = {self.queue: (self._consumer, self._take)}
        await drain(self.name, self._left, takers)
        await self._consumer.close()

    async def _publish(self, client: Client) -> None:
        if len(self._left.keys) > BACKLOG_MAX:
            return
        first = client.published
        if (await client.publish(self.queue)).ok:
            self._left.confirmed(self.queue, client.name, first, 1)

    async def _take(self, consumption: Consumption, received: Received) -> bool:
        self.delivered += len(received.messages)
        self._left.out(self.queue, received.messages)
        await self._consumer.soon(self._consumer.settle(consumption, received))
        return True


async def run(folder: Path, host: str, credentials: str) -> int:
    recorder = Recorder(folder / HISTORY)
    address = Address(host, f"http://{host}:8080", f"amqp://{credentials}@{host}:5672/%2F")
    scene = Scene(recorder, Drivers([address], 0).open, seed=0)
    flows = [Flow(scene, protocol) for protocol in PROTOCOLS]
    try:
        await asyncio.gather(*(flow.prepare() for flow in flows))
        async with asyncio.TaskGroup() as group:
            for flow in flows:
                group.create_task(flow.run())
            while any(flow.delivered < FLOWING for flow in flows):
                await asyncio.sleep(LOOK_S)
            _say("flowing")
            await asyncio.to_thread(sys.stdin.readline)
            scene.ending.set()
        async with asyncio.timeout(DRAIN_S_MAX):
            await asyncio.gather(*(flow.drain() for flow in flows))
    finally:
        recorder.close()
    _say("drained")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", required=True, help="the service's name")
    parser.add_argument("--credentials", required=True, help="user:password")
    given = parser.parse_args(arguments)
    return asyncio.run(run(given.folder, given.host, given.credentials))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
