"""The end of a load: what is left is taken out, and all queues are seen to be empty."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from chaos.load.client import PAUSE_S, Client, Handle
from chaos.load.driver import Answer, Consumption, Received

#: What died may still be on its way when all queues are empty: it is waited for so long.
QUIET_S = 15.0
BACKLOG_MAX = 2_000

MessageKey = tuple[str, str]  # the queue it was published to, its id


class Left:
    """What was confirmed, and is not known to have come out yet: the run's own account, which only
    says how long to wait. What was lost is for the checkers to say.
    """

    def __init__(self, most: int = BACKLOG_MAX) -> None:
        """`most`: above it publishers wait."""
        self._most = most
        self.keys: set[MessageKey] = set()
        self._out: set[MessageKey] = set()  # perhaps before they were confirmed

    @property
    def too_many(self) -> bool:
        """Publishers wait."""
        return len(self.keys) > self._most

    def confirmed(self, queue: str, publisher: str, first: int, count: int) -> None:
        keys = {(queue, f"{publisher}:{first + each}") for each in range(count)}
        self.keys |= keys - self._out

    async def publish(self, client: Client, queue: str, most: int) -> Answer | None:
        """A batch of 1 to `most` messages. None: too many have not come out yet."""
        if self.too_many:
            return None
        first, count = client.published, client.dice.randint(1, most)
        answer = await client.publish(queue, count)
        if answer.ok:
            self.confirmed(queue, client.name, first, count)
        return answer

    def taking(self, client: Client, queue: str, crash_share: float = 0.0) -> Handle:
        """Settles what comes out, or dies at times; `queue`: to which that was published."""

        async def take(consumption: Consumption, received: Received) -> bool:
            if crash_share and client.dice.random() < crash_share:
                await client.crash()
                return False
            self.out(queue, received.messages)
            await client.soon(client.settle(consumption, received))
            return True

        return take

    def out(self, queue: str, messages: Sequence[str]) -> None:
        keys = {(queue, message) for message in messages}
        self._out |= keys
        self.keys -= keys


async def drain(workload: str, left: Left, takers: Mapping[str, tuple[Client, Handle]]) -> None:
    """Each queue's client takes what is left. Twice in a row all must be empty: a dead letter is in
    neither of its queues for a moment.
    """
    stop = asyncio.Event()
    working = [
        asyncio.create_task(client.consume(queue, stop, handle))
        for queue, (client, handle) in takers.items()
    ]
    asking = next(iter(takers.values()))[0]
    loop = asyncio.get_running_loop()
    quiet_s = loop.time() + QUIET_S
    count, empty = -1, 0
    while empty < 2:
        await asyncio.sleep(PAUSE_S)
        if count != len(left.keys):
            count, quiet_s = len(left.keys), loop.time() + QUIET_S
        done = await all_empty(asking, takers)
        if not done:
            quiet_s = loop.time() + QUIET_S
        empty = empty + 1 if done and (not left.keys or loop.time() > quiet_s) else 0
    for queue in takers:
        asking.recorder.saw(f"{workload}/drain", "drain", {"queue": queue})
    stop.set()
    await asyncio.gather(*working)


async def all_empty(asking: Client, queues: Mapping[str, object]) -> bool:
    """Nothing is ready, nothing is held by a consumer."""
    lengths = [await asking.driver.length(queue) for queue in queues]
    return all(length.ok and length.value == 0 for length in lengths)
