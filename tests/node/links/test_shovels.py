"""Shovels between real nodes, by real clients."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiormq
import nats
import pytest
from pamqp.commands import Basic

from cluster.machine.commands import PutEntry
from node.node import Node
from node.operating.recovery import recover
from quorate.cli.api import Patient
from quorate.cli.backup import (
    _Further,  # pyright: ignore[reportPrivateUsage]
    run_backup,
    run_restore,
)
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, free_ports, until

LOCAL: dict[str, Any] = {
    "src-uri": "amqp://",
    "src-queue": "a",
    "dest-uri": "amqp://",
    "dest-queue": "b",
    "reconnect-delay": 0.1,
}


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """One."""
    async with Nodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def api(nodes: Nodes) -> Api:
    return api_of(nodes.one)


@pytest.fixture
def address(nodes: Nodes) -> str:
    return uri_of(nodes.one)


def uri_of(node: Node) -> str:
    assert node.amqp.address is not None
    return f"amqp://guest:guest@{node.amqp.address}"


@asynccontextmanager
async def channel_to(address: str) -> AsyncGenerator[aiormq.abc.AbstractChannel]:
    connection = await aiormq.connect(f"{address}/")
    try:
        yield await connection.channel()
    finally:
        await connection.close()


async def publish(
    address: str, queue: str, bodies: Sequence[str], properties: Basic.Properties | None = None
) -> None:
    async with channel_to(address) as channel:
        given = properties or Basic.Properties(delivery_mode=2)
        sent = [
            channel.basic_publish(body.encode(), routing_key=queue, properties=given)
            for body in bodies
        ]
        await asyncio.gather(*sent)


async def count(api: Api, queue: str) -> int:
    reply = await api.ask("GET", f"queues/%2F/{queue}")
    return reply.value.get("messages", -1) if reply.status == 200 else -1


async def drained(address: str, queue: str) -> list[str]:
    bodies: list[str] = []
    async with channel_to(address) as channel:
        while True:
            message = await channel.basic_get(queue, no_ack=True)
            if isinstance(message.delivery, Basic.GetEmpty):
                return bodies
            bodies.append(message.body.decode())


async def shovel(api: Api, **change: Any) -> None:
    given = LOCAL | {name.replace("_", "-"): value for name, value in change.items()}
    value = {name: each for name, each in given.items() if each is not None}
    await api.put("parameters/shovel/%2F/s", value=value)


async def state(api: Api) -> dict[str, Any]:
    return await api.get("shovels/vhost/%2F/s")


# --- one node -------------------------------------------------------------------------------------


async def test_a_shovel_moves_messages_as_they_are(api: Api, address: str):
    await api.queue("a")
    given = Basic.Properties(
        content_type="text/plain",
        headers={"n": 1, "list": [True, "x"], "table": {"deep": 2}},
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        reply_to="r",
        timestamp=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        message_type="t",
        app_id="app",
        message_id="m-1",
    )
    await publish(address, "a", ["first"], given)
    await shovel(api)

    await until(lambda: _has(api, "b", 1))
    async with channel_to(address) as channel:
        message = await channel.basic_get("b", no_ack=True)
    assert message.body == b"first"
    assert message.header.properties == given
    assert message.routing_key == "b"
    assert await count(api, "a") == 0
    shown = await state(api)
    assert shown == {
        **shown,
        "node": "n1",
        "name": "s",
        "vhost": "/",
        "type": "dynamic",
        "state": "running",
        "src_uri": "amqp://",
        "src_queue": "a",
        "dest_uri": "amqp://",
        "dest_queue": "b",
        "messages": 1,
    }
    assert await api.get("shovels") == await api.get("shovels/%2F") == [shown]


async def _has(api: Api, queue: str, messages: int) -> bool:
    return await count(api, queue) == messages


async def test_a_message_without_an_id_has_none_afterwards_and_headers_tell_where_it_came_through(
    api: Api, address: str
):
    await api.queue("a")
    await api.publish("a", "x")
    await shovel(
        api,
        dest_add_forward_headers=True,
        dest_add_timestamp_header=True,
        dest_publish_properties={"app_id": "mover", "headers": {"via": "s"}},
    )

    await until(lambda: _has(api, "b", 1))
    async with channel_to(address) as channel:
        message = await channel.basic_get("b", no_ack=True)
    properties = message.header.properties
    assert isinstance(properties, Basic.Properties)
    assert not properties.message_id
    assert properties.app_id == "mover"
    headers: Any = properties.headers
    assert set(headers) == {"x-shovelled", "x-shovelled-timestamp", "via"}
    (passed,) = headers["x-shovelled"]
    assert (passed["shovel-name"], passed["src-queue"], passed["dest-queue"]) == ("s", "a", "b")


async def test_a_parameter_is_changed_exported_imported_and_deleted_as_in_rabbitmq(api: Api):
    wrong = await api.ask("PUT", "parameters/shovel/%2F/s", {"value": {"src-uri": "amqp://"}})
    assert (wrong.status, wrong.value["error"]) == (400, "bad_request")
    assert "'src-exchange' or 'src-queue'" in wrong.value["reason"]
    assert await api.get("shovels") == []
    assert (await api.ask("GET", "shovels/vhost/%2F/s")).status == 404
    assert (await api.ask("DELETE", "shovels/vhost/%2F/s/restart")).status == 404

    await api.queue("a")
    await shovel(api)
    exported = await api.get("definitions")
    (parameter,) = exported["parameters"]
    assert parameter == {"component": "shovel", "vhost": "/", "name": "s", "value": LOCAL}
    assert (await api.ask("DELETE", "shovels/vhost/%2F/s")).status == 204
    assert await api.get("parameters/shovel") == []
    reply = await api.ask("POST", "definitions", exported)
    assert reply.status == 204, reply
    await until(lambda: _is(api, "running"))
    assert (await api.ask("DELETE", "shovels/vhost/%2F/s/restart")).status == 204
    await until(lambda: _is(api, "running"))
    parameter["value"]["src-prefetch-count"] = 0
    refused = await api.ask("POST", "definitions", exported)
    assert refused.status == 400
    assert "src-prefetch-count" in refused.value["reason"]
    assert (await api.ask("DELETE", "parameters/shovel/%2F/s")).status == 204
    assert await api.get("shovels") == []


async def _is(api: Api, wanted: str) -> bool:
    return (await state(api))["state"] == wanted


@pytest.mark.parametrize("mode", ["on-publish", "no-ack"])
async def test_whatever_its_mode_a_shovel_moves_all_in_order(api: Api, address: str, mode: str):
    bodies = [f"{number}" for number in range(100)]
    await api.queue("a")
    await publish(address, "a", bodies)
    await shovel(api, ack_mode=mode, src_prefetch_count=10)
    await until(lambda: _has(api, "b", 100))
    assert await drained(address, "b") == bodies
    assert await count(api, "a") == 0


async def test_what_another_release_kept_stops_no_other_shovel(nodes: Nodes, api: Api):
    entry = {"value": {"src-uri": 5}, "user": "guest", "id": "x"}
    await nodes.one.cluster.change(PutEntry("parameters", ("shovel", "/", "odd"), entry))
    await api.queue("a")
    await shovel(api)
    await until(lambda: _is(api, "running"))
    assert [each["name"] for each in await api.get("shovels")] == ["s"]


@pytest.mark.parametrize(("after", "moved"), [(3, 3), ("queue-length", 5), (0, 0)])
async def test_a_shovel_with_an_end_deletes_itself(api: Api, after: Any, moved: int, address: str):
    await api.queue("a")
    await api.queue("b")
    await publish(address, "a", [f"{number}" for number in range(5)])
    await shovel(api, src_delete_after=after)

    async def gone() -> bool:
        return await api.get("shovels") == []

    await until(gone)
    assert await drained(address, "b") == [f"{number}" for number in range(moved)]
    await until(lambda: _has(api, "a", 5 - moved))


async def test_what_finds_no_queue_stays_at_its_source_and_the_shovel_says_why(
    api: Api, address: str
):
    await api.queue("a")
    await publish(address, "a", ["x"])
    await shovel(api, dest_queue=None, dest_exchange="amq.topic", dest_exchange_key="k")

    async def says() -> str | None:
        return (await state(api)).get("reason")

    assert "no queue takes" in await until(says)
    assert await count(api, "a") == 1
    await api.queue("b")
    await api.ask("POST", "bindings/%2F/e/amq.topic/q/b", {"routing_key": "k"})
    await until(lambda: _has(api, "b", 1))
    await until(lambda: _has(api, "a", 0))


async def test_a_shovel_that_cannot_connect_says_which_end_and_where(api: Api):
    [port] = free_ports(1)
    await api.queue("a")
    await shovel(api, src_uri=f"amqp://u:secret@127.0.0.1:{port}")

    async def says() -> str | None:
        return (await state(api)).get("reason")

    said = await until(says)
    assert f"cannot connect to the source amqp://u@127.0.0.1:{port}: " in said


@pytest.mark.parametrize("away", [False, True])
async def test_a_shovel_says_why_it_was_not_let_in(api: Api, address: str, away: bool):
    await api.queue("a")
    await shovel(api, src_uri=f"{address if away else 'amqp://'}/nowhere")

    async def says() -> str | None:
        return (await state(api)).get("reason")

    assert "vhost 'nowhere'" in await until(says)


async def test_a_shovel_acts_as_who_put_it(api: Api):
    await api.queue("a")
    await api.put("users/u", password="p", tags="policymaker")
    await api.put("permissions/%2F/u", configure=".*", write=".*", read="^nothing$")
    own = api.as_user("u", "p")
    await shovel(own)

    async def says() -> str | None:
        return (await state(api)).get("reason")

    assert "refused for user 'u'" in await until(says)
    await api.put("permissions/%2F/u", configure=".*", write=".*", read=".*")
    await until(lambda: _is(api, "running"))


async def test_an_exchange_is_a_source(api: Api, address: str):
    await shovel(api, src_queue=None, src_exchange="amq.topic", src_exchange_key="a.#")
    await until(lambda: _is(api, "running"))
    async with channel_to(address) as channel:
        await channel.basic_publish(b"x", exchange="amq.topic", routing_key="a.b")
    await until(lambda: _has(api, "b", 1))


async def test_a_message_with_an_id_to_be_taken_once_is_stored_once_and_the_id_not_shown(
    api: Api, address: str
):
    await api.queue("b")
    for once in ("i", "j", "i"):
        given = Basic.Properties(headers={"x-once-id": once, "n": 1}, message_id="m")
        await publish(address, "b", [once], given)
    async with channel_to(address) as channel:
        found = [await channel.basic_get("b", no_ack=True) for _ in range(3)]
        given = Basic.Properties(headers={"x-once-id": 5})
        with pytest.raises(aiormq.exceptions.ChannelPreconditionFailed, match="x-once-id"):
            await channel.basic_publish(b"x", routing_key="b", properties=given)
    assert [message.body for message in found] == [b"i", b"j", b""]
    assert all(each.header.properties.headers == {"n": 1} for each in found[:2])


# --- clusters -------------------------------------------------------------------------------------


async def test_nothing_is_lost_or_doubled_when_the_owner_goes_and_when_links_break(tmp_path: Path):
    """Three nodes to another cluster: the owner ends without a goodbye, twice; and so does what is
    on its way, many times.
    """
    messages = 3_000
    async with Nodes(tmp_path / "one", 3) as ours, Nodes(tmp_path / "two") as theirs:
        await ours.declare("a")
        bodies = [f"{number}" for number in range(messages)]
        await publish(uri_of(ours.one), "a", bodies)
        there = api_of(theirs.one)
        await shovel(api_of(ours.one), dest_uri=uri_of(theirs.one), src_prefetch_count=200)
        for part in (1, 2):
            await until(lambda part=part: _at_least(there, part * messages // 4))
            owner = await ours.leader("a")
            api = api_of(next(node for name, node in ours.nodes.items() if name != owner))
            await ours.stop(owner, transfer=False)
            await until(lambda api=api, owner=owner: _runs_elsewhere(api, owner))
            await theirs.one.amqp.expel("an interruption")
            await ours.start(owner)

        async def all_there() -> bool:
            return await count(there, "b") >= messages and await count(api, "a") == 0

        await until(all_there)
        found = Counter(await drained(uri_of(theirs.one), "b"))
        assert sorted(found) == sorted(bodies)
        assert max(found.values()) == 1


async def _at_least(api: Api, messages: int) -> bool:
    return await count(api, "b") >= messages


async def _runs_elsewhere(api: Api, owner: str) -> bool:
    shown = await state(api)
    return shown["state"] == "running" and shown["node"] != owner


async def test_after_a_recovery_new_messages_are_not_taken_for_those_that_were_lost(tmp_path: Path):
    """The survivor was away while others were moved: it gives their positions again."""
    names = ["n1", "n2", "n3"]
    async with Nodes(tmp_path / "one", 3) as ours, Nodes(tmp_path / "two") as theirs:
        there = api_of(theirs.one)
        await ours.declare("a")
        await shovel(api_of(ours.one), dest_uri=uri_of(theirs.one))
        await publish(uri_of(ours.one), "a", ["kept"])
        await until(lambda: _has(there, "b", 1))
        info = ours.one.broker.locate("/", "a")
        assert info is not None
        copies = [node.cluster.groups[info.group] for node in ours.nodes.values()]
        await until(lambda: len({copy.applied_index for copy in copies}) == 1)
        await ours.stop("n3")
        await publish(uri_of(ours.one), "a", ["lost 1", "lost 2"])
        await until(lambda: _has(there, "b", 3))
        for name in names[:2]:
            await ours.stop(name, transfer=False)
        await recover(ours.settings("n3"), names[:2])
        survivor = await ours.start("n3")
        await until(lambda: survivor.broker.leads(info.group))
        new = [f"new {number}" for number in range(4)]
        await publish(uri_of(survivor), "a", new)

        await until(lambda: _has(api_of(survivor), "a", 0))
        moved = await drained(uri_of(theirs.one), "b")
        assert set(moved) == {"kept", "lost 1", "lost 2", *new}


async def test_after_each_restore_of_a_backup_new_messages_are_new_to_a_destination(tmp_path: Path):
    backup = tmp_path / "backup"
    async with Nodes(tmp_path / "two") as theirs:
        there = api_of(theirs.one)
        async with Nodes(tmp_path / "one") as ours:
            await ours.declare("a")
            await shovel(api_of(ours.one), dest_uri=uri_of(theirs.one))
            await publish(uri_of(ours.one), "a", ["kept"])
            await until(lambda: _has(there, "b", 1))
            await until(lambda: _has(api_of(ours.one), "a", 0))
            await asyncio.to_thread(run_backup, Patient(ours.url("n1"), as_json=True), backup)
            await publish(uri_of(ours.one), "a", ["gone 1", "gone 2"])
            await until(lambda: _has(there, "b", 3))
        for time in ("first", "second"):
            restored, further = tmp_path / time, _Further([], {}, None)
            await asyncio.to_thread(
                run_restore, backup, restored, "test", ["n1"], further, as_json=True
            )
            async with Nodes(tmp_path, data_dir=str(restored)) as ours:
                new = [f"{time} {number}" for number in range(4)]
                await publish(uri_of(ours.one), "a", new)
                await until(lambda ours=ours: _has(api_of(ours.one), "a", 0))
                moved = await drained(uri_of(theirs.one), "b")
                assert set(moved) - {"kept", "gone 1", "gone 2"} == set(new)


# --- JetStream ------------------------------------------------------------------------------------


@asynccontextmanager
async def jetstream(tmp_path: Path) -> AsyncGenerator[tuple[Nodes, str, Any]]:
    """A node, where NATS' clients find it, and one of those."""
    async with Nodes(tmp_path, nats="127.0.0.1:0") as nodes:
        server = nodes.one.nats
        assert server is not None
        address = f"nats://guest:guest@{server.address}"
        client: Any = await cast(Any, nats).connect(address)
        try:
            yield nodes, address, client.jetstream()
        finally:
            await client.close()


