"""Backups of a stream and their restoring, as `nats stream backup` asks for them."""

# pyright: basic
from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from nats.errors import NoRespondersError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Outcome, unknown
from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.commands import ChangeQueue
from node.broker.stream_reads import stream_of
from node.peer_rpc import PeerRpc
from node.protocols.nats.jetstream import archives, stream_config
from tests.node.nats.conftest import Three
from tests.node.nats.test_jetstream import add_stream, api, number_of, published
from tests.testkit.waiting import WAIT_S

CHUNK = 1_024
WHOLE = "204"


async def back_up(
    js: JetStreamContext, name: str, *, answers: bool = True, **more: Any
) -> tuple[dict[str, Any], list[bytes], str]:
    """What is said of the stream, the chunks, and how it ended."""
    client = js._nc
    inbox = client.new_inbox()
    chunks: list[bytes] = []
    subscription = await client.subscribe(inbox)
    about = await api(js, f"STREAM.SNAPSHOT.{name}", deliver_subject=inbox, **more)
    if "error" in about:
        return about, [], ""
    while True:
        message = await subscription.next_msg(timeout=WAIT_S)
        if not message.data:
            end = (message.headers or {}).get("Status", "")
            await subscription.unsubscribe()
            return about, chunks, end
        chunks.append(message.data)
        if answers:
            await message.respond(b"")


async def fill(js: JetStreamContext, subject: str, count: int) -> None:
    """With what cannot be compressed."""
    for number in range(count):
        await js.publish(subject, random.Random(number).randbytes(CHUNK))


async def begin(js: JetStreamContext, name: str, /, **config: Any) -> str:
    found = await api(js, f"STREAM.RESTORE.{name}", config={"name": name, **config})
    assert "error" not in found, found
    return found["deliver_subject"]


async def restore(
    js: JetStreamContext, name: str, chunks: list[bytes], /, **config: Any
) -> dict[str, Any]:
    subject = await begin(js, name, **config)
    for chunk in [*chunks, b""]:
        answer = (await js._nc.request(subject, chunk, timeout=WAIT_S)).data
        if answer:
            found = json.loads(answer)
            assert found["type"] == "io.nats.jetstream.api.v1.stream_create_response"
            return found
    raise AssertionError("the end was not answered")


async def refused(js: JetStreamContext, verb: str, **about: Any) -> int:
    return (await api(js, verb, **about))["error"]["err_code"]


async def test_a_stream_comes_back_as_it_was(contexts: list[JetStreamContext]):
    """Sequences, times, headers, what was deleted, and how far consumers are."""
    js, other, third = contexts
    settings = {"subjects": ["s.>"], "max_age": 3600 * 10**9, "description": "of tests"}
    await add_stream(js, "S", "s.>", **{k: v for k, v in settings.items() if k != "subjects"})
    await published(js, "s.a", 40)
    await js.publish("s.b", random.Random(0).randbytes(5_000), headers={"name": "value"})
    for sequence in (1, 2, 17):
        await js.delete_msg("S", sequence)
    await js.publish("s.z", b"the last one")
    await js.delete_msg("S", 42)
    config = ConsumerConfig(
        durable_name="c", ack_policy=AckPolicy.EXPLICIT, ack_wait=600, description="reads"
    )
    await js.add_consumer("S", config)
    subscription = await js.pull_subscribe_bind("c", "S")
    given = await subscription.fetch(10, timeout=WAIT_S)
    assert [number_of(each) for each in given] == list(range(3, 13))
    for each in given:
        if number_of(each) not in (6, 9, 10):
            await each.ack_sync(timeout=WAIT_S)
    before = [await js.get_msg("S", sequence) for sequence in (3, 40, 41)]

    about, chunks, end = await back_up(other, "S", chunk_size=CHUNK)

    assert end == WHOLE
    assert len(chunks) > 4
    assert [len(each) for each in chunks[:-1]] == [CHUNK] * (len(chunks) - 1)
    assert about["type"] == "io.nats.jetstream.api.v1.stream_snapshot_response"
    await js.delete_stream("S")
    found = await restore(third, "S", chunks, **about["config"])
    assert found["state"] == {**about["state"], "consumer_count": 1}
    assert found["config"] == about["config"]
    assert [await js.get_msg("S", sequence) for sequence in (3, 40, 41)] == before
    assert (await js.publish("s.new", b"")).seq == 43
    info = await js.consumer_info("S", "c")
    assert info.config.description == "reads"
    assert info.ack_floor is not None
    assert (info.num_ack_pending, info.ack_floor.stream_seq) == (3, 5)
    assert info.num_pending == found["state"]["messages"] - 10 + 1
    again = await (await js.pull_subscribe_bind("c", "S")).fetch(5, timeout=WAIT_S)
    assert [number_of(each) for each in again] == [13, 14, 15, 16, 18]


