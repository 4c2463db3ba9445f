"""What a consumer is given reaches somebody, whenever those who asked for it leave."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from cluster.groups.outcome import Outcome
from cluster.machine.commands import DropConsumer, Fetch, PutConsumer
from cluster.raft.member import Role
from node.protocols.nats.jetstream import feeds
from node.protocols.nats.jetstream.feeds import Feed
from tests.node.nodes import Running
from tests.testkit.waiting import WAIT_S

SECOND_NS = 1_000_000_000


@pytest.fixture
async def client(running: Running) -> AsyncIterator[Client]:
    address = f"nats://{running.node.nats.address}"
    client = await nats.connect(address, user="guest", password="guest")
    yield client
    for name in (await api(client, "STREAM.NAMES"))["streams"] or ():
        await api(client, f"STREAM.DELETE.{name}")
    await client.close()


async def api(client: Client, verb: str, **about: Any) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{verb}", json.dumps(about).encode(), timeout=WAIT_S)
    found = json.loads(answer.data)
    assert "error" not in found, found
    return found


async def make(client: Client, retention: str, **config: Any) -> None:
    await api(client, "STREAM.CREATE.S", name="S", subjects=["s"], retention=retention)
    about = {"stream_name": "S", "config": {"durable_name": "c", **config}}
    await api(client, "CONSUMER.CREATE.S.c", **about)


async def pull(client: Client, inbox: str, batch: int, seconds: float, **more: Any) -> None:
    ask = {"batch": batch, "expires": int(seconds * SECOND_NS), **more}
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", json.dumps(ask).encode(), reply=inbox)


async def bodies_of(subscription: Subscription, count: int) -> list[bytes]:
    return [(await subscription.next_msg(WAIT_S)).data for _ in range(count)]


async def emptied(client: Client) -> None:
    async with asyncio.timeout(WAIT_S):
        while (await api(client, "STREAM.INFO.S"))["state"]["messages"]:
            await asyncio.sleep(0.01)


class TestWithoutAcknowledgements:
    @pytest.mark.parametrize("pushed", [False, True])
    async def test_what_goes_when_it_was_delivered_is_delivered(self, client: Client, pushed: bool):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        more = {"deliver_subject": inbox} if pushed else {}
        await make(client, "interest", ack_policy="none", **more)
        for n in range(5):
            await client.jetstream().publish("s", b"%d" % n)
        if not pushed:
            await pull(client, inbox, 5, WAIT_S)

        assert await bodies_of(subscription, 5) == [b"0", b"1", b"2", b"3", b"4"]

        await emptied(client)
        info = await api(client, "CONSUMER.INFO.S.c")
        assert (info["num_ack_pending"], info["num_redelivered"]) == (0, 0)
        assert info["ack_floor"]["stream_seq"] == 5


class Paused:
    """What consumers are handed out; nobody is told of it until this goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[Any] = []
        self._monkeypatch = monkeypatch
        fetched, paused = Feed._fetched, self

        def wait(feed: Feed, outcome: Outcome) -> None:
            paused.waiting.append((feed, outcome))

        monkeypatch.setattr(Feed, "_fetched", wait)
        self._fetched = fetched

    async def handed(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.waiting:
                await asyncio.sleep(0.001)

    def go_on(self) -> None:
        self._monkeypatch.setattr(Feed, "_fetched", self._fetched)
        for feed, outcome in self.waiting:
            feed._loop.call_soon_threadsafe(self._fetched, feed, outcome)


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> Paused:
    return Paused(monkeypatch)


async def lead_anew(running: Running, feed: Any) -> None:
    """As another node that becomes the leader does."""

    async def lead() -> None:
        for role in (Role.FOLLOWER, Role.LEADER):
            feed._home._role(feed._group, role, feed._group.term)

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(lead(), running.loop))


