"""The command line against fake nodes: results, words for people, exit status."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate import numbered
from quorate.cli import run
from quorate.cli.nodes import groups_table, lag_of, log_folder
from tests.client.fake_node import FakeCluster

Output = pytest.CaptureFixture[str]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """On a loop of its own, since a command runs its own loop too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    cluster = FakeCluster(2)
    asyncio.run_coroutine_threadsafe(cluster.__aenter__(), loop).result()
    monkeypatch.setenv("QUORATE_URL", ",".join(cluster.urls))
    yield cluster
    asyncio.run_coroutine_threadsafe(cluster.__aexit__(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_publish_declares_a_missing_queue_and_says_so(cluster: FakeCluster, capsys: Output):
    assert run(["publish", "orders", "--count", "1000", "--batch", "100"]) == 0

    words = capsys.readouterr()
    assert "did not exist: declared it" in words.err
    assert "confirmed 1,000 messages" in words.err
    assert words.out == ""


def test_what_was_published_is_consumed_with_nothing_missing(cluster: FakeCluster, capsys: Output):
    run(["publish", "orders", "--count", "1000", "--json"])
    published = json.loads(capsys.readouterr().out)

    assert run(["consume", "orders", "--count", "1000", "--json"]) == 0

    consumed = json.loads(capsys.readouterr().out)
    assert published["confirmed"] == consumed["consumed"] == consumed["numbered"] == 1000
    assert consumed["missing"] == consumed["duplicates"] == consumed["out_of_order"] == 0


def test_consume_reports_what_is_missing(cluster: FakeCluster, capsys: Output):
    run(["publish", "orders", "--count", "10"])
    queue = cluster.queue("orders")
    queue.ready.remove(5)
    queue.ready.append(queue.ready.pop(0))

    assert run(["consume", "orders", "--count", "10", "--idle", "0.2", "--quiet"]) == 1

    words = capsys.readouterr().err
    assert "missing 1, duplicates 0, out of order 1" in words
    assert "quorate queue show orders" in words


def test_messages_come_from_arguments_and_files(
    cluster: FakeCluster, capsys: Output, tmp_path: Path
):
    (tmp_path / "lines").write_text("three\nfour\n")

    assert run(["publish", "orders", "one", "two"]) == 0
    assert run(["publish", "orders", "--file", str(tmp_path / "lines"), "--key", "k"]) == 0
    assert run(["consume", "orders", "--count", "4", "--one-by-one"]) == 0

    assert capsys.readouterr().out == "one\ntwo\nthree\nfour\n"
    assert cluster.queue("orders").settled == [1, 2, 3, 4]
    assert cluster.queue("orders").metas[4] == {"key": "k"}


def test_consume_takes_no_more_than_it_was_asked_for(cluster: FakeCluster):
    run(["publish", "orders", "--count", "10"])

    assert run(["consume", "orders", "--count", "3", "--quiet"]) == 0

    assert cluster.queue("orders").settled == [1, 2, 3]
    assert cluster.queue("orders").ready == list(range(4, 11))


def test_kept_messages_go_back(cluster: FakeCluster):
    run(["publish", "orders", "a", "b"])

    assert run(["consume", "orders", "--count", "2", "--keep"]) == 0

    assert cluster.queue("orders").ready == [1, 2]


def test_the_queue_commands(cluster: FakeCluster, capsys: Output):
    assert run(["queue", "declare", "orders", "x-max-length=5", "x-overflow=drop-head"]) == 0
    assert run(["publish", "orders", "a [bold] one"]) == 0
    for command in ("list", "show orders", "peek orders", "pause orders", "pause orders --resume"):
        assert run(["queue", *command.split()]) == 0
    assert run(["queue", "purge", "orders", "--json"]) == 0
    assert run(["queue", "delete", "orders"]) == 0

    words = capsys.readouterr()
    assert "a [bold] one" in words.out
    assert '{"queue": "orders", "purged": 1}' in words.out
    declared = next(frame for node in cluster.nodes for frame in node.seen if frame[0] == 50)
    assert declared[3] == {"x-max-length": 5, "x-overflow": "drop-head"}


def test_bench_measures_and_cleans_up(cluster: FakeCluster, capsys: Output):
    assert run(["bench", "--count", "500", "--json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["messages"] for row in rows] == [500, 500, 300]
    assert not cluster.queues


def test_status_shows_the_cluster(cluster: FakeCluster, capsys: Output):
    assert run(["status"]) == 0
    assert run(["status", "--json"]) == 0

    assert '{"cluster": "fake"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("queue show nowhere", 1, "quorate queue declare"),
        ("queue declare orders nonsense", 2, "KEY=VALUE"),
        ("publish orders a --count 1", 2, "not several"),
        ("publish orders --count 1 --size 3", 2, "--size"),
        ("consume", 2, "quorate consume --help"),
        ("nonsense", 2, "nonsense"),
        ("log dump /nowhere", 2, "/nowhere"),
        ("node start --config /nowhere", 2, "/nowhere"),
        ("node start --nonsense 1", 2, "nonsense"),
    ],
)
def test_an_error_is_a_line_with_the_next_step(
    cluster: FakeCluster, capsys: Output, command: str, status: int, words: str
):
    assert run(command.split()) == status

    said = capsys.readouterr()
    assert words in said.err
    assert "Traceback" not in said.err


def test_nobody_there_is_said_with_what_to_do(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("quorate.cli.queues.REACH_S_MAX", 1.0)
    monkeypatch.delenv("QUORATE_URL", raising=False)
    monkeypatch.chdir(tmp_path)

    assert run(["status"]) == 4
    assert "start one with `quorate up`" in capsys.readouterr().err
    assert run(["status", "--url", "127.0.0.1:1"]) == 4
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_cluster_is_found_from_a_folder_below(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("QUORATE_URL")
    (tmp_path / ".quorate").mkdir()
    (tmp_path / ".quorate" / "cluster.json").write_text(json.dumps({"urls": cluster.urls}))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")

    assert run(["status"]) == 0


def test_help_is_quick_to_load():
    """What only a node, a consumer or a post-mortem needs is not imported for it."""
    heavy = "aiohttp asyncio pyspark node cluster uvloop"
    code = (
        "import sys; from quorate.cli.app import app;"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout

    assert "pyspark" not in out
    assert "'node'" not in out
    assert "'cluster'" not in out


def test_a_log_is_found_under_a_nodes_folder(tmp_path: Path):
    log = tmp_path / "data" / "log"
    log.mkdir(parents=True)
    assert log_folder(tmp_path) == tmp_path
    (log / "000000000001.log").touch()
    (tmp_path / "node.log").touch()

    assert log_folder(tmp_path) == log_folder(tmp_path / "data") == log_folder(log) == log


def test_lag_names_only_those_behind():
    assert lag_of({"lag": {"n2": 0, "n3": 0}}) == "0"
    assert lag_of({"lag": {"n2": 0, "n3": 7}}) == "n3 7"
    assert lag_of({}) == "-"
    assert groups_table({"groups": [{"name": "g", "leader": None}]}).row_count == 1


def test_the_tally_counts_what_is_unusual():
    tally = numbered.Tally()
    bodies = list(numbered.bodies("0badcafe", 0, 6, 40))
    tally.add([bodies[0], bodies[2], bodies[1]])
    tally.add([bodies[1]], redelivered=True)
    tally.add([bodies[0], b"something else", bodies[5]])

    assert {len(body) for body in bodies} == {40}
    assert (tally.received, tally.foreign, tally.distinct) == (7, 1, 4)
    assert (tally.missing, tally.out_of_order) == (2, 1)
    assert (tally.duplicates, tally.unflagged_duplicates) == (2, 1)
    assert tally.seen("0badcafe") == bytes([1, 1, 1, 0, 0, 1])
