"""What a client says became of its deliveries: acks, nacks, rejects, at once or at a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cluster.machine.commands import Command, Discard, Return, SetCredit, Settle
from cluster.outcome import Outcome
from cluster.types import GroupId
from node.broker import Broker
from node.chunks import merged
from node.metrics.client_counters import ProtocolCounters
from node.protocols.amqp.consumers import Consumer, Verdict
from node.protocols.amqp.errors import PRECONDITION_FAILED, ChannelError_
from node.protocols.amqp.unacked import Taken, Unacked, UnknownTag

Step = Settle | Return | Discard


class Settles:
    """Of one channel."""

    def __init__(self, broker: Broker, counted: ProtocolCounters) -> None:
        self.unacked: Unacked[Consumer] = Unacked()
        self.open = 0  # told to a leader, not decided
        self._settler = broker.settler
        self._acked = broker.counts.latencies.acked
        self._counted = counted
        self._transaction: list[tuple[Verdict, list[Taken[Consumer]]]] | None = None
        self._all_decided: asyncio.Event | None = None

    def up_to(self, verdict: Verdict, tag: int) -> None:
        """All open ones up to the tag; 0: all."""
        try:
            taken = self.unacked.take_up_to(tag)
        except UnknownTag as error:
            raise ChannelError_(PRECONDITION_FAILED, str(error)) from error
        self._settle(verdict, taken)

    def each(self, verdict: Verdict, first: int, last: int) -> None:
        """These very tags; those before the first unknown one are settled (B02)."""
        taken, unknown = self.unacked.take(first, last)
        self._settle(verdict, taken)
        if unknown is not None:
            raise ChannelError_(PRECONDITION_FAILED, str(UnknownTag(unknown)))

    def recover(self) -> None:
        for group, step in steps_of("requeue", self.unacked.take_up_to(0), failed=False):
            self.tell(group, step)

    def _settle(self, verdict: Verdict, taken: list[Taken[Consumer]]) -> None:
        if self._transaction is not None:
            self._transaction.append((verdict, taken))
            return
        self._count(verdict, taken)
        for group, step in steps_of(verdict, taken):
            self.tell(group, step)

    def _count(self, verdict: Verdict, taken: list[Taken[Consumer]]) -> None:
        if verdict == "ack":
            now_s = asyncio.get_running_loop().time()
            for part in taken:
                count = part.last - part.first + 1
                self._counted.of(part.consumer.info).acknowledged += count
                self._acked.add(now_s - part.at_s, count)

    # --- to the leaders ---------------------------------------------------------------------------

    def tell(self, group: GroupId, command: Step | SetCredit, *, by_client: bool = True) -> None:
        self.open += 1
        self._settler.settle(group, command, self._decided, by_client=by_client)

    def _decided(self, _: Outcome) -> None:
        self.open -= 1
        if not self.open and self._all_decided is not None:
            self._all_decided.set()

    async def all_decided(self) -> None:
        self._all_decided = asyncio.Event()
        if self.open:
            await self._all_decided.wait()

    # --- transactions -----------------------------------------------------------------------------

    def begin(self) -> None:
        self._transaction = []

    @property
    def uncommitted(self) -> int:
        return sum(len(taken) for _, taken in self._transaction or ())

    def take_transaction(self) -> dict[GroupId, list[Command]]:
        """What was settled since the last commit, by group."""
        settled, self._transaction = self._transaction or [], []
        steps: dict[GroupId, list[Command]] = {}
        for verdict, taken in settled:
            self._count(verdict, taken)
            for group, step in steps_of(verdict, taken):
                steps.setdefault(group, []).append(step)
        return steps

    def roll_back(self) -> None:
        settled, self._transaction = self._transaction or [], []
        for _, taken in settled:
            self.unacked.put_back(taken)


def steps_of(
    verdict: Verdict, taken: Sequence[Taken[Consumer]], *, failed: bool = True
) -> list[tuple[GroupId, Step]]:
    """One a consumer. `failed`: what is requeued counts as a failed delivery (B09)."""
    ranges: dict[Consumer, list[tuple[int, int]]] = {}
    tokens: dict[Consumer, int] = {}
    for part in taken:
        ranges.setdefault(part.consumer, []).append((part.first, part.last))
        tokens[part.consumer] = max(part.token, tokens.get(part.consumer, 0))
    found: list[tuple[GroupId, Step]] = []
    for consumer, of_consumer in ranges.items():
        info, key, joined = consumer.info, consumer.key, merged(of_consumer)
        match verdict:
            case "ack":
                step: Step = Settle(info.queue, key, joined, tokens[consumer])
            case "requeue":
                step = Return(info.queue, key, joined, failed, None, tokens[consumer])
            case "discard":
                step = Discard(info.queue, key, joined, tokens[consumer])
        found.append((info.group, step))
    return found
