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


async def test_streams_are_not_what_is_declared_without_a_word(api: Api):
    reply = await api.ask("PUT", "vhosts/v", {"default_queue_type": "stream"})
    assert reply.status == 400
    assert "a stream is what a declare asks for" in reply.value["reason"]
    assert [each["name"] for each in await api.get("vhosts")] == ["/"]


async def test_a_global_parameter_is_kept_for_those_who_read_it(api: Api):
    assert await api.put("global-parameters/mine", value=[1]) == 201
