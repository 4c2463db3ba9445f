"""What a channel was sent and has not settled, under which tags, and what its client says became of
it: acks, nacks, rejects, at once or at a commit.

Tags grow by one from 1 and are the channel's own (B01). Deliveries come in runs of consecutive
positions of one queue, so a run is one entry however many messages it has.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from cluster.machine.commands import Command, Discard, Return, SetCredit, Settle
from cluster.outcome import Outcome
from cluster.types import GroupId
from node.broker import Broker
from node.chunks import merged
from node.metrics.client_counters import ProtocolCounters
from node.protocols.amqp.consumers import Consumer, Verdict
from node.protocols.amqp.errors import PRECONDITION_FAILED, ChannelError_

Step = Settle | Return | Discard
C = TypeVar("C")


class UnknownTag(Exception):
    """No such delivery is open on this channel (B02)."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.tag = tag


@dataclass(slots=True)
class _Run(Generic[C]):
    """Deliveries `first` to `last`, which are the positions from `position` on of one consumer."""

    first: int
    last: int
    consumer: C
    position: int
    token: int  # of the decision that delivered them
    at_s: float = 0.0  # when they were sent


class Taken(NamedTuple, Generic[C]):
    """Positions of one consumer, both ends included, and the tag that the first had."""

    consumer: C
    first: int
    last: int
    tag: int
    token: int
    at_s: float = 0.0


class Unacked(Generic[C]):
    """What a channel was sent and has not settled."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[_Run[C]] = []  # ascending, not overlapping
        self._next_tag = 1

    def number(self, count: int) -> int:
        """Tags for deliveries that need no ack: the first of them."""
        first = self._next_tag
        self._next_tag += count
        return first

    def add(self, consumer: C, position: int, count: int, token: int, at_s: float = 0.0) -> int:
        """Deliveries that wait for an ack; the first one's tag."""
        first = self._next_tag
        self._next_tag += count
        self._runs.append(_Run(first, first + count - 1, consumer, position, token, at_s))
        self.count += count
        return first

    def take_up_to(self, tag: int) -> list[Taken[C]]:
        """`multiple`: all open ones up to and including `tag`; 0: all (B06).

        A tag that was never given, or under which nothing is open, is unknown.
        """
        if tag == 0:
            tag = self._next_tag - 1
        elif tag >= self._next_tag or not self._runs or self._runs[0].first > tag:
            raise UnknownTag(tag)
        taken: list[Taken[C]] = []
        passed = 0
        for run in self._runs:
            if run.first > tag:
                break
            last = min(run.last, tag)
            taken.append(_part(run, run.first, last))
            self.count -= last - run.first + 1
            if last < run.last:
                run.position += last + 1 - run.first
                run.first = last + 1
                break
            passed += 1
        del self._runs[:passed]
        return taken

    def take(self, first: int, last: int) -> tuple[list[Taken[C]], int | None]:
        """These very tags, up to the first that is not open: that one comes second, or None."""
        taken: list[Taken[C]] = []
        unknown: int | None = None
        tag = first
        while tag <= last:
            part = self._take_from(tag, last)
            if part is None:
                unknown = tag
                break
            taken.append(part)
            count = part.last - part.first + 1
            self.count -= count
            tag += count
        return taken, unknown

    def _take_from(self, tag: int, last: int) -> Taken[C] | None:
        """The open ones from `tag` on, of one run."""
        runs = self._runs
        at = 0
        if not runs or not runs[0].first <= tag <= runs[0].last:
            at = bisect_right(runs, tag, key=_first) - 1
            if at < 0 or tag > runs[at].last:
                return None
        run = runs[at]
        last = min(last, run.last)
        part = _part(run, tag, last)
        if last < run.last:
            position = run.position + last + 1 - run.first
            rest = _Run(last + 1, run.last, run.consumer, position, run.token, run.at_s)
            if tag == run.first:
                runs[at] = rest
            else:
                runs.insert(at + 1, rest)
                run.last = tag - 1
        elif tag == run.first:
            del runs[at]
        else:
            run.last = tag - 1
        return part

    def put_back(self, taken: list[Taken[C]]) -> None:
        """A transaction was rolled back: these are open again, under their tags."""
        for part in taken:
            count = part.last - part.first + 1
            last = part.tag + count - 1
            self._runs.append(
                _Run(part.tag, last, part.consumer, part.first, part.token, part.at_s)
            )
            self.count += count
        self._runs.sort(key=_first)


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


def _first(run: _Run[C]) -> int:
    return run.first


def _part(run: _Run[C], first: int, last: int) -> Taken[C]:
    position = run.position + first - run.first
    return Taken(run.consumer, position, position + last - first, first, run.token, run.at_s)
