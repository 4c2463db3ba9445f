"""The same message through every listener: AMQP, the native protocol by WebSocket and by HTTP, and
the management API. One rule for all, each in its protocol's words.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pamqp.commands import Basic, Confirm, Connection, Queue

from cluster.groups.outcome import Done
from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.commands import Command, Enqueue
from node.broker.alarms import Lack
from node.dispatch import in_flight
from node.errors import Refused
from node.protocols.native.frames import RANGES_MAX
from tests.acceptance.semantics.wire import Closed, Properties, Wire
from tests.node.management.api import Api, api_of
from tests.node.nodes import Client, Running, in_a_thread
from tests.testkit.waiting import wait_until

#: What a listener answers when it has taken a message.
TAKEN = "taken"
FOREVER_MS = 24 * 3_600_000  # later than any test ends

_numbers = count(1)


@dataclass(frozen=True)
class Message:
    """What its publisher says of it, in no protocol's words."""

    body: bytes = b"body"
    ttl_ms: int | None = None
    deliver_at_ms: int | None = None
    message_id: str | None = None
    dedup_id: str | None = None  # of a queue that was declared with `x-dedup-header: id`
    user_id: str | None = None
    reply_to: str | None = None
    headers: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def all_headers(self) -> dict[str, Any]:
        """As AMQP says it."""
        found = dict(self.headers)
        if self.deliver_at_ms is not None:
            found["x-opt-delivery-time"] = self.deliver_at_ms
        if self.dedup_id is not None:
            found["id"] = self.dedup_id
        return found

    @property
    def properties(self) -> dict[str, Any]:
        """The same."""
        given = {
            "expiration": None if self.ttl_ms is None else str(self.ttl_ms),
            "message_id": self.message_id,
            "user_id": self.user_id,
            "reply_to": self.reply_to,
            "headers": self.all_headers or None,
        }
        return {name: value for name, value in given.items() if value is not None}


Publish = Callable[[Running, str, Message], Any]


def by_amqp(running: Running, queue: str, message: Message) -> Any:
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    try:
        wire.open()
        wire.call(Confirm.Select(), Confirm.SelectOk)
        wire.publish(queue, message.body, properties=Properties(**message.properties))
        return TAKEN if wire.outcomes(1) == {1: "ack"} else "nack"
    except Closed as closed:
        return closed.code
    finally:
        wire.close()


def _attrs(message: Message) -> dict[int, Any]:
    given = {2: message.ttl_ms, 3: message.deliver_at_ms, 4: message.dedup_id}
    return {key: value for key, value in given.items() if value is not None}


def _meta(message: Message) -> dict[str, Any]:
    given = {
        "message_id": message.message_id,
        "user_id": message.user_id,
        "reply_to": message.reply_to,
        "headers": message.headers or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def by_socket(running: Running, queue: str, message: Message) -> Any:
    async def publish() -> Any:
        async with Client(f"http://{running.node.http_address}") as client:
            fields = (queue, None, 0, [message.body], _meta(message), _attrs(message))
            answer = await client.ask(10, 1, *fields)
            if answer[0] == 11:
                return TAKEN if answer[1][0][2] else "nack"
            return answer[2]

    return running.do(publish())


def by_http(running: Running, queue: str, message: Message) -> Any:
    async def publish() -> Any:
        headers = {
            name: str(value)
            for name, value in {
                "X-Quorate-TTL-Ms": message.ttl_ms,
                "X-Quorate-Deliver-At-Ms": message.deliver_at_ms,
                "X-Quorate-Dedup-Id": message.dedup_id,
                "X-Quorate-Reply-To": message.reply_to,
                "X-Quorate-Message-Id": message.message_id,
            }.items()
            if value is not None
        }
        url = f"http://{running.node.http_address}/v1/queues/%2F/{queue}/messages"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=message.body, headers=headers) as response,
        ):
            answer = await response.json()
            return TAKEN if response.status == 200 else (response.status, answer["code"])

    return running.do(publish())


def by_management(running: Running, queue: str, message: Message) -> Any:
    async def publish() -> Any:
        reply = await api_of(running.node).post(
            "exchanges/%2F/amq.default/publish",
            routing_key=queue,
            payload=message.body.decode(),
            payload_encoding="string",
            properties=message.properties,
        )
        if reply.status != 200:
            return reply.status
        return TAKEN if reply.value["routed"] else "unroutable"

    return running.do(publish())


