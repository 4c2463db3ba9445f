"""The client for programs without an event loop: the same calls, on a loop in its own thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from quorate.batches import Confirmed, Published
from quorate.client import connect
from quorate.consumer import BatchConsumer, Consumer
from quorate.delivery import Batch, Delivery
from quorate.reader import Reader
from quorate.transaction import Transaction
from quorate.worker import Handler

Result = TypeVar("Result")


class SyncDelivery:
    """A `Delivery` or `Batch` whose answers are plain calls; the rest is the original's."""

    def __init__(self, client: SyncClient, original: Delivery | Batch) -> None:
        self._client = client
        self.original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def settle(self, *, wait: bool = False) -> None:
        """Done: it leaves the queue."""
        self._client.run(self.original.settle(wait=wait))

    def return_(
        self, *, failed: bool = False, delay_ms: int | None = None, wait: bool = False
    ) -> None:
        """Give back, to its original place."""
        self._client.run(self.original.return_(failed=failed, delay_ms=delay_ms, wait=wait))

    def defer(self, for_ms: int | None = None, *, wait: bool = False) -> None:
        """Put it aside until it is fetched, or so long."""
        self._client.run(self.original.defer(for_ms, wait=wait))

    def discard(self, *, wait: bool = False) -> None:
        """Refuse for good."""
        self._client.run(self.original.discard(wait=wait))

    def extend(self, timeout_ms: int | None = None, *, wait: bool = False) -> None:
        """Still at work: its deadline starts again."""
        self._client.run(self.original.extend(timeout_ms, wait=wait))


class SyncTransaction:
    """A `Transaction` for deliveries of this client."""

    def __init__(self, original: Transaction) -> None:
        self.original = original
        self.publish = original.publish
        self.publish_to = original.publish_to

    def settle(self, delivery: SyncDelivery) -> None:
        """Done: it leaves its queue."""
        self.original.settle(delivery.original)

    def return_(
        self, delivery: SyncDelivery, *, failed: bool = False, delay_ms: int | None = None
    ) -> None:
        """Give back, to its original place."""
        self.original.return_(delivery.original, failed=failed, delay_ms=delay_ms)

    def discard(self, delivery: SyncDelivery) -> None:
        """Refuse for good."""
        self.original.discard(delivery.original)