async def test_a_backup_waits_for_the_subscription_that_comes_after_the_answer(
    contexts: list[JetStreamContext],
):
    """As jsm.go asks: its inbox matches the wildcard by which it gets answers, and is subscribed to
    when it has the answer.
    """
    js = contexts[0]
    client = js._nc
    await add_stream(js, "L", "l")
    await published(js, "l", 3)
    about = await api(js, "STREAM.INFO.L")  # the wildcard is subscribed to
    assert "error" not in about
    inbox = f"{(client._resp_sub_prefix or b'').decode()}later"
    about = await api(js, "STREAM.SNAPSHOT.L", deliver_subject=inbox)
    assert "error" not in about
    await asyncio.sleep(0.1)
    subscription = await client.subscribe(inbox)
    assert (await subscription.next_msg(timeout=WAIT_S)).data
    end = await subscription.next_msg(timeout=WAIT_S)
    assert (end.headers or {}).get("Status") == WHOLE


async def test_one_that_is_empty_goes_on_behind_its_last_sequence(
    contexts: list[JetStreamContext],
):
    js = contexts[0]
    await add_stream(js, "E", "e")
    await published(js, "e", 3)
    await js.purge_stream("E")
    about, chunks, _ = await back_up(js, "E")
    await js.delete_stream("E")

    found = await restore(js, "E", chunks, **about["config"])

    assert found["state"]["last_seq"] == 3
    assert (await js.publish("e", b"")).seq == 4


async def test_a_work_queue_has_what_nobody_had_acknowledged(contexts: list[JetStreamContext]):
    js = contexts[0]
    await add_stream(js, "W", "w", retention="workqueue")
    await published(js, "w", 5)
    worker = await js.pull_subscribe("w", durable="worker")
    given = await worker.fetch(3, timeout=WAIT_S)
    for each in given[:2]:
        await each.ack_sync(timeout=WAIT_S)
    about, chunks, _ = await back_up(js, "W")
    await js.delete_stream("W")

    found = await restore(js, "W", chunks, **about["config"])

    assert (found["config"]["retention"], found["state"]["messages"]) == ("workqueue", 3)
    info = await js.consumer_info("W", "worker")
    assert (info.num_ack_pending, info.num_pending) == (1, 2)
    rest = await (await js.pull_subscribe_bind("worker", "W")).fetch(2, timeout=WAIT_S)
    for each in rest:
        await each.ack_sync(timeout=WAIT_S)
    assert (await js.stream_info("W")).state.messages == 1


async def test_counts_of_deliveries_and_ids_come_back(
    contexts: list[JetStreamContext], monkeypatch: pytest.MonkeyPatch
):
    """What was delivered twice comes for the third time, and what was stored is not stored again,
    also when it is gone since.
    """
    js = contexts[0]
    monkeypatch.setattr(archives, "IDS_AT_ONCE", 2)
    await add_stream(js, "D", "d", retention="workqueue")
    for number in range(5):
        await js.publish("d", b"", headers={"Nats-Msg-Id": f"id{number}"})
    config = ConsumerConfig(durable_name="w", ack_policy=AckPolicy.EXPLICIT, ack_wait=1)
    await js.add_consumer("D", config)
    worker = await js.pull_subscribe_bind("w", "D")
    first, second = await worker.fetch(2, timeout=WAIT_S)
    await first.ack_sync(timeout=WAIT_S)
    await second.nak()
    (second,) = await worker.fetch(1, timeout=WAIT_S)
    assert second.metadata.num_delivered == 2
    about, chunks, _ = await back_up(js, "D")
    await js.delete_stream("D")

    await restore(contexts[1], "D", chunks, **about["config"])

    info = await js.consumer_info("D", "w")
    assert info.delivered is not None
    assert info.ack_floor is not None
    assert (info.delivered.consumer_seq, info.ack_floor.stream_seq) == (3, 1)
    assert (info.num_ack_pending, info.num_redelivered, info.num_pending) == (1, 1, 3)
    for number in range(5):
        ack = await js.publish("d", b"", headers={"Nats-Msg-Id": f"id{number}"})
        assert (ack.seq, ack.duplicate) == (number + 1, True)
    worker = await js.pull_subscribe_bind("w", "D")
    found = {}
    async with asyncio.timeout(WAIT_S):
        while 2 not in found:  # it is due a second later
            for each in await worker.fetch(1, timeout=WAIT_S):
                await each.ack_sync(timeout=WAIT_S)
                found[number_of(each)] = each.metadata.num_delivered
    assert found == {3: 1, 4: 1, 5: 1, 2: 3}


