"""What users may do through the management API: no more than over AMQP, and by their tags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from tests.node.management.api import Api

EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@pytest.fixture
def user(api: Api) -> Callable[..., Any]:
    async def made(name: str, tags: str, vhost: str | None = "%2F", **permissions: str) -> Api:
        await api.put(f"users/{name}", password="secret", tags=tags)
        if vhost is not None:
            await api.put(f"permissions/{vhost}/{name}", **{**EVERYTHING, **permissions})
        return api.as_user(name, "secret")

    return made


async def test_who_has_no_tag_has_no_management(api: Api, user: Any):
    none = await user("none", "")
    assert (await none.ask("GET", "whoami")).status == 401
    assert (await none.ask("GET", "queues")).status == 401


async def test_monitoring_sees_everything_and_changes_nothing(api: Api, user: Any):
    watcher = await user("watcher", "monitoring", None)
    await api.queue("q")
    assert len(await watcher.get("queues/%2F")) == 1

    forbidden: list[tuple[str, str, Any]] = [
        ("PUT", "queues/%2F/other", {"durable": True}),
        ("DELETE", "queues/%2F/q", None),
        ("DELETE", "queues/%2F/q/contents", None),
        ("PUT", "policies/%2F/p", {"pattern": ".*", "definition": {"max-length": 1}}),
        ("PUT", "vhosts/other", {}),
        ("PUT", "users/other", {"tags": "", "password": "x"}),
        ("PUT", "users/watcher", {"tags": "administrator", "password": "secret"}),
        ("POST", "definitions", {"queues": []}),
        ("GET", "definitions", None),
        ("GET", "users", None),
    ]
    for method, path, body in forbidden:
        assert (await watcher.ask(method, path, body)).status == 401, path


async def test_a_policymaker_stays_in_the_vhosts_it_may_enter(api: Api, user: Any):
    await api.put("vhosts/dark%2F%25")
    maker = await user("maker", "policymaker,monitoring")
    policy = {"pattern": ".*", "definition": {"max-length": 1}}

    assert (await maker.ask("PUT", "policies/%2F/p", policy)).status == 201
    assert (await maker.ask("PUT", "policies/dark%2F%25/p", policy)).status == 401
    assert (await maker.ask("DELETE", "policies/dark%2F%25/p")).status == 401
    assert (await maker.ask("PUT", "operator-policies/%2F/p", policy)).status == 401
    assert (await api.ask("PUT", "policies/dark%2F%25/p", policy)).status == 201


@pytest.mark.parametrize("component", ["policy", "operator_policy", "vhost-limits"])
async def test_no_parameter_is_taken_for_what_has_rights_of_its_own(api: Api, component: str):
    reply = await api.ask("PUT", f"parameters/{component}/%2F/x", {"value": {"max-queues": 1}})
    assert (reply.status, reply.value["reason"]) == (
        400,
        f"{component} may not be set using this method",
    )


async def test_what_goes_on_to_an_exchange_needs_write_there(api: Api, user: Any):
    ann = await user("ann", "management", write="^(ann|mine)")
    letters = {"durable": True, "arguments": {"x-dead-letter-exchange": "amq.fanout"}}
    alternate = {"type": "fanout", "arguments": {"alternate-exchange": "amq.fanout"}}

    assert (await ann.ask("PUT", "queues/%2F/ann", letters)).status == 401
    assert (await ann.ask("PUT", "exchanges/%2F/mine", alternate)).status == 401
    assert (await ann.ask("PUT", "queues/%2F/ann", {"durable": True})).status == 201


async def test_a_binding_to_a_topic_needs_its_key(api: Api, user: Any):
    ann = await user("ann", "management")
    await api.queue("q")
    topic = {"exchange": "amq.topic", "write": "", "read": "^ann\\."}
    await api.put("topic-permissions/%2F/ann", **topic)
    ends = "bindings/%2F/e/amq.topic/q/q"

    assert (await ann.ask("POST", ends, {"routing_key": "bob.x"})).status == 401
    assert (await ann.ask("POST", ends, {"routing_key": "ann.x"})).status == 201


async def test_nobody_publishes_in_the_name_of_another(api: Api, user: Any):
    ann = await user("ann", "management")
    await api.queue("q")
    message = {"routing_key": "q", "payload": "x", "payload_encoding": "string"}
    path = "exchanges/%2F/amq.default/publish"

    reply = await ann.ask("POST", path, {**message, "properties": {"user_id": "guest"}})
    assert (reply.status, reply.value["reason"]) == (
        400,
        "user_id property set to 'guest' but authenticated user was 'ann'",
    )
    assert (
        await ann.ask("POST", path, {**message, "properties": {"user_id": "ann"}})
    ).status == 200


async def test_who_changed_what_is_logged_once_and_without_secrets(api: Api):
    structlog.reset_defaults()
    with capture_logs() as logs:
        await api.put("users/a%20b", password="hunter2", tags="")
        await api.get("users")
        assert (await api.ask("PUT", "users/c", {"password": "hunter2"})).status == 400

    told = [entry for entry in logs if entry["event"] == "audit"]
    act = {
        "event": "audit",
        "log_level": "info",
        "who": "guest",
        "from": "127.0.0.1",
        "what": "PUT users/{user}",
    }
    assert told == [
        {**act, "target": "/api/users/a%20b", "outcome": "ok"},
        {**act, "target": "/api/users/c", "outcome": "refused", "reason": "tags_not_present"},
    ]
    assert "hunter2" not in str(logs)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "policies/%2F/p", {"pattern": "(a+)+$", "definition": {"max-length": 1}}),
        ("PUT", "permissions/%2F/guest", {**EVERYTHING, "read": "(a+)+$"}),
        (
            "PUT",
            "topic-permissions/%2F/guest",
            {"exchange": "amq.topic", "write": "(a+)+$", "read": ""},
        ),
        ("GET", "queues?page=1&use_regex=true&name=(a%2B)%2B$", None),
    ],
)
async def test_no_pattern_may_hold_a_node(api: Api, method: str, path: str, body: Any):
    reply = await api.ask(method, path, body)
    assert reply.status == 400
    assert "too long to match" in reply.value["reason"]
