"""Sockets: what the listener and a connection do, with channels that only listen."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest
import trustme
import uvloop
from pamqp import commands
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker

from cluster.groups.outcome import Outcome
from node.access.auth import User, UserLimits
from node.clients.clients import Clients
from node.errors import AccessRefused, Refused
from node.messages.amqp_errors import ChannelError_, ConnectionError_
from node.protocols.amqp import writer
from node.protocols.amqp.channel import Channel
from node.protocols.amqp.channel_context import ChannelHost
from node.protocols.amqp.events import Acks, Event, Method, Publish, publish_of
from node.protocols.amqp.handshake import PROTOCOL_HEADER
from node.protocols.amqp.methods import encode_method, made
from node.protocols.amqp.reader import Reader
from node.protocols.amqp.server import AmqpServer
from node.protocols.amqp.writer import Outlet
from node.protocols.connection_limiter import ConnectionLimiter
from node.protocols.tls import Certificates
from node.settings.settings import load
from node.tasks import Tasks
from tests.protocols.amqp.frames import HEARTBEAT, ack, publish, publish_method
from tests.protocols.amqp.frames import header as content_header
from tests.testkit.waiting import until


class FakeAuth:
    """ann, with the password secret, in vhost /."""

    def __init__(self) -> None:
        self.limited = UserLimits(None, None, None)

    def user(self, name: str) -> User | None:
        return User(name) if name == "ann" else None

    async def login(
        self, name: str, password: str, *, loopback: bool, address: str, protocol: str
    ) -> User:
        assert protocol == "amqp"
        assert (loopback, address) == (True, "127.0.0.1")
        if (name, password) != ("ann", "secret"):
            raise AccessRefused("no")
        return User(name)

    async def admit(self, user: User, vhost: str) -> Any:
        if vhost == "secret":
            raise AccessRefused(f"access to vhost '{vhost}' refused for user '{user.name}'")
        if vhost != "/":
            raise Refused("no_vhost", f"vhost '{vhost}' not found")
        return object()

    async def certified(self, name: str, *, loopback: bool, address: str) -> User:
        if name != "ann":
            raise AccessRefused("no")
        return User(name)

    def access(self, user: User, vhost: str) -> Any:
        return object()

    def limits(self, user: str, vhost: str) -> UserLimits:
        return self.limited


class FakeAlarms:
    def __init__(self) -> None:
        self.blocked: str | None = None
        self.on_change: list[Callable[[], None]] = []

    def change(self, reason: str | None) -> None:
        self.blocked = reason
        for listener in self.on_change:
            listener()


class FakeCluster:
    catalog_machine = SimpleNamespace(version=3, entry=lambda *_key: None)

    def __init__(self) -> None:
        self.removed: list[tuple[str, str]] = []

    async def remove_queue(self, vhost: str, name: str, *, owner: str) -> Outcome:
        self.removed.append((vhost, name))
        return Outcome("ok")


class FakeChannel:
    """Writes down what it is given. Declaring makes an exclusive queue; qos is an error."""

    all: list[FakeChannel]

    def __init__(self, host: ChannelHost, number: int, services: Any) -> None:
        self.host = host
        self.number = number
        self.said: list[Any] = []
        self.outlet = Outlet(cast(Channel, self))
        FakeChannel.all.append(self)

    idle = True
    closed = False

    def send_method(self, method: Any) -> None:
        self.outlet.write(writer.method(self.number, method))

    def receive(self, event: Event) -> None:
        self.said.append(event)
        if not isinstance(event, Method):
            return
        match event.method:
            case commands.Queue.Declare():
                self.host.exclusive_queues[event.method.queue] = None
                answer = made(commands.Queue.DeclareOk, queue=event.method.queue)
                self.host.write(writer.method(self.number, answer))
            case commands.Basic.Qos():
                error = ChannelError_(406, "too much", 60, 10)
                self.host.channel_error(self.number, error)
            case _:
                pass

    def begin_with(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except ConnectionError_ as error:
                self.host.connection_error(error)

        self.task = asyncio.ensure_future(guarded())

    def end_of_read(self) -> None:
        self.said.append("end of read")

    def writable(self) -> None:
        self.said.append("writable")

    async def finish(self) -> None:
        self.close()

    def close(self, *, lost: bool = False) -> None:
        self.said.append("lost" if lost else "closed")

    def describe(self) -> Mapping[str, Any]:
        return {"number": self.number}


def nothing(*_: Any) -> None:
    pass


async def nobody(*_: Any) -> dict[str, Any]:
    return {}


class World:
    def __init__(self, **flags: Any) -> None:
        flags = {"amqp": "127.0.0.1:0", **{k.replace("__", "."): v for k, v in flags.items()}}
        self.auth = FakeAuth()
        self.alarms = FakeAlarms()
        self.cluster = FakeCluster()
        self.tasks = Tasks()
        settings = load(environment={}, flags=flags)
        services = SimpleNamespace(
            settings=settings,
            auth=self.auth,
            alarms=self.alarms,
            broker=SimpleNamespace(cluster=self.cluster),
            tasks=self.tasks,
        )
        make_channel = cast(Any, FakeChannel)
        peer_rpc = SimpleNamespace(on=nothing, request_others=nobody)
        self.server = AmqpServer(
            cast(Any, services),
            clients=Clients(cast(Any, self.auth), cast(Any, peer_rpc)),
            incarnation=7,
            limiter=ConnectionLimiter(
                per_address_max=settings.limits.connections_per_address_max,
                handshake_s_max=settings.limits.handshake_ms_max / 1000,
            ),
            certificates=Certificates(settings.tls),
            make_channel=make_channel,
        )

    @property
    def port(self) -> int:
        assert self.server.address is not None
        return int(self.server.address.rpartition(":")[2])

    async def stop(self) -> None:
        for connection in list(self.server._connections):  # pyright: ignore[reportPrivateUsage]
            connection.abort()  # its client will not answer
        await self.server.stop()
        await self.tasks.stop()


@pytest.fixture
async def started() -> AsyncIterator[Callable[..., Any]]:
    FakeChannel.all = []
    worlds: list[World] = []

    async def start(**flags: Any) -> World:
        world = World(**flags)
        await world.server.start()
        worlds.append(world)
        return world

    yield start
    for world in worlds:
        await world.stop()


class Client:
    """Frames by hand."""

    def __init__(self, reader: asyncio.StreamReader, sender: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._sender = sender
        self._frames = Reader(frame_bytes_max=2**20, channel_max=100, message_bytes_max=2**20)
        self._events: list[Event] = []

    @classmethod
    async def connected(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @classmethod
    async def opened(cls, port: int, **terms: Any) -> Client:
        self = await cls.connected(port)
        self.send(*hello(**terms))
        for expected in ("Start", "Tune", "OpenOk"):
            assert await self.method() == f"Connection.{expected}"
        return self

    def send(self, *parts: Any, channel: int = 0) -> None:
        for part in parts:
            self._sender.write(part if isinstance(part, bytes) else encode_method(channel, part))

    async def event(self) -> Event | None:
        """None: the server has closed."""
        while not self._events:
            data = await self._reader.read(65536)
            if not data:
                return None
            self._events += self._frames.feed(data)
            assert self._frames.error is None
        return self._events.pop(0)

    async def method(self) -> str | None:
        """Its name, and the text of a close."""
        event = await self.event()
        if event is None:
            return None
        assert isinstance(event, Method), event
        text = getattr(event.method, "reply_text", "")
        return f"{event.method.name} {text}".strip()

    async def rest(self) -> bytes:
        return await self._reader.read()

    def leave(self) -> None:
        self._sender.close()


def hello(
    password: str = "secret",
    vhost: str = "/",
    heartbeat: int = 0,
    frame_max: int = 0,
    **capabilities: bool,
) -> list[Any]:
    """All of the client's part of the handshake at once."""
    return [
        PROTOCOL_HEADER,
        made(
            commands.Connection.StartOk,
            client_properties={"capabilities": capabilities, "connection_name": "test"},
            mechanism="PLAIN",
            response=f"\0ann\0{password}",
        ),
        made(commands.Connection.TuneOk, channel_max=0, frame_max=frame_max, heartbeat=heartbeat),
        made(commands.Connection.Open, virtual_host=vhost),
    ]


