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

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

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


class History:
    """Ops in the order in which they happened."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

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

    def saw(self, process: str, f: str, value: dict[str, Any], **where: Any) -> Op:
        return self._add(Op(len(self.ops), process, "ok", f, value, **where))

    def _add(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)


class Recorder(History):
    """A history of now: each op is timed by this machine's clocks, and on its way to a file when
    the call returns.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file: IO[str] = path.open("w", encoding="utf-8", buffering=1 << 16)

    def _add(self, op: Op) -> Op:
        now = replace(op, wall_ms=time.time_ns() // 1_000_000, monotonic_ns=time.monotonic_ns())
        super()._add(now)
        self._file.write(line_of(now))
        return now

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def line_of(op: Op) -> str:
    return json.dumps(asdict(op), separators=(",", ":")) + "\n"


def read_history(path: Path) -> list[Op]:
    with path.open(encoding="utf-8") as file:
        return [Op(**json.loads(line)) for line in file]