async def acked(client: Client, subscription: Subscription, count: int) -> list[bytes]:
    """Each is, before the next one is looked at."""
    found: list[bytes] = []
    for _ in range(count):
        message = await subscription.next_msg(WAIT_S)
        found.append(message.data)
        await client.request(message.reply, b"+ACK", timeout=WAIT_S)
    return found


async def taken(client: Client, subscription: Subscription, policy: str, count: int) -> list[bytes]:
    if policy == "none":
        return await bodies_of(subscription, count)
    return await acked(client, subscription, count)


async def ended(subscription: Subscription, status: str) -> None:
    """A request was."""
    message = await subscription.next_msg(WAIT_S)
    assert (message.headers or {})["Status"] == status


class TestWhatCannotBeRead:
    @pytest.mark.parametrize("policy", ["none", "all", "explicit"])
    async def test_it_comes_when_it_can_be(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, policy: str
    ):
        """A disk fails for a while."""
        failed = asyncio.Event()
        loop = asyncio.get_running_loop()
        reads = 0

        async def fail(*_: Any) -> Any:
            nonlocal reads
            reads += 1
            if reads > 1:
                loop.call_soon_threadsafe(failed.set)
            raise OSError("the disk fails")

        await make(client, "limits", ack_policy=policy, max_deliver=1)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        monkeypatch.setattr(feeds, "read", lambda *_: None)
        monkeypatch.setattr(feeds, "load", fail)
        for body in (b"1", b"2"):
            await client.jetstream().publish("s", body)
        await pull(client, inbox, 2, WAIT_S)
        async with asyncio.timeout(WAIT_S):
            await failed.wait()
        monkeypatch.undo()

        assert await taken(client, subscription, policy, 2) == [b"1", b"2"]


