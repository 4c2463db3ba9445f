"""A tiny broker that does everything right, and writes the history that its clients would."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.history import History, Op, OpType


@dataclass
class _Message:
    id: str
    acquired: int = 0
    failed: int = 0


@dataclass
class Broker:
    """One queue, one publisher, one active consumer after the other. `tells`: native, with tokens;
    else only what AMQP says.
    """

    dice: random.Random
    tells: bool
    history: History = field(default_factory=History)
    ready: deque[tuple[int, _Message]] = field(default_factory=deque[tuple[int, _Message]])
    stored: int = 0
    token: int = 0
    consumer: int = 1

    def run(self, steps: int) -> Sequence[Op]:
        for number in range(steps):
            if self.dice.random() < 0.5:
                self._publish(number)
            elif self.ready:
                self._deliver(hurry=False)
        while self.ready:
            self._deliver(hurry=True)
        self.history.saw("harness", "drain", {"queue": "q"})
        return self.history.ops

    def _publish(self, number: int) -> None:
        value = {"queue": "q", "publisher": "p", "first": number, "count": 1}
        asked = self.history.invoke("p", "publish", value)
        outcome: OpType = self.dice.choices(("ok", "unknown", "refused"), (8, 1, 1))[0]
        if outcome == "ok" or (outcome == "unknown" and self.dice.random() < 0.5):
            self.stored += 1
            self.ready.append((self.stored, _Message(f"p:{number}")))
        self.history.end(asked, outcome)

    def _deliver(self, *, hurry: bool) -> None:
        position, message = self.ready.popleft()
        self.token += 1
        name = f"w/c{self.consumer}"
        token = self.token if self.tells else None
        asked: dict[str, Any] = {"queue": "q", "consumer": name, "token": token}
        told = {
            **asked,
            "first": position if self.tells else None,
            "messages": [message.id],
            "delivery_count": message.failed,
            "acquired_count": int(message.acquired > 0),
        }
        self.history.saw(name, "deliver", told)
        message.acquired += 1
        if not hurry and self.dice.random() < 0.4:
            message.failed += self.dice.randint(0, 1)
            self.ready.appendleft((position, message))
            self.consumer += self.dice.randint(0, 1)
            return
        invoked = self.history.invoke(name, "settle", {**asked, "messages": [message.id]})
        self.history.end(invoked, "ok" if self.tells or self.dice.random() < 0.5 else "unknown")


def broker(seed: int, *, tells: bool) -> list[Op]:
    return list(Broker(random.Random(seed), tells).run(40))
