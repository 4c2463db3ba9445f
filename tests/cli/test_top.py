"""`quorate top`: what is shown, what keys do, and the whole of it on a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import quorate
from quorate.cli.output import CommandError
from quorate.cli.top_board import MOVED_MAX, ORDERS, Asked, Board, order_named
from quorate.cli.top_screen import Screen, short, show_once, span
from quorate.local import LocalCluster
from tests.testkit.waiting import wait_until

ROOT = Path(__file__).parents[2]


def board_of(nodes: int = 3, queues: int = 20, *, page: int = 1, pages: int = 1) -> Board:
    rates = {f"{name}_details": {"rate": 12_345.6} for name in ("publish", "deliver_get", "ack")}
    row = {
        "vhost": "/",
        "state": "running",
        "leader": "n1",
        "messages_ready": 1_234_567,
        "messages_unacknowledged": 9,
        "consumers": 0,
        "oldest_ready_age": 90_000,
        "slo_oldest_age": 60_000,
        "message_stats": rates,
    }
    host = {"mem_used": 150e6, "mem_limit": 1e9, "disk_free": 5e9, "fsync_ms": 1.25}
    board = Board(
        overview={"cluster_name": "shop", "message_stats": rates, "queue_totals": {}},
        nodes=[{"name": f"n{n}", "running": n != 2, **host} for n in range(1, nodes + 1)],
        queues={
            "items": [{**row, "name": f"queue-{number}"} for number in range(queues)],
            "page": page,
            "page_count": pages,
            "filtered_count": queues,
            "total_count": queues,
        },
        findings=[{"level": "problem", "what": f"trouble {n}", "next": ""} for n in range(9)],
    )
    board._led([{"name": "g1", "leader": "n1", "moving": False}])
    board._led([{"name": "g1", "leader": "n3", "moving": True}])
    return board


def drawn(board: Board, asked: Asked, columns: int, lines: int) -> list[str]:
    """Twice: the first picture says how many queues there is room for."""
    screen = Screen(board, asked)
    for _ in range(2):
        board.queues["items"] = board.queues["items"][: asked.rows]
        console = Console(width=columns, height=lines, file=io.StringIO(), record=True)
        console.print(screen.picture(columns, lines))
    return console.export_text().splitlines()


@pytest.mark.parametrize("nodes", [1, 3, 9, 60])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (80, 15), (200, 50)])
def test_a_picture_has_room_on_the_terminal_and_uses_it(nodes: int, columns: int, lines: int):
    shown = drawn(board_of(nodes, queues=100), Asked(), columns, lines)

    assert lines - 1 <= len(shown) <= lines
    assert max(map(len, shown)) <= columns
    assert any(line.startswith("queue-0") for line in shown)
    assert "q quit" in shown[-1]
    assert nodes == 1 or any(re.match(r"n2 +down", line) for line in shown)


def test_what_is_wrong_comes_first_and_leaders_that_moved_are_told():
    shown = drawn(board_of(), Asked(), 80, 24)

    assert shown[0].startswith("shop  2 of 3 nodes  1 groups, 1 on the move")
    assert "9 findings" in shown[1]
    assert shown[2:4] == ["✗ trouble 0", "✗ trouble 1"]
    assert shown[4].startswith("→ leaders: g1 n1→n3 0s ago")


def test_a_narrow_terminal_still_shows_names():
    shown = drawn(board_of(), Asked(), 50, 24)

    assert any(line.startswith("queue-0 ") for line in shown)
    assert any(line.startswith("n1 ") for line in shown)


def test_names_may_not_move_the_cursor():
    board = board_of(queues=1)
    board.queues["items"][0]["name"] = "a\x1b[2Jb"

    assert any(line.startswith("a\\x1b[2Jb") for line in drawn(board, Asked(), 80, 24))


def test_a_pipe_gets_whole_lines_with_all_nodes():
    console = Console(width=1_000, soft_wrap=True, file=io.StringIO(), record=True)

    show_once(console, board_of(nodes=60), Asked())

    shown = console.export_text()
    assert "n60" in shown
    assert "queue-19 12.3k 12.3k 1.23M       9   1m30s         0 n1" in shown


def test_nobody_who_may_not_see_nodes_is_shown_any():
    board = board_of()
    board.nodes = board.leaders = None

    shown = drawn(board, Asked(), 80, 24)

    assert shown[0].startswith("shop  0 queues")
    assert not any("fsync" in line for line in shown)


def test_keys_choose_what_is_asked_for():
    asked = Asked()
    screen = Screen(board_of(pages=3), asked)

    assert [screen.pressed(key) for key in ("n", "n", "n")] == [True, True, False]
    assert asked.query()["page"] == "3"
    assert screen.pressed("\x1b[A")
    assert asked.page == 2
    assert screen.pressed("s")
    assert asked.query() | {"columns": ""} == {
        "page": "1",
        "page_size": "50",
        "name": "",
        "sort": "messages_ready",
        "sort_reverse": "true",
        "columns": "",
    }
    assert screen.pressed("r")
    assert asked.query()["sort_reverse"] == "false"
    for _ in ORDERS:
        screen.pressed("S")
    assert asked.order.name == "ready"
    screen.pressed(" ")
    assert screen.paused
    screen.pressed("q")
    assert screen.ended


def test_a_filter_is_typed_mended_and_left():
    asked = Asked(page=2)
    screen = Screen(board_of(), asked)

    assert not any(screen.pressed(key) for key in ("/", "q", "x", "\x7f", "u"))
    assert not screen.ended
    assert screen.pressed("\r")
    assert (asked.filter, asked.page) == ("qu", 1)
    assert not any(screen.pressed(key) for key in ("/", "z", "\x1b"))
    assert asked.filter == "qu"
    assert screen.pressed("\x1b")
    assert asked.filter == ""


def test_a_column_that_is_not_there_is_named():
    assert order_named("-queue") == (ORDERS[-1], True)
    with pytest.raises(CommandError, match="there are oldest, ready"):
        order_named("age")


def test_leaders_that_moved_are_bounded():
    board = board_of()
    for number in range(3 * MOVED_MAX):
        board._led([{"name": "g1", "leader": f"n{number}", "moving": False}])

    assert len(board.moved) == MOVED_MAX


def test_numbers_and_times_are_short():
    counts = (0, 0.25, 9.5, 999, 1_000, 12_345, 999_499, 999_999, 4.5e12, 7e15)
    shown = "0 0.2 9.5 999 1.00k 12.3k 999k 1.00M 4.50T 7P"
    assert " ".join(map(short, counts)) == shown
    times_ms = (300, 59_999, 61_000, 7_260_000, 90_000_000)
    assert [*map(span, times_ms)] == ["0.3s", "59s", "1m01s", "2h01m", "1d01h"]
    assert span(5) == ""


# --- on a real cluster ----------------------------------------------------------------------------


class Terminal:
    """A terminal of 80x24, with the program on it."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "quorate", "top", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.set_blocking(self._ours, False)
        self.shown = ""

    def press(self, keys: str) -> None:
        self.shown = ""
        os.write(self._ours, keys.encode())

    def shows(self, text: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._ours, 65_536):
                self.shown += data.decode("utf-8", "replace")
        return text in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._theirs)[:4] == self._before[:4]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


