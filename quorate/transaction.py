"""Publishes and answers to deliveries that happen together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from quorate import wire
from quorate.batches import Meta
from quorate.core import Core
from quorate.delivery import Batch, Delivery, Keeper
from quorate.errors import QuorateError
from quorate.publishing import attrs_of, meta_of


class Transaction:
    """Nothing is sent before `commit`. Made by `Client.transaction`.

    Refused: nothing of it was done, as when one delivery is another consumer's by now, or a queue
    is full. OutcomeUnknown: all of it or nothing was done; what it was to settle tells, since it
    comes again if nothing was.
    """

    def __init__(self, core: Core, *, timeout_s: float | None) -> None:
        self._core = core
        self._timeout_s = timeout_s
        self._steps: list[list[Any]] = []
        self._answers: list[tuple[Keeper, list[tuple[int, int]], int]] = []
        self._over = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and not self._over:
            await self.commit()
        self._over = True

    def publish(
        self,
        queue: str,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_id: str | None = None,
    ) -> None:
        """One message into a queue. It has no number of a publisher."""
        attrs = attrs_of(
            priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, dedup_id=dedup_id
        )
        self._add([wire.PUBLISH, queue, [_bytes(body)], meta_of(meta, key, headers), attrs])

    def publish_to(
        self,
        exchange: str,
        body: bytes,
        *,
        key: str = "",
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> None:
        """One message through an exchange; without a queue that is bound for it, it is dropped."""
        fields = through(
            exchange,
            body,
            key=key,
            headers=headers,
            meta=meta,
            priority=priority,
            ttl_ms=ttl_ms,
            deliver_at_ms=deliver_at_ms,
        )
        self._add([wire.PUBLISH_TO, *fields])

    def settle(self, delivery: Delivery | Batch) -> None:
        """Done: it leaves its queue."""
        self._answer(delivery, wire.SETTLE)

    def return_(
        self, delivery: Delivery | Batch, *, failed: bool = False, delay_ms: int | None = None
    ) -> None:
        """Give back, to its original place."""
        self._answer(delivery, wire.RETURN, failed, delay_ms)

    def discard(self, delivery: Delivery | Batch) -> None:
        """Refuse for good."""
        self._answer(delivery, wire.DISCARD)

    async def commit(self) -> None:
        """All of it, now. Raises Refused, Unreachable, OutcomeUnknown."""
        if self._over:
            raise QuorateError("the transaction is over: begin another one")
        self._over = True
        if not self._steps:
            return
        await self._core.ask_anyone(wire.TRANSACT, self._steps, timeout_s=self._timeout_s)
        for keeper, ranges, token in self._answers:
            keeper.committed(ranges, token)

    def _answer(self, delivery: Delivery | Batch, opcode: int, *arguments: Any) -> None:
        keeper, step = delivery.step(opcode, *arguments)
        self._add(step)
        self._answers.append((keeper, [(first, last) for first, last in step[3]], step[-1]))

    def _add(self, step: list[Any]) -> None:
        if self._over:
            raise QuorateError("the transaction is over: begin another one")
        self._steps.append(step)


def through(
    exchange: str,
    body: bytes,
    *,
    key: str,
    headers: Mapping[str, Any] | None,
    meta: Meta | None,
    priority: int | None,
    ttl_ms: int | None,
    deliver_at_ms: int | None,
) -> tuple[Any, ...]:
    """Fields of a publish through an exchange."""
    attrs = attrs_of(priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms)
    return exchange, key, [_bytes(body)], meta_of(meta, None, headers), attrs


def _bytes(body: bytes) -> bytes:
    if type(body) is not bytes:
        raise TypeError("a message body must be bytes: encode text first, as in text.encode()")
    return body