async def test_a_stream_is_a_source_and_a_subject_a_destination(tmp_path: Path):
    async with jetstream(tmp_path) as (nodes, address, js):
        await js.add_stream(name="in", subjects=["in.>"])
        await js.add_stream(name="out", subjects=["out.>"])
        for number in range(20):
            await js.publish(f"in.{number}", f"{number}".encode(), headers={"n": f"{number}"})
        api = api_of(nodes.one)
        source = {
            "src-protocol": "nats",
            "src-uri": address,
            "src-stream": "in",
            "src-consumer": "mover",
            "src-queue": None,
        }
        await shovel(api, **source)
        await until(lambda: _has(api, "b", 20))
        to: dict[str, Any] = {
            "src-queue": "b",
            "dest-queue": None,
            "dest-protocol": "nats",
            "dest-uri": address,
            "dest-subject": "out.b",
            "src-delete-after": "queue-length",
        }
        value = {name: each for name, each in (LOCAL | to).items() if each is not None}
        await api.put("parameters/shovel/%2F/t", value=value)

        async def there() -> bool:
            return (await js.stream_info("out")).state.messages == 20

        await until(there)
        first = await js.get_msg("out", 1)
        assert (first.data, (first.headers or {})["n"]) == (b"0", "0")
        info = await js.consumer_info("in", "mover")
        assert info.num_pending == 0


