"""Which node to talk to: one connection a node, made when first needed, and the leader of every
queue used so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import aiohttp

from quorate import wire
from quorate.connection import ConnectFailed, Connection, NeverWorks
from quorate.credentials import normal_url
from quorate.errors import ClientClosed, Refused, Unreachable

#: A machine that is gone does not say so: after this long the next address is tried as well.
ANOTHER_S_MAX = 0.5


class Backoff:
    """Growing pauses with jitter, so that many clients do not return in step."""

    def __init__(self) -> None:
        self._pause_s = wire.BACKOFF_S_MIN

    def reset(self) -> None:
        self._pause_s = wire.BACKOFF_S_MIN

    def next_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, wire.BACKOFF_S_MAX)
        return pause_s * random.uniform(0.5, 1.0)


class Routes:
    """Connections by node and leaders by queue, for one client with one session."""

    def __init__(
        self,
        urls: Iterable[str],
        hello: dict[str, Any],
        http: aiohttp.ClientSession,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._urls = list(urls)
        if not self._urls:
            raise ValueError("connect needs the address of at least one node, as host:port")
        random.shuffle(self._urls)
        #: A password that was meant for TLS goes nowhere else, whatever a node says.
        self._secure = all(url.startswith("https://") for url in self._urls)
        self._hello = hello
        self._http = http
        self._spawn = spawn
        self._leaders: dict[str, str] = {}  # queue -> node
        self._lost: set[str] = set()  # queues of which the last node that was asked knew no leader
        self._nodes: dict[str, str] = {}  # node -> url
        self._live: dict[str, Connection] = {}  # node -> connection
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._suspects: dict[str, None] = {}  # urls that failed last time, oldest first
        self._failed: BaseException | None = None

    @property
    def urls(self) -> list[str]:
        """Every address: nodes that we talk to first, those that failed us last."""
        known = [connection.url for connection in self._live.values()]
        every = dict.fromkeys([*known, *self._nodes.values(), *self._urls])
        return [*(url for url in every if url not in self._suspects), *self._suspects]

    @property
    def connections(self) -> list[Connection]:
        return list(self._live.values())

    def moved(self, queue: str, node: str | None, url: str | None) -> None:
        """A node said that `node` leads the queue, or that it knows nobody who does."""
        if node is None:
            self.forget(queue)
            return
        self._lost.discard(queue)
        self._leaders[queue] = node
        if url and not self._hello["forward"] and self.may_ask(url):
            self._nodes[node] = normal_url(url)

    def may_ask(self, url: str) -> bool:
        """Whether this address, told by a node, is as safe as those that we were given."""
        return url.startswith("https://") or not self._secure

    def forget(self, queue: str) -> None:
        """Its leader did not answer as such: ask any node next time."""
        self._leaders.pop(queue, None)
        self._lost.add(queue)

    def used(self, queue: str, connection: Connection) -> None:
        """The node did what was asked: it leads the queue."""
        self._lost.discard(queue)
        self._leaders[queue] = connection.node

    def to_node(self, queue: str) -> Connection | None:
        """The live connection to the queue's leader, when both are known."""
        node = self._leaders.get(queue)
        return self._live.get(node) if node is not None else None

    async def connection(self, queue: str | None = None) -> Connection:
        """To the queue's leader, or to any node while that is unknown. Raises ConnectFailed,
        ClientClosed.
        """
        if self._failed is not None:
            raise ClientClosed(str(self._failed))
        if queue is not None and (node := self._leaders.get(queue)) is not None:
            live = self._live.get(node)
            if live is not None:
                return live
            url = self._nodes.get(node)
            if url is not None:
                # Perhaps it is gone and another leads: anyone else knows.
                with contextlib.suppress(ConnectFailed):
                    return await self._first_of([url], wait_s=ANOTHER_S_MAX)
            self.forget(queue)
        if self._live and queue in self._lost:
            with contextlib.suppress(ConnectFailed):
                return await self._another()
        return await self._any()

    async def _another(self) -> Connection:
        """Any node that we know of: those that we talk to may be cut off from the others."""
        node = random.choice(list(self._nodes))
        live = self._live.get(node)
        if live is not None:
            return live
        return await self._first_of([self._nodes[node]], wait_s=ANOTHER_S_MAX)

    async def _any(self) -> Connection:
        if self._live:
            return random.choice(list(self._live.values()))
        return await self._first_of(self.urls, wait_s=None)

    async def _first_of(self, urls: list[str], *, wait_s: float | None) -> Connection:
        """Whichever is connected first; each address has a start over the next. Attempts go on when
        nobody waits for them any more.
        """
        reasons: dict[str, str] = {}
        trying: dict[asyncio.Task[Connection], str] = {}
        for number, url in enumerate(urls, start=1):
            trying[self._open(url)] = url
            last = number == len(urls)
            while trying:
                done, _ = await asyncio.wait(
                    trying,
                    timeout=wait_s if last else ANOTHER_S_MAX,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in trying if task in done]:
                    failed_url = trying.pop(task)
                    try:
                        return task.result()
                    except ConnectFailed as error:
                        reasons[failed_url] = str(error)
                if not done or not last:
                    break
        reasons.update({url: f"{url} did not answer in time" for url in trying.values()})
        raise ConnectFailed("; ".join(reasons.values()))

    def _open(self, url: str) -> asyncio.Task[Connection]:
        """One attempt at a time to each address, shared by all who want it."""
        task = self._opening.get(url)
        if task is None:
            task = asyncio.create_task(self._connect(url))
            self._opening[url] = task
            task.add_done_callback(lambda done: self._opened(url, done))
        return task

    def _opened(self, url: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(url, None)
        self._suspects.pop(url, None)
        # Asking for the exception marks it as seen: whoever waits raises it.
        if task.cancelled() or task.exception() is not None:
            self._suspects[url] = None

    async def _connect(self, url: str) -> Connection:
        try:
            connection = await Connection.open(self._http, url, self._hello, self.moved)
        except NeverWorks as error:
            self._failed = error
            raise ClientClosed(str(error)) from error
        earlier = self._live.get(connection.node)
        if earlier is not None:
            earlier.superseded = True
        self._live[connection.node] = connection
        if not self._hello["forward"]:  # else only the given addresses can be reached
            addresses = connection.nodes.items()
            self._nodes.update({node: normal_url(at) for node, at in addresses if self.may_ask(at)})
        self._nodes.setdefault(connection.node, url)
        self._spawn(self._live_until_lost(connection))
        return connection

    async def _live_until_lost(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            if self._live.get(connection.node) is connection:
                del self._live[connection.node]
            if connection.silent:
                # It may accept connections and still say nothing: ask the others who leads.
                self._suspects[connection.url] = None
                self._leaders = {
                    queue: node for queue, node in self._leaders.items() if node != connection.node
                }
            if connection.lost_code == wire.CLOSED_TAKEN_OVER and not connection.superseded:
                self._failed = ClientClosed(
                    "another client connected with this session: give every client its own"
                )

    def drop(self) -> list[Connection]:
        """Forget every connection and attempt: the client is closing."""
        self._failed = ClientClosed("the client is closed")
        for task in self._opening.values():
            task.cancel()
        return self.connections


async def ask_until(
    routes: Routes, queue: str, deadline_s: float, opcode: int, *fields: Any
) -> tuple[Connection, list[Any], bool]:
    """Ask the queue's leader, wherever it is, until it answers; for requests that may be repeated.

    Returns the connection, the answering frame and whether an earlier attempt may have happened.
    Raises Refused, Unreachable (never sent), TimeoutError (sent, no answer).
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff()
    sent = False
    last: Refused = Unreachable("no attempt was made")
    while True:
        connection = None
        try:
            async with asyncio.timeout_at(deadline_s):
                connection = await routes.connection(queue)
                frame = await connection.call(opcode, queue, *fields)
        except TimeoutError:
            if connection is not None or sent:
                raise
            raise last from None
        except ConnectFailed as error:
            last = Unreachable(f"no node can be reached: {error}")
        else:
            answer: int = frame[0]
            if answer == wire.LOST:
                sent = True
                last = Unreachable("the connection was lost")
            elif answer == wire.REDIRECT:
                last = Refused("no_leader", f"queue {queue!r} has no leader now: try again")
                if frame[3]:
                    continue
            elif answer == wire.ERROR:
                refused = Refused(frame[2], frame[3], frame[4] if len(frame) > 4 else None)
                if refused.code not in wire.PASSING:
                    refused.again = sent
                    raise refused
                routes.forget(queue)
                last = refused
            else:
                routes.used(queue, connection)
                return connection, frame, sent
        pause_s = backoff.next_s()
        if loop.time() + pause_s > deadline_s:
            if sent:
                raise TimeoutError
            raise last
        await asyncio.sleep(pause_s)
