"""JetStream over three nodes, by NATS's own Python client: whichever node it talks to."""

# pyright: basic
from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Coroutine
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerConfig, DeliverPolicy, RetentionPolicy
from nats.js.client import JetStreamContext
from nats.js.errors import (
    APIError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    NotFoundError,
    ObjectNotFoundError,
)

from cluster.raft.links import TcpLinks
from cluster.types import NodeId
from node.broker.stream_reads import stream_of
from node.protocols.nats.jetstream.following import Following
from tests.node.management.api import api_of
from tests.node.nats.conftest import Three
from tests.testkit.waiting import WAIT_S, until

WAIT_A_LITTLE_S = 0.2


async def add_stream(js: JetStreamContext, name: str, *subjects: str, **more: Any) -> None:
    """With settings of which the client's library knows nothing."""
    about = {"name": name, "subjects": subjects, "num_replicas": 3, **more}
    found = await api(js, f"STREAM.CREATE.{name}", **about)
    assert "error" not in found, found


async def api(js: JetStreamContext, verb: str, **about: Any) -> dict[str, Any]:
    answer = await js._nc.request(f"$JS.API.{verb}", json.dumps(about).encode(), timeout=WAIT_S)
    return json.loads(answer.data)


async def published(js: JetStreamContext, subject: str, count: int, first: int = 1) -> None:
    acks = await asyncio.gather(*[js.publish(subject, b"%d" % n) for n in range(count)])
    assert [ack.seq for ack in acks] == list(range(first, first + count))


def number_of(message: Msg) -> int:
    return message.metadata.sequence.stream


async def refused(work: Coroutine[Any, Any, Any]) -> int | None:
    with pytest.raises(APIError) as error:
        await work
    return error.value.err_code


class TestPublishing:
    async def test_an_ack_says_under_which_sequence_a_message_is_safe(
        self, contexts: list[JetStreamContext]
    ):
        await contexts[0].add_stream(name="S", subjects=["s.*"], num_replicas=3)

        for number, js in enumerate(contexts):
            await published(js, f"s.{number}", 100, first=1 + 100 * number)

        state = (await contexts[0].stream_info("S", subjects_filter=">")).state
        assert (state.messages, state.first_seq, state.last_seq) == (300, 1, 300)
        assert state.subjects == {"s.0": 100, "s.1": 100, "s.2": 100}

    async def test_core_subscribers_get_it_too(
        self, contexts: list[JetStreamContext], three: Three
    ):
        await contexts[0].add_stream(name="S", subjects=["s"])
        subscription = await contexts[1]._nc.subscribe("s")
        await contexts[1]._nc.flush()
        three.knows("n1", b"s", lambda match: match.nodes)

        await contexts[0].publish("s", b"hi")

        assert (await subscription.next_msg(WAIT_S)).data == b"hi"

    async def test_the_same_id_is_stored_once(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s"])

        acks = [await js.publish("s", headers={"Nats-Msg-Id": "7"}) for js in contexts]

        assert [(ack.seq, ack.duplicate) for ack in acks] == [(1, None), (1, True), (1, True)]

    async def test_what_is_expected_must_be_so(self, contexts: list[JetStreamContext]):
        js = contexts[1]
        await js.add_stream(name="S", subjects=["s.*"], max_msg_size=100)
        await js.publish("s.a")

        def with_header(key: str, value: str) -> Coroutine[Any, Any, Any]:
            return js.publish("s.a", headers={key: value})

        assert await refused(with_header("Nats-Expected-Stream", "T")) == 10060
        assert await refused(with_header("Nats-Expected-Last-Sequence", "5")) == 10071
        assert await refused(with_header("Nats-Expected-Last-Subject-Sequence", "5")) == 10071
        assert await refused(with_header("Nats-Expected-Last-Msg-Id", "x")) == 10070
        assert await refused(with_header("Nats-TTL", "5s")) == 10166
        assert await refused(with_header("Nats-Stream-Source", "S 1 > > s")) == 10227
        assert await refused(js.publish("s.a", bytes(200))) == 10054
        assert (await with_header("Nats-Expected-Last-Subject-Sequence", "1")).seq == 2

    async def test_a_batch_is_stored_as_a_whole_or_not_at_all(
        self, contexts: list[JetStreamContext]
    ):
        js = contexts[0]
        await add_stream(js, "S", "s.*", allow_atomic=True)
        told = await contexts[1]._nc.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.S")
        await contexts[1]._nc.flush()

        async def part(name: str, number: int, **more: str) -> dict[str, Any]:
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number), **more}
            answer = await js._nc.request(f"s.{number}", b"", timeout=WAIT_S, headers=headers)
            return json.loads(answer.data or b"{}")

        last = {"Nats-Batch-Commit": "1"}
        assert [await part("x", number) for number in range(1, 4)] == [{}, {}, {}]
        assert (await js.stream_info("S")).state.messages == 0
        assert await part("x", 4, **last) == {"stream": "S", "seq": 4, "batch": "x", "count": 4}

        await part("y", 1, **{"Nats-Expected-Last-Subject-Sequence": "7"})
        assert (await part("y", 2, **last))["error"]["err_code"] == 10071
        await part("z", 1)
        assert (await part("z", 3))["error"]["err_code"] == 10176
        assert json.loads((await told.next_msg(WAIT_S)).data)["reason"] == "incomplete"
        assert (await js.stream_info("S")).state.messages == 4

    async def test_to_no_stream_nobody_answers(self, contexts: list[JetStreamContext]):
        with pytest.raises(NoStreamResponseError):
            await contexts[0].publish("nobody")


