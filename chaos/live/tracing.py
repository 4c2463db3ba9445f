"""Slow, failing and lying syncs of a running process: strace at its side changes these calls only.

An attached strace costs a sync some tenths of a millisecond, and nothing else anything that shows.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from cluster.types import NodeId

#: The calls by which a node syncs files and folders.
SYNC_CALLS = "fsync,fdatasync"
#: How long strace may take to attach to all threads, and to let go of them.
ATTACH_S_MAX = 20.0
TRACED = ("slow_disk", "fail_fsync", "lie_fsync")


class TraceError(Exception):
    """strace could not attach; the text is its own."""


@dataclass(frozen=True, slots=True)
class Injection:
    """What befalls the syncs of one process."""

    delay_ms: float = 0.0
    fails: bool = False  # the next one of each call and thread, with EIO
    lies: bool = False

    def describe(self) -> str:
        """As strace wants it."""
        parts = [f"inject={SYNC_CALLS}"]
        if self.fails:
            parts.append("error=EIO:when=1")
        elif self.lies:
            parts.append("retval=0")
        if self.delay_ms:
            parts.append(f"delay_enter={round(self.delay_ms * 1000)}")
        return ":".join(parts)


class Tracer:
    """One strace, attached to all threads of a process, those that it starts later included."""

    def __init__(self, pid: int, injection: Injection) -> None:
        """Attached on return. Raises TraceError, ProcessLookupError."""
        self.pid = pid
        self.injection = injection
        # Every new thread is a short line in the pipe, which nobody reads: there is room for more
        # threads than a node ever starts.
        command = ["strace", "-f", "-o", "/dev/null", "-p", str(pid)]
        command += ["-e", f"trace={SYNC_CALLS}", "-e", injection.describe()]
        self._strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        said = self._first_line()
        if " attached" not in said:
            self.detach()
            if "No such process" in said:
                raise ProcessLookupError(pid)
            raise TraceError(said or f"strace did not attach within {ATTACH_S_MAX:g} s")

    def _first_line(self) -> str:
        assert self._strace.stderr is not None
        ready, _, _ = select.select([self._strace.stderr], [], [], ATTACH_S_MAX)
        return self._strace.stderr.readline().decode(errors="replace").strip() if ready else ""

    def detach(self) -> None:
        """The process goes on as if nothing had been."""
        self._strace.send_signal(signal.SIGINT)
        try:
            self._strace.wait(ATTACH_S_MAX)
        except subprocess.TimeoutExpired:
            self._strace.kill()
            self._strace.wait()
        assert self._strace.stderr is not None
        self._strace.stderr.close()


@cache
def why_not() -> str | None:
    """Why syncs cannot be traced on this machine; None: they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            Tracer(sleeper.pid, Injection(lies=True)).detach()
        except (TraceError, ProcessLookupError) as error:
            return f"strace cannot attach: {error}"
        finally:
            sleeper.kill()
    return None


class TracedDisks:
    """What all kinds of disks do to the syncs of the nodes on them."""

    def __init__(self) -> None:
        self._tracers: dict[NodeId, Tracer] = {}

    @property
    def missing(self) -> Mapping[str, str]:
        reason = why_not()
        return {} if reason is None else dict.fromkeys(TRACED, reason)

    def slow(self, node: NodeId, pid: int, sync_ms: float) -> None:
        self._trace(node, pid, replace(self._injection(node, pid), delay_ms=sync_ms))

    def fail(self, node: NodeId, pid: int) -> None:
        self._trace(node, pid, replace(self._injection(node, pid), fails=True))

    def lie(self, node: NodeId, pid: int) -> None:
        self._trace(node, pid, replace(self._injection(node, pid), lies=True))

    def heal(self, node: NodeId) -> None:
        tracer = self._tracers.pop(node, None)
        if tracer is not None:
            tracer.detach()

    def close(self) -> None:
        for node in list(self._tracers):
            TracedDisks.heal(self, node)

    def _injection(self, node: NodeId, pid: int) -> Injection:
        tracer = self._tracers.get(node)
        return tracer.injection if tracer is not None and tracer.pid == pid else Injection()

    def _trace(self, node: NodeId, pid: int, injection: Injection) -> None:
        # A process has one tracer at most: what it does already is part of the new one.
        TracedDisks.heal(self, node)
        with contextlib.suppress(ProcessLookupError):  # it has just ended: nothing to trace
            self._tracers[node] = Tracer(pid, injection)
