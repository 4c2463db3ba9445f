"""What one check does with a broker: its connections, fresh names, and leaving all as it was."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import pika
import pika.exceptions

from tests.acceptance.semantics.brokers import Broker
from tests.acceptance.semantics.wire import WAIT_S, Wire

#: Within it, what must not come would have come.
QUIET_S = 0.12
#: Statistics are gathered now and then.
STATISTICS_S_MAX = 60.0
PUMP_S = 0.005
POLL_S = 0.05

#: Pika is typed only in part, so what it gives is taken as it is.
Connection: TypeAlias = Any
Channel: TypeAlias = Any

QUORUM = {"x-queue-type": "quorum"}
CLASSIC = {"x-queue-type": "classic"}


class Delivery(NamedTuple):
    body: str
    tag: int
    redelivered: bool
    exchange: str
    key: str
    consumer_tag: str
    properties: Any

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


class Visit:
    """One check at one broker."""

    def __init__(self, broker: Broker, row: str) -> None:
        self.broker = broker
        self.heard: list[str] = []
        self._row = row
        self._connections: list[Connection] = []
        self._wires: list[Wire] = []
        self._undo: list[Callable[[Channel], Any]] = []
        self._requests: list[str] = []
        self._main: Connection = None
        self._filler: Channel = None

    # Connections.

    def connect(self, url: str | None = None) -> Connection:
        parameters = pika.URLParameters(url or self.broker.url)
        parameters.heartbeat = 0
        parameters.blocked_connection_timeout = WAIT_S
        parameters.socket_timeout = WAIT_S
        connection: Connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection

    def channel(self) -> Channel:
        """A new channel, on one connection as long as that lives."""
        if self._main is None or not self._main.is_open:
            self._main = self.connect()
        return self._main.channel()

    def wire(self, url: str | None = None, **options: Any) -> Wire:
        """A connection in frames, with channel 1 open."""
        wire = Wire(url or self.broker.url, **options)
        self._wires.append(wire)
        wire.open()
        return wire

    # Things with fresh names.

    def name(self, what: str) -> str:
        return f"semantics.{self._row}.{what}.{uuid.uuid4().hex[:12]}"

    def queue(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        kind: Mapping[str, Any] = QUORUM,
        durable: bool = True,
        name: str | None = None,
    ) -> str:
        """A new queue, durable and of the quorum kind unless told otherwise."""
        name = name or self.name("queue")
        self._undo.append(lambda channel: channel.queue_delete(name))
        with self._brief() as channel:
            given = {**(kind if durable else {}), **(arguments or {})}
            channel.queue_declare(name, durable=durable, arguments=given)
        return name

    def transient(self, arguments: Mapping[str, Any] | None = None) -> str:
        return self.queue(arguments, durable=False)

    def exchange(
        self, kind: str, arguments: Mapping[str, Any] | None = None, *, durable: bool = True
    ) -> str:
        name = self.name(kind)
        self._undo.append(lambda channel: channel.exchange_delete(name))
        with self._brief() as channel:
            channel.exchange_declare(name, kind, durable=durable, arguments=dict(arguments or {}))
        return name

    def bind(self, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
        with self._brief() as channel:
            channel.queue_bind(queue, exchange, key, arguments)

    # Messages.

    def publish(self, exchange: str, key: str, *bodies: str, **properties: Any) -> None:
        """Publish with confirms: what comes back is stored."""
        channel = self._filling()
        given: Any = {"delivery_mode": 2, **properties}
        for body in bodies:
            channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(**given))

    def fill(self, queue: str, *bodies: str, **properties: Any) -> None:
        self.publish("", queue, *bodies, **properties)

    def get(self, channel: Channel, queue: str, *, auto_ack: bool = False) -> Delivery:
        """The next message, which must be there."""
        found = channel.basic_get(queue, auto_ack)
        assert found[0] is not None, "the queue is empty, a message was expected"
        return _delivery(*found, consumer_tag="")

    def drain(self, queue: str) -> list[str]:
        """Takes all ready messages: their bodies in order."""
        return [each.body for each in self.drained(queue)]

    def drained(self, queue: str) -> list[Delivery]:
        found: list[Delivery] = []
        with self._brief() as channel:
            while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
                found.append(_delivery(*got, consumer_tag=""))
        return found

    def ready(self, queue: str) -> int:
        """How many messages are ready."""
        with self._brief() as channel:
            return channel.queue_declare(queue, passive=True).method.message_count

    def until_ready(self, queue: str, count: int) -> None:
        """Messages return, expire and move in a moment, not at once."""
        self.until(
            lambda: self.ready(queue) == count,
            lambda: f"{self.ready(queue)} messages are ready instead of {count}",
        )

    def consumers(self, queue: str) -> int:
        with self._brief() as channel:
            return channel.queue_declare(queue, passive=True).method.consumer_count

    def consume(self, channel: Channel, queue: str, **options: Any) -> Consumer:
        return Consumer(self, channel, queue, **options)

    # What only a broker of our own allows; a check that uses it says so in its needs.

    def restart(self) -> None:
        """Kill the broker and start it again; all connections end."""
        self.broker.restart()
        self._disconnect()

    @contextmanager
    def settings(self, lines: str) -> Generator[None]:
        """The broker runs with these settings too; all connections end, before and after."""
        try:
            self.broker.restart_with(lines)
            self._disconnect()
            yield
        finally:
            self._disconnect()
            self.broker.restart_with("")

    # Waiting.

    def until(
        self,
        check: Callable[[], object],
        what: Callable[[], str] | str,
        *,
        within_s: float = WAIT_S,
    ) -> None:
        """Until `check` holds, while all connections are read."""
        end_s = time.monotonic() + within_s
        while not check():
            if time.monotonic() > end_s:
                raise AssertionError(what if isinstance(what, str) else what())
            self.pump()

    def pump(self, seconds: float = PUMP_S) -> None:
        end_s = time.monotonic() + seconds
        while True:
            for connection in self._connections:
                if connection.is_open:
                    connection.process_data_events(PUMP_S / 5)
            if time.monotonic() >= end_s:
                return

    def reason(self, channel: Channel) -> tuple[int, str]:
        """How the broker closed the channel, once it has."""
        self.until(lambda: not channel.is_open, "the channel was not closed")
        reason = channel._closing_reason
        assert isinstance(reason, pika.exceptions.ChannelClosedByBroker), f"closed by {reason!r}"
        return reason.reply_code, reason.reply_text

    # The management API, for checks that need it.

    def ask(
        self, method: str, path: str, body: Any = None, *, at: str | None = None
    ) -> tuple[int, Any]:
        return self.broker.ask(method, path, body, at=at)

    def about(self, queue: str) -> dict[str, Any]:
        """The queue as the management API tells it; {} if it does not know it (yet)."""
        status, answer = self.ask("GET", f"/api/queues/%2F/{quote(queue, safe='')}")
        return dict(answer) if status == 200 else {}

    def until_about(
        self, queue: str, check: Callable[[dict[str, Any]], object], what: str
    ) -> dict[str, Any]:
        return self.until_told(lambda: self.about(queue), check, what)

    def until_told(self, ask: Callable[[], Any], check: Callable[[Any], object], what: str) -> Any:
        """What the management API tells, once that is as it should be."""
        end_s = time.monotonic() + STATISTICS_S_MAX
        while True:
            told = ask()
            with suppress(KeyError, IndexError, TypeError):
                if check(told):
                    return told
            if time.monotonic() > end_s:
                raise AssertionError(f"{what}: the management API tells {str(told)[:300]}")
            time.sleep(POLL_S)

    def policy(self, pattern: str, definition: Mapping[str, Any], apply_to: str = "queues") -> int:
        """A policy until the visit ends; answers the status of the request."""
        path = f"/api/policies/%2F/{self.name('policy')}"
        given = {"pattern": pattern, "definition": dict(definition), "apply-to": apply_to}
        self._requests.append(path)
        return self.ask("PUT", path, {**given, "priority": 7})[0]

    # Leaving.

    def leave(self) -> None:
        """Close all, and delete all that was declared."""
        for path in self._requests:
            self.ask("DELETE", path)
        self._disconnect()
        if not self._undo:
            return
        last = self.connect()
        for undo in reversed(self._undo):
            with suppress(pika.exceptions.AMQPChannelError):
                undo(last.channel())
        last.close()

    def _disconnect(self) -> None:
        for wire in self._wires:
            wire.close()
        for connection in self._connections:
            with suppress(pika.exceptions.AMQPError, OSError):
                connection.close()
        self._wires, self._connections = [], []
        self._main = self._filler = None

    @contextmanager
    def _brief(self) -> Generator[Channel]:
        channel = self.channel()
        try:
            yield channel
        finally:
            if channel.is_open:
                channel.close()

    def _filling(self) -> Channel:
        if self._filler is None or not self._filler.is_open:
            self._filler = self.channel()
            self._filler.confirm_delivery()
        return self._filler


class Consumer:
    """A subscription whose deliveries are collected."""

    def __init__(self, visit: Visit, channel: Channel, queue: str, **options: Any) -> None:
        self._visit = visit
        self.channel = channel
        self.deliveries: list[Delivery] = []
        self.taken = 0
        self.tag: str = channel.basic_consume(queue, self._on_message, **options)

    def next(self, count: int) -> list[Delivery]:
        """The next deliveries, once they are there."""
        self._visit.until(
            lambda: len(self.deliveries) >= self.taken + count,
            lambda: f"of {count} deliveries expected came {self.waiting()}",
        )
        found = self.deliveries[self.taken : self.taken + count]
        self.taken += count
        return found

    def one(self) -> Delivery:
        return self.next(1)[0]

    def waiting(self) -> list[str]:
        """Bodies of what came and was not taken yet."""
        return [each.body for each in self.deliveries[self.taken :]]

    def quiet(self, why: str) -> None:
        """Nothing comes."""
        self._visit.pump(QUIET_S)
        assert not self.waiting(), f"{why}: {self.waiting()} came"

    def cancel(self) -> None:
        self.channel.basic_cancel(self.tag)

    def _on_message(
        self, _: Channel, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self.deliveries.append(
            _delivery(method, properties, body, consumer_tag=method.consumer_tag)
        )


@contextmanager
def refused(code: int, *texts: str) -> Generator[None]:
    """The broker closes the channel or the connection with this code and a text with these."""
    try:
        yield
    except (
        pika.exceptions.ChannelClosedByBroker,
        pika.exceptions.ConnectionClosedByBroker,
    ) as error:
        same(error.reply_code, error.reply_text, code, *texts)
    else:
        raise AssertionError(f"not refused; expected {code} {' '.join(texts)}")


def same(got: int, text: str, code: int, *texts: str) -> None:
    assert got == code, f"refused with {got} ({text}) instead of {code}"
    for part in texts:
        assert part in text, f"the text is {text!r}, without {part!r}"


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [each.body for each in deliveries]


def _delivery(
    method: Any, properties: pika.BasicProperties, body: bytes, *, consumer_tag: str
) -> Delivery:
    return Delivery(
        body.decode(),
        method.delivery_tag,
        method.redelivered,
        method.exchange,
        method.routing_key,
        consumer_tag,
        properties,
    )
