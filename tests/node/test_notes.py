"""What a node writes down for a later reader of its log."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from cluster.log.format import FORMAT_VERSION
from cluster.log.reader import detail, read
from cluster.machine.versions import MACHINE_VERSION
from cluster.peers.node_notes import release
from node.data_folder import LAST_WORDS, LAST_WORDS_BYTES, DataFolder
from node.operating.watchdog import Watchdog
from node.settings.settings import SECRETS, fields
from tests.node.nodes import Nodes, until


def noted(folder: Path, kind: str) -> list[Any]:
    return [detail(record) for record in read(str(folder)) if record.kind == kind]


async def test_roles_links_rounds_and_peer_clocks_are_in_the_log(tmp_path: Path):
    wanted = {"role", "link-up", "round", "clock", "started", "settings"}
    async with Nodes(tmp_path, 3, balance_after_s=0.5) as nodes:
        numbers = count()

        async def all_noted() -> bool:
            await nodes.declare(f"q{next(numbers)}")  # rounds are noted while something is written
            return wanted <= {record.kind for record in read(str(tmp_path / "n1"))}

        await until(all_noted)


async def test_each_start_says_its_incarnation_its_versions_and_its_settings(tmp_path: Path):
    async with Nodes(tmp_path, 2, default_password="hush, hush", default_user="u") as own:
        await own.stop("n1")
        own.set("n1", log_level="error")
        await own.start("n1")
        await until(lambda: len(noted(tmp_path / "n2", "link-up")) == 2)
        heard = noted(tmp_path / "n2", "link-up")

    started = noted(tmp_path / "n1", "started")
    assert [["n1", incarnation] for incarnation, *_ in started] == heard
    assert [rest for _, *rest in started] == [[release(), MACHINE_VERSION, FORMAT_VERSION]] * 2
    first, second = (settings for (settings,) in noted(tmp_path / "n1", "settings"))
    changed = {key for key in first if first[key] != second[key]}
    assert changed == {"log_level"}
    assert first.keys() == fields().keys() - SECRETS
    secrets = ("a secret for tests", "hush, hush")
    assert not any(secret in value for secret in secrets for value in first.values())


async def test_alarms_of_any_node_and_waiting_publishers_are_in_every_log(tmp_path: Path):
    async with Nodes(tmp_path, 2) as nodes:
        low = nodes.nodes["n1"].alarms
        room, low.memory_bytes_max = low.memory_bytes_max, 1
        await until(lambda: nodes.nodes["n2"].alarms.blocked)
        low.memory_bytes_max = room
        await until(lambda: not nodes.nodes["n2"].alarms.blocked)

    for name in ("n1", "n2"):
        assert noted(tmp_path / name, "alarm") == [["n1", True, False], ["n1", False, False]]
        assert noted(tmp_path / name, "publishers") == [["low on memory"], [None]]


async def test_what_ended_a_process_whose_disk_was_full_is_noted_by_the_next_one(tmp_path: Path):
    def full(_: Sequence[bytes]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with Nodes(tmp_path) as nodes:
        failing = nodes.one
        assert failing.failed is not None
        failing.cluster.log.wal.active.file.append = full  # type: ignore[method-assign]
        with suppress(Exception):  # whatever it is told: something has to be written
            await nodes.declare("orders")
        error = await failing.failed
        await nodes.stop("n1", transfer=False)
        assert noted(tmp_path / "n1", "failed") == []
        for _ in range(2):
            await nodes.start("n1")
            await nodes.stop("n1")
        ((reason, at_ns),) = noted(tmp_path / "n1", "failed")

    assert reason == str(error)
    assert "No space left on device" in reason
    assert 0 <= time.time_ns() - at_ns < 3600 * 10**9


def test_last_words_have_their_room_beforehand_and_are_told_once(tmp_path: Path):
    folder = DataFolder(str(tmp_path))
    folder.leave_word("nobody made room for this", 1)
    assert folder.last_words() is None
    assert (tmp_path / LAST_WORDS).stat().st_blocks * 512 >= LAST_WORDS_BYTES

    folder.leave_word("écrit: " + "x" * 5_000, 17)
    assert (tmp_path / LAST_WORDS).stat().st_size == LAST_WORDS_BYTES
    told = folder.last_words()
    assert told is not None
    assert told[0].startswith("écrit: xxx")
    assert told[1] == 17
    assert folder.last_words() is None


async def test_a_stall_says_how_long_the_loop_and_how_long_all_of_the_process_stood_still():
    watchdog, told = Watchdog(0.2), list[tuple[float, float]]()
    watchdog.on_stall = lambda loop_s, process_s: told.append((loop_s, process_s))
    watchdog.start()
    await asyncio.sleep(0.2)
    time.sleep(1.5)  # the thread goes on meanwhile
    await until(lambda: told)
    watchdog.stop()

    loop_s, process_s = told[0]
    assert loop_s > 1.2
    assert process_s < loop_s


def test_a_process_that_was_stopped_says_that_none_of_its_threads_ran():
    program = """
import asyncio
from node.operating.watchdog import Watchdog

async def main():
    done = asyncio.Event()
    watchdog = Watchdog(0.2)
    def told(loop_s, process_s):
        print("told", loop_s, process_s, flush=True)
        done.set()
    watchdog.on_stall = told
    watchdog.start()
    await asyncio.sleep(0.3)
    print("up", flush=True)
    await done.wait()
    watchdog.stop()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGSTOP)
            time.sleep(2)
            process.send_signal(signal.SIGCONT)
            (words,) = [line.split()[1:] for line in process.stdout if line.startswith(b"told")]
        finally:
            process.kill()
    loop_s, process_s = map(float, words)

    assert loop_s > 1.5
    assert process_s > 0.8 * loop_s