class SyncClient:
    """`Client` with plain calls. Options, outcomes and errors are those of the methods of the same
    name.
    """

    def __init__(self, addresses: str | Iterable[str] | None = None, **options: Any) -> None:
        self._client = connect(addresses, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorate-client", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._client.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session and the thread. Idempotent."""
        if not self._thread.is_alive():
            return
        self.run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Any coroutine of the asyncio client, from this thread."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C here must not leave it running there
            raise

    def publish(self, queue: str, body: bytes, **options: Any) -> Published:
        """One message; returns when it is safe."""
        return self.run(self._client.publish(queue, body, **options))

    def publish_many(self, queue: str, bodies: Iterable[bytes], **options: Any) -> Confirmed:
        """Many messages; returns when all are safe."""
        return self.run(self._client.publish_many(queue, bodies, **options))

    def consume(self, queue: str, **options: Any) -> Iterator[SyncDelivery]:
        """Messages as they come, for ever; ends the subscription when the loop is left."""
        return self._iterate(self._client.consume(queue, **options))

    def work(self, queue: str, handler: Handler, **options: Any) -> None:
        """Call it for each message, in threads, until Ctrl-C."""
        self.run(self._client.work(queue, handler, **options))

    def consume_batches(self, queue: str, **options: Any) -> Iterator[SyncDelivery]:
        """Batches of messages as they come."""
        return self._iterate(self._client.consume_batches(queue, **options))

    def read(self, stream: str, **options: Any) -> Iterator[SyncDelivery]:
        """Messages of a stream as they come, for ever."""
        return self._iterate(self._client.read(stream, **options))

    def add_cursor(
        self, stream: str, cursor: str, settings: Mapping[str, Any] | None = None, **options: Any
    ) -> bool:
        """Make sure that the stream has this cursor. Whether it is new."""
        return self.run(self._client.add_cursor(stream, cursor, settings, **options))

    def delete_cursor(self, stream: str, cursor: str, **options: Any) -> None:
        """Its place is forgotten; the messages stay."""
        self.run(self._client.delete_cursor(stream, cursor, **options))

    def _iterate(self, consumer: Consumer | BatchConsumer | Reader) -> Iterator[SyncDelivery]:
        async def following() -> Delivery | Batch | None:
            try:
                return await consumer.__anext__()
            except StopAsyncIteration:
                return None

        try:
            while (item := self.run(following())) is not None:
                yield SyncDelivery(self, item)
        finally:
            if self._loop.is_running():
                self.run(consumer.aclose())

    def get(self, queue: str, count: int = 1, **options: Any) -> list[SyncDelivery]:
        """Up to `count` messages that are ready now."""
        deliveries = self.run(self._client.get(queue, count, **options))
        return [SyncDelivery(self, delivery) for delivery in deliveries]

    def declare_exchange(self, exchange: str, type: str = "direct", **options: Any) -> None:  # noqa: A002
        """Make sure that the exchange exists."""
        self.run(self._client.declare_exchange(exchange, type, **options))

    def delete_exchange(self, exchange: str, **options: Any) -> None:
        """Delete it and its bindings."""
        self.run(self._client.delete_exchange(exchange, **options))

    def bind(self, exchange: str, queue: str, key: str = "", **options: Any) -> None:
        """Messages to the exchange with this key go to the queue, too."""
        self.run(self._client.bind(exchange, queue, key, **options))

    def unbind(self, exchange: str, queue: str, key: str = "", **options: Any) -> None:
        """No more of them go there."""
        self.run(self._client.unbind(exchange, queue, key, **options))

    def publish_to(self, exchange: str, body: bytes, **options: Any) -> bool:
        """One message through an exchange. Whether any queue got it."""
        return self.run(self._client.publish_to(exchange, body, **options))

    @contextmanager
    def transaction(self, **options: Any) -> Generator[SyncTransaction]:
        """`with client.transaction() as together:` commits at its end."""
        together = SyncTransaction(self._client.transaction(**options))
        yield together
        self.run(together.original.commit())

    def fetch(
        self, queue: str, positions: int | Iterable[int], **options: Any
    ) -> list[SyncDelivery]:
        """Those of these messages that wait."""
        deliveries = self.run(self._client.fetch(queue, positions, **options))
        return [SyncDelivery(self, delivery) for delivery in deliveries]

    def withdraw(self, queue: str, positions: int | Iterable[int], **options: Any) -> int:
        """Take messages out that wait; returns how many."""
        return self.run(self._client.withdraw(queue, positions, **options))

    def retime(self, queue: str, positions: int | Iterable[int], **options: Any) -> int:
        """Messages that wait are ready at another time; returns how many."""
        return self.run(self._client.retime(queue, positions, **options))

    def declare(
        self, queue: str, arguments: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Make sure that the queue exists."""
        return self.run(self._client.declare(queue, arguments, **options))

    def delete(self, queue: str, **options: Any) -> None:
        """Delete the queue and its messages."""
        self.run(self._client.delete(queue, **options))

    def purge(self, queue: str, **options: Any) -> int:
        """Drop all messages that are ready or delayed; returns how many."""
        return self.run(self._client.purge(queue, **options))

    def pause(self, queue: str, paused: bool = True, **options: Any) -> None:
        """Stop its deliveries, or resume them."""
        self.run(self._client.pause(queue, paused, **options))

    def info(self, queue: str, **options: Any) -> dict[str, Any]:
        """What the queue's leader knows of it."""
        return self.run(self._client.info(queue, **options))

    def peek(self, queue: str, **options: Any) -> list[dict[str, Any]]:
        """Look at messages without taking them."""
        return self.run(self._client.peek(queue, **options))

    def history(self, message: str | None = None, **options: Any) -> dict[str, Any]:
        """What happened to one message."""
        return self.run(self._client.history(message, **options))

    def queues(self, **options: Any) -> list[dict[str, Any]]:
        """All queues."""
        return self.run(self._client.queues(**options))

    def status(self, **options: Any) -> dict[str, Any]:
        """Nodes, groups, leaders and lag."""
        return self.run(self._client.status(**options))


def connect_sync(addresses: str | Iterable[str] | None = None, **options: Any) -> SyncClient:
    """`with quorate.connect_sync("127.0.0.1:8081") as client: client.publish("orders", b"...")`."""
    return SyncClient(addresses, **options)