LISTENERS: dict[str, Publish] = {
    "amqp": by_amqp,
    "socket": by_socket,
    "http": by_http,
    "management": by_management,
}
#: How each of them refuses what is wrong with a message.
BAD = {
    "amqp": 406,
    "socket": "bad_argument",
    "http": (400, "bad_argument"),
    "management": 400,
}
every_listener = pytest.mark.parametrize("listener", LISTENERS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with in_a_thread(tmp_path_factory.mktemp("listeners")) as running:
        yield running


@pytest.fixture
def api(running: Running) -> Api:
    return api_of(running.node)


def declared(running: Running, **arguments: Any) -> str:
    name = f"queue-{next(_numbers)}"
    running.do(api_of(running.node).queue(name, **arguments))
    return name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- rules ----------------------------------------------------------------------------------------


@every_listener
@pytest.mark.parametrize("ttl_ms", [0, 2**32, SPAN_MS_MAX])
def test_a_message_may_live_for_up_to_ten_years(running: Running, listener: str, ttl_ms: int):
    assert LISTENERS[listener](running, declared(running), Message(ttl_ms=ttl_ms)) == TAKEN


@every_listener
@pytest.mark.parametrize("ttl_ms", [-1, SPAN_MS_MAX + 1])
def test_another_time_to_live_is_refused(running: Running, listener: str, ttl_ms: int):
    assert LISTENERS[listener](running, declared(running), Message(ttl_ms=ttl_ms)) == BAD[listener]


@every_listener
def test_a_delay_is_ten_years_at_most(running: Running, listener: str):
    queue = declared(running)
    soon, late = now_ms() + FOREVER_MS, now_ms() + SPAN_MS_MAX + FOREVER_MS

    assert LISTENERS[listener](running, queue, Message(deliver_at_ms=soon)) == TAKEN
    assert LISTENERS[listener](running, queue, Message(deliver_at_ms=late)) == BAD[listener]


@every_listener
def test_an_id_against_duplicates_has_256_characters_at_most(running: Running, listener: str):
    queue = declared(running, dedup_window=60_000, dedup_header="id")

    assert LISTENERS[listener](running, queue, Message(dedup_id="é" * 256)) == TAKEN
    assert LISTENERS[listener](running, queue, Message(dedup_id="é" * 257)) == BAD[listener]


@every_listener
def test_nobody_publishes_in_the_name_of_another_user(running: Running, listener: str):
    if listener == "http":
        pytest.skip("there is no header for it")
    queue = declared(running)

    assert LISTENERS[listener](running, queue, Message(user_id="guest")) == TAKEN
    assert LISTENERS[listener](running, queue, Message(user_id="somebody")) == BAD[listener]


@every_listener
def test_who_waits_for_no_direct_reply_cannot_ask_for_one(running: Running, listener: str):
    message = Message(reply_to="amq.rabbitmq.reply-to")

    assert LISTENERS[listener](running, declared(running), message) == BAD[listener]
    assert LISTENERS[listener](running, declared(running), Message(reply_to="answers")) == TAKEN


@every_listener
def test_a_number_in_headers_is_one(running: Running, listener: str):
    if listener == "http":
        pytest.skip("there is no header for it")
    message = Message(headers={"h": float("nan")})

    assert LISTENERS[listener](running, declared(running), message) == BAD[listener]


@pytest.mark.parametrize("low", ["memory", "disk"])
def test_doors_that_can_refuse_name_the_alarm(
    running: Running, api: Api, monkeypatch: pytest.MonkeyPatch, low: str
):
    """AMQP has `connection.blocked` in place of a refusal."""
    queue = declared(running)
    alarms = running.node.alarms

    async def blocked() -> None:
        monkeypatch.setattr(alarms, "sample", lambda **_: None)
        alarms.lack = Lack(**{low: True})
        for listener in alarms.on_change:
            listener()

    async def free() -> None:
        alarms.lack = Lack()
        for listener in alarms.on_change:
            listener()

    running.do(blocked())
    try:
        assert by_socket(running, queue, Message()) == f"{low}_full"
        assert by_http(running, queue, Message()) == (507, f"{low}_full")
        with pytest.raises(Refused, match=low) as refused:
            running.node.broker.ingress.check_alarms()
        reason = refused.value.reason
        body = {"routing_key": queue, "payload": "", "payload_encoding": "string", "properties": {}}
        reply = running.do(api.ask("POST", "exchanges/%2F/amq.default/publish", body))
        assert reply.status == 507
        assert reply.value["reason"] == reason
        wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
        wire.open()
        wire.publish(queue, "waits")
        assert wire.expect(Connection.Blocked, 0).reason == f"low on {low}"
    finally:
        running.do(free())
    wire.expect(Connection.Unblocked, 0)
    wire.close()


# --- where a message goes -------------------------------------------------------------------------


def _bodies(running: Running, queue: str) -> list[Any]:
    return running.do(api_of(running.node).take(queue, count=100))


@pytest.mark.parametrize("listener", ["amqp", "management"])
def test_carbon_copies_go_to_their_queues_and_blind_ones_are_not_shown(
    running: Running, listener: str
):
    queue, copy, blind = [declared(running) for _ in range(3)]
    headers = {"CC": [copy], "BCC": [blind], "more": 1}

    assert LISTENERS[listener](running, queue, Message(headers=headers)) == TAKEN
    for each in (queue, copy, blind):
        (message,) = _bodies(running, each)
        assert message["properties"]["headers"] == {"CC": [copy], "more": 1}


@pytest.mark.parametrize("listener", ["amqp", "management"])
@pytest.mark.parametrize("copies", ["a", 1, [1], {"a": 1}])
def test_carbon_copies_are_an_array_of_strings(running: Running, listener: str, copies: Any):
    for name in ("CC", "BCC"):
        message = Message(headers={name: copies})
        assert LISTENERS[listener](running, declared(running), message) == BAD[listener]


def test_copies_of_messages_that_go_anywhere_go_anywhere_too(running: Running, api: Api):
    """Each message of a read is given to chance, whether it has copies or not."""
    exchange, copy = f"exchange-{next(_numbers)}", declared(running)
    running.do(api.put(f"exchanges/%2F/{exchange}", type="x-random", durable=True))
    queues = [declared(running) for _ in range(4)]
    for queue in queues:
        running.do(api.post(f"bindings/%2F/e/{exchange}/q/{queue}", routing_key=""))
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    wire.call(Confirm.Select(), Confirm.SelectOk)
    properties = Properties(headers={"CC": [copy]})
    wire.publish("", *[b"x"] * 100, exchange=exchange, properties=properties)
    wire.outcomes(100)
    wire.close()

    counts = [len(_bodies(running, queue)) for queue in queues]
    assert sum(counts) == 100
    assert sum(count > 0 for count in counts) > 1, counts


def test_copies_reach_what_is_bound_behind_an_exchange_without_keys(running: Running, api: Api):
    first, behind = [f"exchange-{next(_numbers)}" for _ in range(2)]
    copy = declared(running)
    running.do(api.put(f"exchanges/%2F/{first}", type="fanout", durable=True))
    running.do(api.put(f"exchanges/%2F/{behind}", type="direct", durable=True))
    running.do(api.post(f"bindings/%2F/e/{first}/e/{behind}", routing_key=""))
    running.do(api.post(f"bindings/%2F/e/{behind}/q/{copy}", routing_key="copy"))
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    wire.call(Confirm.Select(), Confirm.SelectOk)
    properties = Properties(headers={"CC": ["copy"]})
    wire.publish("own", b"x", exchange=first, properties=properties)
    wire.outcomes(1)
    wire.close()

    assert len(_bodies(running, copy)) == 1


def test_dead_letters_with_copies_go_where_a_publish_would(running: Running, api: Api):
    exchange, copy = f"exchange-{next(_numbers)}", declared(running)
    running.do(api.put(f"exchanges/%2F/{exchange}", type="x-random", durable=True))
    queues = [declared(running) for _ in range(4)]
    for queue in queues:
        running.do(api.post(f"bindings/%2F/e/{exchange}/q/{queue}", routing_key=""))
    source = declared(running, dead_letter_exchange=exchange)
    for _ in range(20):
        message = Message(headers={"CC": [copy]}, ttl_ms=0)
        assert by_amqp(running, source, message) == TAKEN

    arrived: list[Any] = []

    def all_are_there() -> bool:
        for queue in queues:
            arrived.extend(_bodies(running, queue))
        return len(arrived) >= 20

    wait_until(all_are_there)
    assert len(arrived) == 20
    assert not any(_bodies(running, queue) for queue in queues)


@pytest.mark.parametrize("listener", ["amqp", "management"])
def test_a_delay_that_cannot_be_shown_negated_is_refused(running: Running, listener: str):
    in_time = int(time.time() * 1000) + 60_000
    headers = {"x-delay": "-9999999999999999999"}
    message = Message(headers=headers, deliver_at_ms=in_time)

    assert LISTENERS[listener](running, declared(running), message) == BAD[listener]


@pytest.mark.parametrize("listener", ["amqp", "management"])
def test_a_direct_reply_reaches_who_waits_for_it(running: Running, listener: str):
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    queue = declared(running)
    wire.call(Basic.Consume(0, "amq.rabbitmq.reply-to", no_ack=True), Basic.ConsumeOk)
    wire.publish(queue, "question", properties=Properties(reply_to="amq.rabbitmq.reply-to"))
    found = wait_until(lambda: _bodies(running, queue))
    name = found[0]["properties"]["reply_to"]

    assert LISTENERS[listener](running, name, Message(body=b"answer")) == TAKEN
    assert wire.next().body == b"answer"
    wire.close()


@every_listener
def test_anybody_may_publish_to_a_queue_of_another_connection(running: Running, listener: str):
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    queue = f"queue-{next(_numbers)}"
    wire.call(Queue.Declare(0, queue, exclusive=True), Queue.DeclareOk)

    assert LISTENERS[listener](running, queue, Message()) == TAKEN
    wire.close()


def test_also_in_parts(running: Running):
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    queue = f"queue-{next(_numbers)}"
    wire.call(Queue.Declare(0, queue, exclusive=True, durable=True), Queue.DeclareOk)

    async def publish() -> Any:
        async with Client(f"http://{running.node.http_address}") as client:
            at = (await client.ask(12, 1, queue, "upload", 0, b"tail"))[2]
            large = {0: ["upload", [[*at, 4]]]}
            return (await client.ask(10, 2, queue, None, 0, [b"head"], None, None, large))[0]

    assert running.do(publish()) == 11
    wire.close()


# --- back-pressure --------------------------------------------------------------------------------


def test_what_is_in_flight_counts_for_a_connection_and_not_for_each_of_its_channels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else 2,047 channels could each fill the memory of the node with the limit."""
    with in_a_thread(tmp_path, **{"limits.in_flight_bytes_max": 65_536}) as running:
        queue = declared(running)
        held: list[Callable[[], None]] = []
        publish = running.node.publisher.publish

        def hold(*args: Any) -> None:
            held.append(partial(running.loop.call_soon_threadsafe, publish, *args))

        monkeypatch.setattr(running.node.publisher, "publish", hold)
        wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
        channels = range(1, 5)
        for channel in channels:
            wire.open(channel)
            wire.call(Confirm.Select(), Confirm.SelectOk, channel)
        (connection,) = running.node.amqp._connections
        for sent, channel in enumerate(channels, start=1):
            wire.publish(queue, b"x" * 40_000, channel=channel)
            wait_until(lambda sent=sent: len(held) >= sent or connection.wire.paused)

        assert len(held) == 2
        taken = 0
        while taken < len(channels):  # each that is told of makes room for another one
            wait_until(lambda: held)
            held.pop(0)()
            taken += 1
        confirmed = {wire.next().channel for _ in channels}
        assert confirmed == set(channels)
        wire.close()


@pytest.mark.parametrize("listener", ["http", "management"])
def test_what_is_in_flight_by_http_counts_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
):
    """Each connection has one publish at a time, and there may be any number of connections."""
    with in_a_thread(tmp_path, **{"limits.in_flight_bytes_max": 65_536}) as running:
        queue = declared(running)
        info = running.node.broker.locate("/", queue)
        assert info is not None
        group: Any = running.node.cluster.group(info.group)
        propose, held = group.propose, list[Callable[[], None]]()

        def hold(command: Command, done: Done | None = None) -> None:
            if isinstance(command, Enqueue) and len(held) < 2:
                held.append(partial(running.loop.call_soon_threadsafe, propose, command, done))
            else:
                propose(command, done)

        monkeypatch.setattr(group, "propose", hold)
        with ThreadPoolExecutor() as threads:
            message = Message(b"x" * 40_000)
            first = [threads.submit(LISTENERS[listener], running, queue, message) for _ in range(2)]
            wait_until(lambda: not running.node.broker.ingress.room._free.is_set())
            monkeypatch.setattr(in_flight, "ROOM_S_MAX", 0.0)
            try:
                assert LISTENERS[listener](running, queue, message) in {503, (503, "overloaded")}
            finally:
                monkeypatch.undo()
                for publish in held:
                    publish()
            assert [each.result() for each in first] == [TAKEN] * 2
            assert LISTENERS[listener](running, queue, message) == TAKEN


# --- what becomes of deliveries -------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [[0, 1]],
        [[2, 1]],
        [[1, 1], [1, 1]],
        [[1, 2**63]],
        [[1, 1, 1]],
        [["1", 1]],
        1,
        [[2 * n + 1, 2 * n + 1] for n in range(RANGES_MAX + 1)],
    ],
    ids=lambda ranges: str(ranges)[:20],
)
def test_ranges_ascend_apart_within_bounds(running: Running, ranges: Any):
    queue = declared(running)
    assert by_http(running, queue, Message()) == TAKEN

    async def settle() -> tuple[Any, Any]:
        url = f"http://{running.node.http_address}"
        async with Client(url) as client:
            by_socket = (await client.ask(30, 1, queue, 1, ranges, None))[2]
        body = {"consumer": 1, "ranges": ranges}
        path = f"{url}/v1/queues/%2F/{queue}/settle"
        async with aiohttp.ClientSession() as session, session.post(path, json=body) as response:
            return by_socket, (response.status, (await response.json())["code"])

    assert running.do(settle()) == ("bad_frame", (400, "bad_argument"))
