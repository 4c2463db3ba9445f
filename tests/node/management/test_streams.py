"""Streams and their consumers over the management API: as NATS's clients make and use them."""

# pyright: basic, reportOptionalMemberAccess=false
from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from tests.node.management.api import Api, Reply, api_of
from tests.node.nodes import Nodes
from tests.testkit.waiting import WAIT_S, until

S = "streams/%2F/S"


async def context_of(nodes: Nodes, name: str) -> JetStreamContext:
    listener = nodes.nodes[name].nats
    assert listener is not None
    client = await nats.connect(f"nats://{listener.address}", user="guest", password="guest")
    return client.jetstream(timeout=WAIT_S)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, nats="127.0.0.1:0") as nodes:
        yield nodes


@pytest.fixture
def api(nodes: Nodes) -> Api:
    return api_of(nodes.one)


@pytest.fixture
async def js(nodes: Nodes) -> AsyncIterator[JetStreamContext]:
    context = await context_of(nodes, "n1")
    yield context
    await context._nc.close()


async def made(api: Api, **config: Any) -> None:
    assert (await api.ask("PUT", S, {"subjects": ["s.*"], **config})).status == 201


async def refused(api: Api, method: str, path: str, body: Any = None) -> Reply:
    reply = await api.ask(method, path, body)
    assert reply.status >= 400, reply
    return reply