class TestStreams:
    async def test_it_is_made_changed_and_deleted(self, contexts: list[JetStreamContext]):
        first, second, third = contexts
        await first.add_stream(name="S", subjects=["s.*"])
        await first.add_stream(name="S", subjects=["s.*"])
        assert await refused(second.add_stream(name="S", subjects=["t"])) == 10058
        assert await refused(second.add_stream(name="T", subjects=["s.a"])) == 10065
        await published(first, "s.a", 10)

        await second.update_stream(name="S", subjects=["s.*", "t"], max_msgs=3)

        assert (await third.stream_info("S")).state.first_seq == 8
        assert await third.find_stream_name_by_subject("t") == "S"
        assert await third.delete_stream("S")
        with pytest.raises(NotFoundError):
            await first.stream_info("S")

    async def test_messages_are_looked_up_deleted_and_purged(
        self, contexts: list[JetStreamContext]
    ):
        first, second, third = contexts
        await first.add_stream(name="S", subjects=["s.*"])
        await published(first, "s.a", 3)
        await first.publish("s.b", b"b", headers={"A": "1"})

        found = await second.get_last_msg("S", "s.b")
        assert (found.seq, found.data, found.headers) == (4, b"b", {"A": "1"})
        assert (await third.get_msg("S", 2)).data == b"1"
        await second.delete_msg("S", 2)
        with pytest.raises(NotFoundError):
            await third.get_msg("S", 2)
        assert await third.purge_stream("S", subject="s.a")
        assert (await first.stream_info("S")).state.messages == 1

    async def test_all_are_listed_wherever_they_are_led(self, contexts: list[JetStreamContext]):
        names = {f"S{number}" for number in range(8)}
        for name in names:
            await contexts[0].add_stream(name=name)

        for js in contexts:
            assert {str(each.config.name) for each in await js.streams_info()} == names
        assert (await contexts[2].account_info()).streams == len(names)