OPEN_1 = encode_method(1, made(commands.Channel.Open))
REFUSED = (
    "Connection.Close ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. "
    "For details see the broker logfile."
)
CLOSE = made(commands.Connection.Close, reply_code=200, reply_text="bye")


class TestPika:
    async def test_a_real_client_opens_and_closes_connections_and_channels(self, started: Any):
        world = await started()

        def use() -> list[str]:
            credentials = pika.PlainCredentials("ann", "secret")
            parameters = pika.ConnectionParameters(
                "127.0.0.1", world.port, "/", credentials, heartbeat=30
            )
            connection = pika.BlockingConnection(parameters)
            first: Any = connection.channel()
            second = connection.channel()
            first.queue_declare("größe")
            first.basic_publish("", "orders", b"hello")
            first.close()
            reasons: list[str] = []
            try:
                second.basic_qos(prefetch_count=5)
            except ChannelClosedByBroker as closed:
                reasons.append(closed.reply_text)
            connection.channel()
            connection.close()
            return reasons

        assert await asyncio.to_thread(use) == ["PRECONDITION_FAILED - too much"]
        assert [channel.said[-1] for channel in FakeChannel.all] == ["closed"] * 3
        assert [e.bodies for e in FakeChannel.all[0].said if isinstance(e, Publish)] == [[b"hello"]]
        assert world.cluster.removed == [("/", "größe")]

    async def test_a_real_client_sees_why_it_may_not_come_in(self, started: Any):
        world = await started()

        def refused(password: str, vhost: str) -> str:
            credentials = pika.PlainCredentials("ann", password)
            parameters = pika.ConnectionParameters("127.0.0.1", world.port, vhost, credentials)
            with pytest.raises(AMQPConnectionError) as caught:
                pika.BlockingConnection(parameters)
            return str(caught.value)

        assert "Login was refused" in await asyncio.to_thread(refused, "wrong", "/")
        assert "vhost 'none' not found" in await asyncio.to_thread(refused, "secret", "none")


