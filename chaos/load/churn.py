"""w5: queues, exchanges and bindings that come and go under names that are used again.

Several clients take turns with each name: one declares, binds, publishes, consumes a little and
deletes, while others declare the same again and publish to the exchanges whatever is bound there.
A name whose state nobody knows any more is given up for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from chaos.checker.churn import churn
from chaos.checker.verdict import Checker
from chaos.history import publish_value
from chaos.load.client import PAUSE_S, Client, close_all, publish_until, wait
from chaos.load.driver import Answer, Protocols, Publish
from chaos.load.workload import Scene

WORKERS = 3
NAMES = 5
#: In both protocols what a declaration names has to be told again alike.
ARGUMENTS = {"x-max-length": 100_000}
EXCHANGES = ("direct", "fanout", "topic")
PUBLISHES_PER_S = 15.0  # of the one who publishes whatever is bound
PUBLISHES_MAX = 12  # to one queue, by the one who made it
DRAINED_SHARE, UNBOUND_SHARE, EXCHANGE_DELETED_SHARE = 0.7, 0.5, 0.15
EMPTY_S_MAX = 15.0


class Churn:
    def __init__(self, scene: Scene, protocol: Protocols) -> None:
        self.name = f"w5-{protocol}"
        self._scene = scene
        self._workers = [Client(scene, f"{self.name}/d{n}", protocol) for n in range(WORKERS)]
        self._publisher = Client(scene, f"{self.name}/p0", protocol)
        self._exchanges = {f"{self.name}.{kind}": kind for kind in EXCHANGES}
        self._free = [f"{self.name}.{number}" for number in range(NAMES)]
        self._busy: list[str] = []
        self._named = NAMES
        self._given_up: list[str] = []

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {"churn": churn}

    async def prepare(self) -> None:
        for exchange in self._exchanges:
            if not (await self._declare_exchange(self._publisher, exchange)).ok:
                raise RuntimeError(f"{exchange} cannot be declared")

    async def run(self) -> None:
        await asyncio.gather(
            publish_until(self._scene.ending, self._publisher, PUBLISHES_PER_S, self._publish_any),
            *(self._work(client) for client in self._workers),
        )

    async def drain(self) -> None:
        """What is left has no use any more; what was deleted is still gone."""
        worker = self._workers[0]
        for queue in (*self._free, *self._given_up):
            while (await self._delete(worker, queue)).type == "unknown":
                await asyncio.sleep(PAUSE_S)
            await worker.length(queue)
        for exchange in self._exchanges:
            await self._delete_exchange(worker, exchange)
        await close_all([self._publisher, *self._workers])

    # --- the life of a queue ----------------------------------------------------------------------

    async def _work(self, client: Client) -> None:
        ending = self._scene.ending
        while not ending.is_set():
            queue = self._free.pop(client.dice.randrange(len(self._free)))
            self._busy.append(queue)
            sure = await self._one_life(client, queue)
            self._busy.remove(queue)
            if sure:
                self._free.append(queue)
            else:
                self._given_up.append(queue)
                self._free.append(f"{self.name}.{self._named}")
                self._named += 1
            await wait(ending, PAUSE_S)

    async def _one_life(self, client: Client, queue: str) -> bool:
        """Whether its name may be used again: it is surely deleted, or was never declared."""
        dice = client.dice
        other = dice.choice([each for each in self._workers if each is not client])
        own, alike = await asyncio.gather(
            client.declare(queue, ARGUMENTS), other.declare(queue, ARGUMENTS)
        )
        if "unknown" in (own.type, alike.type):
            return False
        if not (own.ok or alike.ok):
            return True
        exchange = dice.choice(list(self._exchanges))
        await self._declare_exchange(client, exchange)
        await self._bind(client, queue, exchange)
        for _ in range(dice.randint(1, PUBLISHES_MAX)):
            by = dice.choice((client, other))
            if dice.random() < 0.5:
                await by.publish(queue)
            else:
                await self._publish_to(by, exchange, queue)
        if dice.random() < DRAINED_SHARE:
            await self._take(client, queue, EMPTY_S_MAX)
        else:
            await self._take(client, queue, dice.uniform(0, 0.2))
        if dice.random() < UNBOUND_SHARE:
            await self._about(client, "unbind", queue, exchange)
        if dice.random() < EXCHANGE_DELETED_SHARE:
            await self._delete_exchange(client, exchange)
        deleted = await self._delete(client, queue)
        if deleted.ok:
            await client.length(queue)
        return deleted.ok

    async def _take(self, client: Client, queue: str, time_s: float) -> None:
        """Until it is empty, or the time is over."""
        consumption = await client.subscribe(queue)
        if isinstance(consumption, Answer):
            return
        stop = asyncio.Event()
        working = asyncio.create_task(client.work_off(consumption, stop, client.settle_all))
        invoked = client.recorder.invoke(client.name, "drain", {"queue": queue})
        loop = asyncio.get_running_loop()
        until_s, empty = loop.time() + time_s, False
        while not empty and not working.done() and loop.time() < until_s:
            answer = await client.driver.length(queue)
            empty = answer.ok and answer.value == 0
            await asyncio.sleep(0 if empty else PAUSE_S)
        client.recorder.end(invoked, "ok" if empty else "unknown")
        stop.set()
        await working

    # --- one op each ------------------------------------------------------------------------------

    async def _publish_any(self) -> None:
        dice = self._publisher.dice
        exchange = dice.choice(list(self._exchanges))
        await self._publish_to(self._publisher, exchange, dice.choice(self._free + self._busy))

    async def _publish_to(self, client: Client, exchange: str, key: str) -> None:
        first, messages = client.take_numbers(1)
        value = publish_value(None, client.name, first, 1)
        value |= {"exchange": exchange, "key": key}
        call = client.driver.publish(Publish(key, messages, exchange=exchange))
        await client.record("publish", value, call)

    async def _declare_exchange(self, client: Client, exchange: str) -> Answer:
        kind = self._exchanges[exchange]
        value = {"exchange": exchange, "kind": kind}
        return await client.record("declare", value, client.driver.declare_exchange(exchange, kind))

    async def _delete_exchange(self, client: Client, exchange: str) -> Answer:
        value = {"exchange": exchange}
        return await client.record("delete", value, client.driver.delete_exchange(exchange))

    async def _bind(self, client: Client, queue: str, exchange: str) -> Answer:
        return await self._about(client, "bind", queue, exchange)

    async def _about(self, client: Client, what: str, queue: str, exchange: str) -> Answer:
        value = {"queue": queue, "exchange": exchange, "key": queue}
        call = client.driver.bind if what == "bind" else client.driver.unbind
        return await client.record(what, value, call(queue, exchange, queue))

    async def _delete(self, client: Client, queue: str) -> Answer:
        return await client.record("delete", {"queue": queue}, client.driver.delete(queue))
