"""Tiny histories, written by hand: one op a line."""

from __future__ import annotations

from typing import Any

from chaos.history import History, Op, OpType


class Told(History):
    """A history with verbs."""

    def publish(
        self,
        first: int,
        count: int = 1,
        *,
        ended: OpType | None = "ok",
        publisher: str = "p",
        queue: str = "q",
        **extra: Any,
    ) -> None:
        value = {"queue": queue, "publisher": publisher, "first": first, "count": count, **extra}
        invoked = self.invoke(publisher, "publish", value)
        if ended is not None:
            self.end(invoked, ended)

    def deliver(
        self,
        *messages: str,
        token: int,
        first: int = 1,
        consumer: int = 1,
        failed: int = 0,
        acquired: int = 0,
        queue: str = "q",
    ) -> None:
        value = {
            "queue": queue,
            "consumer": consumer,
            "token": token,
            "first": first,
            "messages": list(messages),
            "delivery_count": failed,
            "acquired_count": acquired,
        }
        self.saw(f"c{consumer}", "deliver", value)

    def settle(
        self,
        *messages: str,
        token: int,
        consumer: int = 1,
        ended: OpType = "ok",
        count: int | None = None,
        queue: str = "q",
    ) -> None:
        value = {"queue": queue, "consumer": consumer, "token": token, "messages": list(messages)}
        invoked = self.invoke(f"c{consumer}", "settle", value)
        self.end(invoked, ended, {"count": len(messages) if count is None else count})

    def store(self, *, token: int, accepted: bool, consumer: int = 1, queue: str = "q") -> None:
        value = {"queue": queue, "consumer": consumer, "token": token, "accepted": accepted}
        self.saw(f"c{consumer}", "store", value)

    def drain(self, queue: str = "q") -> None:
        self.saw("harness", "drain", {"queue": queue})

    def drained(self) -> list[Op]:
        """All of it, at the end of which the queues `a` and `b` were emptied."""
        self.drain("a")
        self.drain("b")
        return self.ops