class TestStreams:
    async def test_it_is_made_as_natss_clients_make_it(self, api: Api, js: JetStreamContext):
        reply = await api.ask("PUT", S, {"subjects": ["s.*"], "max_age": "1h30m", "max_msgs": 10})
        again = await api.ask("PUT", S, {"subjects": ["s.*"], "max_age": "90m", "max_msgs": 10})

        assert (reply.status, again.status) == (201, 200)
        assert reply.value["config"]["max_age"] == 5_400 * 10**9
        config = (await js.stream_info("S")).config
        assert (config.subjects, config.max_age, config.max_msgs) == (["s.*"], 5_400, 10)
        await js.add_stream(config)  # which is the same

    async def test_it_is_shown_with_what_is_in_it(self, api: Api, js: JetStreamContext):
        await made(api)
        for number in range(3):
            await js.publish(f"s.{number % 2}", b"%d" % number)

        shown = await api.get(S + "?subjects_filter=%3E")

        assert (shown["name"], shown["vhost"]) == ("S", "/")
        state = shown["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (3, 1, 3)
        assert state["subjects"] == {"s.0": 2, "s.1": 1}
        assert shown["cluster"]["leader"] == "n1"
        queue = await api.get("queues/%2F/S")
        assert (queue["type"], queue["messages"], queue["leader"]) == ("stream", 3, "n1")

    async def test_lists_are_filtered_sorted_and_paged(self, api: Api, js: JetStreamContext):
        for name, count in (("a", 2), ("b", 0), ("c", 1)):
            assert (await api.ask("PUT", f"streams/%2F/{name}", {})).status == 201
            for _ in range(count):
                await js.publish(name)
        await api.put("vhosts/other")
        await api.put("permissions/other/guest", configure=".*", write=".*", read=".*")
        assert (await api.ask("PUT", "streams/other/a", {})).status == 201
        await api.queue("q")

        rows = await api.get("streams?sort=state.messages&sort_reverse=true")
        page = await api.get("streams/%2F?page=2&page_size=2")
        named = await api.get("streams?page=1&name=a&columns=name,vhost")

        assert [(row["vhost"], row["name"]) for row in rows][:2] == [("/", "a"), ("/", "c")]
        assert len(rows) == 4
        assert [row["name"] for row in page["items"]] == ["c"]
        assert (page["total_count"], page["page_count"]) == (3, 2)
        assert {row["vhost"] for row in named["items"]} == {"/", "other"}

    async def test_what_is_not_said_stays_as_it_is(self, api: Api, js: JetStreamContext):
        await made(api, max_msgs=10, description="orders")

        reply = await api.ask("PATCH", S, {"max_msgs": 20, "max_age": "1h"})

        assert reply.status == 200
        config = (await js.stream_info("S")).config
        assert (config.max_msgs, config.max_age) == (20, 3_600)
        assert (config.description, config.subjects) == ("orders", ["s.*"])
        await api.ask("PATCH", S, {"max_age": None, "description": None})
        config = (await js.stream_info("S")).config
        assert (config.max_age, config.description) == (0, None)

    async def test_it_is_purged_and_deleted(self, api: Api, js: JetStreamContext):
        await made(api)
        for number in range(10):
            await js.publish(f"s.{number % 2}")

        async def purged(**how: Any) -> int:
            return (await api.post(S + "/purge", **how)).value["purged"]

        assert await purged(filter="s.0", keep=2) == 3
        assert await purged(seq=9) == 5
        assert await purged() == 2
        assert await api.delete(S) == 204
        assert await api.delete(S) == 404
        assert await api.get("streams") == []

    async def test_a_stream_is_not_purged_as_a_queue_is(self, api: Api, js: JetStreamContext):
        await made(api, deny_purge=True)
        await js.publish("s.1")

        assert (await refused(api, "POST", S + "/purge", {})).status == 400
        assert "stream" in (await refused(api, "DELETE", "queues/%2F/S/contents")).value["reason"]
        assert (await api.get(S))["state"]["messages"] == 1

    @pytest.mark.parametrize(
        ("method", "path", "body", "status", "reason"),
        [
            ("PUT", "T", {"subjects": ["s.1"]}, 409, "overlap"),
            ("PUT", "S", {"subjects": ["other"]}, 409, "already in use"),
            ("PUT", "T", {"max_age": "soon"}, 400, "90s, 1h30m"),
            ("PUT", "T", {"max_mgs": 1}, 400, "no setting 'max_mgs'"),
            ("PUT", "T", {"retention": "for ever"}, 400, "limits, interest, workqueue"),
            ("PUT", "a.b", {}, 400, "without '.'"),
            ("PATCH", "S", {"storage": "memory"}, 400, "storage type"),
            ("PATCH", "T", {"max_msgs": 1}, 404, "stream not found"),
            ("GET", "T", None, 404, "stream not found"),
            ("POST", "S/purge", {"seq": 1, "keep": 1}, 400, "bad request"),
            ("POST", "S/purge", {"subject": "s.1"}, 400, "filter, seq or keep"),
            ("GET", "S/message", None, 400, "which message"),
            ("GET", "S/message?seq=x", None, 400, "seq is"),
            ("GET", "S/message?seq=7", None, 404, "no message found"),
            ("DELETE", "S/message?seq=7", None, 404, "no message found"),
            ("GET", "S/consumers/c", None, 404, "consumer not found"),
            ("DELETE", "S/consumers/c", None, 404, "consumer not found"),
            ("PUT", "S/consumers/c", {"ack_policy": "some"}, 400, "ack_policy"),
            ("PATCH", "S/consumers/c", {"ack_wait": "1s"}, 404, "consumer not found"),
            ("PUT", "S/consumers/c", {"ack_wait": "x"}, 400, "ack_wait is a length of time"),
            ("PUT", "S/consumers/c/pause", {}, 400, "pause_until"),
            ("PUT", "T/consumers/c", {}, 404, "stream not found"),
        ],
    )
    async def test_what_cannot_be_is_refused_in_words(
        self, api: Api, method: str, path: str, body: Any, status: int, reason: str
    ):
        await made(api)

        reply = await refused(api, method, f"streams/%2F/{path}", body)

        assert reply.status == status, reply
        assert reason in reply.value["reason"]

    async def test_permissions_hold(self, api: Api):
        await made(api)
        await api.put("users/ann", password="secret", tags="management")
        await api.put("permissions/%2F/ann", configure="^own", write="", read="^own")
        ann = api.as_user("ann", "secret")

        for method, path, body in (
            ("PUT", "T", {}),
            ("PATCH", "S", {"max_msgs": 1}),
            ("DELETE", "S", None),
            ("POST", "S/purge", {}),
            ("GET", "S/message?seq=1", None),
            ("DELETE", "S/message?seq=1", None),
            ("PUT", "S/consumers/c", {}),
            ("DELETE", "S/consumers/c", None),
            ("PUT", "S/consumers/c/pause", {"pause_until": "2099-01-01T00:00:00Z"}),
            ("PUT", "own", {"subjects": ["others"]}),  # which it could read then
            ("PUT", "own", {"mirror": {"name": "S"}}),
            ("PUT", "own", {"sources": [{"name": "S"}]}),
        ):
            reply = await refused(ann, method, f"streams/%2F/{path}", body)
            assert reply.status == 401, (method, path, reply)
        own = await ann.ask("PUT", "streams/%2F/own", {"subjects": ["own.>"]})
        assert own.status == 201


class TestMessages:
    async def test_one_is_read_by_its_sequence_or_subject(self, api: Api, js: JetStreamContext):
        await made(api)
        await js.publish("s.1", b"one", headers={"A": "1"})
        await js.publish("s.2", b"\xff")

        first = await api.get(S + "/message?seq=1")
        last = await api.get(S + "/message?last_by_subj=s.*")
        following = await api.get(S + "/message?next_by_subj=s.2&seq=1")

        assert (first["subject"], first["payload"], first["headers"]) == (
            "s.1",
            "one",
            {"A": ["1"]},
        )
        assert (last["seq"], last["payload_encoding"], last["payload_bytes"]) == (2, "base64", 1)
        assert following == last

    async def test_one_is_deleted(self, api: Api, js: JetStreamContext):
        await made(api)
        await js.publish("s.1")
        await js.publish("s.1")

        assert await api.delete(S + "/message?seq=2") == 204

        assert (await api.get(S))["state"]["messages"] == 1
        reply = await refused(api, "DELETE", S + "/message?seq=2")
        assert (reply.status, reply.value["error"]) == (404, "not_found")


class TestConsumers:
    async def test_one_is_made_used_and_deleted(self, api: Api, js: JetStreamContext):
        await made(api)
        for _ in range(5):
            await js.publish("s.1")
        path = S + "/consumers/c"
        wanted = {"ack_policy": "explicit", "ack_wait": "1m", "filter_subject": "s.1"}

        assert (await api.ask("PUT", path, wanted)).status == 201
        assert (await api.ask("PUT", path, wanted)).status == 200
        assert (await refused(api, "PUT", path, wanted | {"ack_wait": "2m"})).status == 409
        assert (await api.ask("PATCH", path, {"ack_wait": "2m"})).status == 200
        subscription = await js.pull_subscribe_bind("c", stream="S")
        messages = await subscription.fetch(3, timeout=WAIT_S)
        await messages[0].ack_sync(WAIT_S)

        shown = await api.get(path)
        assert (shown["num_pending"], shown["num_ack_pending"]) == (2, 2)
        assert shown["config"]["ack_wait"] == 120 * 10**9
        reply = await api.ask("PATCH", path, {"filter_subjects": ["s.2", "s.3"]})
        assert reply.value["config"]["filter_subjects"] == ["s.2", "s.3"]
        assert reply.value["num_pending"] == 0
        assert [row["name"] for row in await api.get(S + "/consumers")] == ["c"]
        assert (await api.get(S))["state"]["consumer_count"] == 1
        assert await api.delete(path) == 204
        assert await api.get(S + "/consumers") == []

    async def test_one_is_paused_and_goes_on(self, api: Api):
        await made(api)
        path = S + "/consumers/c"
        await api.ask("PUT", path, {})

        until_ = {"pause_until": "2099-01-01T00:00:00Z"}
        assert (await api.ask("PUT", path + "/pause", until_)).value["paused"]
        assert (await api.get(path))["paused"]
        assert await api.delete(path + "/pause") == 204
        assert "paused" not in await api.get(path)


async def test_any_node_answers_also_while_another_leads(tmp_path: Path):
    async with Nodes(tmp_path, 3, nats="127.0.0.1:0") as nodes:
        apis = {name: api_of(node) for name, node in nodes.nodes.items()}
        for number, api in enumerate(apis.values()):
            reply = await api.ask("PUT", f"streams/%2F/S{number}", {"num_replicas": 3})
            assert reply.status == 201
        js = await context_of(nodes, "n1")
        await js.publish("S1", b"x")

        for name, api in apis.items():
            shown = await api.get("streams/%2F/S1")
            assert shown["state"]["messages"] == 1
            replicas = shown["cluster"]["replicas"]
            assert len(replicas) == 2
            assert all(each["current"] and each["active"] > 0 for each in replicas)
            assert len(await api.get("streams")) == 3
            assert (await api.ask("PUT", f"streams/%2F/S1/consumers/{name}", {})).status == 201

        rows = await apis["n1"].get("streams/%2F/S1/consumers")
        assert [row["name"] for row in rows] == ["n1", "n2", "n3"]
        leader = shown["cluster"]["leader"]
        await js._nc.close()
        await nodes.stop(leader, transfer=False)

        async def goes_on() -> bool:
            found = await next(api for name, api in apis.items() if name != leader).ask(
                "GET", "streams/%2F/S1"
            )
            return found.status == 200 and found.value["cluster"]["leader"] != leader

        await until(goes_on)
