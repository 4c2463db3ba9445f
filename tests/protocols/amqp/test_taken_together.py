"""Messages of one read that ask nothing are taken all at once: the same as one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.catalog import QueueInfo
from cluster.types import QueueId
from node.broker.ingress import Ingress
from node.dispatch.in_flight import InFlight
from node.errors import AccessRefused, BrokerError
from node.messages.properties import build
from node.metrics.client_counters import ClientCounters
from node.protocols.amqp.events import Publish
from node.protocols.amqp.publishes import Confirms, Publishes
from node.routing import Router
from node.settings.sections import LimitSettings
from tests.node.routing.catalogs import VHOST, FakeCatalog
from tests.protocols.amqp import frames
from tests.protocols.amqp.frames import publish, reader

#: To one queue, several, the same one by several ways, one by its headers, nowhere.
WHERES = [
    ("", "a"),
    ("", "b"),
    ("", "once"),
    ("both", ""),
    ("topics", "a.x"),
    ("topics", "b.y"),
    ("topics", "c"),
    ("by-headers", "a"),
    ("", "nowhere"),
]
PROPERTIES = [
    {},
    {"delivery_mode": 2},
    {"message_id": "7", "timestamp": 2**63},
    {"headers": {"n": 1}, "message_id": "8"},
    {"headers": {"CC": ["b"]}},
    {"headers": {"BCC": ["b"], "n": 2}},
    {"headers": {"x-delay": 5}},
    {"headers": {"deep": 1.5}},
    {"priority": 0},
    {"priority": 3},
    {"expiration": "60000"},
]


class Catalog(FakeCatalog):
    def __init__(self) -> None:
        super().__init__()
        self.add_queue("a", "b", "once")
        for name, kind in (
            ("both", "fanout"),
            ("topics", "topic"),
            ("by-headers", "headers"),
            ("secret", "fanout"),
        ):
            self.make(name, kind)
        for source, queue, key in (
            ("both", "b", ""),
            ("both", "a", ""),
            ("topics", "a", "a.#"),
            ("topics", "b", "#"),
        ):
            self.bind(source, queue, key)
        self.bind("by-headers", "b", "", n=1)

    def config_of(self, queue: QueueId) -> Any:
        window_ms = 1000 if queue == self.queues["once"].queue else None
        return SimpleNamespace(dedup_window_ms=window_ms)


class FakeAccess:
    user = "ann"
    vhost = VHOST
    entry: object = None
    secret = "secret"

    def check(self, _: str, __: str, name: str) -> None:
        if name == self.secret:
            raise AccessRefused(name)

    def check_topic(self, _: str, __: str, key: str) -> None:
        if key == "c.secret":
            raise AccessRefused(key)


class Channel:
    """What a node does of what it is told, by queue."""

    def __init__(self, *, confirm: bool = True) -> None:
        self.number = 1
        self.closed = False
        self.taken: dict[str, list[tuple[bytes, bytes, Any]]] = {}
        self.answers: list[tuple[Any, int]] = []
        self.catalog = catalog = Catalog()
        time = SimpleNamespace(in_doubt=False, settled=AsyncMock(return_value=1_000))
        cluster: Any = SimpleNamespace(catalog_machine=catalog, time=time, now_ms=lambda: 1_000)
        ingress = Ingress(cluster, LimitSettings(), cut_off=lambda: False)
        ingress.router = Router(catalog)
        self.ingress = ingress
        in_flight = InFlight(1 << 30, pause=print, resume=print)
        self.host = SimpleNamespace(
            vhost=VHOST, access=FakeAccess(), in_flight=in_flight, frame_max=4096
        )
        self.deliveries = SimpleNamespace(reply_name=None)
        self.outlet = SimpleNamespace(write=print)
        self.services = SimpleNamespace(
            counters=ClientCounters(),
            broker=SimpleNamespace(catch_up=self._catch_up, ingress=ingress),
            publisher=SimpleNamespace(publish=self._publish),
        )
        self.publishes = Publishes(cast(Any, self))
        if confirm:
            self.publishes.confirms = Confirms()
        self.told: list[int] = []

    async def _catch_up(self) -> bool:
        return True

    async def patiently(self, work: Any) -> Any:
        return await work()

    def _publish(
        self, info: QueueInfo, bodies: Sequence[bytes], metas: Any, attrs: Any, size: int, done: Any
    ) -> None:
        count = len(bodies)
        rows: list[Any] = [
            (bytes(each) for each in bodies),
            metas if type(metas) is list else [metas] * count,
            attrs if type(attrs) is list else [attrs] * count,
        ]
        self.taken.setdefault(info.name, []).extend(zip(*rows, strict=True))
        assert size == sum(
            64 + len(body) + len(meta) for body, meta, _ in self.taken[info.name][-count:]
        )
        self.answers.append((done, count))

    async def read(self, events: Sequence[Any]) -> None:
        for event in events:
            assert isinstance(event, Publish)
            work = self.publishes.receive(event)
            if work is not None:
                await work
        self.publishes.flush()

    @property
    def counted(self) -> list[Any]:
        counted = self.services.counters.amqp091
        sizes = counted.sizes
        return [counted.received, counted.routed, counted.dropped, sizes.sum, sizes.buckets]

    async def confirmed(self) -> list[int]:
        """The tags, when the second and the last message of each batch are refused: below 0."""
        for done, count in self.answers:
            done([(place, place) for place in sorted({1, count - 1}) if 0 < place < count])
        assert self.publishes.confirms is not None
        found: list[int] = []
        for tag, multiple, refused in self.publishes.confirms.take():
            tags = set(range(1, tag + 1)) if multiple else {tag}
            found += [-each if refused else each for each in sorted(tags - set(map(abs, found)))]
        return sorted(found, key=abs)


MESSAGES = st.lists(
    st.tuples(st.sampled_from(WHERES), st.sampled_from(PROPERTIES), st.binary(max_size=3)),
    max_size=30,
)
#: Nearly all messages are like that.
PLAIN = st.lists(
    st.tuples(st.sampled_from(WHERES[:7]), st.sampled_from(PROPERTIES[:4]), st.binary(max_size=3)),
    max_size=30,
)


def written(messages: Sequence[Any]) -> list[bytes]:
    return [
        publish(body, route=frames.where(*where), properties=build(properties))
        for where, properties, body in messages
    ]


@given(st.one_of(MESSAGES, PLAIN), st.booleans())
def test_many_messages_of_one_read_are_taken_as_each_of_them_would_be(
    messages: list[Any], confirm: bool
):
    async def use() -> None:
        together, one_by_one = Channel(confirm=confirm), Channel(confirm=confirm)
        await together.read(reader().feed(b"".join(written(messages))))
        for data in written(messages):
            await one_by_one.read(reader().feed(data))
        assert together.taken == one_by_one.taken
        assert together.counted == one_by_one.counted
        if confirm:
            tags = list(map(abs, await together.confirmed()))
            assert tags == list(range(1, len(messages) + 1))

    asyncio.run(use())


async def test_each_queue_that_refuses_names_its_own_messages():
    channel = Channel()
    keys = ["a", "b", "a", "b", "a", "b"]

    await channel.read(reader().feed(b"".join(publish(route=frames.where("", k)) for k in keys)))

    assert await channel.confirmed() == [1, 2, -3, -4, -5, -6]


@pytest.mark.parametrize(
    ("exchange", "key"), [("secret", ""), ("topics", "c.secret"), ("", "amq.rabbitmq.reply-to.x")]
)
async def test_what_comes_before_a_refused_message_is_taken_and_nothing_behind_it(
    exchange: str, key: str
):
    channel = Channel()
    channel.services.direct_replies = SimpleNamespace(deliver=_refuse)
    wheres = [("", "a"), ("", "b"), (exchange, key), ("", "a"), ("", "b")]
    data = b"".join(publish(route=frames.where(*each)) for each in wheres)

    with pytest.raises(BrokerError):
        await channel.read(reader().feed(data))
    channel.publishes.flush()

    assert {queue: len(rows) for queue, rows in channel.taken.items()} == {"a": 1, "b": 1}


def _refuse(*_: Any) -> bool:
    raise AccessRefused("nobody waits")


async def test_a_read_is_routed_once_for_each_key(monkeypatch: pytest.MonkeyPatch):
    channel = Channel()
    asked: list[str] = []
    route = channel.ingress.router.route

    def counted(vhost: str, exchange: str, key: str, *rest: Any, **more: Any) -> Any:
        asked.append(key)
        return route(vhost, exchange, key, *rest, **more)

    monkeypatch.setattr(channel.ingress.router, "route", counted)
    messages = [
        publish(
            route=frames.where("topics", f"{'ab'[n % 2]}.x"), properties=build({"type": str(n)})
        )
        for n in range(50)
    ]

    await channel.read(reader().feed(b"".join(messages)))

    assert asked == ["a.x", "b.x"]
    assert {queue: len(rows) for queue, rows in channel.taken.items()} == {"a": 25, "b": 50}


async def test_what_is_known_of_a_key_is_forgotten_when_it_may_be_otherwise():
    channel, caught_up = Channel(), list[bool]()
    cut_off = False
    channel.ingress.cut_off = lambda: cut_off

    async def catch_up() -> bool:
        caught_up.append(True)
        return True

    async def read() -> dict[str, int]:
        channel.taken.clear()
        await channel.read(reader().feed(publish(route=frames.where("both", ""))))
        return {queue: len(rows) for queue, rows in channel.taken.items()}

    channel.services.broker.catch_up = catch_up
    assert await read() == await read() == {"a": 1, "b": 1}
    channel.catalog.add_queue("new")
    channel.catalog.bind("both", "new", "")
    everywhere = {"a": 1, "b": 1, "new": 1}
    assert await read() == await read() == everywhere
    assert not caught_up
    cut_off = True
    assert await read() == everywhere
    assert caught_up
    cut_off = False
    channel.host.access.entry, channel.host.access.secret = {"write": "^$"}, "both"
    channel.catalog.version += 1
    with pytest.raises(AccessRefused):
        await read()


async def test_one_catch_up_serves_a_read_and_holds_up_nothing_that_came_before_it():
    channel, caught_up = Channel(), asyncio.Event()
    asked = 0

    async def catch_up() -> bool:
        nonlocal asked
        asked += 1
        return await caught_up.wait()

    channel.services.broker.catch_up = catch_up
    keys = ["a", "nowhere", "b", "nothing"]
    data = b"".join(publish(route=frames.where("", key)) for key in keys)
    reading = asyncio.create_task(channel.read(reader().feed(data)))
    while not asked:
        await asyncio.sleep(0)
    assert list(channel.taken) == ["a"]
    caught_up.set()
    await reading

    assert (list(channel.taken), asked) == (["a", "b"], 1)
