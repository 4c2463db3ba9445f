"""How a client's program talks to the harness, in any language.

    argument   {"urls": [...], "prefix": "...", "steps": ["confirms", ...]}
    stdout     {"step": "confirms", "ok": true, "detail": "..."}     a line per step, in order
               "ok": null means that this client does not offer it; the detail says why
               {"ask": "leader", "queue": "..."}     answered on stdin: {"urls": [leader's, ...]}
               {"ask": "kill", "queue": "..."}       answered on stdin: {"killed": "node-2"}

What is killed is the node that leads the queue, while the program goes on publishing.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any

#: Bounds of waits that end early when all is well; a slow machine needs them long.
WAIT_S_MAX = 60.0
RECONNECT_S_MAX = 120.0
#: How many messages are confirmed before and after the leader is killed.
BEFORE_KILL = 50
AFTER_KILL = 50
#: A durable queue that has replicas on RabbitMQ too.
REPLICATED = {"x-queue-type": "quorum"}


class NotOfferedError(Exception):
    """The client cannot do what the step is about; the text says why."""


@dataclass(frozen=True)
class Given:
    """What the harness said."""

    urls: list[str]
    prefix: str
    websockets: list[str]

    @property
    def url(self) -> str:
        return self.urls[0]

    def name(self, what: str) -> str:
        return f"{self.prefix}.{what}"

    def led(self, queue: str) -> list[str]:
        """The addresses of all nodes, that of the queue's leader first."""
        say(ask="leader", queue=queue)
        return json.loads(sys.stdin.readline())["urls"]

    def kill(self, queue: str) -> threading.Event:
        """Have the leader of the queue killed; set once it is dead."""
        say(ask="kill", queue=queue)
        dead = threading.Event()

        def wait() -> None:
            if json.loads(sys.stdin.readline())["killed"]:
                dead.set()

        threading.Thread(target=wait, daemon=True).start()
        return dead


Step = Callable[[Given], str | Awaitable[str | None] | None]


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def run(steps: Mapping[str, Any]) -> None:
    """The `main` of a program. `steps`: by name, or the functions of the program, named so."""
    asked = json.loads(sys.argv[1])
    given = Given(asked["urls"], asked["prefix"], asked.get("websockets", []))
    for name in asked["steps"]:
        try:
            step: Step | None = steps.get(name, steps.get(re.sub(r"[-+]", "_", name)))
            if step is None:
                raise NotOfferedError("no part of its program")
            detail = step(given)
            if inspect.iscoroutine(detail):
                detail = asyncio.run(detail)
        except NotOfferedError as error:
            say(step=name, ok=None, detail=str(error))
        except Exception as error:  # noqa: BLE001
            frame = traceback.extract_tb(error.__traceback__)
            mine = [f for f in frame if f.filename.startswith(__file__.rpartition("/")[0])]
            where = f" (line {mine[-1].lineno})" if mine else ""
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            say(step=name, ok=False, detail=f"{type(error).__name__}: {error}{where}")
        else:
            say(step=name, ok=True, detail=detail or "")


def equal(found: Any, wanted: Any, what: str) -> None:
    """As an assertion, with words for the table."""
    if found != wanted:
        raise AssertionError(f"{what}: {short(found)} instead of {short(wanted)}")


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]} ... {text[-60:]}"


def until(
    check: Callable[[], Any],
    what: str,
    *,
    step: Callable[[], Any] | None = None,
    wait_s: float = WAIT_S_MAX,
) -> None:
    """Until `check` is true; `step` lets the client work (it may block for a moment)."""
    deadline = time.monotonic() + wait_s
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {wait_s:g} s")
        if step is None:
            time.sleep(0.02)
        else:
            step()


