"""What clients of many queues are to do; `many_worker` does it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

EXCHANGE = "bench-fan"


def queue_name(number: int) -> str:
    return f"many-{number:06}"


class _Work:
    def command(self) -> list[str]:
        fields = json.dumps(asdict(self))  # type: ignore[call-overload]
        return [sys.executable, "-m", "tests.acceptance.bench.many_worker", fields]


@dataclass(frozen=True)
class Declare(_Work):
    port: int
    first: int
    count: int
    channels: int = 1
    nowait: bool = False
    bound: bool = False  # to `EXCHANGE`
    verb: str = "declare"


@dataclass(frozen=True)
class Spread(_Work):
    ports: list[int]
    first: int
    queues: int
    rate: float  # of all together, messages a second
    seconds: float
    connections: int = 10
    window: int = 100  # unconfirmed, of each queue
    size: int = 100
    consume: bool = False
    drain_s: float = 20.0
    verb: str = "spread"

    @property
    def count(self) -> int:
        return round(self.rate * self.seconds)


@dataclass(frozen=True)
class FanOut(_Work):
    ports: list[int]
    first: int
    queues: int
    consumers: int
    rate: float
    seconds: float
    connections: int = 30
    drain_s: float = 20.0
    verb: str = "fan-out"

    @property
    def count(self) -> int:
        return round(self.rate * self.seconds) * self.queues
