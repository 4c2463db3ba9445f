"""The overview, nodes, health checks, and what is always the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.management import observer
from node.management.host import CPU, MEASURED, USED
from quorate.ports import free_port
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until


async def test_the_overview_counts_what_there_is(api: Api):
    await api.queue("q")
    await api.publish("q", "x")

    shown = await api.get("overview")

    assert (shown["product_name"], shown["node"]) == ("Quorate", "n1")
    assert shown["cluster_name"] == "test"
    assert shown["rabbitmq_version"].startswith("3.")
    assert shown["queue_totals"]["messages"] == 1
    assert shown["object_totals"]["queues"] == 1
    assert shown["message_stats"]["publish"] == 1
    assert {each["protocol"] for each in shown["listeners"]} >= {"http", "amqp", "clustering"}
    assert await api.get("overview?columns=queue_totals.messages,node") == {
        "queue_totals": {"messages": 1},
        "node": "n1",
    }


async def test_listeners_of_nats_clients_are_listed_and_checked(tmp_path: Path):
    port = free_port()
    async with Nodes(tmp_path, nats=f"127.0.0.1:{port}") as nodes:
        api = api_of(nodes.one)
        listed = (await api.get("overview"))["listeners"]
        assert {"nats": port}.items() <= {each["protocol"]: each["port"] for each in listed}.items()
        for check in (f"port-listener/{port}", "protocol-listener/nats"):
            assert (await api.ask("GET", f"health/checks/{check}")).status == 200


async def test_a_node_tells_what_it_uses(api: Api):
    (shown,) = await api.get("nodes")

    changing = ("uptime", "run_queue", "fsync_ms", "loop_lag_ms", CPU, *USED)
    changing += tuple(f"{name}_details" for name in MEASURED)
    assert shown == await api.get("nodes/n1") | {name: shown[name] for name in changing}
    assert shown["running"] is True
    assert shown["partitions"] == []
    assert 0 < shown["mem_used"] < shown["mem_limit"]
    assert 0 < shown["fd_used"] < shown["fd_total"]
    assert shown["disk_free"] > 0
    assert shown["fsync_ms"] > 0
    assert shown["loop_lag_ms"] >= 0
    assert shown["cpu_ms"] > 0
    assert shown["cpu_ms_details"]["rate"] > 0
    assert (await api.ask("GET", "nodes/none")).status == 404


async def test_rates_are_told_of_what_was_done_since_the_last_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(observer, "SAMPLE_S", 0.05)
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("q")

        async def rate(publishes: int) -> float:
            for _ in range(publishes):
                await api.publish("q", "x")
            shown = await api.get("queues/%2F/q")
            return shown.get("message_stats", {}).get("publish_details", {}).get("rate", 0)

        async def is_busy() -> bool:
            return await rate(1) > 0

        async def is_idle() -> bool:
            return await rate(0) == 0

        await until(is_busy)
        await until(is_idle)


async def test_a_probe_goes_through_a_queue(api: Api):
    assert await api.get("aliveness-test/%2F") == {"status": "ok"}
    assert await api.get("aliveness-test/%2F") == {"status": "ok"}
    assert (await api.get("queues/%2F/aliveness-test"))["messages"] == 0


async def test_health_checks_of_a_node_that_is_well(api: Api):
    port = api.port
    checks = (
        "alarms",
        "local-alarms",
        "virtual-hosts",
        "node-is-quorum-critical",
        "is-in-service",
        "ready-to-serve-clients",
        "below-node-connection-limit",
        "reached-target-cluster-size",
        "metadata-store/initialized",
        "certificate-expiration/1/months",
        f"port-listener/{port}",
        "protocol-listener/amqp091",
        "protocol-listener/http",
        "quorum-queues-without-elected-leaders/all-vhosts/pattern/.*",
        "quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*",
    )

    async def started() -> bool:
        return (await api.ask("GET", "health/checks/is-in-service")).status == 200

    await until(started)
    for check in checks:
        assert (await api.get(f"health/checks/{check}"))["status"] == "ok", check

    missing = await api.ask("GET", "health/checks/port-listener/1")
    assert (missing.status, missing.value["status"]) == (503, "failed")
    assert missing.value["reason"] == "No active listener"


@pytest.mark.parametrize(
    ("within", "words"),
    [
        ("1/moons", "the unit 'moons' is none of days, weeks, months, years"),
        ("soon/days", "'soon' is no number of days"),
        ("10000/years", "'10000' is no number of years"),
        ("9999/years", None),
    ],
)
async def test_how_soon_certificates_end_is_a_number_and_a_unit(
    api: Api, within: str, words: str | None
):
    reply = await api.ask("GET", f"health/checks/certificate-expiration/{within}")

    assert reply.status == (400 if words else 200)
    assert words is None or words in reply.value["reason"]


async def test_a_node_that_the_others_need_is_critical(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.nodes["n1"])
        await api.queue("q")

        async def well() -> bool:
            return (await api.ask("GET", "health/checks/node-is-quorum-critical")).status == 200

        await until(well)
        await nodes.stop("n3")

        async def critical() -> bool:
            reply = await api.ask("GET", "health/checks/node-is-quorum-critical")
            return reply.status == 503 and reply.value["queues"][0]["name"] == "q"

        await until(critical)
        running = {each["name"]: each["running"] for each in await api.get("nodes")}
        assert running == {"n1": True, "n2": True, "n3": False}
        shown = await api.get("queues/%2F/q")
        assert shown["members"] == ["n1", "n2", "n3"]
        assert shown["online"] == ["n1", "n2"]


async def test_unknown_paths_and_methods_are_refused_as_tools_expect(api: Api):
    assert await api.get("extensions") == []
    assert await api.get("feature-flags") == []
    assert await api.get("deprecated-features/used") == []
    unknown = await api.ask("GET", "nope")
    assert unknown.status == 404
    assert unknown.value == {"error": "Object Not Found", "reason": "Not Found"}
    wrong = await api.ask("PATCH", "queues/%2F/q")
    assert wrong.status == 405
    assert wrong.headers["Allow"] == "DELETE, GET, PUT"
    assert (await api.ask("POST", "rebalance/queues")).status == 204
    assert (await api.ask("PUT", "vhosts/v", b"{" * 5000)).status == 400
    assert (await api.ask("GET", "queues/%FF")).status == 400
    assert (await api.ask("HEAD", "overview")).status == 200
    site = await api.ask("PUT", "vhosts/v", {}, Sec_Fetch_Site="cross-site")
    assert site.status == 403
    assert (await api.ask("PUT", "vhosts/v", {}, Origin="http://page.example")).status == 403
    assert (await api.ask("PUT", "vhosts/v", {}, Sec_Fetch_Site="same-origin")).status == 201
    assert (await api.ask("PUT", "vhosts/w", {}, Origin=api.url)).status == 201


async def test_backups_that_were_made_are_remembered_newest_first(api: Api):
    assert await api.get("backups") == []
    made = {"folder": "/b", "host": "ops1", "messages": 7, "bytes": 700, "groups": 4}
    for time in ("2026-11-20T03:00:00+00:00", "2026-11-21T05:00:00+02:00"):
        assert (await api.ask("POST", "backups", {**made, "time": time})).status == 201
    assert await api.get("backups") == [
        {**made, "time": "2026-11-21T03:00:00.000+00:00", "user": "guest"},
        {**made, "time": "2026-11-20T03:00:00.000+00:00", "user": "guest"},
    ]
    for wrong in ({"time": "monday"}, {"time": "2026-11-21T03:00:00"}, {"messages": "many"}):
        good = {**made, "time": "2026-11-21T03:00:00Z"}
        assert (await api.ask("POST", "backups", {**good, **wrong})).status == 400, wrong
    assert (await api.ask("POST", "backups", {"time": "2026-11-21T03:00:00Z"})).status == 400
    assert await api.get("parameters") == []
    assert await api.get("global-parameters") == []

    for day in range(10, 30):
        for hour in range(3):
            time = f"2027-01-{day}T{hour:02}:00:00Z"
            assert (await api.ask("POST", "backups", {**made, "time": time})).status == 201
    kept = await api.get("backups")
    assert len(kept) == 50
    assert kept[0]["time"] == "2027-01-29T02:00:00.000+00:00"
