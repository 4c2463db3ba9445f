"""The command line against fake nodes: results, words for people, exit status."""

from __future__ import annotations

import contextlib
import io
import json
import operator
import os
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate import numbered
from quorate.cli import run
from quorate.cli.app import command_line
from quorate.cli.copies import copies_up
from quorate.cli.nodes import groups_table, lag_of, log_folder
from quorate.cli.tables import Alarm, show_rows
from tests.client.fake_node import FakeCluster
from tests.testkit.threads import in_a_thread

Output = pytest.CaptureFixture[str]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """On a loop of its own, since a command runs its own loop too."""
    with in_a_thread(FakeCluster(2)) as (cluster, _):
        monkeypatch.setenv("QUORATE_URL", ",".join(cluster.urls))
        yield cluster


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
    assert run(["queue", "purge", "orders", "--json", "--yes"]) == 0
    assert run(["queue", "delete", "orders", "--yes"]) == 0

    words = capsys.readouterr()
    assert "a [bold] one" in words.out
    assert '{"queue": "orders", "purged": 1}' in words.out
    declared = next(frame for node in cluster.nodes for frame in node.seen if frame[0] == 50)
    assert declared[3] == {"x-max-length": 5, "x-overflow": "drop-head"}


@pytest.mark.parametrize(
    ("verb", "question"),
    [
        ("delete", "delete queue orders: 3 messages would be lost. Do it? [y/N]"),
        ("purge", "purge queue orders: 3 messages would be lost. Do it? [y/N]"),
    ],
)
def test_what_would_be_lost_is_asked_for(
    cluster: FakeCluster,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    question: str,
):
    run(["publish", "orders", "--count", "3"])
    capsys.readouterr()

    terminal_says(monkeypatch, None)
    assert run(["queue", verb, "orders"]) == 2
    assert "3 messages would be lost\n  next: repeat it with --yes" in capsys.readouterr().err
    terminal_says(monkeypatch, "n")
    assert run(["queue", verb, "orders"]) == 1
    said = capsys.readouterr().err
    assert question in said
    assert "nothing was changed" in said
    assert len(cluster.queue("orders").ready) == 3

    terminal_says(monkeypatch, "y")
    assert run(["queue", verb, "orders"]) == 0
    assert "orders" not in cluster.queues or not cluster.queue("orders").ready


def test_an_empty_queue_is_purged_without_a_question(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
):
    run(["queue", "declare", "orders"])
    terminal_says(monkeypatch, None)

    assert run(["queue", "purge", "orders"]) == 0


def terminal_says(monkeypatch: pytest.MonkeyPatch, line: str | None) -> None:
    """None: there is no terminal."""
    stdin = io.StringIO("" if line is None else line + "\n")
    monkeypatch.setattr(stdin, "isatty", lambda: line is not None)
    monkeypatch.setattr("sys.stdin", stdin)


@pytest.mark.parametrize("given", ["", "one\ntwo\n"])
def test_nothing_is_made_when_nothing_is_given(
    cluster: FakeCluster, capsys: Output, monkeypatch: pytest.MonkeyPatch, given: str
):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))

    status = run(["publish", "orders"])

    said = capsys.readouterr().err
    if given:
        assert status == 0
        assert "confirmed 2 messages" in said
    else:
        assert status == 2
        assert "nothing to publish: give messages, --count N, or --file FILE" in said
        assert not cluster.queues


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
        ("status --url amqp://guest:word@host:5672/%2F", 2, "amqp://host:5672 is an address for"),
        ("--url ftp://host status", 2, "http:// or https://"),
        ("user list --url host:99999", 2, "'host:99999' is no address"),
        ("group list --url http://", 2, "is no address"),
        ("completion tcsh", 2, "tcsh"),
        ("publish orders a --count 1", 2, "not several"),
        ("publish orders --count 1 --size 3", 2, "--size"),
        ("consume", 2, "quorate consume --help"),
        ("nonsense", 2, "nonsense"),
        ("log dump /nowhere", 2, "/nowhere"),
        ("log dump . --kind bogus", 2, "--kind bogus: there are alarm, archive, backup"),
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
    assert "word@" not in said.err


def _commands(group: Any) -> Iterator[Any]:
    for each in group.commands.values():
        yield from _commands(each) if hasattr(each, "commands") else [each]


def test_all_that_a_command_takes_is_explained():
    for command in _commands(command_line()):
        assert command.help, command.name
        for each in command.params:
            assert each.help or each.name == "help", (command.name, each.name)


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"AMQP\x00\x00\x09\x01", "this port is for clients of AMQP"),
        (b"\x00\x00\x00@\x83\x06hoversize", "does not speak HTTP"),
    ],
)
@pytest.mark.parametrize("command", ["status", "user list", "group list"])
def test_a_port_of_another_protocol_is_told_in_words(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, greeting: bytes, words: str, command: str
):
    monkeypatch.setattr("quorate.cli.api.REACH_S_MAX", 1.0)
    with listening(greeting) as address:
        assert run([*command.split(), "--url", address, "--timeout", "1"]) == 4

    said = capsys.readouterr().err
    assert words in said
    assert "the node's `http`" in said
    assert "status line" not in said