class TestHeartbeats:
    async def test_they_say_what_was_sent(self, client: Client, paused: Paused):
        """Not what is about to be: an ordered consumer would take it for lost, and begin anew."""
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        beats = {"deliver_subject": inbox, "idle_heartbeat": SECOND_NS // 10}
        await make(client, "limits", ack_policy="none", **beats)
        await client.jetstream().publish("s", b"1")
        await paused.handed()
        while subscription.pending_msgs:
            await subscription.next_msg(WAIT_S)

        beat = await subscription.next_msg(WAIT_S)

        assert beat.headers is not None
        assert (beat.headers["Nats-Last-Consumer"], beat.headers["Nats-Last-Stream"]) == ("0", "0")
        paused.go_on()
        async with asyncio.timeout(WAIT_S):
            while (await subscription.next_msg(WAIT_S)).data != b"1":
                pass
            while (found := await subscription.next_msg(WAIT_S)).headers is None:
                pass
        assert found.headers["Nats-Last-Consumer"] == "1"


class TestAnotherConsumerOfTheSameName:
    @pytest.mark.parametrize(("policy", "most"), [("none", -1), ("all", 1), ("explicit", 1)])
    async def test_what_it_is_handed_for_the_one_before_comes(
        self, client: Client, monkeypatch: pytest.MonkeyPatch, policy: str, most: int
    ):
        """It is deleted and made again while its last request is on its way to the machine."""
        await make(client, "limits", ack_policy=policy, max_deliver=most)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await pull(client, inbox, 1, WAIT_S)
        propose, end = Feed._propose, Feed.end

        def overtaken(feed: Feed, command: Any, done: Any) -> None:
            if not isinstance(command, Fetch):
                propose(feed, command, done)
                return
            monkeypatch.undo()

            def still_asks(feed: Feed, text: str) -> None:
                monkeypatch.undo()
                end(feed, text)
                propose(feed, command, done)

            monkeypatch.setattr(Feed, "end", still_asks)
            queue, config = feed.info.queue, {**feed.config, "description": "another"}
            for other in (DropConsumer(queue, "c"), PutConsumer(queue, config)):
                feed._group.propose(other, lambda _: None)

        monkeypatch.setattr(Feed, "_propose", overtaken)
        await client.jetstream().publish("s", b"1")
        await ended(subscription, "409")

        await client.jetstream().publish("s", b"2")
        await pull(client, inbox, 2, WAIT_S)

        assert await taken(client, subscription, policy, 2) == [b"1", b"2"]


class TestWhoAskedHasLeft:
    """Between the instant at which messages were handed out, and the one at which they are sent."""

    @pytest.mark.parametrize("retention", ["limits", "interest"])
    @pytest.mark.parametrize("policy", ["none", "all", "explicit"])
    async def test_who_asks_next_gets_what_was_for_a_request_that_ended(
        self, client: Client, paused: Paused, policy: str, retention: str
    ):
        await make(client, retention, ack_policy=policy, max_deliver=1)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await pull(client, inbox, 1, 0.1)
        await client.jetstream().publish("s", b"1")
        await paused.handed()
        await ended(subscription, "408")

        paused.go_on()
        await client.jetstream().publish("s", b"2")
        await pull(client, inbox, 2, WAIT_S)

        assert await taken(client, subscription, policy, 2) == [b"1", b"2"]
        if retention == "interest":
            await emptied(client)

    async def test_what_was_for_it_is_pending_to_who_waits_for_so_many(
        self, client: Client, paused: Paused
    ):
        await make(client, "limits", priority_policy="overflow", priority_groups=["g"])
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await pull(client, inbox, 2, 0.1, group="g", min_pending=1)
        await client.jetstream().publish("s", b"1")
        await paused.handed()
        await ended(subscription, "408")

        paused.go_on()
        await pull(client, inbox, 1, WAIT_S, group="g", min_pending=1)

        assert await bodies_of(subscription, 1) == [b"1"]

    @pytest.mark.parametrize("policy", ["none", "all", "explicit"])
    async def test_whoever_still_waits_gets_them_in_their_order(
        self, client: Client, paused: Paused, policy: str
    ):
        await make(client, "limits", ack_policy=policy)
        inboxes = client.new_inbox(), client.new_inbox()
        leaves, stays = [await client.subscribe(inbox) for inbox in inboxes]
        await pull(client, inboxes[0], 1, 0.5)
        await pull(client, inboxes[1], 1, WAIT_S)
        await client.flush()
        for body in (b"1", b"2"):
            await client.publish("s", body)
        await paused.handed()
        ((_, outcome),) = paused.waiting
        assert len(outcome.reply.batches) == 2, "one for each"
        await ended(leaves, "408")

        paused.go_on()
        first = await stays.next_msg(WAIT_S)
        await pull(client, inboxes[1], 1, WAIT_S)
        assert [first.data, *await bodies_of(stays, 1)] == [b"1", b"2"]

    @pytest.mark.parametrize("policy", ["none", "all", "explicit"])
    async def test_who_subscribes_next_gets_what_was_pushed_to_nobody(
        self, client: Client, paused: Paused, policy: str
    ):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        config = {"deliver_subject": inbox, "ack_policy": policy, "max_deliver": 1}
        await make(client, "interest", **config)
        await client.jetstream().publish("s", b"1")
        await paused.handed()
        await subscription.unsubscribe()
        # A request comes behind that; the client's PING may be sent before it.
        await api(client, "STREAM.INFO.S")

        paused.go_on()
        await client.jetstream().publish("s", b"2")
        subscription = await client.subscribe(inbox)

        assert await taken(client, subscription, policy, 2) == [b"1", b"2"]
        await emptied(client)

    @pytest.mark.parametrize(
        ("policy", "retention", "most"),
        [
            ("all", "limits", -1),
            ("none", "interest", -1),
            ("none", "limits", -1),
            ("all", "limits", 1),
            ("explicit", "limits", 1),
        ],
    )
    async def test_the_next_leader_begins_with_what_the_last_one_may_not_have_sent(
        self,
        client: Client,
        paused: Paused,
        running: Running,
        policy: str,
        retention: str,
        most: int,
    ):
        await make(client, retention, ack_policy=policy, max_deliver=most)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await pull(client, inbox, 1, WAIT_S)
        await client.jetstream().publish("s", b"1")
        await paused.handed()

        await lead_anew(running, paused.waiting[0][0])
        paused.go_on()
        await ended(subscription, "409")
        await client.jetstream().publish("s", b"2")
        await pull(client, inbox, 2, WAIT_S)

        assert await taken(client, subscription, policy, 2) == [b"1", b"2"]

    @pytest.mark.parametrize("retention", ["limits", "interest"])
    async def test_it_keeps_the_numbers_that_the_last_one_gave(
        self, client: Client, paused: Paused, running: Running, retention: str
    ):
        """An ordered consumer would take a gap for messages that it missed, and a message that it
        has, under another number, for the next one.
        """
        await make(client, retention, ack_policy="none")
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        for body in (b"1", b"2"):
            await client.jetstream().publish("s", body)
        await pull(client, inbox, 2, WAIT_S)
        await paused.handed()

        await lead_anew(running, paused.waiting[0][0])
        paused.go_on()
        await ended(subscription, "409")
        await client.jetstream().publish("s", b"3")
        await pull(client, inbox, 3, WAIT_S)

        found = [await subscription.next_msg(WAIT_S) for _ in range(3)]
        about = [message.metadata for message in found]
        assert [(each.sequence.consumer, each.num_delivered) for each in about] == [
            (1, 1),
            (2, 1),
            (3, 1),
        ]
        if retention == "interest":
            await emptied(client)

    @pytest.mark.parametrize("policy", ["none", "explicit"])
    async def test_what_was_sent_a_while_ago_is_not_sent_again_by_the_next_leader(
        self, client: Client, running: Running, policy: str
    ):
        await make(client, "limits", ack_policy=policy, max_deliver=1)
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.jetstream().publish("s", b"1")
        await pull(client, inbox, 1, WAIT_S)
        assert await bodies_of(subscription, 1) == [b"1"]
        feed = feed_of(running)
        async with asyncio.timeout(WAIT_S):
            while feed.consumer.perhaps_unsent:
                await asyncio.sleep(0.01)

        await lead_anew(running, feed)
        await client.jetstream().publish("s", b"2")
        await pull(client, inbox, 1, WAIT_S)
        assert await bodies_of(subscription, 1) == [b"2"]


def feed_of(running: Running) -> Feed:
    nats: Any = running.node.nats
    (led,) = nats.jetstream.leading._led.values()
    return led.feeds["c"]


class TestWhoIsInactive:
    async def test_a_request_that_expires_is_use_until_then(self, client: Client, running: Running):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await make(client, "limits", inactive_threshold=WAIT_S * SECOND_NS)
        await pull(client, inbox, 1, 0.1)
        await client.flush()
        asked_s = feed_of(running)._used_s
        await ended(subscription, "408")

        assert feed_of(running)._used_s >= asked_s + 0.1

    async def test_whoever_holds_a_message_is_at_work_as_long_as_it_may_be(
        self, client: Client, running: Running, monkeypatch: pytest.MonkeyPatch
    ):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await make(client, "limits", ack_policy="explicit", inactive_threshold=WAIT_S * SECOND_NS)
        await client.jetstream().publish("s", b"1")
        await pull(client, inbox, 1, WAIT_S)
        message = await subscription.next_msg(WAIT_S)
        feed = feed_of(running)
        later_s = feed._loop.time() + WAIT_S + 1
        later_ms = running.node.cluster.now_ms() + int(1000 * (WAIT_S + 1))
        monkeypatch.setattr(feed._home, "now_ms", lambda: later_ms)

        assert not feed._is_unused(later_s), "its 30 s to acknowledge are not over"
        await client.request(message.reply, b"+ACK", timeout=WAIT_S)
        assert feed._is_unused(later_s + WAIT_S)
