"""Work in forks of a process that has loaded what the work needs."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer

import pytest

pytest.importorskip("pyspark", reason="its cloudpickle carries the work")

from chaos.postmortem.forks import REPLAY, Forks
from tests.postmortem.generator import generate
from tests.testkit.waiting import wait_until


@pytest.fixture
def forks() -> Iterator[Forks]:
    forks = Forks()
    yield forks
    forks.close()


def _loaded(part: bytes) -> bytes:
    print("no answer")
    return f"{part.decode()} {REPLAY in sys.modules} {os.getpid()}".encode()


def test_each_part_is_worked_at_where_all_is_loaded(forks: Forks):
    done = [made.decode().split() for made in forks.each(_loaded, [b"one", b"two", b"three"])]

    assert sorted(part for part, _, _ in done) == ["one", "three", "two"]
    assert {loaded for _, loaded, _ in done} == {"True"}
    assert str(os.getpid()) not in {pid for _, _, pid in done}


def test_what_the_work_raises_is_raised_and_the_next_work_is_done(forks: Forks):
    with pytest.raises(ValueError, match="invalid literal"):
        list(forks.each(lambda part: b"%d" % int(part), [b"1", b"x", b"2"]))

    assert list(forks.each(lambda part: part * 2, [b"a"])) == [b"aa"]


def test_a_worker_that_is_killed_is_an_error(forks: Forks):
    with pytest.raises(Exception, match="terminated abruptly"):
        list(forks.each(lambda _: os.kill(os.getpid(), signal.SIGKILL) or b"", [b""]))


def test_its_process_that_is_killed_is_an_error_and_another_one_does_the_next_work(forks: Forks):
    with pytest.raises(RuntimeError, match="exit status -9"):
        list(forks.each(lambda _: os.kill(os.getppid(), signal.SIGKILL) or b"", [b""]))

    assert list(forks.each(lambda part: part * 2, [b"a"])) == [b"aa"]


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """As Ctrl-C does, from now on in a moment."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupted)
    yield Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start
    signal.signal(signal.SIGUSR1, before)


def test_answers_to_what_was_interrupted_are_none_to_what_is_asked_then(
    forks: Forks, interrupt: Callable[[], None]
):
    old = forks.each(lambda part: time.sleep(0.5) or part, [b"old"] * 8)
    next(old)
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        list(old)

    assert list(forks.each(lambda part: part * 2, [b"a"])) == [b"aa"]


def test_paths_that_are_no_text_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    forks = Forks()

    assert list(forks.each(lambda part: part * 2, [b"a"])) == [b"aa"]

    forks.close()


def test_work_ends_when_who_asked_for_it_is_killed(tmp_path: Path):
    done = tmp_path / "done"
    script = f"""
import os, time
from chaos.postmortem.forks import Forks

def work(part):
    time.sleep(0.5)
    with open({str(done)!r}, "ab") as file:
        file.write(b"%d\\n" % os.getpid())
    return part

forks = Forks()
print(forks._process.pid, flush=True)
list(forks.each(work, [b""] * 200))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        server = Path("/proc", caller.stdout.readline().strip())
        wait_until(done.exists)
        caller.kill()
    wait_until(lambda: not server.exists())
    workers = {*done.read_text(encoding="utf-8").split()}
    wait_until(lambda: not any(Path("/proc", each).exists() for each in workers))

    assert len(done.read_text(encoding="utf-8").splitlines()) < 200


@pytest.mark.spark
def test_a_script_of_a_few_lines_makes_a_report(tmp_path: Path):
    generate(tmp_path / "logs", 3_000)
    script = tmp_path / "script.py"
    script.write_text(
        "from chaos.postmortem.command import incident\n"
        f"tables = incident([{str(tmp_path / 'logs')!r}], {str(tmp_path / 'report')!r})\n"
        "print(tables['events'].count())\n",
        encoding="utf-8",
    )

    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3_000
    assert (tmp_path / "report" / "report.html").exists()
