"""Definitions: an import is done as a whole or not at all, and says what was wrong with which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.members import maintenance
from node.management import definitions
from tests.cluster.world import delete_half
from tests.node.management.api import Api, Reply, api_of
from tests.node.nodes import Nodes, machine_of

Json = dict[str, Any]

#: What RabbitMQ 3.13 exports of a cluster with mirrors, a stream and a plugin, cut down.
RABBITMQ: Json = {
    "rabbit_version": "3.13.7",
    "rabbitmq_version": "3.13.7",
    "product_name": "RabbitMQ",
    "users": [
        {
            "name": "u1",
            "password_hash": "56Eg5N6ogNR8LbQjCShUS05hhkcuGTEX3eTcRpVyYrZCiO6F",
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": ["administrator"],
            "limits": {},
        }
    ],
    "vhosts": [{"name": "/"}, {"name": "shop", "default_queue_type": "stream"}],
    "permissions": [
        {"user": "u1", "vhost": "shop", "configure": ".*", "write": ".*", "read": ".*"}
    ],
    "parameters": [{"component": "plugin", "vhost": "shop", "name": "away", "value": {"a": 1}}],
    "policies": [
        {
            "vhost": "shop",
            "name": "ha",
            "pattern": "^ha",
            "apply-to": "queues",
            "definition": {"ha-mode": "all", "max-length": 7},
            "priority": 0,
        }
    ],
    "queues": [
        {
            "name": "orders",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "type": "quorum",
            "arguments": {"x-queue-type": "quorum"},
        },
        {
            "name": "events",
            "vhost": "shop",
            "durable": True,
            "auto_delete": False,
            "type": "stream",
            "arguments": {"x-queue-type": "stream", "x-max-age": "7D"},
        },
    ],
    "exchanges": [
        {"name": "late", "vhost": "shop", "type": "x-nobody-knows", "durable": True},
        {"name": "logs", "vhost": "shop", "type": "topic", "durable": True},
    ],
    "bindings": [
        {
            "source": "logs",
            "vhost": "shop",
            "destination": name,
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
        }
        for name in ("orders", "events")
    ],
}


def rows(reply: Reply) -> dict[tuple[str, str], tuple[str, str]]:
    """Of the report: what became of each, by section and name."""
    return {
        (row["section"], row["name"]): (row["outcome"], row["reason"])
        for row in reply.value["report"]
    }


async def test_one_bad_object_leaves_all_undone(api: Api):
    before = await api.get("definitions")
    reply = await api.post(
        "definitions",
        vhosts=[{"name": "v"}],
        users=[{"name": "u", "tags": "", "password": "p"}],
        queues=[
            {"name": "good", "vhost": "v", "durable": True},
            {"name": "bad", "vhost": "v", "durable": True, "arguments": {"x-max-length": -1}},
            {"name": "lost", "vhost": "nowhere", "durable": True},
        ],
        permissions=[{"user": "nobody", "vhost": "v", "configure": "", "write": "", "read": ""}],
    )

    assert (reply.status, reply.value["error"]) == (400, "bad_request")
    assert reply.value["reason"].startswith("permissions 'nobody': no user 'nobody'")
    assert "nothing was imported" in reply.value["reason"]
    found = rows(reply)
    assert {at: outcome for at, (outcome, _) in found.items()} == {
        ("permissions", "nobody"): "refused",
        ("queues", "bad"): "refused",
        ("queues", "lost"): "refused",
    }
    assert "x-max-length" in found["queues", "bad"][1]
    assert await api.get("definitions") == before


async def test_what_rabbitmq_has_and_we_have_not_is_named_one_by_one(api: Api):
    before = await api.get("definitions")

    reply = await api.post("definitions", **RABBITMQ)

    assert reply.status == 400
    found = rows(reply)
    assert {at for at, (outcome, _) in found.items() if outcome == "unsupported"} == {
        ("vhosts", "shop"),
        ("parameters", "away"),
        ("policies", "ha"),
        ("exchanges", "late"),
    }
    assert len(found) == 4
    assert "skip=unsupported" in reply.value["reason"]
    assert await api.get("definitions") == before


async def test_a_stream_of_rabbitmq_is_a_stream_here(api: Api):
    stream = {
        "name": "events",
        "vhost": "/",
        "durable": True,
        "type": "stream",
        "arguments": {"x-queue-type": "stream", "x-max-age": "7D", "x-max-length-bytes": 1_000_000},
    }
    assert (await api.post("definitions", queues=[stream])).status == 204

    about = await api.get("queues/%2F/events")
    assert about["type"] == "stream"
    assert about["arguments"] == stream["arguments"]  # Terraform makes anew what has others
    config = (await api.get("streams/%2F/events"))["config"]
    assert config["max_age"] == 7 * 86_400 * 10**9
    assert config["max_bytes"] == 1_000_000
    exported = await api.get("definitions")
    # Again, as RabbitMQ exports it and as we do: the same stream.
    assert (await api.post("definitions", queues=[stream])).status == 204
    assert (await api.post("definitions", **exported)).status == 204
    assert await api.get("definitions") == exported
    other = {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "8D"}}
    reply = await api.ask("PUT", "queues/%2F/events", other)
    assert reply.status == 400
    assert "inequivalent arg 'x-max-age'" in reply.value["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-max-age": "soon"}, "invalid arg 'x-max-age'"),
        ({"x-max-priority": 5}, "invalid arg 'x-max-priority'"),
    ],
)
async def test_what_a_stream_cannot_have_is_named(api: Api, arguments: dict[str, Any], words: str):
    declared = {"durable": True, "arguments": {"x-queue-type": "stream", **arguments}}

    reply = await api.ask("PUT", "queues/%2F/s", declared)

    assert reply.status == 400
    assert words in reply.value["reason"]


async def test_streams_that_follow_each_other_in_a_circle_are_refused(api: Api):
    """Whoever declares them by JetStream is, and what is stored once would be for ever."""
    ring = [("a", "c"), ("b", "a"), ("c", "b"), ("d", "a")]
    streams = [
        {
            "name": name,
            "vhost": "/",
            "durable": True,
            "arguments": {
                "x-queue-type": "stream",
                "x-stream": {"name": name, "sources": [{"name": other}]},
            },
        }
        for name, other in ring
    ]
    reply = await api.post("definitions", queues=streams)

    assert reply.status == 400
    assert rows(reply) == {
        ("queues", "c"): (
            "refused",
            "invalid arg 'x-stream' for queue 'c' in vhost '/': detected cycle",
        )
    }
    assert (await api.post("definitions", queues=streams[:2] + streams[3:])).status == 204


OLD = {"x-queue-type": "quorum", "x-queue-mode": "lazy", "x-max-age": "7D"}


@pytest.mark.parametrize("arguments", [OLD, {**OLD, "x-queue-type": "classic"}])
async def test_what_says_nothing_about_a_queue_is_imported_and_named(
    api: Api, arguments: dict[str, Any]
):
    """Releases of RabbitMQ differ in what they keep, so exports may hold it: and clients that go
    on to declare it find what they declared.
    """
    old = {"name": "q", "vhost": "/", "durable": True, "arguments": arguments}

    reply = await api.post("definitions", queues=[old])

    assert (reply.status, reply.value["imported"]) == (200, 1)
    outcome, reason = rows(reply)["queues", "q"]
    kind = arguments["x-queue-type"]
    assert outcome == "without_effect"
    assert f"'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue" in reason
    assert ("x-queue-mode" in reason) == (kind == "quorum")
    assert (await api.get("queues/%2F/q"))["arguments"] == arguments
    assert (await api.post("definitions", queues=[old])).status == 204
    assert (await api.ask("PUT", "queues/%2F/q", old)).status == 204
    new = await api.ask("PUT", "queues/%2F/new", {"durable": True, "arguments": arguments})
    assert new.status == 400
    assert f"of queue type rabbit_{kind}_queue" in new.value["reason"]


async def test_of_a_stream_only_what_it_cannot_have_is_left_out(api: Api):
    """RabbitMQ 3.9 took such."""
    old = {
        "name": "s",
        "vhost": "/",
        "durable": True,
        "type": "stream",
        "arguments": {"x-max-length": 5},
    }
    reply = await api.post("definitions", queues=[old])
    assert (reply.status, rows(reply)["queues", "s"][0]) == (400, "unsupported")

    reply = await api.ask("POST", "definitions?skip=unsupported", {"queues": [old]})

    assert (reply.status, rows(reply)["queues", "s"][0]) == (200, "left_out")
    assert (await api.get("queues/%2F/s"))["arguments"] == {"x-queue-type": "stream"}


async def test_it_is_left_out_when_that_is_asked_for(api: Api):
    reply = await api.ask("POST", "definitions?skip=unsupported", RABBITMQ)

    assert reply.status == 200
    assert reply.value["imported"] == 9
    assert {outcome for outcome, _ in rows(reply).values()} == {"left_out"}
    assert len(reply.value["report"]) == 4
    assert [each["name"] for each in await api.get("queues/shop")] == ["orders", "events"]
    assert (await api.get("policies/shop/ha"))["definition"] == {"max-length": 7}
    bindings = await api.get("bindings/shop/e/logs/q/orders")
    assert [each["routing_key"] for each in bindings] == ["#"]
    assert (await api.get("vhosts/shop"))["default_queue_type"] == "undefined"
    assert (await api.as_user("u1", "p").get("whoami"))["name"] == "u1"

    again = await api.ask("POST", "definitions?skip=unsupported", RABBITMQ)
    assert (again.status, again.value["imported"]) == (200, 0)
    wrong = await api.ask("POST", "definitions?skip=all", RABBITMQ)
    assert (wrong.status, wrong.value["reason"]) == (400, "skip may be unsupported")


async def test_what_is_wrong_is_not_skipped(api: Api):
    bad = {**RABBITMQ, "queues": [{"name": "q", "vhost": "no"}]}
    reply = await api.ask("POST", "definitions?skip=unsupported", bad)
    assert reply.status == 400
    assert rows(reply)["queues", "q"][0] == "refused"
    assert [each["name"] for each in await api.get("vhosts")] == ["/"]


async def test_a_limit_in_it_holds_for_its_queues(api: Api):
    limit = {"component": "vhost-limits", "vhost": "/", "name": "limits"}
    queues = [{"name": name, "vhost": "/", "durable": True} for name in "abc"]

    reply = await api.post(
        "definitions", parameters=[{**limit, "value": {"max-queues": 2}}], queues=queues
    )

    assert reply.status == 400
    assert [row["name"] for row in reply.value["report"]] == ["c"]
    assert await api.get("queues") == []
    assert await api.get("vhost-limits") == []


async def test_what_is_there_stays_and_repeating_changes_nothing(api: Api):
    await api.queue("q", max_length=5)
    await api.publish("q", "kept")
    other = {"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 9}}

    for _ in range(2):
        assert (await api.post("definitions", queues=[other])).status == 204

    (shown,) = await api.get("queues")
    assert shown["arguments"]["x-max-length"] == 5
    assert [got["payload"] for got in await api.take("q")] == ["kept"]


async def test_a_large_import_is_there_on_every_node_at_once(tmp_path: Path):
    names = [f"q{number:04}" for number in range(1_200)]
    queues = [{"name": name, "vhost": "/", "durable": True} for name in names]
    bindings: list[Json] = [
        {
            "source": "amq.topic",
            "vhost": "/",
            "destination": name,
            "destination_type": "queue",
            "routing_key": name,
            "arguments": {},
        }
        for name in names
    ]
    async with Nodes(tmp_path, count=3) as nodes:
        first, *others = [api_of(node) for node in nodes.nodes.values()]
        reply = await first.post("definitions", queues=queues, bindings=bindings)
        assert reply.status == 204
        for api in others:
            assert [each["name"] for each in await api.get("queues?columns=name")] == names
        assert await others[0].publish("q0007", "x", exchange="amq.topic")
        assert [got["payload"] for got in await others[1].take("q0007")] == ["x"]


async def test_before_the_upgrade_is_finished_it_is_done_step_by_step(
    api: Api, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(definitions, "WHOLE_SINCE", 99)
    reply = await api.ask("POST", "definitions?skip=unsupported", RABBITMQ)
    assert (reply.status, reply.value["imported"]) == (200, 9)
    assert [each["name"] for each in await api.get("queues/shop")] == ["orders", "events"]
    assert len(await api.get("bindings/shop/e/logs/q/orders")) == 1
    bad = await api.post("definitions", vhosts=[{"name": "v"}], queues=[{"name": "", "vhost": "v"}])
    assert bad.status == 400
    assert (await api.ask("GET", "vhosts/v")).status == 404


# --- as files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("redirect", [None, "../#/import-succeeded"])
async def test_a_browser_uploads_a_file(api: Api, redirect: str | None):
    form = aiohttp.FormData()
    if redirect is not None:
        form.add_field("redirect", redirect)
    form.add_field("file", b'{"vhosts": [{"name": "v"}]}', filename="rabbit.json")
    reply = await api.upload("definitions", form)

    assert (reply.status, reply.headers.get("Location")) == (
        (204, None) if redirect is None else (303, redirect)
    )
    assert [each["name"] for each in await api.get("vhosts")] == ["/", "v"]


async def test_a_form_without_a_file_is_refused(api: Api):
    form = aiohttp.FormData()
    form.add_field("other", b"{}", filename="rabbit.json")
    reply = await api.upload("definitions", form)
    assert (reply.status, reply.value["reason"]) == (400, "the form has no field named file")


# --- hashes that RabbitMQ knows -------------------------------------------------------------------


async def test_an_export_for_rabbitmq_holds_no_hash_that_it_cannot_read(api: Api):
    await api.put("users/ours", password="p", tags="")
    theirs = {"name": "theirs", **{k: v for k, v in RABBITMQ["users"][0].items() if k != "name"}}
    assert (await api.post("definitions", users=[theirs])).status == 204

    users = {each["name"]: each for each in (await api.get("definitions"))["users"]}
    assert users["ours"]["hashing_algorithm"] == "scrypt"
    shown = await api.get("definitions?hashes=rabbitmq")
    users = {each["name"]: each for each in shown["users"]}
    assert users["theirs"]["password_hash"] == theirs["password_hash"]
    for name in ("ours", "guest"):
        assert users[name]["password_hash"] == ""
        assert users[name]["hashing_algorithm"] == "rabbit_password_hashing_sha256"


async def test_passwords_are_kept_as_rabbitmq_keeps_them_where_that_is_set(tmp_path: Path):
    flags: Json = {"auth.password_hashing": "rabbitmq_sha256"}
    async with Nodes(tmp_path, **flags) as nodes:
        api = api_of(nodes.one)
        await api.put("users/ann", password="secret", tags="management")

        shown = await api.get("definitions?hashes=rabbitmq")

        (ann,) = [each for each in shown["users"] if each["name"] == "ann"]
        assert ann["hashing_algorithm"] == "rabbit_password_hashing_sha256"
        assert len(ann["password_hash"]) == 48
        assert (await api.as_user("ann", "secret").get("whoami"))["name"] == "ann"
        assert (await api.as_user("ann", "wrong").ask("GET", "whoami")).status == 401


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}])
async def test_a_deletion_that_ended_half_way_does_not_take_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Json
):
    """The group has dropped the queue; reconciliation has not come to the catalog yet."""
    queue = {"name": "q", "vhost": "/", "durable": True, "arguments": arguments}
    binding = {
        "source": "amq.fanout",
        "vhost": "/",
        "destination": "q",
        "destination_type": "queue",
        "routing_key": "",
        "arguments": {},
    }
    async with Nodes(tmp_path) as nodes:
        api, cluster = api_of(nodes.one), nodes.one.cluster
        asked = {"queues": [queue], "bindings": [binding]}
        assert (await api.ask("POST", "definitions", asked)).status < 300
        before = cluster.queue_info("/", "q")
        assert before is not None
        monkeypatch.setattr(maintenance, "commands_for", lambda *_: [])
        await delete_half(cluster)

        assert (await api.ask("POST", "definitions", asked)).status < 300

        after = cluster.queue_info("/", "q")
        assert after is not None
        assert after.queue != before.queue, "it goes as soon as the deletion is finished"
        assert machine_of(nodes, "q")[1].find(after.queue) is not None
        bound = (await api.ask("GET", "queues/%2F/q/bindings")).value
        assert "amq.fanout" in [each["source"] for each in bound]


async def test_arguments_that_are_no_object_are_named(api: Api):
    queue = {"name": "q", "vhost": "/", "durable": True, "arguments": 5}

    reply = await api.post("definitions", queues=[queue])

    assert (reply.status, reply.value["report"][0]["name"]) == (400, "q")
    assert "arguments must be an object" in reply.value["reason"]