class TestSamples:
    async def test_a_share_of_the_acknowledgements_is_told(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await add_stream(js, "S", "s")
        told = await js._nc.subscribe("$JS.EVENT.METRIC.CONSUMER.ACK.S.c")
        await js._nc.flush()
        await published(js, "s", 3)
        config = ConsumerConfig(durable_name="c", sample_freq="100%")
        subscription = await js.pull_subscribe("s", "c", stream="S", config=config)

        for message in await subscription.fetch(3, timeout=WAIT_S):
            await message.ack()

        samples = [json.loads((await told.next_msg(WAIT_S)).data) for _ in range(3)]
        assert [each["stream_seq"] for each in samples] == [1, 2, 3]
        assert [each["consumer_seq"] for each in samples] == [1, 2, 3]
        assert {each["type"] for each in samples} == {"io.nats.jetstream.metric.v1.consumer_ack"}
        assert {each["deliveries"] for each in samples} == {1}
        assert all(0 <= each["ack_time"] < WAIT_S * 1_000_000_000 for each in samples)


class TestTransforms:
    async def test_a_stream_stores_under_other_subjects_and_publishes_again(
        self, contexts: list[JetStreamContext], three: Three
    ):
        js, other, third = contexts
        await add_stream(
            js,
            "S",
            "s.*",
            subject_transform={"src": "s.*", "dest": "kept.$1"},
            republish={"src": "kept.*", "dest": "again.$1"},
        )
        subscription = await other._nc.subscribe("again.>")
        await other._nc.flush()
        for node in three.nodes.nodes:
            three.knows(node, b"again.a", lambda match: match.nodes or match.plain)

        await third.publish("s.a", b"1")
        await third.publish("s.a", b"2", headers={"A": "b"})

        assert (await js.get_last_msg("S", "kept.a")).seq == 2
        first, second = [await subscription.next_msg(WAIT_S) for _ in range(2)]
        assert (first.subject, first.data, second.data) == ("again.a", b"1", b"2")
        assert second.header is not None
        about = {name: second.header[name] for name in second.header if name != "Nats-Time-Stamp"}
        assert about == {
            "A": "b",
            "Nats-Stream": "S",
            "Nats-Subject": "kept.a",
            "Nats-Sequence": "2",
            "Nats-Last-Sequence": "1",
        }

    async def test_what_cannot_be_is_refused(self, contexts: list[JetStreamContext]):
        async def tried(**more: Any) -> int:
            answer = await api(contexts[0], "STREAM.CREATE.S", name="S", subjects=["s.*"], **more)
            return answer["error"]["err_code"]

        assert await tried(subject_transform={"src": "s.*", "dest": "t.$2"}) == 10156
        assert await tried(republish={"src": "s.*", "dest": "s.$1"}) == 10052


class Late:
    """A cluster whose catalog knows of each queue from the second question on."""

    def __init__(self, cluster: Any) -> None:
        self._of = cluster
        self._asked: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    @property
    def catalog_machine(self) -> Any:
        return self

    def queue_by_id(self, queue: int) -> Any:
        known = queue in self._asked
        self._asked.add(queue)
        return self._of.catalog_machine.queue_by_id(queue) if known else None

    def queues_of(self, group: int) -> Any:
        return self._of.catalog_machine.queues_of(group)


class TestLeading:
    async def test_a_stream_that_its_group_has_before_the_catalog_here_follows_all_the_same(
        self, contexts: list[JetStreamContext], three: Three, monkeypatch: pytest.MonkeyPatch
    ):
        for node in three.nodes.nodes.values():
            leading = node.parts.jetstream.leading
            monkeypatch.setattr(leading, "_cluster", Late(leading._cluster))
        js = contexts[0]
        await add_stream(js, "O", "o")
        await published(js, "o", 1)

        found = await api(js, "STREAM.CREATE.M", name="M", mirror={"name": "O"}, num_replicas=3)

        assert "error" not in found
        while not (await js.stream_info("M")).state.messages:
            await asyncio.sleep(WAIT_A_LITTLE_S)


class TestAnew:
    async def test_a_consumer_begins_anew_at_all_nodes_and_those_who_wait_get_it(
        self, contexts: list[JetStreamContext]
    ):
        js, other = contexts[:2]
        await add_stream(js, "S", "s")
        await published(js, "s", 3)
        subscription = await other.pull_subscribe("s", "c", stream="S")
        assert len(await subscription.fetch(3)) == 3
        waits = asyncio.create_task(subscription.fetch(2, timeout=WAIT_S))
        info = await other.consumer_info("S", "c")
        while not info.num_waiting:
            info = await other.consumer_info("S", "c")

        found = await api(js, "CONSUMER.RESET.S.c", seq=2)

        assert found["reset_seq"] == 2
        assert [number_of(each) for each in await waits] == [2, 3]
        assert (await api(js, "CONSUMER.RESET.S.nobody"))["error"]["err_code"] == 10014

    async def test_what_is_not_served_is_refused_in_words(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await add_stream(js, "S", "s")

        async def refused_with(verb: str, **about: Any) -> int:
            return (await api(js, f"STREAM.{verb}.S", **about))["error"]["err_code"]

        assert await refused_with("PEER.REMOVE", peer="n2") == 10075
        assert await refused_with("PEER.REMOVE", peer="n9") == 10040


class TestCounters:
    async def test_increments_at_all_nodes_add_up_and_each_is_told_its_sum(
        self, contexts: list[JetStreamContext]
    ):
        """Also while another node begins to lead the stream."""
        await add_stream(contexts[0], "S", "s.*", allow_msg_counter=True)

        async def adds(js: JetStreamContext, subject: str, incr: int) -> int:
            header = {"Nats-Incr": f"{incr:+}"}
            answer = await js._nc.request(subject, headers=header, timeout=WAIT_S)
            return int(json.loads(answer.data)["val"])

        jobs = [adds(js, "s.a", 1) for js in contexts for _ in range(40)]
        sums, *_ = await asyncio.gather(
            asyncio.gather(*jobs),
            asyncio.gather(*[adds(js, "s.b", -(10**30)) for js in contexts]),
            api(contexts[1], "STREAM.LEADER.STEPDOWN.S"),
        )

        assert sorted(sums) == list(range(1, 121))
        assert json.loads((await contexts[2].get_last_msg("S", "s.a")).data or b"") == {
            "val": "120"
        }
        last = await contexts[1].get_last_msg("S", "s.b")
        assert json.loads(last.data or b"") == {"val": str(-3 * 10**30)}
        assert last.headers == {"Nats-Incr": str(-(10**30))}

    async def test_what_a_counter_cannot_go_on_from_is_told(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await add_stream(js, "S", "s", allow_msg_counter=True)

        async def added(text: str) -> dict[str, Any]:
            answer = await js._nc.request("s", headers={"Nats-Incr": text}, timeout=WAIT_S)
            return json.loads(answer.data)

        assert (await added("9" * 4_000))["seq"] == 1
        assert (await added("1"))["error"]["err_code"] == 10054
        assert (await added("-1"))["val"] == "9" * 3_999 + "8"


class TestSchedules:
    async def test_one_message_comes_of_each_time_whoever_leads(
        self, contexts: list[JetStreamContext]
    ):
        js, other = contexts[:2]
        await add_stream(js, "S", "s.*", allow_msg_schedules=True)
        begin = time.time()
        plans = {
            "s.often": {"Nats-Schedule": "* * * * * *", "Nats-Schedule-Target": "s.out"},
            "s.once": {"Nats-Schedule": "@at 2020-01-01T00:00:00Z", "Nats-Schedule-Target": "s.x"},
        }
        for subject, headers in plans.items():
            await js.publish(subject, b"do it", headers=headers)

        await api(other, "STREAM.LEADER.STEPDOWN.S")

        subscription = await other.pull_subscribe("s.out", "c", stream="S")
        found = [(await subscription.fetch(1, timeout=WAIT_S))[0] for _ in range(3)]
        assert {each.data for each in found} == {b"do it"}
        nexts = [str((each.headers or {})["Nats-Schedule-Next"]) for each in found]
        assert len(set(nexts)) == 3
        assert len(nexts) <= time.time() - begin + 1
        assert (await js.get_last_msg("S", "s.x")).headers == {
            "Nats-Scheduler": "s.once",
            "Nats-Schedule-Next": "purge",
        }
        with pytest.raises(NotFoundError):
            await js.get_last_msg("S", "s.once")

    async def test_what_is_refused_holds_up_no_others(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        wide = {"allow_msg_schedules": True, "name": "S", "num_replicas": 3}
        await add_stream(js, "S", "s.*", "t", allow_msg_schedules=True)
        every = {"Nats-Schedule": "@every 1s"}
        await js.publish("s.no", headers=every | {"Nats-Schedule-Target": "t"})
        assert "error" not in await api(js, "STREAM.UPDATE.S", subjects=["s.*"], **wide)
        await js.publish("s.yes", headers=every | {"Nats-Schedule-Target": "s.out"})

        subscription = await js.pull_subscribe("s.out", "c", stream="S")

        found = [(await subscription.fetch(1, timeout=WAIT_S))[0] for _ in range(3)]
        assert {(each.headers or {})["Nats-Scheduler"] for each in found} == {"s.yes"}
        assert (await js.get_last_msg("S", "s.no")).seq == 1


class TestPriorityGroups:
    async def test_one_client_is_pinned_until_it_is_unpinned(
        self, contexts: list[JetStreamContext]
    ):
        js, other = contexts[:2]
        await add_stream(js, "S", "s")
        groups = {"priority_policy": "pinned_client", "priority_groups": ["g"]}
        about = {"name": "c", "durable_name": "c", "ack_policy": "explicit", **groups}
        made = await api(js, "CONSUMER.CREATE.S.c", stream_name="S", config=about)
        assert made["config"]["priority_timeout"] == 120 * 1_000_000_000
        await published(js, "s", 3)

        first, pin = await pulled(js, group="g")
        assert first.header is not None
        assert first.header["Nats-Pin-Id"] == pin
        waits = await pulled_later(other, group="g")
        second, _ = await pulled(js, group="g", id=pin)
        assert [number_of(first), number_of(second)] == [1, 2]
        (group,) = (await api(js, "CONSUMER.INFO.S.c"))["priority_groups"]
        assert (group["group"], group["pinned_client_id"]) == ("g", pin)

        assert "error" not in await api(other, "CONSUMER.UNPIN.S.c", group="g")

        third = await waits.next_msg(WAIT_S)
        assert number_of(third) == 3
        assert third.header is not None
        assert third.header["Nats-Pin-Id"] != pin
        status = await (await pulled_later(js, group="g", id=pin)).next_msg(WAIT_S)
        assert status.header is not None
        assert status.header["Status"] == "423"
        assert (await api(js, "CONSUMER.UNPIN.S.c", group="h"))["error"]["err_code"] == 10160

    async def test_some_wait_until_others_cannot_keep_up(self, contexts: list[JetStreamContext]):
        js = contexts[2]
        await add_stream(js, "S", "s")
        groups = {"priority_policy": "overflow", "priority_groups": ["g"]}
        about = {"name": "c", "durable_name": "c", "ack_policy": "explicit", **groups}
        await api(js, "CONSUMER.CREATE.S.c", stream_name="S", config=about)
        waits = await pulled_later(js, group="g", min_pending=3, batch=10)
        await published(js, "s", 2)
        with pytest.raises(nats.errors.TimeoutError):
            await waits.next_msg(WAIT_A_LITTLE_S)

        await published(js, "s", 2, first=3)

        assert [number_of(await waits.next_msg(WAIT_S)) for _ in range(2)] == [1, 2]
        assert number_of((await pulled(js, group="g"))[0]) == 3


async def pulled_later(js: JetStreamContext, **ask: Any) -> Subscription:
    """Of the consumer `c` of `S`."""
    client = js._nc
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    body = json.dumps({"expires": 30_000_000_000, "batch": 1, **ask}).encode()
    await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply=inbox)
    await client.flush()
    return subscription


async def pulled(js: JetStreamContext, **ask: Any) -> tuple[Msg, str]:
    """And by which id its client is pinned."""
    message = await (await pulled_later(js, **ask)).next_msg(WAIT_S)
    return message, (message.header or {}).get("Nats-Pin-Id", "")


class TestPulling:
    async def test_a_batch_is_fetched_and_acknowledged(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s"])
        await published(contexts[0], "s", 250)
        found: list[int] = []

        for js in contexts:
            subscription = await js.pull_subscribe("s", durable="c")
            for message in await subscription.fetch(100, timeout=WAIT_S):
                found.append(number_of(message))
                await message.ack_sync(WAIT_S)

        assert found == list(range(1, 251))
        info = await contexts[1].consumer_info("S", "c")
        assert (info.num_pending, info.num_ack_pending) == (0, 0)
        assert info.ack_floor is not None
        assert info.ack_floor.stream_seq == 250

    async def test_messages_that_are_not_alike_come_in_their_order(
        self, contexts: list[JetStreamContext]
    ):
        """With headers or without, of any subject and size, some deleted since."""
        js = contexts[0]
        await add_stream(js, "ODD%s", "odd.>")
        sent = [
            (f"odd.%d{n // 3 % 2}", b"x" * (n // 4 % 3), {"n": "%s"} if n % 5 < 2 else None)
            for n in range(60)
        ]
        for subject, body, headers in sent:
            await js.publish(subject, body, headers=headers)
        await js.delete_msg("ODD%s", 7)
        for each in contexts:
            subscription = await each.pull_subscribe("odd.>", stream="ODD%s")
            found = await subscription.fetch(59, timeout=WAIT_S)
            rows = [(m.subject, m.data, dict(m.headers) if m.headers else None) for m in found]
            assert rows == sent[:6] + sent[7:]
            places = [each.metadata.sequence for each in found]
            assert [each.stream for each in places] == [*range(1, 7), *range(8, 61)]
            assert [each.consumer for each in places] == list(range(1, 60))
            assert [each.metadata.num_pending for each in found] == list(range(58, -1, -1))
            await asyncio.gather(*[each.ack_sync(timeout=WAIT_S) for each in found])
            assert (await subscription.consumer_info()).num_ack_pending == 0

    async def test_who_waits_gets_what_comes(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s"])
        subscription = await contexts[1].pull_subscribe("s", durable="c")
        waiting = asyncio.create_task(subscription.fetch(1, timeout=WAIT_S))
        await asyncio.sleep(WAIT_A_LITTLE_S)

        await contexts[2].publish("s", b"hi", headers={"A": "1"})

        (message,) = await waiting
        assert (message.subject, message.data, message.headers) == ("s", b"hi", {"A": "1"})

    async def test_what_is_not_done_comes_again(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await js.add_stream(name="S", subjects=["s"])
        config = ConsumerConfig(ack_wait=0.5, max_deliver=4)
        subscription = await js.pull_subscribe("s", durable="c", config=config)
        await js.publish("s")

        async def fetched() -> Msg:
            (message,) = await subscription.fetch(1, timeout=WAIT_S)
            return message

        await (await fetched()).nak()
        await (await fetched()).nak(delay=0.3)
        since_s = time.monotonic()
        again = await fetched()
        assert time.monotonic() - since_s > 0.2
        assert again.metadata.num_delivered == 3
        last = await fetched()  # by its time
        assert last.metadata.num_delivered == 4
        await last.in_progress()
        await last.term()

        async def done() -> bool:
            return (await js.consumer_info("S", "c")).num_ack_pending == 0

        await until(done)

    async def test_a_work_queue_forgets_what_is_done(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await js.add_stream(name="S", subjects=["s.*"], retention=RetentionPolicy.WORK_QUEUE)
        await published(js, "s.a", 10)
        await published(js, "s.b", 10, first=11)
        subscription = await contexts[1].pull_subscribe("s.a", durable="a")

        for message in await subscription.fetch(10, timeout=WAIT_S):
            await message.ack_sync(WAIT_S)

        assert (await js.stream_info("S")).state.messages == 10
        assert await refused(js.pull_subscribe("s.*", durable="b")) == 10100

    async def test_one_that_nobody_uses_goes(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await js.add_stream(name="S", subjects=["s"])
        config = ConsumerConfig(inactive_threshold=0.3)
        subscription = await js.pull_subscribe("s", config=config)
        name = subscription._consumer

        async def gone() -> bool:
            try:
                await js.consumer_info("S", name)
            except NotFoundError:
                return True
            return False

        await until(gone)

    async def test_who_waits_at_a_leader_that_goes_is_told(
        self, contexts: list[JetStreamContext], three: Three
    ):
        await contexts[0].add_stream(name="S", subjects=["s"])
        await published(contexts[0], "s", 3)
        subscription = await contexts[0].pull_subscribe("s", durable="c")
        (message,) = await subscription.fetch(1, timeout=WAIT_S)
        await message.ack_sync(WAIT_S)
        group = three.nodes.one.cluster.queue_info("/", "S").group  # type: ignore[union-attr]
        leader = three.nodes.one.cluster.leader_of(group)
        other = next(name for name in three.nodes.nodes if name != leader)

        three.do(three.nodes.led_by(other, group))

        rest = [number_of(each) for each in await subscription.fetch(5, timeout=WAIT_S)]
        assert rest == [2, 3]

    async def test_who_waits_at_a_node_that_is_lost_is_told(
        self, contexts: list[JetStreamContext], three: Three
    ):
        await contexts[0].add_stream(name="S", subjects=["s"])
        cluster = three.nodes.one.cluster
        leader = cluster.leader_of(cluster.queue_info("/", "S").group)  # type: ignore[union-attr]
        at, name = next(each for each in enumerate(sorted(three.nodes.nodes)) if each[1] != leader)
        client = contexts[at]._nc
        await contexts[at].pull_subscribe("s", durable="c")
        subscription = await client.subscribe("inbox")
        body = b'{"batch":1,"expires":60000000000}'
        await client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", body, reply="inbox")

        async def waits() -> bool:
            return (await contexts[at].consumer_info("S", "c")).num_waiting == 1

        await until(waits)

        async def lose() -> None:
            links = three.nodes.nodes[name].cluster.links
            assert isinstance(links, TcpLinks)
            links._peers[leader].connection.hang_up()  # type: ignore[index, union-attr]

        await asyncio.to_thread(three.do, lose())

        told = await subscription.next_msg(WAIT_S)
        assert told.headers is not None
        assert told.headers["Status"] == "409"

        # Tests after this one want nodes that hear each other.
        assert leader is not None
        here, there = (three.nodes.nodes[each].cluster.peers for each in (name, leader))

        def linked() -> bool:
            return here.is_up(leader) and there.is_up(NodeId(name))

        await asyncio.to_thread(three.do, until(linked))


class TestPushing:
    async def test_messages_come_in_order_and_are_done_when_they_are_acknowledged(
        self, contexts: list[JetStreamContext]
    ):
        await contexts[0].add_stream(name="S", subjects=["s"])
        await published(contexts[0], "s", 300)
        found: list[int] = []

        async def take(message: Msg) -> None:
            found.append(number_of(message))
            await message.ack()

        await contexts[1].subscribe("s", cb=take, durable="c", manual_ack=True)
        await published(contexts[2], "s", 10, first=301)

        async def done() -> bool:
            return (await contexts[2].consumer_info("S", "c")).ack_floor.stream_seq == 310  # type: ignore[union-attr]

        await until(done)
        assert found == list(range(1, 311))

    async def test_an_ordered_consumer_sees_all(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s"])
        await published(contexts[0], "s", 2_000)

        subscription = await contexts[2].subscribe("s", ordered_consumer=True)

        found = [number_of(await subscription.next_msg(WAIT_S)) for _ in range(2_000)]
        assert found == list(range(1, 2_001))

    async def test_a_queue_group_shares(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s"])
        found: list[int] = []

        async def take(message: Msg) -> None:
            found.append(number_of(message))

        for js in contexts:
            await js.subscribe("s", queue="workers", durable="workers", cb=take)
        await published(contexts[0], "s", 100)

        await until(lambda: len(found) >= 100)
        await asyncio.sleep(WAIT_A_LITTLE_S)
        assert sorted(found) == list(range(1, 101))

    async def test_nothing_is_pushed_to_where_nobody_is(self, contexts: list[JetStreamContext]):
        js = contexts[0]
        await js.add_stream(name="S", subjects=["s"])
        await published(js, "s", 3)
        config = ConsumerConfig(durable_name="c", deliver_subject="to.here", idle_heartbeat=0.1)
        await js.add_consumer("S", config)
        await asyncio.sleep(WAIT_A_LITTLE_S)
        assert (await js.consumer_info("S", "c")).num_pending == 3

        subscription = await contexts[1]._nc.subscribe("to.here")

        numbers: list[int] = []
        while len(numbers) < 3:
            message = await subscription.next_msg(WAIT_S)
            if message.reply:
                numbers.append(number_of(message))
        assert numbers == [1, 2, 3]
        beat = await subscription.next_msg(WAIT_S)
        assert beat.headers is not None
        assert (beat.headers["Status"], beat.headers["Nats-Last-Stream"]) == ("100", "3")


class TestWhatRestsOnIt:
    async def test_a_key_value_bucket(self, contexts: list[JetStreamContext]):
        here = await contexts[0].create_key_value(bucket="b", history=5)
        there = await contexts[1].key_value("b")
        assert await here.put("a", b"1") == 1
        assert await there.update("a", b"2", last=1) == 2
        with pytest.raises(KeyWrongLastSequenceError):
            await here.update("a", b"3", last=1)
        assert (await there.get("a")).value == b"2"
        assert (await there.get("a", revision=1)).value == b"1"
        await there.create("c", b"x")
        with pytest.raises(KeyWrongLastSequenceError):
            await here.create("c", b"y")

        watcher = await there.watchall()
        update: Any = watcher.updates
        assert [(await update()).key for _ in range(2)] == ["a", "c"]
        assert await update() is None
        await here.delete("a")
        assert (await update()).operation == "DEL"
        await watcher.stop()

        with pytest.raises(KeyNotFoundError):
            await here.get("a")
        assert await there.keys() == ["c"]
        assert [each.revision for each in await here.history("a")] == [1, 2, 4]
        await there.purge("a")
        assert [each.operation for each in await here.history("a")] == ["PURGE"]
        assert await contexts[2].delete_key_value("b")

    async def test_an_object_store(self, contexts: list[JetStreamContext]):
        here = await contexts[0].create_object_store("o")
        there = await contexts[1].object_store("o")
        data = bytes(range(256)) * 4096
        await here.put("f", data)

        assert (await there.get("f")).data == data
        assert [each.name for each in await there.list()] == ["f"]
        await there.delete("f")
        with pytest.raises(ObjectNotFoundError):
            await here.get("f")

    async def test_the_last_of_each_subject_comes_first(self, contexts: list[JetStreamContext]):
        await contexts[0].add_stream(name="S", subjects=["s.*"])
        for number in range(9):
            await contexts[0].publish(f"s.{number % 3}")
        config = ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT)

        subscription = await contexts[2].subscribe("s.>", config=config)

        found = [number_of(await subscription.next_msg(WAIT_S)) for _ in range(3)]
        assert found == [7, 8, 9]


class TestFollowing:
    async def has(self, js: JetStreamContext, name: str, messages: int) -> dict[str, Any]:
        """Once it has so many."""

        async def look() -> dict[str, Any] | None:
            found = await api(js, f"STREAM.INFO.{name}")
            return found if found["state"]["messages"] == messages else None

        return await until(look)

    async def got(self, js: JetStreamContext, name: str, seq: int) -> tuple[Any, ...]:
        """Subject, header block, body, time."""
        found = (await api(js, f"STREAM.MSG.GET.{name}", seq=seq))["message"]
        block, body = (base64.b64decode(found.get(each, "")) for each in ("hdrs", "data"))
        return found["subject"], block, body, found["time"]

    async def test_a_mirror_has_the_same_messages(
        self, contexts: list[JetStreamContext], three: Three
    ):
        js, there = contexts[0], contexts[1]
        await add_stream(js, "S", "s.*", allow_direct=True)
        await published(js, "s.a", 5)
        await js.publish("s.b", b"b", headers={"Nats-Msg-Id": "i", "Nats-Expected-Stream": "S"})
        await js.delete_msg("S", 2)
        info: Any = three.nodes.one.cluster.queue_info("/", "S")
        copies = [node.cluster.groups[info.group] for node in three.nodes.nodes.values()]

        def is_deleted() -> bool:
            """A mirror may be led beside any copy, and reads that."""
            streams = [stream_of(each, info.queue) for each in copies]
            return all(each is not None and each.find(2) is None for each in streams)

        await until(is_deleted)
        about = await api(js, "STREAM.CREATE.M", name="M", mirror={"name": "S"})
        assert about["config"]["mirror"] == {"name": "S"}
        assert about["config"]["mirror_direct"]
        await published(js, "s.a", 2, first=7)

        found = await self.has(there, "M", 7)
        assert (found["state"]["first_seq"], found["state"]["last_seq"]) == (1, 8)
        assert [await self.got(there, "M", n) for n in (1, 6, 8)] == [
            await self.got(there, "S", n) for n in (1, 6, 8)
        ]
        assert found["mirror"]["name"] == "S"
        assert found["mirror"]["lag"] == 0
        assert found["mirror"]["active"] >= 0
        assert (await refused(js.publish("s.a", headers={"Nats-Expected-Stream": "M"}))) == 10060

        subscription = await there.pull_subscribe("s.b", stream="M", durable="c")
        (message,) = await subscription.fetch(1)
        assert number_of(message) == 6
        await message.ack_sync()

        changed = await api(js, "STREAM.UPDATE.M", name="M", mirror={"name": "T"})
        assert changed["error"]["err_code"] == 10055
        about = await api(js, "STREAM.UPDATE.M", name="M", subjects=["m"])
        assert "mirror" not in about
        assert (await js.publish("m")).seq == 9, "it goes on by itself"
        await published(js, "s.a", 1, first=9)
        assert (await self.got(there, "M", 9))[0] == "m"

    async def test_sources_are_taken_in_with_where_they_come_from(
        self, contexts: list[JetStreamContext]
    ):
        js = contexts[2]
        await add_stream(js, "S", "s.>")
        await add_stream(js, "T", "t.>")
        await published(js, "s.a", 2)
        await js.publish("s.b.c", b"c", headers={"A": "b"})
        changed = [{"src": "t.*", "dest": "u.$1"}]
        sources = [
            {"name": "S", "filter_subject": "s.b.*"},
            {"name": "T", "subject_transforms": changed, "opt_start_seq": 2},
        ]
        about = await api(js, "STREAM.CREATE.A", name="A", subjects=["own"], sources=sources)
        assert about["config"]["sources"] == sources
        await self.has(js, "A", 1)
        await published(js, "t.x", 3)
        await self.has(js, "A", 3)
        await js.publish("own")

        subject, block, body, _ = await self.got(js, "A", 1)
        where = b"Nats-Stream-Source: S 3 s.b.* > s.b.c"
        assert (subject, body) == ("s.b.c", b"c")
        assert block == b"NATS/1.0\r\nA: b\r\n%b\r\n\r\n" % where
        subject, block, body, _ = await self.got(js, "A", 2)
        assert (subject, body) == ("u.x", b"1")
        assert block == b"NATS/1.0\r\nNats-Stream-Source: T 2 t.* u.$1 t.x\r\n\r\n"
        found = await self.has(js, "A", 4)
        assert [(each["name"], each["lag"]) for each in found["sources"]] == [("S", 0), ("T", 0)]
        assert found["sources"][1]["subject_transforms"] == changed

        await api(js, "STREAM.CREATE.B", name="B", sources=[{"name": "A"}])
        await self.has(js, "B", 4)
        subject, block, _, _ = await self.got(js, "B", 1)
        assert block.count(b"Nats-Stream-Source") == 1
        assert b"A 1 > > s.b.c" in block
        sources = [{"name": "B"}]
        again = await api(js, "STREAM.UPDATE.A", name="A", subjects=["own"], sources=sources)
        assert again["error"]["description"] == "detected cycle"

    async def test_a_source_that_is_put_back_is_taken_again_though_nobody_looked_meanwhile(
        self, contexts: list[JetStreamContext], monkeypatch: pytest.MonkeyPatch
    ):
        js = contexts[0]
        await add_stream(js, "S", "s")
        await published(js, "s", 3)
        await add_stream(js, "A", sources=[{"name": "S"}])
        await self.has(js, "A", 3)

        monkeypatch.setattr(Following, "look", lambda *_: None)
        for sources in ([], [{"name": "S"}]):
            about = {"name": "A", "num_replicas": 3, "sources": sources}
            assert "error" not in await api(js, "STREAM.UPDATE.A", **about)
        monkeypatch.undo()
        about = {**about, "sources": [{"name": "S"}, {"name": "later"}]}  # and somebody looks
        assert "error" not in await api(js, "STREAM.UPDATE.A", **about)

        await self.has(js, "A", 6)

    async def test_what_is_followed_may_come_later_go_and_come_again(
        self, contexts: list[JetStreamContext]
    ):
        js = contexts[1]
        await api(js, "STREAM.CREATE.M", name="M", mirror={"name": "S"})
        await api(js, "STREAM.CREATE.A", name="A", sources=[{"name": "S"}])

        async def error(name: str) -> Any:
            found = await api(js, f"STREAM.INFO.{name}")
            return (found.get("mirror") or found["sources"][0]).get("error")

        async def is_missed() -> bool:
            return all([(await error(name) or {}).get("err_code") == 10059 for name in "MA"])

        await until(is_missed)
        await add_stream(js, "S", "s")
        await published(js, "s", 3)
        for name in "MA":
            await self.has(js, name, 3)
            assert await error(name) is None
        await js.purge_stream("S")
        await published(js, "s", 1, first=4)
        for name in "MA":
            await self.has(js, name, 4)

        await js.delete_stream("S")
        await until(is_missed)
        await add_stream(js, "S", "s")
        await published(js, "s", 4)
        assert (await self.has(js, "A", 8))["state"]["last_seq"] == 8

        async def says_so() -> bool:
            return "was made again" in (await error("M") or {}).get("description", "")

        await until(says_so)
        await published(js, "s", 2, first=5)
        found = await self.has(js, "M", 6)
        assert found["state"]["last_seq"] == 6, "it goes on behind what it has"

        async def is_content() -> bool:
            return await error("M") is None

        await until(is_content)
        assert (await self.got(js, "M", 4))[3] < (await self.got(js, "M", 5))[3]

    async def test_a_full_stream_takes_the_rest_when_there_is_room(
        self, contexts: list[JetStreamContext]
    ):
        js = contexts[0]
        await add_stream(js, "S", "s")
        await published(js, "s", 5)
        full = {"discard": "new", "max_msgs": 3}
        await api(js, "STREAM.CREATE.A", name="A", sources=[{"name": "S"}], **full)

        async def waits() -> bool:
            (source,) = (await api(js, "STREAM.INFO.A"))["sources"]
            return "full" in source.get("error", {}).get("description", "")

        await self.has(js, "A", 3)
        await until(waits)
        await js.purge_stream("A")
        found = await self.has(js, "A", 2)
        assert found["state"]["last_seq"] == 5


async def test_who_may_not_publish_to_the_api_may_not_ask_it(three: Three):
    node = three.nodes.one
    assert node.nats is not None

    async def allow() -> None:
        for path, body in (
            ("users/reader", {"password": "secret", "tags": ""}),
            ("permissions/%2f/reader", {"configure": "", "write": "^s$", "read": ".*"}),
        ):
            reply = await api_of(node).ask("PUT", path, body)
            assert reply.status < 300, reply

    await asyncio.to_thread(three.do, allow())
    client = await nats.connect(
        f"nats://{node.nats.address}", user="reader", password="secret", error_cb=_ignore
    )
    try:
        with pytest.raises(TimeoutError):
            await client.jetstream(timeout=0.5).add_stream(name="S", subjects=["s"])
    finally:
        await client.close()


async def _ignore(_: Exception) -> None: ...
