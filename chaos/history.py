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
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

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


def write_history(ops: Iterable[Op], path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        for op in ops:
            file.write(json.dumps(asdict(op), separators=(",", ":")) + "\n")


def read_history(path: Path) -> list[Op]:
    with path.open(encoding="utf-8") as file:
        return [Op(**json.loads(line)) for line in file]