async def test_nobody_sees_half_of_it(
    contexts: list[JetStreamContext], three: Three, monkeypatch: pytest.MonkeyPatch
):
    """Before the end, and after one that is cut off, there is no such stream."""
    js, other, _ = contexts
    monkeypatch.setattr(archives, "MESSAGES_AT_ONCE", 3)
    await add_stream(js, "H", "h")
    await fill(js, "h", 10)
    about, chunks, _ = await back_up(js, "H", chunk_size=CHUNK)
    assert len(chunks) > 2
    await js.delete_stream("H")

    subject = await begin(js, "H", **about["config"])
    for chunk in chunks[:-1]:
        await js._nc.request(subject, chunk, timeout=WAIT_S)
    cluster = three.nodes.nodes["n1"].cluster
    info = cluster.queue_info("/", "H")
    assert info is not None
    half = stream_of(cluster.groups[info.group], info.queue)
    assert half is not None
    assert half.retained.count > 0
    for each in (js, other):
        assert await refused(each, "STREAM.INFO.H") == 10059
        assert await refused(each, "CONSUMER.NAMES.H") == 10059
        assert (await api(each, "STREAM.NAMES"))["total"] == 0
        assert await refused(each, "STREAM.CREATE.H", name="H", subjects=["h"]) == 10058
        assert await refused(each, "STREAM.RESTORE.H", config={"name": "H"}) == 10130
        with pytest.raises(NoRespondersError):
            await each._nc.request("h", b"", timeout=WAIT_S)
    answer = json.loads((await js._nc.request(subject, b"", timeout=WAIT_S)).data)

    assert answer["error"]["err_code"] == 10062
    assert "cut off" in answer["error"]["description"]
    assert cluster.queue_info("/", "H") is None
    with pytest.raises(NoRespondersError):
        await js._nc.request(subject, b"", timeout=WAIT_S)
    found = await restore(js, "H", chunks, **about["config"])
    assert found["state"]["messages"] == 10


async def test_leaders_may_change_meanwhile(
    contexts: list[JetStreamContext], three: Three, monkeypatch: pytest.MonkeyPatch
):
    js = contexts[0]
    monkeypatch.setattr(archives, "MESSAGES_AT_ONCE", 2)
    await add_stream(js, "L", "l")
    await fill(js, "l", 12)
    about, chunks, _ = await back_up(js, "L", chunk_size=CHUNK)
    await js.delete_stream("L")
    subject = await begin(js, "L", **about["config"])
    clusters = [node.cluster for node in three.nodes.nodes.values()]
    info = clusters[0].queue_info("/", "L")
    assert info is not None
    leaders = set()
    for number, chunk in enumerate(chunks):
        if number % 4 == 2:
            led = next(each for each in clusters if each.groups[info.group].ready)
            leaders.add(led.node)
            three.loop.call_soon_threadsafe(led.groups[info.group].transfer, None)
            async with asyncio.timeout(WAIT_S):
                while clusters[0].leader_of(info.group) in (None, led.node):
                    await asyncio.sleep(0.01)
        await js._nc.request(subject, chunk, timeout=WAIT_S)

    found = json.loads((await js._nc.request(subject, b"", timeout=WAIT_S)).data)

    assert len(leaders) > 1
    assert found["state"] == about["state"]


