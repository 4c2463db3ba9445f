"""What RabbitMQ has and this broker has not is refused with the reason: nothing is stored that
would have no effect.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.management.api import Api

COMPONENTS = ["federation", "mine"]


@pytest.mark.parametrize("component", COMPONENTS)
async def test_a_parameter_that_nothing_reads_is_refused(api: Api, component: str):
    reply = await api.ask("PUT", f"parameters/{component}/%2F/s", {"value": {"a": 1}})

    assert (reply.status, reply.value["error"]) == (400, "bad_request")
    assert f"component {component} not found" in reply.value["reason"]
    assert await api.get("parameters") == []


MIRRORED: list[dict[str, Any]] = [
    {"ha-mode": "all"},
    {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"},
    {"max-length": 3, "ha-mode": "all"},
]


@pytest.mark.parametrize("table", ["policies", "operator-policies"])
@pytest.mark.parametrize("definition", MIRRORED, ids=",".join)
async def test_a_policy_that_asks_for_mirrors_is_refused(
    api: Api, table: str, definition: dict[str, Any]
):
    reply = await api.ask("PUT", f"{table}/%2F/p", {"pattern": ".*", "definition": definition})

    assert (reply.status, reply.value["error"]) == (400, "bad_request")
    absent = [name for name in definition if name.startswith("ha-")]
    assert all(name in reply.value["reason"] for name in absent)
    assert await api.get(table) == []


SHARDED = {"shards-per-node": 2, "routing-key": "1234"}


@pytest.mark.parametrize("table", ["policies", "operator-policies"])
@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (SHARDED, "quorate queue split"),
        ({"lvc": True}, "'lvc' is not a policy setting"),
        ({"max-length": 3, "max-lenght": 3}, "'max-lenght' is not a policy setting"),
    ],
)
async def test_a_policy_of_a_plugin_is_refused_and_says_what_to_do(
    api: Api, table: str, definition: dict[str, Any], words: str
):
    reply = await api.ask("PUT", f"{table}/%2F/p", {"pattern": ".*", "definition": definition})

    assert (reply.status, reply.value["error"]) == (400, "bad_request")
    absent = [name for name in definition if name != "max-length"]
    assert all(name in reply.value["reason"] for name in absent)
    assert words in reply.value["reason"]
    assert await api.get(table) == []


async def test_an_import_goes_without_what_plugins_read(api: Api):
    """Which RabbitMQ took, so it is no mistake: the other settings are wanted all the same."""
    policies = [
        {"vhost": "/", "name": name, "pattern": "x", "definition": definition}
        for name, definition in {
            "sharded": SHARDED,
            "last": {"lvc": True, "max-length": 7},
        }.items()
    ]
    reply = await api.post("definitions", policies=policies)
    assert reply.status == 400
    assert {row["outcome"] for row in reply.value["report"]} == {"unsupported"}

    reply = await api.ask("POST", "definitions?skip=unsupported", {"policies": policies})

    assert (reply.status, reply.value["imported"]) == (200, 1)
    assert {row["name"]: row["outcome"] for row in reply.value["report"]} == {
        "sharded": "left_out",
        "last": "left_out",
    }
    assert [(row["name"], row["definition"]) for row in await api.get("policies")] == [
        ("last", {"max-length": 7})
    ]


async def test_streams_are_not_what_is_declared_without_a_word(api: Api):
    reply = await api.ask("PUT", "vhosts/v", {"default_queue_type": "stream"})
    assert reply.status == 400
    assert "a stream is what a declare asks for" in reply.value["reason"]
    assert [each["name"] for each in await api.get("vhosts")] == ["/"]


async def test_a_global_parameter_is_kept_for_those_who_read_it(api: Api):
    assert await api.put("global-parameters/mine", value=[1]) == 201
