"""What clients asked and were told: the only thing a checker looks at.

An op is one line of JSON. Its `type` is `invoke`, or one of the three outcomes: `ok`, `refused`
(surely did not happen) and `unknown` (nobody knows; a timeout or a lost connection is always this).
What is seen rather than asked, such as a delivery, has a single op of type `ok`.

Ops of a queue history, by `f`, and what their `value` holds:
- publish: queue, publisher, first, count: messages `publisher:first` .. `publisher:first+count-1`;
  ok adds `refused`, ranges of offsets that a limit kept out
- deliver: queue, consumer, token, first (position), messages (ids), delivery_count, acquired_count
- settle, return, discard: queue, consumer, token, messages; ok adds `count` when fewer than asked
  were found
- store: queue, consumer, token, accepted: a write to a store that refuses tokens below the highest
  it has seen
- drain: queue: ok when the queue was found empty on every replica, after all faults were healed

Where a protocol does not tell token or position they are null, and `acquired_count` is 1 when the
delivery was flagged as redelivered, else 0. An acknowledgement that is never answered is unknown.
More, of live runs:
- fault: process "nemesis": kind, nodes, and what else describes it; invoke when it begins, ok when
  it is over
- leads: process "watch": node, group, term: this node says that it leads
- length: queue; ok adds `length`: messages in the queue, linearizable
- transaction: publishes: [[queue, message], ...], settles: [[queue, message], ...]
- declare, delete, bind, unbind: what is declared; ok: it is so
- consume: queue; ok adds `consumer`: its deliveries may come from now on
- publish through an exchange: queue is null; exchange and key say where to
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Literal

OpType = Literal["invoke", "ok", "refused", "unknown"]


@dataclass(frozen=True, slots=True)
class Op:
    """One line of a history."""

    index: int
    process: str  # the client
    type: OpType
    f: str
    value: dict[str, Any] = field(default_factory=dict[str, Any])
    node: str | None = None  # the node that was asked
    wall_ms: int = 0
    monotonic_ns: int = 0
    invoke: int | None = None  # index of the invocation that this ends


#: What puts messages into queues or streams, and what is seen of one that comes out, by `f`.
PUBLISHING = ("publish", "transaction", "put")
HANDING = ("deliver", "handed")

#: Wall and monotonic time, in nanoseconds.
Clock = Callable[[], tuple[int, int]]


class History:
    """Ops in the order in which they happened, each at the clock's time, if there is one."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.ops: list[Op] = []
        self._clock = clock

    def invoke(self, process: str, f: str, value: dict[str, Any], **where: Any) -> Op:
        return self._add(Op(len(self.ops), process, "invoke", f, value, **where))

    def end(
        self, invoked: Op, outcome: OpType, extra: dict[str, Any] | None = None, **where: Any
    ) -> Op:
        value = {**invoked.value, **(extra or {})}
        where.setdefault("node", invoked.node)
        op = Op(
            len(self.ops), invoked.process, outcome, invoked.f, value, invoke=invoked.index, **where
        )
        return self._add(op)

    def end_all(
        self, invoked: Iterable[Op], outcome: OpType, extra: dict[str, Any] | None = None
    ) -> None:
        for op in invoked:
            self.end(op, outcome, extra)

    def saw(self, process: str, f: str, value: dict[str, Any], **where: Any) -> Op:
        return self._add(Op(len(self.ops), process, "ok", f, value, **where))

    def _add(self, op: Op) -> Op:
        if self._clock is not None:
            wall_ns, monotonic_ns = self._clock()
            op = replace(op, wall_ms=wall_ns // 1_000_000, monotonic_ns=monotonic_ns)
        self.ops.append(op)
        return op

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)


#: Ops between two moments at which those so far are taken out of the garbage collector's sight. A
#: collection that looks at all ops of an hour stops all clients for seconds, which they then count
#: as silence of the cluster.
FREEZE_EVERY: Final = 10_000


class Recorder(History):
    """A history of now: each op is timed by this machine's clocks, and on its way to a file when
    the call returns.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: (time.time_ns(), time.monotonic_ns()))
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1 << 16)

    def _add(self, op: Op) -> Op:
        op = super()._add(op)
        self._file.write(line_of(op))
        if len(self.ops) % FREEZE_EVERY == 0:
            gc.freeze()
        return op

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


# --- what ops of queues hold ----------------------------------------------------------------------


def publish_value(queue: str | None, publisher: str, first: int, count: int) -> dict[str, Any]:
    return {"queue": queue, "publisher": publisher, "first": first, "count": count}


def settle_value(
    queue: str, consumer: int | str, token: int | None, messages: Sequence[str]
) -> dict[str, Any]:
    """Settled, given back, discarded, or written to a store."""
    return {"queue": queue, "consumer": consumer, "token": token, "messages": list(messages)}


def delivery_value(
    queue: str,
    consumer: int | str,
    token: int | None,
    first: int | None,
    messages: Sequence[str],
    *,
    delivery_count: int,
    acquired_count: int,
) -> dict[str, Any]:
    return {
        **settle_value(queue, consumer, token, messages),
        "first": first,
        "delivery_count": delivery_count,
        "acquired_count": acquired_count,
    }


def line_of(op: Op) -> str:
    return json.dumps(asdict(op), separators=(",", ":")) + "\n"


def read_history(path: Path) -> list[Op]:
    with path.open(encoding="utf-8") as file:
        return [Op(**json.loads(line)) for line in file]
