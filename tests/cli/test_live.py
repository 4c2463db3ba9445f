"""Three real nodes on loopback: the whole way from `up` to a killed leader."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorate
from quorate.local import LocalCluster, LocalClusterError
from tests.testkit.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]


async def test_no_confirmed_message_is_lost_when_the_leader_is_killed(local: LocalCluster):
    async with quorate.connect(local.urls) as client:
        await client.declare("orders")
        bodies = [b"%d" % number for number in range(20_000)]
        publishing = asyncio.create_task(client.publish_many("orders", bodies, batch=50))
        got: list[bytes] = []
        killed = False
        async with client.consume_batches("orders", credit=500) as consumer:
            async for batch in consumer:
                got += batch.bodies
                await batch.settle()
                if len(got) > 5_000 and not killed:
                    killed = True
                    leader = (await client.info("orders"))["leader"]
                    await local.kill(local.named(leader))
                if len(set(got)) == len(bodies):
                    break
            await consumer.flush()
        confirmed = await publishing
        left = await client.info("orders")

    assert confirmed.count == len(bodies)
    assert sorted(set(got)) == sorted(bodies)
    assert (left["ready"], left["unsettled"]) == (0, 0)


async def test_a_named_publisher_is_known_after_a_restart_of_its_program(local: LocalCluster):
    stored: list[int | None] = []
    for _ in range(2):
        async with quorate.connect(local.urls[0]) as client:
            await client.declare("orders")
            publisher = client.publisher("orders", name="shop")
            stored.append((await publisher.publish(b"1")).position)
            await publisher.publish_many([b"2"] * 10, batch=2)

    assert stored == [1, 12]


async def test_one_at_a_time_and_in_batches_the_outcome_is_the_same(local: LocalCluster):
    async with quorate.connect(local.urls) as client:
        await client.declare("orders", {"x-max-length": 5, "x-overflow": "reject-publish"})
        with pytest.raises(quorate.Refused, match="queue_full") as refused:
            await client.publish_many("orders", [b"x"] * 8)
        first, second = await client.get("orders", 2)
        await first.settle()
        await second.return_()
        rows = await client.peek("orders")

    assert refused.value.ranges == [(5, 7)]
    assert [(row["position"], row["state"]) for row in rows] == [(n, "ready") for n in range(2, 6)]


def test_a_folder_is_used_by_one_cluster_at_a_time(tmp_path: Path):
    running = LocalCluster.prepare(tmp_path / "a", preferred_ports=False)
    with pytest.raises(LocalClusterError, match="running"):
        LocalCluster.prepare(tmp_path / "a", preferred_ports=False)
    assert len({node.http for node in running.nodes}) == 3


async def test_clusters_that_start_at_once_do_not_share_a_port(tmp_path: Path):
    """Neither of them listens yet; the second time, both folders name their ports."""
    for _ in range(2):
        both = [LocalCluster.prepare(tmp_path / name) for name in ("a", "b")]
        nodes = [node for cluster in both for node in cluster.nodes]
        assert len({port for each in nodes for port in (each.http, each.peer, each.amqp)}) == 18
        for cluster in both:
            await cluster.stop()


def test_only_a_folder_of_ours_is_deleted(tmp_path: Path):
    (tmp_path / "precious").touch()
    with pytest.raises(LocalClusterError, match="nothing is deleted"):
        LocalCluster.prepare(tmp_path, fresh=True)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "quorate", "up", "--dir", ".quorate", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_up_starts_three_nodes_and_stops_them_all(up: subprocess.Popen[str], tmp_path: Path):
    assert up.stdout is not None
    ready = json.loads(up.stdout.readline())
    about = json.loads((tmp_path / ".quorate" / "cluster.json").read_text())
    status = subprocess.run(
        [sys.executable, "-m", "quorate", "status", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    restarted = _killed(up, ready["pids"][1])
    assert restarted["node"] == "node-2"
    assert restarted["pid"] not in ready["pids"]
    up.send_signal(signal.SIGINT)
    _, words = up.communicate(timeout=120)

    assert up.returncode == 0, words
    assert ready["urls"] == about["urls"]
    assert all(group["leader"] for group in json.loads(status.stdout)["groups"])
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ready["pids"]))
    _a_flipped_bit_is_found(tmp_path / ".quorate" / "node-1")


def _killed(up: subprocess.Popen[str], pid: int) -> dict[str, Any]:
    """What is said when a node is started again."""
    os.kill(pid, signal.SIGKILL)
    assert up.stdout is not None
    said = (json.loads(line) for line in up.stdout)
    return next(each for each in said if each["event"] == "restarted")


def _a_flipped_bit_is_found(folder: Path) -> None:
    def dump() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "quorate", "log", "dump", str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    sound = dump()
    segment = next((folder / "data").rglob("0*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    damaged = dump()

    assert sound.returncode == 0, sound.stderr
    assert damaged.returncode == 3
    assert segment.name in damaged.stdout


def test_what_up_prints_works_as_it_is_printed(tmp_path: Path):
    """Also for a folder of one's own, with a name that a shell would split."""
    folder = "my cluster"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    up = subprocess.Popen(
        [sys.executable, "-m", "quorate", "up", "--dir", folder, "--nodes", "1"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert up.stderr is not None
        line = next(line for line in up.stderr if line.startswith("try, in another terminal here:"))
        printed = shlex.split(line.partition(": ")[2])
        assert printed[0] == "quorate"
        printed[printed.index("--count") + 1] = "10"

        done = subprocess.run(
            [sys.executable, "-m", *printed],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

        assert done.returncode == 0, done.stderr
        assert "confirmed 10 messages" in done.stderr
        _clean_refuses(tmp_path, folder)
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate()


def _clean_refuses(place: Path, folder: str) -> None:
    """A copy of the Makefile's target, in a folder where a cluster runs, and in one without."""
    (place / ".quorate").symlink_to(folder)
    (place / "var").mkdir()
    clean = ["make", "-f", str(ROOT / "Makefile"), "clean"]

    refused = subprocess.run(clean, cwd=place, capture_output=True, text=True, check=False)

    assert refused.returncode != 0
    assert "a cluster is running in .quorate: stop it first" in refused.stderr
    assert (place / "var").exists()
    assert (place / folder / "cluster.json").exists()
    (place / ".quorate").unlink()
    subprocess.run(clean, cwd=place, capture_output=True, check=True)
    assert not (place / "var").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_failover_that_is_stopped_stops_its_nodes_and_says_so(
    tmp_path: Path, number: signal.Signals
):
    failover = subprocess.Popen(
        [sys.executable, "-m", "quorate", "failover", "--dir", str(tmp_path / "nodes")],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert failover.stderr is not None
    said = ""
    while "publishing" not in said:
        line = failover.stderr.readline()
        assert line, said
        said += line
    rows = json.loads((tmp_path / "nodes" / "cluster.json").read_text())["nodes"]

    failover.send_signal(number)
    _, rest = failover.communicate(timeout=120)

    assert failover.returncode == 130, rest
    assert "Traceback" not in rest
    assert f"{number.name}: stopping the nodes" in rest
    assert "stopped before its end" in rest
    assert not any(Path(f"/proc/{row['pid']}").exists() for row in rows)