def _printed(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "quorate", "top", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.live
@pytest.mark.timeout(300)
async def test_a_cluster_is_watched_until_somebody_quits(
    local: LocalCluster, terminals: list[Terminal]
):
    url = ",".join(local.urls)
    async with quorate.connect(local.urls) as client:
        for name in ("orders", "mail", "audit"):
            await client.declare(name)
        await client.publish_many("orders", [b"x"] * 20)

        terminal = await asyncio.to_thread(Terminal, "--url", url)
        terminals.append(terminal)
        await asyncio.to_thread(wait_until, lambda: terminal.shows("queues 1-3 of 3"))
        assert terminal.shows("3 of 3 nodes")
        terminal.press("/ord\r")
        await asyncio.to_thread(wait_until, lambda: terminal.shows("1-1 of 1 /ord"))
        terminal.press("\x1b")
        await asyncio.to_thread(wait_until, lambda: terminal.shows("queues 1-3 of 3"))
        killed = local.named((await client.info("orders"))["leader"])
        terminal.press(" ")
        await asyncio.to_thread(wait_until, lambda: terminal.shows("paused"))
        terminal.press(" ")
        await local.kill(killed)
        await asyncio.to_thread(wait_until, lambda: terminal.shows("2 of 3 nodes"))
        await asyncio.to_thread(wait_until, lambda: terminal.shows(f"{killed.name}→"))
        terminal.press("q")
        assert await asyncio.to_thread(terminal.process.wait) == 0
        assert terminal.is_as_before()

    frame = await asyncio.to_thread(_printed, "--url", url)
    assert re.search(r"^orders .* 20 +0 ", frame, re.MULTILINE)
    assert re.search(rf"^{killed.name} +down", frame, re.MULTILINE)
    told: dict[str, Any] = json.loads(
        await asyncio.to_thread(_printed, "--url", url, "--json", "--sort", "queue")
    )
    assert [row["name"] for row in told["queues"]] == ["audit", "mail", "orders"]
    assert told["queue_count"] == 3
    assert sum(row["running"] for row in told["nodes"]) == 2


@pytest.mark.live
@pytest.mark.timeout(300)
async def test_a_node_that_hangs_is_not_waited_for_again(local: LocalCluster):
    local.nodes[0].process.send_signal(signal.SIGSTOP)
    try:
        frame = await asyncio.to_thread(_printed, "--url", ",".join(local.urls))
    finally:
        local.nodes[0].process.send_signal(signal.SIGCONT)

    assert "no queues yet" in frame