@contextlib.contextmanager
def listening(greeting: bytes) -> Iterator[str]:
    """What says this to whoever has said something, and closes."""

    class Greeter(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(greeting)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_the_version_is_told(capsys: Output):
    from importlib.metadata import version

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"quorate {version('quorate')}\n"


COMPLETED = {
    # What a person's shell does with the script, and then with TAB.
    "bash": """
        source <(quorate completion bash)
        COMP_WORDS=(quorate queue pu) COMP_CWORD=2
        $(complete -p quorate | sed 's/.*-F \\([^ ]*\\).*/\\1/') quorate
        echo "${COMPREPLY[@]}"
    """,
    "zsh": """
        autoload -U compinit && compinit -u -D
        source <(quorate completion zsh)
        (( $+_comps[quorate] )) && _QUORATE_COMPLETE=complete_zsh \\
            _TYPER_COMPLETE_ARGS='quorate queue pu' quorate
    """,
    "fish": """
        quorate completion fish | source
        complete -C 'quorate queue pu'
    """,
}


@pytest.mark.parametrize("shell", COMPLETED)
def test_a_shell_completes_commands(shell: str, tmp_path: Path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "quorate").write_text(f'#!/bin/sh\nexec {sys.executable} -m quorate "$@"\n')
    (bin_folder / "quorate").chmod(0o755)

    done = subprocess.run(
        [shell, "-c", COMPLETED[shell]],
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "purge" in done.stdout
    assert "peek" not in done.stdout


def test_nobody_there_is_said_with_what_to_do(
    capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("quorate.cli.api.REACH_S_MAX", 1.0)
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


@pytest.mark.parametrize("before", [True, False])
def test_a_cluster_is_found_by_the_folder_that_it_was_started_in(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: bool
):
    monkeypatch.delenv("QUORATE_URL")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cluster.json").write_text(json.dumps({"urls": cluster.urls}))

    assert run(["--url", "mine", "status"] if before else ["status", "--url", "mine"]) == 0
    monkeypatch.setenv("QUORATE_URL", str(tmp_path / "mine"))
    assert run(["status"]) == 0


@pytest.mark.parametrize(
    ("row", "down", "shown"),
    [
        ({"voters": ["a", "b", "c"], "wanted": 3}, set(), 3),
        ({"voters": ["a", "b", "c"], "wanted": 3}, {"b"}, "2 of 3"),
        ({"members": ["a", "b", "c"], "learners": ["c"], "wanted": 3}, set(), "2 of 3"),
        ({"voters": ["a"], "wanted": 1}, set(), 1),
        ({"voters": ["a"], "wanted": 3}, set(), "1 of 3"),
        ({"voters": ["a", "b"]}, {"b"}, 1),  # of a release that does not say how many are wanted
    ],
)
def test_too_few_copies_are_an_alarm(row: dict[str, Any], down: set[str], shown: int | str):
    told = copies_up(row, down)

    assert told == shown
    assert isinstance(told, Alarm) == isinstance(shown, str)


def test_an_alarm_is_red_in_lists(capsys: Output, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [{"group": "one", "copies": Alarm("1 of 3")}, {"group": "two", "copies": 3}]

    columns = {name: operator.itemgetter(name) for name in ("group", "copies")}
    show_rows(rows, columns, as_json=False, none="")

    lines = capsys.readouterr().out.splitlines()
    assert any("\x1b[31m" in line and "1 of 3" in line for line in lines)
    assert not any("\x1b[31m" in line and "two" in line for line in lines)


#: What only a node, a client or a post-mortem needs, and what help does not show.
HEAVY = (
    *("node", "cluster", "pysyncobj", "cbor2", "pydantic", "uvloop", "pyspark"),
    *(
        "aiohttp",
        "asyncio",
        "ssl",
        "http",
        "email",
        "markdown_it",
        "pygments.lexers",
        "rich.traceback",
    ),
    *(
        "quorate.client",
        "quorate.cli.queues",
        "quorate.cli.node_commands",
        "quorate.cli.moves",
    ),
)


def test_help_loads_nothing_that_it_does_not_show():
    code = (
        "import sys; from quorate.cli import run; run(['--help']);"
        f"print('loaded:', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout

    assert "Running a cluster" in out
    assert out.splitlines()[-1] == "loaded:"


def test_what_help_leaves_out_can_be_imported_after_it():
    code = (
        "from quorate.cli import run; run(['--help']);"
        "from rich.markdown import Markdown; from rich.traceback import Traceback;"
        "print(Markdown('*a*').markup, Traceback.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "*a* Traceback"


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
    sequence = numbered.SequenceCheck()
    bodies = list(numbered.bodies("0badcafe", 0, 6, 40))
    sequence.add([bodies[0], bodies[2], bodies[1]])
    sequence.add([bodies[1]], redelivered=True)
    sequence.add([bodies[0], b"something else", bodies[5]])

    assert {len(body) for body in bodies} == {40}
    assert (sequence.received, sequence.foreign, sequence.distinct) == (7, 1, 4)
    assert (sequence.missing, sequence.out_of_order) == (2, 1)
    assert (sequence.duplicates, sequence.unflagged_duplicates) == (2, 1)
    assert sequence.seen("0badcafe") == bytes([1, 1, 1, 0, 0, 1])