async def test_a_client_that_falls_silent_leaves_nothing(
    contexts: list[JetStreamContext], three: Three, monkeypatch: pytest.MonkeyPatch
):
    js = contexts[0]
    monkeypatch.setattr(archives, "SILENT_S_MAX", 0.05)
    await begin(js, "Q")
    cluster = three.nodes.nodes["n1"].cluster
    async with asyncio.timeout(WAIT_S):
        while cluster.queue_info("/", "Q") is not None:
            await asyncio.sleep(0.01)
    monkeypatch.undo()
    await add_stream(js, "Q", "q")


async def test_what_a_node_left_that_died_is_replaced(
    contexts: list[JetStreamContext], three: Three
):
    js = contexts[0]
    await add_stream(js, "R", "r")
    await published(js, "r", 3)
    about, chunks, _ = await back_up(js, "R")
    await js.delete_stream("R")
    left = stream_config.restored(stream_config.stream_config({"name": "R"}), "left")
    cluster = three.nodes.nodes["n2"].cluster
    arguments = {QUEUE_TYPE: STREAM, STREAM_CONFIG: left}
    outcome = await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(cluster.declare_queue("/", "R", arguments), three.loop)
    )
    assert outcome.kind == "ok"
    assert await refused(js, "STREAM.INFO.R") == 10059

    found = await restore(js, "R", chunks, **about["config"])

    assert found["state"]["messages"] == 3


async def test_a_restore_that_fails_leaves_another_stream_of_its_name_alone(
    contexts: list[JetStreamContext], three: Three
):
    """Somebody removed what he saw of it meanwhile, and made the stream anew."""
    js, other, _ = contexts
    subject = await begin(js, "R")
    cluster = three.nodes.nodes["n2"].cluster
    removed = await asyncio.wrap_future(
        asyncio.run_coroutine_threadsafe(cluster.remove_queue("/", "R"), three.loop)
    )
    assert removed.kind == "ok"
    await add_stream(other, "R", "r")
    await published(other, "r", 3)

    answer = json.loads((await js._nc.request(subject, b"", timeout=WAIT_S)).data)

    assert answer["error"]["err_code"] == 10062
    assert (await other.stream_info("R")).state.messages == 3
    assert (await other.publish("r")).seq == 4


async def test_who_was_cut_off_while_it_restored_does_not_end_the_restore_of_another_node(
    contexts: list[JetStreamContext], monkeypatch: pytest.MonkeyPatch
):
    js, other, _ = contexts
    await add_stream(js, "R", "r")
    await published(js, "r", 3)
    about, chunks, _ = await back_up(js, "R")
    await js.delete_stream("R")
    former = await begin(js, "R", **about["config"])

    async def hears_nobody(*_: Any) -> dict[Any, Any]:
        return {}

    monkeypatch.setattr(PeerRpc, "request_others", hears_nobody)
    subject = await begin(other, "R", **about["config"])
    monkeypatch.undo()
    lost = json.loads((await js._nc.request(former, b"", timeout=WAIT_S)).data)
    assert lost["error"]["err_code"] == 10062
    for chunk in chunks:
        await other._nc.request(subject, chunk, timeout=WAIT_S)
    found = json.loads((await other._nc.request(subject, b"", timeout=WAIT_S)).data)

    assert found["state"]["messages"] == 3
    assert (await js.stream_info("R")).state.messages == 3


async def test_one_that_becomes_whole_while_others_are_asked_stays(
    contexts: list[JetStreamContext], three: Three, monkeypatch: pytest.MonkeyPatch
):
    js, other, _ = contexts
    await begin(js, "R")
    cluster = three.nodes.nodes["n2"].cluster
    whole = stream_config.stream_config({"name": "R", "subjects": ["r"]})

    async def finished(*_: Any) -> dict[Any, Any]:
        arguments = {QUEUE_TYPE: STREAM, STREAM_CONFIG: whole}
        assert (await cluster.change(ChangeQueue("/", "R", arguments))).kind == "ok"
        return {}

    monkeypatch.setattr(PeerRpc, "request_others", finished)
    assert await refused(other, "STREAM.RESTORE.R", config={"name": "R"}) == 10130
    monkeypatch.undo()
    assert (await js.stream_info("R")).config.subjects == ["r"]


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_change_whose_outcome_is_unknown_ends_as_it_was_decided(
    contexts: list[JetStreamContext],
    three: Three,
    monkeypatch: pytest.MonkeyPatch,
    is_done: bool,
):
    """It made the stream whole, and nothing failed; or it never will."""
    js = contexts[0]
    await add_stream(js, "U", "u")
    await published(js, "u", 3)
    about, chunks, _ = await back_up(js, "U")
    await js.delete_stream("U")
    change = ClusterNode.change_stream

    async def in_doubt(*given: Any) -> Outcome:
        if is_done:
            assert (await change(*given)).kind == "ok"
        return unknown("nobody knows")

    monkeypatch.setattr(ClusterNode, "change_stream", in_doubt)
    found = await restore(js, "U", chunks, **about["config"])

    if is_done:
        assert found["state"] == about["state"]
        assert (await js.publish("u")).seq == 4
    else:
        assert found["error"]["err_code"] == 10062
        assert three.nodes.nodes["n1"].cluster.queue_info("/", "U") is None


