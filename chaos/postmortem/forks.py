"""Work in processes of their own, each a fork of one that has loaded already what the work needs.

`multiprocessing` does not start that one: its processes run the caller's main module again, which
takes longer than a small replay, and needs a guard in every script and notebook.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from importlib import import_module
from multiprocessing import get_context, parent_process
from threading import Lock, Thread
from typing import Any, Final

import cbor2
from pyspark import cloudpickle

#: What forks know from their start.
REPLAY: Final = f"{__package__}.replay.events"
_SERVE: Final = (
    "import cbor2, sys;"
    "sys.path[:] = cbor2.load(sys.stdin.buffer);"
    f"from {__name__} import serve;"
    "serve()"
)


class Forks:
    """A process that loads `REPLAY` beside this one, and ends with it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send([each for each in sys.path if isinstance(each, str)])  # as imports look there

    def close(self) -> None:
        """Ends its process, and waits until it has ended."""
        with self._process:
            pass

    def each(self, work: Any, parts: Sequence[bytes]) -> Iterator[bytes]:
        """What `work` makes of each part, in any order. Raises what it raised."""
        with self._lock:
            if self._process.poll() is not None:  # killed: below, or for want of memory
                self._start()
            try:
                self._send((cloudpickle.dumps(work), parts))
                for _ in parts:
                    made, error = self._answer()
                    if error is not None:
                        raise cloudpickle.loads(error)
                    yield made
            except BaseException:
                # What it has still to answer would pass for the answers to the next work.
                self._process.kill()
                self._process.wait()
                raise

    def _answer(self) -> tuple[bytes, bytes | None]:
        assert self._process.stdout is not None
        try:
            return cbor2.load(self._process.stdout)
        except cbor2.CBORDecodeEOF:
            status = self._process.wait()
            raise RuntimeError(f"the process that replays ended, exit status {status}") from None

    def _send(self, content: Any) -> None:
        assert self._process.stdin is not None
        cbor2.dump(content, self._process.stdin)
        self._process.stdin.flush()


def serve() -> None:
    """The other side: takes work from standard input until that ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the work prints is no answer
    Thread(target=_end_with_caller, daemon=True).start()
    import_module(REPLAY)
    while True:
        try:
            work, parts = cbor2.load(source)
        except cbor2.CBORDecodeEOF:
            return
        fork, begin = get_context("fork"), partial(_begin, sink.fileno())
        with ProcessPoolExecutor(os.cpu_count(), fork, begin) as pool:
            tasks = [pool.submit(_carry_out, work, part) for part in parts]
            for task in as_completed(tasks):
                error = task.exception()
                failed = None if error is None else cloudpickle.dumps(error)
                cbor2.dump((None if failed else task.result(), failed), sink)
                sink.flush()


def _end_with_caller() -> None:
    """Also in the middle of work, which would be for nobody."""
    hung_up = select.poll()
    hung_up.register(0, 0)  # nobody has the other end any more: that is told unasked
    hung_up.poll()
    os._exit(1)


def _begin(sink: int) -> None:
    """In a fork, which is not to outlive the process that it is of."""
    os.close(sink)
    Thread(target=_end_with, args=[parent_process()], daemon=True).start()


def _end_with(process: Any) -> None:
    process.join()
    os._exit(1)


def _carry_out(work: bytes, part: bytes) -> bytes:
    return cloudpickle.loads(work)(part)
