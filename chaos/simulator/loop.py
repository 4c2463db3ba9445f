"""Processes under virtual time: one thread, one clock, and an asyncio event loop of its own for
each process.

A killed process runs not one more line (no `finally`, no farewell), as after kill -9 or a power
cut. A paused one runs nothing until it is resumed, while its timers grow stale, as after SIGSTOP.
When every process waits, the clock jumps to the next timer; the order of everything is a function
of the order of calls, so a seed replays to the last step.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from enum import Enum
from typing import Any, cast

NS = 1_000_000_000

#: Steps without any time passing before the run is given up: some process spins.
STEPS_PER_INSTANT_MAX = 200_000

#: Where the virtual clock starts. Not 0, so that "never" (0) and "just now" differ for code that
#: subtracts.
EPOCH_NS = 1_000 * NS


class Stuck(Exception):
    """The run cannot go on: everybody waits and no timer is set, or somebody spins without time
    passing.
    """


class ProcessState(Enum):
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class World:
    """The clock and the order of events of one run."""

    def __init__(self) -> None:
        self.now_ns = EPOCH_NS
        self.steps = 0
        self.after_step: Callable[[Process], None] | None = None
        self._ready: deque[tuple[Process, asyncio.Handle]] = deque()
        self._timers: list[tuple[int, int, Process, asyncio.TimerHandle]] = []
        self._sequence = 0
        self._steps_this_instant = 0
        self._processes: list[Process] = []
        self._graves: list[asyncio.Task[Any]] = []
        self.kernel = Process(self, "kernel")  # what is never killed: wires, disks, the nemesis

    @property
    def now_s(self) -> float:
        """Seconds since the run began: for people."""
        return (self.now_ns - EPOCH_NS) / NS

    def soon(self, process: Process, handle: asyncio.Handle) -> None:
        self._ready.append((process, handle))

    def at(self, when_ns: int, process: Process, handle: asyncio.TimerHandle) -> None:
        self._sequence += 1
        heapq.heappush(self._timers, (when_ns, self._sequence, process, handle))

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> None:
        """Go on until the clock shows `until_s` seconds since the start, or `stop` says so (asked
        when time moves).
        """
        until_ns = EPOCH_NS + round(until_s * NS)
        previous = events._get_running_loop()
        try:
            while True:
                self._run_ready()
                if stop is not None and stop():
                    return
                if not self._timers and self._somebody_waits():
                    raise Stuck("every process waits and no timer is set")
                when_ns = self._timers[0][0] if self._timers else until_ns + 1
                if when_ns > until_ns:
                    self.now_ns = until_ns
                    return
                if when_ns > self.now_ns:
                    self.now_ns = when_ns
                    self._steps_this_instant = 0
                while self._timers and self._timers[0][0] <= self.now_ns:
                    _, _, process, handle = heapq.heappop(self._timers)
                    if not handle.cancelled():
                        self._ready.append((process, handle))
        finally:
            events._set_running_loop(previous)

    def _somebody_waits(self) -> bool:
        return any(process.alive and process.tasks() for process in self._processes)

    def _run_ready(self) -> None:
        ready = self._ready
        after_step = self.after_step
        while ready:
            process, handle = ready.popleft()
            if handle.cancelled():
                continue
            if process.state is not ProcessState.RUNNING:
                process.hold(handle)
                continue
            events._set_running_loop(process)
            handle._run()  # pyright: ignore[reportAttributeAccessIssue] as every asyncio loop does
            self.steps += 1
            self._steps_this_instant += 1
            if self._steps_this_instant > STEPS_PER_INSTANT_MAX:
                raise Stuck(f"process {process.name} spins: {handle!r}")
            if after_step is not None and process is not self.kernel:
                after_step(process)

    def bury(self, process: Process) -> None:
        """Keep what a dead process left, so that collecting it runs none of its `finally` blocks
        during the run.
        """
        self._graves += process.tasks()

    def born(self, process: Process) -> None:
        self._processes.append(process)

    def close(self) -> None:
        """The run is over: let go of everything that still waits. What its `finally` blocks do,
        nobody sees.
        """
        for process in self._processes:
            process.kill()
        with warnings.catch_warnings():
            # They may want to start more work, which no loop takes any more.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited")
            for task in self._graves:
                task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] there is no other way
                coroutine = cast("Coroutine[Any, Any, Any]", task.get_coro())
                with suppress(BaseException):
                    coroutine.close()
        self._graves.clear()
        self._processes.clear()
        self._timers.clear()
        self._ready.clear()


class Process(asyncio.BaseEventLoop):
    """One simulated process: its event loop, which is all that asyncio code sees of the world."""

    def __init__(self, world: World, name: str) -> None:
        self.state = ProcessState.RUNNING
        super().__init__()
        self.name = name
        self.crashes: list[BaseException | str] = []
        self._world = world
        self._held: list[asyncio.Handle] = []
        self._roots: set[asyncio.Task[Any]] = set()
        self.deaths: list[Callable[[], None]] = []  # called at once when it dies: its sockets close
        world.born(self)

    def __repr__(self) -> str:
        return f"<process {self.name} {self.state.value}>"

    def __del__(self, _warn: Any = None) -> None:
        """Nothing to close: it holds no descriptor."""

    # --- life and death

    def kill(self) -> None:
        if self.state is ProcessState.DEAD:
            return
        self.state = ProcessState.DEAD
        self._held.clear()
        self._world.bury(self)
        for death in self.deaths:
            death()

    def pause(self) -> None:
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.PAUSED

    def resume(self) -> None:
        if self.state is ProcessState.PAUSED:
            self.state = ProcessState.RUNNING
            held, self._held = self._held, []
            for handle in held:
                self._world.soon(self, handle)

    def hold(self, handle: asyncio.Handle) -> None:
        if self.state is ProcessState.PAUSED:
            self._held.append(handle)

    @property
    def alive(self) -> bool:
        return self.state is not ProcessState.DEAD

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """A task that lives as long as the process; its crash is the process's crash."""
        task = self.create_task(work, name=f"{self.name}:{name}")
        self._roots.add(task)
        task.add_done_callback(self._root_done)
        return task

    def _root_done(self, task: asyncio.Task[Any]) -> None:
        self._roots.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crashes.append(error)

    def tasks(self) -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks(self)

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._world.now_ns / NS

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if self.state is not ProcessState.DEAD:
            self._world.soon(self, handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if self.state is not ProcessState.DEAD:
            # Never early by a rounding: code that asks "is it time?" when it wakes must be told
            # yes.
            when_ns = max(self._world.now_ns, math.ceil(when * NS))
            self._world.at(when_ns, self, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def get_debug(self) -> bool:
        return False

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise RuntimeError(
            "a thread under virtual time: its order would not be a function of the seed"
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.state is ProcessState.DEAD:
            return  # what is collected after death has no say
        self.crashes.append(context.get("exception") or str(context.get("message")))
