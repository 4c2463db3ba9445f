"""Exchanges, bindings, virtual hosts, users, policies, limits and definitions over the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest

from cluster.machine.catalog_tables import BindingInfo
from node.management import shapes
from tests.node.management.api import Api


async def test_an_exchange_is_declared_listed_and_deleted(api: Api):
    assert await api.put("exchanges/%2F/e", type="topic", durable="true") == 201
    assert await api.put("exchanges/%2F/e", type="topic", durable=True) == 204

    shown = await api.get("exchanges/%2F/e")
    assert (shown["name"], shown["type"], shown["durable"]) == ("e", "topic", True)
    assert (shown["incoming"], shown["outgoing"]) == ([], [])
    names = [each["name"] for each in await api.get("exchanges/%2F")]
    assert {"", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "e"} <= set(names)

    reply = await api.ask("PUT", "exchanges/%2F/e", {"type": "direct", "durable": True})
    assert reply.status == 400
    assert "inequivalent arg 'type' for exchange 'e' in vhost '/'" in reply.value["reason"]
    assert (await api.ask("PUT", "exchanges/%2F/x", {"type": "nope"})).status == 400
    assert (await api.ask("PUT", "exchanges/%2F/amq.x", {"type": "direct"})).status == 401
    assert (await api.get("exchanges/%2F/amq.default"))["name"] == ""
    assert await api.delete("exchanges/%2F/amq.default") == 401
    assert await api.delete("exchanges/%2F/e") == 204
    assert await api.delete("exchanges/%2F/e") == 404


async def test_a_binding_is_made_and_found_by_its_location(api: Api):
    await api.queue("q")
    await api.put("exchanges/%2F/e", type="topic")
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("a.b/c", {}),
        ("", {}),
        ("a", {"x": 1, "b": "s"}),
        ("", {"x": 1}),
        ("ä~", {}),
        ("~", {}),
    ]
    for key, arguments in wanted:
        reply = await api.post("bindings/%2F/e/e/q/q", routing_key=key, arguments=arguments)
        assert reply.status == 201
        destination, _, last = reply.headers["Location"].partition("/")
        assert destination == "q"
        shown = await api.get(f"bindings/%2F/e/e/q/q/{last}")
        assert (shown["routing_key"], shown["arguments"]) == (key, arguments)
        assert shown["properties_key"] == unquote(last)

    every = await api.get("bindings/%2F/e/e/q/q")
    assert len(every) == len(wanted)
    assert len(await api.get("queues/%2F/q/bindings")) == len(wanted) + 1
    assert await api.get("exchanges/%2F/e/bindings/source") == every
    for binding in every:  # as rabbitmqadmin does it: the key as it is shown, quoted
        key = binding["properties_key"].replace("%", "%25")
        assert await api.delete(f"bindings/%2F/e/e/q/q/{key}") == 204
    assert await api.get("bindings/%2F/e/e/q/q") == []
    assert await api.delete("bindings/%2F/e/e/q/q/~") == 404
    assert (await api.post("bindings/%2F/e/e/q/none")).status == 404


async def test_every_queue_is_bound_to_the_default_exchange(api: Api):
    await api.queue("q")

    (shown,) = await api.get("bindings/%2F/e/amq.default/q/q")

    assert (shown["source"], shown["routing_key"], shown["properties_key"]) == ("", "q", "q")
    assert await api.get("exchanges/%2F/amq.default/bindings/source") == [shown]
    assert await api.get("bindings") == [shown]
    page = await api.get("exchanges/%2F/amq.default/bindings/source?page=1&page_size=5")
    assert (page["items"], page["filtered_count"]) == ([shown], 1)
    assert (await api.post("bindings/%2F/e/amq.default/q/q", routing_key="x")).status == 401


async def test_of_bindings_only_those_on_the_page_are_shaped(
    api: Api, monkeypatch: pytest.MonkeyPatch
):
    """The default exchange has one of each queue, and the web UI asks every five seconds."""
    for number in range(6):
        await api.queue(f"q{number}")
    shaped: list[str] = []
    binding = shapes.binding

    def shape(info: BindingInfo) -> dict[str, Any]:
        shaped.append(info.destination)
        return binding(info)

    monkeypatch.setattr(shapes, "binding", shape)
    page = await api.get("exchanges/%2F/amq.default/bindings/source?page=2&page_size=2")

    assert [each["destination"] for each in page["items"]] == shaped == ["q2", "q3"]
    assert page["filtered_count"] == 6


async def test_messages_go_through_bindings_between_exchanges(api: Api):
    await api.queue("q")
    await api.put("exchanges/%2F/a", type="fanout", durable=True)
    await api.put("exchanges/%2F/b", type="headers", durable=True)
    assert (await api.post("bindings/%2F/e/a/e/b")).status == 201
    await api.post("bindings/%2F/e/b/q/q", arguments={"x-match": "all", "color": "red"})
    assert len(await api.get("exchanges/%2F/b/bindings/destination")) == 1

    assert await api.publish("k", "1", exchange="a", headers={"color": "red"})
    assert not await api.publish("k", "2", exchange="a", headers={"color": "blue"})
    assert [each["payload"] for each in await api.take("q", 5)] == ["1"]


async def test_a_virtual_host_has_a_life(api: Api):
    assert await api.put("vhosts/v%2F1", description="d", tags="a,b") == 201
    assert await api.put("vhosts/v%2F1", tags=["c"]) == 204
    shown = await api.get("vhosts/v%2F1")
    assert (shown["name"], shown["description"], shown["tags"]) == ("v/1", "d", ["c"])
    assert shown["cluster_state"] == {"n1": "running"}

    await api.queue("q", vhost="v/1")
    assert [each["name"] for each in await api.get("queues/v%2F1")] == ["q"]
    assert [each["name"] for each in await api.get("vhosts")] == ["/", "v/1"]
    assert (await api.get("vhosts/v%2F1/permissions"))[0]["user"] == "guest"

    assert await api.delete("vhosts/v%2F1") == 204
    assert (await api.ask("GET", "queues/v%2F1")).status == 404
    assert await api.delete("vhosts/v%2F1") == 404


async def test_users_and_what_they_may_do(api: Api):
    assert await api.put("users/ann", password="secret", tags="management") == 201
    assert await api.put("users/ben", password="b", tags=["monitoring"]) == 201
    assert await api.put("users/eve", password="e", tags="") == 201
    assert (await api.ask("PUT", "users/x", {"password": "p"})).value["reason"] == (
        "tags_not_present"
    )
    assert {each["name"] for each in await api.get("users/without-permissions")} == {
        "ann",
        "ben",
        "eve",
    }
    path = "permissions/%2F/ann"
    assert await api.put(path, configure="^ann", write=".*", read="") == 201
    assert (await api.get(path))["configure"] == "^ann"
    assert await api.get("users/ann/permissions") == [await api.get(path)]
    assert (await api.ask("PUT", path, {"configure": ".*", "write": ".*"})).status == 400
    assert (await api.ask("PUT", path, {"configure": ".*", "write": "[", "read": ""})).status == 400
    await api.put("topic-permissions/%2F/ann", exchange="amq.topic", write="^a", read="^a")
    assert len(await api.get("topic-permissions/%2F/ann")) == 1

    ann, ben, eve = api.as_user("ann", "secret"), api.as_user("ben", "b"), api.as_user("eve", "e")
    assert await ann.get("whoami") == {"name": "ann", "tags": ["management"]}
    assert await ann.queue("ann-1") == 201
    assert (await ann.ask("PUT", "queues/%2F/other", {"durable": True})).status == 401
    assert (await ann.ask("GET", "users")).status == 401
    assert (await ann.ask("PUT", "policies/%2F/p", {})).status == 401
    assert (
        await ann.post("queues/%2F/ann-1/get", count=1, ackmode="ack_requeue_true", encoding="auto")
    ).status == 401
    await api.put("vhosts/hidden")
    assert [each["name"] for each in await ann.get("vhosts")] == ["/"]
    assert (await ann.ask("GET", "queues/hidden")).status == 401
    assert [each["name"] for each in await ben.get("vhosts")] == ["/", "hidden"]
    assert len(await ben.get("nodes")) == 1
    assert (await ann.ask("GET", "nodes")).status == 401
    assert (await eve.ask("GET", "whoami")).status == 401
    assert (await api.as_user("ann", "wrong").ask("GET", "whoami")).status == 401
    nobody = await api.ask("GET", "whoami", auth=False)
    assert (nobody.status, nobody.value["error"]) == (401, "not_authorised")
    assert nobody.headers["WWW-Authenticate"].startswith("Basic ")

    assert await api.delete("permissions/%2F/ann") == 204
    assert await api.delete("users/ann") == 204
    assert await api.delete("users/ann") == 404
    reply = await api.post("users/bulk-delete", users=["ben", "eve"])
    assert reply.status == 204
    assert [each["name"] for each in await api.get("users")] == ["guest"]


async def test_policies_parameters_and_limits(api: Api):
    body = {"pattern": "^q", "definition": {"max-length": 3}, "apply_to": "queues"}
    assert await api.put("policies/%2F/p", **body) == 201
    assert await api.put("policies/%2F/p", **body) == 204
    assert await api.get("policies/%2F/p") == {
        "vhost": "/",
        "name": "p",
        "pattern": "^q",
        "apply-to": "queues",
        "definition": {"max-length": 3},
        "priority": 0,
    }
    bad = {"pattern": "^q", "definition": {"nope": 1}}
    assert (await api.ask("PUT", "policies/%2F/x", bad)).status == 400
    assert (await api.ask("PUT", "policies/%2F/x", {"pattern": "q"})).value["reason"] == (
        "[{key_missing,definition}]"
    )
    assert await api.delete("policies/%2F/p") == 204

    assert await api.put("global-parameters/g", value=[1, "two"]) == 201
    assert await api.get("global-parameters/g") == {"name": "g", "value": [1, "two"]}
    assert await api.put("cluster-name", name="ours") == 204
    assert await api.get("cluster-name") == {"name": "ours"}

    assert await api.put("vhost-limits/%2F/max-queues", value="1") == 204
    assert await api.get("vhost-limits") == [{"vhost": "/", "value": {"max-queues": 1}}]
    await api.queue("one")
    assert (await api.ask("PUT", "queues/%2F/two", {"durable": True})).status == 400
    assert (await api.ask("PUT", "vhost-limits/%2F/nope", {"value": 1})).status == 400
    assert await api.delete("vhost-limits/%2F/max-queues") == 204
    assert await api.put("user-limits/guest/max-channels", value=10) == 204
    assert (await api.get("users/guest"))["limits"] == {"max-channels": 10}
    assert await api.get("user-limits/guest") == [{"user": "guest", "value": {"max-channels": 10}}]


async def test_definitions_come_back_as_they_went(api: Api):
    await api.put("vhosts/v", description="a vhost")
    await api.put("users/ann", password="secret", tags="management")
    await api.put("permissions/v/ann", configure=".*", write=".*", read=".*")
    await api.put("topic-permissions/v/ann", exchange="amq.topic", write="^a", read="^b")
    await api.put("policies/v/p", pattern=".*", definition={"max-length": 9})
    await api.put("operator-policies/v/o", pattern=".*", definition={"max-length": 8})
    await api.put("vhost-limits/v/max-queues", value=50)
    await api.put("global-parameters/g", value=2)
    await api.put("exchanges/v/e", type="topic", durable=True)
    await api.put("exchanges/v/f", type="fanout", durable=True)
    await api.queue("q", vhost="v", max_length=5)
    await api.post("bindings/v/e/e/q/q", routing_key="a.*")
    await api.post("bindings/v/e/f/e/e", arguments={"x": 1})
    whole, one = await api.get("definitions"), await api.get("definitions/v")

    assert (await api.post("definitions", **whole)).status == 204
    assert await api.get("definitions") == whole
    await api.delete("vhosts/v")
    await api.delete("users/ann")
    assert (await api.post("definitions", **whole)).status == 204
    assert await api.get("definitions") == whole
    assert await api.as_user("ann", "secret").get("queues/v") != []

    await api.put("vhosts/w")
    assert (await api.post("definitions/w", **one)).status == 204
    assert await api.get("definitions/w") == one

    bad = await api.post("definitions", queues=[{"name": "q", "vhost": "nowhere"}])
    assert bad.status == 400
    assert bad.value["reason"].startswith("queues 'q': ")
    assert (await api.ask("POST", "definitions", b"{")).value["reason"] == "not_json"


async def test_a_password_hash_that_cannot_be_one_is_refused(api: Api):
    for given in (
        {"password_hash": "secret"},
        {"password_hash": "c2VjcmV0"},
        {
            "password_hash": "56Eg5N6ogNR8LbQjCShUS05hhkcuGTEX3eTcRpVyYrZCiO6F",
            "hashing_algorithm": "rabbit_password_hashing_sha512",
        },
    ):
        put = await api.ask("PUT", "users/u9", {"tags": "", **given})
        assert (put.status, put.value["error"]) == (400, "bad_request")
        assert put.value["reason"].startswith("password_hash is no hash of rabbit_password")
        user: dict[str, Any] = {"name": "u9", "tags": [], **given}
        imported = await api.post("definitions", users=[user])
        assert imported.status == 400
        assert imported.value["reason"].startswith("users 'u9': password_hash is no hash")
    assert (await api.ask("GET", "users/u9")).status == 404


async def test_a_definitions_file_of_rabbitmq_is_taken(api: Api):
    """The salted hash of 'p', as RabbitMQ exports users."""
    taken = await api.post(
        "definitions",
        rabbit_version="3.10.8",
        users=[
            {
                "name": "u1",
                "password_hash": "56Eg5N6ogNR8LbQjCShUS05hhkcuGTEX3eTcRpVyYrZCiO6F",
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": ["administrator"],
                "limits": {"max-channels": 10},
            }
        ],
        vhosts=[{"name": "/"}],
        queues=[{"name": "q", "vhost": "/", "durable": True, "auto_delete": False}],
        policies=[
            {
                "vhost": "/",
                "name": "p",
                "pattern": "^q",
                "apply-to": "queues",
                "definition": {"queue-mode": "lazy"},
                "priority": 0,
            }
        ],
    )

    assert taken.status == 204
    assert (await api.as_user("u1", "p").get("users/u1"))["limits"] == {"max-channels": 10}