class TestHandshake:
    async def test_another_protocol_is_answered_with_ours(self, started: Any):
        world = await started()
        for header in (b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n"):
            client = await Client.connected(world.port)
            client.send(header)

            assert await client.rest() == PROTOCOL_HEADER

    async def test_a_client_may_say_all_of_it_at_once(self, started: Any):
        world = await started()
        client = await Client.connected(world.port)

        client.send(*hello(), OPEN_1)

        names = [await client.method() for _ in range(4)]
        assert names[-2:] == ["Connection.OpenOk", "Channel.OpenOk"]

    @pytest.mark.parametrize(
        ("changes", "last"),
        [
            (
                {"password": "x", "authentication_failure_close": True},
                REFUSED,
            ),
            ({"password": "x"}, None),
            ({"vhost": "none"}, "Connection.Close NOT_ALLOWED - vhost 'none' not found"),
            (
                {"vhost": "secret"},
                "Connection.Close NOT_ALLOWED - access to vhost 'secret' refused for user 'ann'",
            ),
        ],
    )
    async def test_who_may_not_come_in_is_told_so(
        self, started: Any, changes: dict[str, Any], last: str | None
    ):
        world = await started()
        client = await Client.connected(world.port)

        client.send(*hello(**changes))

        said = [await client.method()]
        while said[-1] is not None and not said[-1].startswith("Connection.Close"):
            said.append(await client.method())
        assert said[-1] == last

    async def test_a_client_that_says_nothing_is_dropped(self, started: Any):
        world = await started(amqp_options__handshake_ms_max=100)
        client = await Client.connected(world.port)

        assert await client.rest() == b""

    async def test_connections_over_the_limit_are_dropped(self, started: Any):
        world = await started(limits__connections_max=1)
        first = await Client.opened(world.port)

        second = await Client.connected(world.port)

        assert await second.method() is None
        first.leave()

    async def test_no_body_is_taken_of_who_has_not_logged_in(self, started: Any):
        world = await started()
        client = await Client.connected(world.port)
        client.send(PROTOCOL_HEADER)
        assert await client.method() == "Connection.Start"

        client.send(publish_method(), content_header(1, 2**20))  # and the body would follow

        assert "before the vhost is open" in str(await client.method())
        client.leave()

    @pytest.mark.parametrize(
        ("limits", "text"),
        [
            (UserLimits(1, None, None), "connection limit (1) is reached"),
            (UserLimits(None, 1, None), "user connection limit (1) is reached"),
        ],
    )
    async def test_a_vhost_and_a_user_may_have_limits(
        self, started: Any, limits: UserLimits, text: str
    ):
        world = await started()
        world.auth.limited = limits
        first = await Client.opened(world.port)
        second = await Client.connected(world.port)

        second.send(*hello())

        said = [await second.method() for _ in range(3)]
        assert text in str(said[-1])
        first.leave()


class TestChannels:
    async def test_what_one_read_brought_ends_with_a_word(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        client.send(OPEN_1)
        await client.method()
        [channel] = FakeChannel.all

        client.send(publish(b"a") + publish(b"b") + ack(1))
        client.send(CLOSE)
        assert await client.method() == "Connection.CloseOk"

        assert channel.said == [
            publish_of(1, b"\0\6orders", b"\0\0", [b"a", b"b"]),
            Acks(1, [(1, 1)]),
            *channel.said[2:],
        ]
        assert channel.said[-1] == "closed"

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (OPEN_1 + OPEN_1, "CHANNEL_ERROR - second 'channel.open' seen"),
            (publish(), "CHANNEL_ERROR - expected 'channel.open'"),
            (
                OPEN_1 + encode_method(1, made(commands.Channel.Flow, active=False)),
                "NOT_IMPLEMENTED - active=false",
            ),
            (encode_method(0, made(commands.Channel.Open)), "COMMAND_INVALID"),
            (encode_method(1, CLOSE), "COMMAND_INVALID"),
            (b"\x05\0\0\0\0\0\0\xce", "FRAME_ERROR"),
        ],
    )
    async def test_a_wrong_step_ends_the_connection(self, started: Any, data: bytes, text: str):
        world = await started()
        client = await Client.opened(world.port)

        client.send(data)

        said = await client.method()
        while said == "Channel.OpenOk":
            said = await client.method()
        assert said is not None
        assert text in said
        client.send(publish(), made(commands.Connection.CloseOk))
        assert await client.method() is None

    async def test_a_closed_channel_hears_nothing_until_the_client_agrees(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        qos = encode_method(1, made(commands.Basic.Qos))

        client.send(OPEN_1, qos, publish(), qos)

        assert await client.method() == "Channel.OpenOk"
        assert await client.method() == "Channel.Close PRECONDITION_FAILED - too much"
        assert FakeChannel.all[0].said[-1] == "closed"
        client.send(encode_method(1, made(commands.Channel.CloseOk)), OPEN_1)
        assert await client.method() == "Channel.OpenOk"

    async def test_flow_can_be_turned_on(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)

        client.send(OPEN_1, encode_method(1, made(commands.Channel.Flow, active=True)))

        assert await client.method() == "Channel.OpenOk"
        assert await client.method() == "Channel.FlowOk"

    async def test_a_user_may_have_a_limit_of_channels(self, started: Any):
        world = await started()
        world.auth.limited = UserLimits(None, None, 1)
        client = await Client.opened(world.port)

        client.send(OPEN_1, encode_method(2, made(commands.Channel.Open)))

        assert await client.method() == "Channel.OpenOk"
        assert "allowed user limit of (1)" in str(await client.method())


class TestLife:
    async def test_exclusive_queues_end_with_a_connection_that_is_lost(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        client.send(OPEN_1, encode_method(1, made(commands.Queue.Declare, queue="mine")))
        assert [await client.method() for _ in range(2)][-1] == "Queue.DeclareOk"

        client.leave()

        await until(lambda: world.cluster.removed)
        assert world.cluster.removed == [("/", "mine")]
        assert FakeChannel.all[0].said[-1] == "lost"

    async def test_a_secret_may_be_updated(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)

        client.send(made(commands.Connection.UpdateSecret, new_secret="s", reason="r"))

        assert await client.method() == "Connection.UpdateSecretOk"

    async def test_an_alarm_blocks_who_publishes_and_nobody_else(self, started: Any):
        world = await started()
        publisher = await Client.opened(world.port, **{"connection.blocked": True})
        consumer = await Client.opened(world.port, **{"connection.blocked": True})
        for client in (publisher, consumer):
            client.send(OPEN_1)
            await client.method()
        publisher.send(publish(b"before"))
        publisher.send(encode_method(1, made(commands.Channel.Flow, active=True)))
        await publisher.method()

        world.alarms.change("low on memory")
        assert await publisher.method() == "Connection.Blocked"
        publisher.send(publish(b"while"), CLOSE)
        consumer.send(CLOSE)
        assert await consumer.method() == "Connection.CloseOk"
        seen = [e.bodies for e in FakeChannel.all[0].said if isinstance(e, Publish)]
        world.alarms.change(None)

        assert seen == [[b"before"]]
        assert await publisher.method() == "Connection.Unblocked"
        assert await publisher.method() == "Connection.CloseOk"

    async def test_who_publishes_first_while_there_is_an_alarm_is_blocked_too(self, started: Any):
        world = await started()
        world.alarms.change("low on disk")
        client = await Client.opened(world.port, **{"connection.blocked": True})

        client.send(OPEN_1, publish())

        assert await client.method() == "Channel.OpenOk"
        assert await client.method() == "Connection.Blocked"

    async def test_what_came_with_that_first_publish_waits_for_room_as_well(self, started: Any):
        """A transaction may come whole in one read, its commit too."""
        world = await started()
        world.alarms.change("low on disk")
        client = await Client.opened(world.port, **{"connection.blocked": True})
        flow = encode_method(1, made(commands.Channel.Flow, active=True))
        client.send(OPEN_1, flow + publish(b"first") + publish(b"second") + flow)
        for name in ("Channel.OpenOk", "Channel.FlowOk", "Connection.Blocked"):
            assert await client.method() == name
        seen = list(FakeChannel.all[0].said)

        world.alarms.change(None)

        assert await client.method() == "Connection.Unblocked"
        assert await client.method() == "Channel.FlowOk"
        assert not [event for event in seen if isinstance(event, Publish)]
        bodies = [e.bodies for e in FakeChannel.all[0].said if isinstance(e, Publish)]
        assert [body for each in bodies for body in each] == [b"first", b"second"]

    async def test_heartbeats_are_sent_and_a_silent_client_is_dropped(self, started: Any):
        world = await started()
        client = await Client.opened(world.port, heartbeat=1)

        rest = await client.rest()

        # Every half interval, for the two intervals until the client counts as gone.
        assert rest.count(HEARTBEAT) >= 3

    async def test_what_a_client_writes_after_its_goodbye_is_dropped(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        client.send(OPEN_1)
        await client.method()

        client.send(CLOSE)
        assert await client.method() == "Connection.CloseOk"
        for _ in range(20):  # a closed socket would answer these with a reset
            client.send(publish())
            await asyncio.sleep(0.005)

        assert world.server._connections
        client.leave()
        await until(lambda: not world.server._connections)

    async def test_a_client_that_stays_after_its_goodbye_is_dropped(
        self, started: Any, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("node.protocols.amqp.connection.CLOSE_S_MAX", 0.05)
        world = await started()
        client = await Client.opened(world.port)

        client.send(CLOSE)

        assert await client.method() == "Connection.CloseOk"
        assert await client.method() is None

    async def test_frames_of_a_channel_that_the_client_closed_are_dropped(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        client.send(OPEN_1)
        await client.method()

        client.send(encode_method(1, made(commands.Channel.Close)), publish(), ack(1), OPEN_1)

        assert await client.method() == "Channel.CloseOk"
        assert await client.method() == "Channel.OpenOk"
        client.leave()

    async def test_the_number_of_open_channels_is_limited_and_not_their_ids(self, started: Any):
        world = await started(amqp_options__channel_max=2)
        client = await Client.opened(world.port)

        client.send(encode_method(7, made(commands.Channel.Open)))
        client.send(encode_method(65_535, made(commands.Channel.Open)))
        assert await client.method() == "Channel.OpenOk"
        assert await client.method() == "Channel.OpenOk"
        client.send(OPEN_1)

        assert await client.method() == (
            "Connection.Close NOT_ALLOWED - number of channels opened (2) has reached the"
            " negotiated channel_max (2)"
        )
        client.leave()

    async def test_who_does_not_take_answers_may_not_ask_on(self, started: Any):
        world = await started(limits__deliver_buffer_bytes_max=65536)
        client = await Client.opened(world.port)
        client.send(OPEN_1)
        await client.method()
        [connection] = world.server._connections

        asked = encode_method(1, made(commands.Channel.Flow, active=True)) * 10_000
        count = 0
        while not connection.wire.paused:
            client.send(asked)
            count += 10_000
            await asyncio.sleep(0.001)

        answers = [await client.event() for _ in range(count)]
        assert {type(answer) for answer in answers} == {Method}
        assert not connection.wire.paused

    async def test_the_listing_has_the_names_of_the_management_api(self, started: Any):
        world = await started()
        client = await Client.opened(world.port, heartbeat=30, frame_max=8192)
        client.send(OPEN_1)
        await client.method()

        [found] = world.server.connections()

        assert found["name"].startswith("127.0.0.1:")
        assert found["name"].endswith(f" -> 127.0.0.1:{world.port}")
        assert found["user_provided_name"] == "test"
        assert {
            key: found[key]
            for key in ("user", "vhost", "channels", "frame_max", "timeout", "state", "ssl")
        } == {
            "user": "ann",
            "vhost": "/",
            "channels": 1,
            "frame_max": 8192,
            "timeout": 30,
            "state": "running",
            "ssl": False,
        }
        (channel,) = world.server.channels()
        assert (channel["number"], channel["node"]) == (1, "node-1")

    async def test_an_operator_closes_a_connection_by_name(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)
        [found] = world.server.connections()

        assert world.server.close_connection(found["name"], "Closed via management plugin")

        closed = "Connection.Close CONNECTION_FORCED - Closed via management plugin"
        assert await client.method() == closed
        assert not world.server.close_connection("nobody", "")

    async def test_a_stop_tells_every_client(self, started: Any):
        world = await started()
        client = await Client.opened(world.port)

        world.server.stop_reading()
        stop = asyncio.create_task(world.server.stop())

        assert await client.method() == (
            "Connection.Close CONNECTION_FORCED - "
            "broker forced connection closure with reason 'shutdown'"
        )
        client.send(made(commands.Connection.CloseOk))
        await stop
        assert await client.method() is None
        assert len(world.server) == 0


def test_it_runs_on_the_loop_that_nodes_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("node.protocols.amqp.connection.CLOSE_S_MAX", 0.1)
    FakeChannel.all = []

    async def use() -> None:
        world = World()
        await world.server.start()
        client = await Client.opened(world.port)
        client.send(OPEN_1, publish(b"a") * 1000, publish(b"b" * 100_000), CLOSE)
        assert await client.method() == "Channel.OpenOk"
        assert await client.method() == "Connection.CloseOk"
        assert await client.method() is None
        await world.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(use())
    bodies = [body for e in FakeChannel.all[0].said if isinstance(e, Publish) for body in e.bodies]
    assert bodies == [b"a"] * 1000 + [b"b" * 100_000]


class TestTls:
    async def test_a_certificate_is_a_login(self, started: Any, tmp_path: Path):
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(tmp_path / "ca"))
        server = authority.issue_cert("localhost", "127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server"))
        client = authority.issue_cert("ann@example.com", common_name="ann")
        client.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client"))
        world = await started(
            amqps="127.0.0.1:0",
            tls__client_cert=str(tmp_path / "server"),
            tls__client_key=str(tmp_path / "server"),
            tls__client_ca=str(tmp_path / "ca"),
        )
        port = int(world.server.tls_address.rpartition(":")[2])

        def use() -> None:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
            context.load_cert_chain(str(tmp_path / "client"))
            parameters = pika.ConnectionParameters(
                "127.0.0.1",
                port,
                credentials=ExternalCredentials(),
                ssl_options=pika.SSLOptions(context, "localhost"),
            )
            with pika.BlockingConnection(parameters) as connection:
                connection.channel()

        await asyncio.to_thread(use)
        assert len(FakeChannel.all) == 1

    @pytest.mark.parametrize("shows", ["its own", "none", "a stranger's"])
    async def test_one_that_is_shown_is_checked_though_none_is_asked_for(
        self, started: Any, tmp_path: Path, shows: str
    ):
        authority, stranger = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(str(tmp_path / "ca"))
        server = authority.issue_cert("localhost", "127.0.0.1")
        server.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server"))
        for name, issuer in (("its own", authority), ("a stranger's", stranger)):
            client = issuer.issue_cert("ann@example.com", common_name="ann")
            client.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / name))
        world = await started(
            amqps="127.0.0.1:0",
            tls__client_cert=str(tmp_path / "server"),
            tls__client_key=str(tmp_path / "server"),
            tls__client_ca=str(tmp_path / "ca"),
            tls__amqps_verify="optional",
        )
        port = int(world.server.tls_address.rpartition(":")[2])

        def use() -> None:
            context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
            if shows != "none":
                context.load_cert_chain(str(tmp_path / shows))
            parameters = pika.ConnectionParameters(
                "127.0.0.1",
                port,
                credentials=(
                    pika.PlainCredentials("ann", "secret")
                    if shows == "none"
                    else ExternalCredentials()
                ),
                ssl_options=pika.SSLOptions(context, "localhost"),
            )
            with pika.BlockingConnection(parameters) as connection:
                connection.channel()

        if shows == "a stranger's":
            with pytest.raises(AMQPConnectionError):
                await asyncio.to_thread(use)
        else:
            await asyncio.to_thread(use)
        assert len(FakeChannel.all) == int(shows != "a stranger's")