async def test_a_stream_that_was_made_again_has_other_messages_under_its_sequences(tmp_path: Path):
    async with jetstream(tmp_path) as (nodes, uri, _):
        api, address = api_of(nodes.one), uri_of(nodes.one)
        await declare_stream(address, "in")
        source = {"src-protocol": "nats", "src-stream": "in", "src-consumer": "mover"}
        await shovel(api, **source, src_uri=uri, src_queue=None)
        for time in ("before", "after"):
            await until(lambda: _has_just_begun(api))
            bodies = [f"{time} {number}" for number in range(3)]
            await publish(address, "in", bodies)
            await until(lambda: _has_moved(api, 3))
            assert await drained(address, "b") == bodies
            assert (await api.ask("DELETE", "queues/%2F/in")).status == 204
            await declare_stream(address, "in")
            assert (await api.ask("DELETE", "shovels/vhost/%2F/s/restart")).status == 204


async def declare_stream(address: str, name: str) -> None:
    async with channel_to(address) as channel:
        await channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})


async def _has_just_begun(api: Api) -> bool:
    shown = await state(api)
    return shown["state"] == "running" and not shown["messages"]


async def _has_moved(api: Api, messages: int) -> bool:
    return (await state(api)).get("messages", 0) >= messages


async def test_what_a_message_asked_of_its_stream_is_not_asked_of_the_next_one(tmp_path: Path):
    async with jetstream(tmp_path) as (nodes, address, js):
        await js.add_stream(name="in", subjects=["in"])
        await js.add_stream(name="out", subjects=["out"])
        await js.publish("out", b"before")
        headers = {"Nats-Expected-Last-Sequence": "0", "Nats-Expected-Stream": "in", "n": "1"}
        await js.publish("in", b"x", headers=headers)
        await nats_shovel(api_of(nodes.one), address)

        moved = await until(lambda: _second_of(js, "out"))
        assert moved.data == b"x"
        assert set(moved.headers) == {"n", "Nats-Msg-Id"}


