"""What needs attention: found in what nodes tell, and on nodes that have such troubles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.management import attention
from node.management.attention import QueueSeen, Seen, examine
from node.management.diagnosis import Finding as Reason
from tests.node.management.api import api_of
from tests.node.nodes import Nodes, until

GIB = 1 << 30
NODES = ("a", "b", "c")


def node(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "running": True,
        "copies": 3,
        "mem_used": GIB,
        "mem_limit": 4 * GIB,
        "mem_alarm": False,
        "disk_free": 80 * GIB,
        "disk_free_limit": GIB,
        "disk_free_alarm": False,
        "fd_used": 30,
        "fd_total": 20_000,
        "sockets_used": 3,
        "sockets_total": 10_000,
        **changed,
    }


def group(name: str, leader: str | None, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "leader": leader,
        "voters": [*NODES],
        "members": [*NODES],
        "wanted": 3,
        "lag": dict.fromkeys(NODES, 0),
        **changed,
    }


CALM = Seen(
    nodes=[node(name) for name in NODES],
    groups=[group("catalog", "a"), group("default-1", "b"), group("default-2", "c")],
    copies={"default-1": {name: {"poisoned": None, "diverged": False} for name in NODES}},
    versions={
        "machine_version": 5,
        "possible": 5,
        "held_at": None,
        "nodes": [{"name": name, "newest": 5} for name in NODES],
    },
    shovels=[{"name": "north", "vhost": "/", "state": "running"}],
    federation=[{"type": "exchange", "exchange": "x", "status": "running"}],
)


PAUSED = Reason("paused", "it is paused.", "resume it")


def changed(**fields: Any) -> Seen:
    return replace(CALM, **fields)


def with_node(**fields: Any) -> Seen:
    return changed(nodes=[*CALM.nodes[:2], node("c", **fields)])


def with_group(**fields: Any) -> Seen:
    return changed(groups=[*CALM.groups[:2], group("default-2", **{"leader": "c", **fields})])


def with_upgrade(**fields: Any) -> Seen:
    assert CALM.versions is not None
    return changed(versions={**CALM.versions, **fields})


def test_a_calm_cluster_has_nothing():
    assert [*examine(CALM)] == []
    assert [*examine(changed(versions=None, copies={}))] == []


def test_a_target_that_refuses_dead_letters_is_named_with_the_reason():
    letters = {"vhost": "v", "name": "q", "count": 1_200, "target": "dead", "reason": "is full"}
    seen = changed(copies={"default-1": {"a": {"refused_dead_letters": [letters]}}})

    (finding,) = examine(seen)

    assert finding.level == "problem"
    assert finding.what == "dead letters of queue v:q wait, 1,200 in all: target v:dead is full"
    assert finding.next.startswith("consume from dead, or raise its limit")
    assert finding.about == ("queues", "v", "q")


def with_waiting(**given: Any) -> Seen:
    letters = {"vhost": "v", "name": "q", "count": 2, "exchange": "dlx", "key": "k", **given}
    return changed(copies={"default-1": {"a": {"waiting_dead_letters": [letters]}}})


@pytest.mark.parametrize(
    ("exchange", "words"),
    [("dlx", "bind a queue to exchange dlx for key k,"), ("", "declare queue k,")],
)
def test_what_waits_for_a_queue_says_for_which(exchange: str, words: str):
    (finding,) = examine(with_waiting(exchange=exchange))
    assert finding.next.startswith(words)
    assert finding.about == ("queues", "v", "q")


@pytest.mark.parametrize(
    ("seen", "level", "words"),
    [
        (with_node(running=False), "problem", "node c is down"),
        (with_node(mem_alarm=True, mem_used=5 * GIB), "problem", "node c is short of memory"),
        (with_node(disk_free_alarm=True, disk_free=1), "problem", "node c is short of disk"),
        (with_node(mem_used=3.5 * GIB), "warning", "node c has 88% of the memory"),
        (with_node(fd_used=18_000), "warning", "node c has 90% of the file descriptors"),
        (with_node(sockets_used=9_999), "warning", "node c has 100% of the connections"),
        (with_node(disk_free=1.5 * GIB), "warning", "node c has 1,611 MB of disk left"),
        (with_group(leader=None), "problem", "1 group (default-2) without a leader"),
        (with_group(voters=["a", "b"]), "warning", "1 group (default-2) with fewer copies"),
        (with_group(lag={"a": 20_000, "b": None}), "warning", "node a is 20,000 entries behind"),
        (
            changed(copies={"default-1": {"b": {"poisoned": None, "diverged": True}}}),
            "problem",
            "the copy of group default-1 on node b is of no use: it differs",
        ),
        (
            changed(
                copies={
                    "default-1": {n: {"lost_queues": [{"vhost": "v", "name": "q"}]} for n in "ba"}
                }
            ),
            "problem",
            "group default-1 has queue v:q, which the catalog lost",
        ),
        (
            changed(
                copies={
                    "default-1": {
                        "a": {
                            "unreadable_dead_letters": [{"vhost": "v", "name": "q", "count": 1200}]
                        }
                    }
                }
            ),
            "problem",
            "node a cannot read 1,200 dead letters of queue v:q",
        ),
        (with_waiting(count=1200), "problem", "1,200 dead letters of queue v:q wait: no queue"),
        (
            with_waiting(count=1),
            "problem",
            "1 dead letter of queue v:q waits, since no queue takes",
        ),
        (with_node(copies=0), "warning", "1 node (c) without a copy of any group"),
        (
            with_upgrade(nodes=[{"name": "a", "newest": 5}, {"name": "b", "newest": 6}]),
            "warning",
            "nodes of different releases run together (a 5, b 6)",
        ),
        (with_upgrade(possible=6), "warning", "all nodes can run version 6, the cluster is at 5"),
        (with_upgrade(possible=6, held_at=5), "warning", "where it is held"),
        (
            changed(
                shovels=[
                    {"name": "north", "vhost": "/", "state": "starting", "reason": "no such queue"}
                ]
            ),
            "warning",
            "shovel north: no such queue",
        ),
        (
            changed(federation=[{"type": "queue", "queue": "q", "status": "error", "error": "no"}]),
            "warning",
            "federation link of queue q: no",
        ),
        (with_node(being_drained=True), "warning", "node c is drained"),
        (
            with_group(moving=True, voters=["a", "b"]),
            "warning",
            "1 group (default-2) on the move",
        ),
        (
            changed(certificates={"a": [{"cert": "a.pem", "not_valid_after": "2026-12-01"}]}),
            "warning",
            "node a: certificate a.pem ends soon",
        ),
        (
            changed(queues=[QueueSeen("/", "jobs", 11_000, None, [PAUSED])]),
            "warning",
            "queue jobs: it is paused.",
        ),
        (
            changed(queues=[QueueSeen("v", "jobs", 7_200_000, 60_000)]),
            "problem",
            "queue v:jobs: its oldest message has waited for 2 h; 60 s is its limit",
        ),
    ],
)
def test_each_trouble_is_found_alone(seen: Seen, level: str, words: str):
    (found,) = examine(seen)

    assert found.level == level
    assert words in found.what
    assert found.next


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "a cluster of 1 node survives the loss of 0; one of 3 survives the loss of 1"),
        (2, "a cluster of 2 nodes survives the loss of 0; one of 3 survives the loss of 1"),
        (4, "a cluster of 4 nodes survives the loss of 1; one of 5 survives the loss of 2"),
    ],
)
def test_a_size_that_bears_less_than_it_could_is_named(count: int, words: str):
    (found,) = examine(changed(nodes=[node(str(n)) for n in range(count)], groups=[]))

    assert found.what == words


def test_what_follows_from_a_node_that_is_down_is_not_named():
    seen = with_node(running=False, mem_alarm=True, disk_free=0)
    lags = {"a": 0, "b": 0, "c": 50_000}

    (found,) = examine(replace(seen, groups=[group("catalog", "a", lag=lags)]))

    assert found.what == "node c is down"


# --- on real nodes --------------------------------------------------------------------------------


def whats(found: dict[str, Any], *about: str) -> list[str]:
    """Of the findings on this page."""
    return [each["what"] for each in found["findings"] if tuple(each["about"]) == about]


async def test_a_queue_whose_messages_wait_is_named_with_the_reason_and_a_stream_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention, "WAITED_MS", 0)
    async with Nodes(tmp_path, nats="127.0.0.1:0") as nodes:
        api = api_of(nodes.one)
        for name in ("waits", "late", "empty"):
            await api.queue(name, **({"slo_oldest_age": 1} if name == "late" else {}))
        body = {"subjects": ["s.*"]}
        assert (await api.ask("PUT", "streams/%2F/S", body)).status == 201
        await api.publish("S", "m")
        for name in ("waits", "late"):
            await api.publish(name, "m")

        async def seen() -> bool:
            found = await api.get("attention")
            late = whats(found, "queues", "/", "late")
            return len(late) == 2 and len(whats(found, "queues", "/", "waits")) == 1

        await until(seen)
        found = await api.get("attention")

        assert found["queues"] == 3
        [waits] = whats(found, "queues", "/", "waits")
        assert "nobody" in waits or "no consumer" in waits
        assert found["findings"][0]["level"] == "problem"
        assert "its oldest message has waited" in found["findings"][0]["what"]
        assert not whats(found, "queues", "/", "S")


async def test_who_may_not_monitor_is_told_of_the_queues_that_it_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention, "WAITED_MS", 0)
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.put("vhosts/dark")
        for vhost in ("/", "dark"):
            await api.queue("q", vhost)
        await api.publish("q", "m")
        message = {"routing_key": "q", "payload": "m", "payload_encoding": "string"}
        await api.post("exchanges/dark/amq.default/publish", **message, properties={})
        await api.put("users/one", password="secret", tags="management")
        await api.put("permissions/%2F/one", configure=".*", write=".*", read=".*")
        one = api.as_user("one", "secret")

        async def seen() -> bool:
            return bool((await one.get("attention"))["findings"])

        await until(seen)
        found = await one.get("attention")

        assert (found["nodes"], found["groups"], found["queues"]) == (0, 0, 1)
        assert {tuple(each["about"]) for each in found["findings"]} == {("queues", "/", "q")}


async def test_a_link_that_fails_is_named_with_why(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("from")
        nowhere = "amqp://guest:guest@127.0.0.1:1"
        value = {"src-uri": nowhere, "src-queue": "from", "dest-uri": nowhere, "dest-queue": "to"}
        await api.put("parameters/shovel/%2F/north", value=value)

        async def seen() -> bool:
            return bool(whats(await api.get("attention"), "links"))

        await until(seen)

        [what] = whats(await api.get("attention"), "links")
        assert what.startswith("shovel north: ")
