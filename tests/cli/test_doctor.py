"""What `quorate doctor` finds in what nodes tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quorate.cli.doctor import Seen, examine

GIB = 1 << 30
NODES = ("a", "b", "c")


def node(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "running": True,
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
    upgrade={
        "machine_version": 5,
        "possible": 5,
        "held_at": None,
        "nodes": [{"name": name, "newest": 5} for name in NODES],
    },
    links=[{"name": "north", "state": "running"}, {"exchange": "x", "status": "running"}],
)


def changed(**fields: Any) -> Seen:
    return replace(CALM, **fields)


def with_node(**fields: Any) -> Seen:
    return changed(nodes=[*CALM.nodes[:2], node("c", **fields)])


def with_group(**fields: Any) -> Seen:
    return changed(groups=[*CALM.groups[:2], group("default-2", **{"leader": "c", **fields})])


def with_upgrade(**fields: Any) -> Seen:
    assert CALM.upgrade is not None
    return changed(upgrade={**CALM.upgrade, **fields})


def test_a_calm_cluster_has_nothing():
    assert [*examine(CALM)] == []
    assert [*examine(changed(upgrade=None, links=None, copies={}))] == []


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
            changed(groups=[group(f"default-{n}", "ab"[n % 2]) for n in range(6)]),
            "warning",
            "1 node (c) leads nothing while another one leads 3 groups",
        ),
        (
            with_upgrade(nodes=[{"name": "a", "newest": 5}, {"name": "b", "newest": 6}]),
            "warning",
            "nodes of different releases run together (a 5, b 6)",
        ),
        (with_upgrade(possible=6), "warning", "all nodes can run version 6, the cluster is at 5"),
        (with_upgrade(possible=6, held_at=5), "warning", "where it is held"),
        (
            changed(links=[{"queue": "q", "status": "error", "error": "refused"}]),
            "warning",
            "the link q is error: refused",
        ),
        (
            changed(certificates=[{"node": "a", "cert": "a.pem", "not_valid_after": "2026-12-01"}]),
            "warning",
            "a: certificate a.pem ends soon",
        ),
        (
            changed(whys={"jobs": [{"sentence": "It is paused.", "next": "resume it"}]}),
            "warning",
            "queue jobs: It is paused.",
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
        (1, "a cluster of 1 node bears the loss of 0; one of 3 bears 1"),
        (2, "a cluster of 2 nodes bears the loss of 0; one of 3 bears 1"),
        (4, "a cluster of 4 nodes bears the loss of 1; one of 5 bears 2"),
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