async def nats_shovel(api: Api, address: str, **change: Any) -> None:
    """From stream and consumer to subject."""
    given: dict[str, Any] = {
        "src_protocol": "nats", "src_uri": address, "src_stream": "in", "src_consumer": "mover",
        "src_queue": None, "dest_queue": None, "dest_protocol": "nats", "dest_uri": address,
        "dest_subject": "out",
    }  # fmt: skip
    await shovel(api, **given | change)


async def _second_of(js: Any, stream: str) -> Any:
    if (await js.stream_info(stream)).state.messages < 2:
        return None
    return await js.get_msg(stream, 2)


async def test_a_header_that_nats_has_no_name_for_holds_nothing_up(tmp_path: Path):
    async with jetstream(tmp_path) as (nodes, address, js):
        await js.add_stream(name="out", subjects=["out"], allow_rollup_hdrs=True)
        await js.publish("out", b"stays")
        headers: Any = {"a": "x\r\nNats-Rollup: all", "b": "y", "c:d": "e", "f g": "h"}
        api = api_of(nodes.one)
        await api.queue("a")
        await publish(uri_of(nodes.one), "a", ["x"], Basic.Properties(headers=headers))
        await shovel(
            api, dest_queue=None, dest_protocol="nats", dest_uri=address, dest_subject="out"
        )

        await until(lambda: _has(api, "a", 0))
        assert (await js.stream_info("out")).state.messages == 2
        moved = await js.get_msg("out", 2)
        assert moved.data == b"x"
        assert set(moved.headers) == {"a", "b", "Nats-Msg-Id"}


async def test_a_consumer_that_acknowledges_nothing_is_no_source_of_messages_to_be_confirmed(
    tmp_path: Path,
):
    async with jetstream(tmp_path) as (nodes, address, js):
        await js.add_stream(name="in", subjects=["in"])
        await js.add_consumer("in", durable_name="mover", ack_policy="none")
        await js.publish("in", b"x")
        api = api_of(nodes.one)
        await nats_shovel(api, address)

        async def says() -> str | None:
            return (await state(api)).get("reason")

        assert "acknowledge" in await until(says)
        assert (await js.consumer_info("in", "mover")).num_pending == 1