async def until_true(check: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {WAIT_S_MAX:g} s")
        await asyncio.sleep(0.02)


class Failover:
    """Which messages are confirmed, and what is still to be done.

    Without `kill` no leader dies: `after` messages are all.
    """

    def __init__(
        self,
        urls: list[str],
        *,
        kill: bool = True,
        before: int = BEFORE_KILL,
        after: int = AFTER_KILL,
    ) -> None:
        self.urls = urls
        self.confirmed: list[bytes] = []
        self.reconnects = 0
        #: The longest time between two that were confirmed.
        self.gap_s = 0.0
        self._kill = kill
        self._dead: threading.Event | None = None
        self._before, self._after = before, after
        self._last = time.monotonic()
        self._next = 0
        self._deadline = time.monotonic() + RECONNECT_S_MAX

    @property
    def next(self) -> bytes:
        return b"%d" % self._next

    @property
    def done(self) -> bool:
        return self._after <= 0

    def confirm(self, given: Given, queue: str) -> None:
        """The next one is confirmed."""
        self.confirmed.append(self.next)
        self._next += 1
        last, self._last = self._last, time.monotonic()
        self.gap_s = max(self.gap_s, self._last - last)
        if not self._kill or (self._dead is not None and self._dead.is_set()):
            self._after -= 1
        elif self._dead is None and len(self.confirmed) == self._before:
            self._dead = given.kill(queue)
        else:
            self._check()

    def lost(self, error: BaseException) -> str:
        """The connection is gone: where to go next."""
        self._check(error)
        self.reconnects += 1
        return self.urls[self.reconnects % len(self.urls)]

    def _check(self, error: BaseException | None = None) -> None:
        if time.monotonic() > self._deadline:
            raise AssertionError(
                f"{len(self.confirmed)} confirmed, and not done after {RECONNECT_S_MAX:g} s"
            ) from error

    def verdict(self, consumed: Iterable[bytes]) -> str:
        seen = list(consumed)
        missing = set(self.confirmed) - set(seen)
        if missing:
            raise AssertionError(f"{len(missing)} of {len(self.confirmed)} confirmed are lost")
        return (
            f"{len(self.confirmed)} confirmed, {self.reconnects} reconnects,"
            f" {len(seen) - len(set(seen))} twice"
        )


def failover(
    given: Given,
    queue: str,
    publisher: Callable[[str], AbstractContextManager[Callable[[bytes], Any]]],
    drain: Callable[[str, Callable[[bytes], bool]], Any],
) -> str:
    """Publish at the leader, have it killed, reconnect to the next address; consume all.

    `publisher(url)` gives a function that returns when the message is confirmed. `drain(url, took)`
    consumes until `took(body)` is true.
    """
    state = Failover(given.led(queue))
    url = state.urls[0]
    while not state.done:
        try:
            with publisher(url) as publish:
                while not state.done:
                    publish(state.next)
                    state.confirm(given, queue)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001
            url = state.lost(error)
            time.sleep(0.1)
    missing, seen = set(state.confirmed), list[bytes]()

    def took(body: bytes) -> bool:
        seen.append(body)
        missing.discard(body)
        return not missing

    drain(url, took)
    return state.verdict(seen)


async def failover_async(
    given: Given,
    queue: str,
    publisher: Callable[[str], AbstractAsyncContextManager[Callable[[bytes], Awaitable[Any]]]],
    seen: list[bytes],
) -> str:
    """As `failover`; a consumer at a node that survives fills `seen` all the while."""
    state = Failover(given.led(queue))
    url = state.urls[0]
    while not state.done:
        try:
            async with publisher(url) as publish:
                while not state.done:
                    await publish(state.next)
                    state.confirm(given, queue)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001
            url = state.lost(error)
            await asyncio.sleep(0.1)
    deadline = time.monotonic() + WAIT_S_MAX
    while missing := set(state.confirmed) - set(seen):
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{len(missing)} of {len(state.confirmed)} confirmed did not come within"
                f" {WAIT_S_MAX:g} s, {short(sorted(missing, key=int))};"
                f" {len(seen)} came, the last ones {short(seen[-5:])}"
            )
        await asyncio.sleep(0.02)
    return state.verdict(seen)
