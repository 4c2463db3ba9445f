"""Publishing to one queue under one name. The order of messages is the order of the calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quorate import wire
from quorate.batches import Batch, Confirmed, Meta, Published, cut
from quorate.core import Core
from quorate.errors import QuorateError, Refused, Unreachable
from quorate.parts import upload
from quorate.pipeline import GONE, PublisherPipeline
from quorate.publishing import Run, attrs_for, attrs_of, meta_of, metas_of


class Publisher:
    """Publishes to one queue under one name. Made by `Client.publisher`.

    Calls may run side by side.
    """

    def __init__(self, core: Core, queue: str, name: str | None, next_seqno: int | None) -> None:
        self.queue = queue
        self._core = core
        self._pipeline = PublisherPipeline(core, queue, name, next_seqno)

    @property
    def name(self) -> str:
        """The name that numbers its messages; a generated one begins with `~`."""
        return self._pipeline.name

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes of bodies given to this publisher and not yet answered."""
        return self._pipeline.size

    async def publish(
        self,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_id: str | None = None,
        timeout: float | None = None,
    ) -> Published:
        """One message; returns when it is safe. Raises Refused, OutcomeUnknown.

        Calls made while frames are in flight share the next frame. `deliver_at_ms` is a wall clock
        in ms since the epoch, `ttl_ms` a span, `timeout` seconds. A body over 16 MiB is sent in
        parts first, so what is published meanwhile overtakes it.
        """
        if not isinstance(body, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # for untyped callers
            raise TypeError("a message body must be bytes: encode text first, as in text.encode()")
        deadline_s = self._core.deadline_s(timeout)
        said = attrs = None
        if key is not None or headers is not None or meta is not None:
            said = meta_of(meta, key, headers)
        if not (priority is ttl_ms is deliver_at_ms is dedup_id is None):
            attrs = attrs_of(
                priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, dedup_id=dedup_id
            )
        if len(body) > wire.WHOLE_BODY_BYTES_MAX:
            return await self._publish_large(body, said, attrs, deadline_s)
        return await self._publish(self._pipeline, body, said, attrs, deadline_s)

    async def _publish(
        self,
        line: PublisherPipeline,
        body: bytes,
        meta: Any,
        attrs: Any,
        deadline_s: float,
        large: dict[int, Any] | None = None,
    ) -> Published:
        if self._pipeline.is_full:
            await self._pipeline.wait_for_room(len(body), deadline_s)
        batch = line.add_single(body, meta, attrs, deadline_s, large)
        waiter: asyncio.Future[Published] = batch.waiters[-1]
        try:
            return await waiter
        except asyncio.CancelledError:
            line.take_back(batch, waiter)
            raise

    async def _publish_large(
        self, body: bytes, meta: Any, attrs: Any, deadline_s: float
    ) -> Published:
        """Its parts go where the body goes: to a shard, if the queue is split. That may change."""
        queue = self.queue
        while True:
            try:
                large = {0: await upload(self._core, queue, body, deadline_s)}
                head, line = body[: wire.HEAD_BYTES], self._pipeline.line_of(queue)
                return await self._publish(line, head, meta, attrs, deadline_s, large)
            except Refused as refused:
                moved = refused.code == wire.SPLIT_QUEUE or queue != self.queue
                if not moved or refused.code not in (wire.SPLIT_QUEUE, *GONE):
                    raise
                queue = await self._where(meta, attrs, deadline_s)

    async def _where(self, meta: Any, attrs: Any, deadline_s: float) -> str:
        """The queue, or that of its shards to which a message goes."""
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        asked = self.name, 0, [b""], meta, attrs
        try:
            await self._core.ask(self.queue, wire.PUBLISH, *asked, timeout_s=left_s)
        except Refused as refused:
            if isinstance(refused, Unreachable):
                raise
            if refused.code == wire.SPLIT_QUEUE:
                return str(refused.detail[0])
        return self.queue

    async def publish_many(
        self,
        bodies: Iterable[bytes],
        *,
        meta: Meta | Sequence[Meta | None] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_ids: Sequence[str] | None = None,
        batch: int = wire.BATCH_COUNT_MAX,
        on_confirm: Callable[[int, float], None] | None = None,
        timeout: float | None = None,
    ) -> Confirmed:
        """Many messages, in frames of up to `batch`, many frames in flight; returns when all are
        safe.

        `meta`: one for all, or one a body. `on_confirm` is called for each confirmed frame, in
        order, with its messages and the seconds since it was first sent. `timeout`: seconds that
        any one frame may take. Raises Refused or OutcomeUnknown, whose `ranges` are the indexes of
        the bodies concerned and `confirmed` counts the others.
        """
        span_s = self._core.timeout_s if timeout is None else timeout
        loop = asyncio.get_running_loop()
        run = Run(self.queue)
        shared = attrs_of(priority=priority, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms)
        in_line: deque[tuple[Batch, asyncio.Future[Any], int, float]] = deque()

        async def finish_first() -> None:
            frame, waiter, first, deadline_s = in_line.popleft()
            try:
                if not waiter.done():
                    async with asyncio.timeout_at(deadline_s):
                        await waiter
                run.confirmed(waiter.result(), first, len(frame.bodies))
                if on_confirm is not None:
                    on_confirm(len(frame.bodies), frame.confirmed_at_s - frame.sent_at_s)
            except TimeoutError:
                run.failed(self._pipeline.gave_up(frame, waiter), first, len(frame.bodies))
            except QuorateError as error:
                run.failed(error, first, len(frame.bodies))

        try:
            index = 0
            for piece, size in cut(iter(bodies), batch, wire.BATCH_BYTES_MAX):
                deadline_s = self._core.deadline_s(span_s)
                while in_line and (
                    in_line[0][1].done() or self._pipeline.size + size > wire.WINDOW_BYTES_MAX
                ):
                    await finish_first()
                if run.error is not None:
                    break
                if self._pipeline.size and self._pipeline.size + size > wire.WINDOW_BYTES_MAX:
                    await self._pipeline.wait_for_room(size, deadline_s)
                waiter = loop.create_future()
                frame = Batch(
                    piece,
                    metas_of(meta, index, len(piece)),
                    attrs_for(shared, dedup_ids, index, len(piece)),
                    size,
                    False,
                    [waiter],
                )
                self._pipeline.append(frame)
                in_line.append((frame, waiter, index, loop.time() + span_s))
                index += len(piece)
            if run.error is not None:
                for frame, waiter, _, _ in in_line:
                    if self._pipeline.take_back(frame, waiter):
                        waiter.set_exception(Refused("not_sent", "an earlier frame failed"))
            while in_line:
                await finish_first()
        finally:
            for frame, waiter, _, _ in in_line:
                self._pipeline.take_back(frame, waiter)
                waiter.cancel()
        return run.result()