async def test_of_two_restores_at_once_one_is_refused(contexts: list[JetStreamContext]):
    """Else both would fill one stream."""
    config = {"name": "T", "subjects": ["t"]}
    work = [api(each, "STREAM.RESTORE.T", config=config) for each in contexts]
    answers = await asyncio.gather(*work)
    errors = [each["error"]["err_code"] for each in answers if "error" in each]
    assert errors == [10130, 10130]


async def test_nobody_follows_what_is_not_whole(contexts: list[JetStreamContext]):
    """If it failed, others would have had what never was."""
    js = contexts[0]
    await add_stream(js, "O", "o")
    await published(js, "o", 5)
    about, chunks, _ = await back_up(js, "O")
    await js.delete_stream("O")
    subject = await begin(js, "O", **about["config"])
    for chunk in chunks:
        await js._nc.request(subject, chunk, timeout=WAIT_S)
    await add_stream(js, "A", sources=[{"name": "O"}])

    async def shown(check: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            while not check(found := await api(js, "STREAM.INFO.A")):
                await asyncio.sleep(0.01)
        return found

    found = await shown(lambda found: "error" in found.get("sources", [{}])[0])
    assert found["sources"][0]["error"]["err_code"] == 10059
    assert found["state"]["messages"] == 0
    await js._nc.request(subject, b"", timeout=WAIT_S)
    await shown(lambda found: found["state"]["messages"] == 5)


async def test_a_client_that_takes_no_more_ends_its_backup(
    contexts: list[JetStreamContext], monkeypatch: pytest.MonkeyPatch
):
    js = contexts[0]
    await add_stream(js, "F", "f")
    await fill(js, "f", 10)
    monkeypatch.setattr(archives, "ANSWER_S_MAX", 0.05)

    _, chunks, end = await back_up(js, "F", answers=False, chunk_size=CHUNK, window_size=2 * CHUNK)

    assert (len(chunks), end) == (2, "408")


async def test_what_cannot_be_is_refused_with_its_number(contexts: list[JetStreamContext]):
    js = contexts[0]
    await add_stream(js, "S", "s")
    assert await refused(js, "STREAM.SNAPSHOT.S") == 10003
    assert await refused(js, "STREAM.SNAPSHOT.S", deliver_subject="$JS.API.INFO") == 10015
    assert await refused(js, "STREAM.SNAPSHOT.S", deliver_subject="a.*") == 10015
    assert await refused(js, "STREAM.SNAPSHOT.N", deliver_subject="d") == 10059
    assert await refused(js, "STREAM.RESTORE.S", config={"name": "S"}) == 10130
    assert await refused(js, "STREAM.RESTORE.N") == 10003
    assert await refused(js, "STREAM.RESTORE.N", config={"name": "M"}) == 10056
    mirror = {"name": "N", "mirror": {"name": "S"}}
    assert await refused(js, "STREAM.RESTORE.N", config=mirror) == 10062
    foreign = [b"\xff\x06\x00\x00S2sTwO\x00\x10\x00\x00" + bytes(16)]
    found = await restore(js, "N", foreign)
    assert found["error"]["err_code"] == 10062
    assert "shovel" in found["error"]["description"]
    _, chunks, _ = await back_up(js, "S")
    found = await restore(js, "N", chunks)
    assert "backup of stream S" in found["error"]["description"]
    assert await refused(js, "STREAM.INFO.N") == 10059
