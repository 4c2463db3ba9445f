"""What the client, its publishers and its consumers share: routes, tasks and HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Coroutine, Iterable
from typing import Any
from urllib.parse import urljoin

import aiohttp
import cbor2

from quorate import wire
from quorate.connection import ConnectFailed, Connection, Reasons, describe
from quorate.credentials import split_credentials
from quorate.errors import ClientClosed, OutcomeUnknown, Refused, Unreachable
from quorate.routes import Backoff, Routes, ask_until


class Core:
    """Owns every task and socket of one client."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        vhost: str,
        session: str | None,
        resume_ms: int,
        timeout_s: float,
        name: str,
        forward: bool,
        tls: ssl.SSLContext | None,
        user: str | None,
        password: str | None,
        http: aiohttp.ClientSession | None = None,
    ) -> None:
        """`http`: instead of one of its own; it is closed with the client."""
        urls, headers = split_credentials(addresses, user, password)
        if not headers:
            _, headers = split_credentials((), "guest", "guest")
        self.session = session or f"s-{secrets.token_hex(8)}"
        self.vhost = vhost
        self.timeout_s = timeout_s
        self.closed = False
        #: Consumers that are closed, and no leader has said yet that it cancelled them.
        self.ending: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order
        if http is None:
            connector = aiohttp.TCPConnector(ssl=tls if tls is not None else True, limit=0)
            http = aiohttp.ClientSession(connector=connector, headers=headers)
        self._http = http
        hello: dict[str, Any] = {
            "session": self.session,
            "resume_ms": resume_ms,
            "client": name,
            "vhost": vhost,
            "forward": forward,
            "shards": True,
        }
        self.routes = Routes(urls, hello, self._http, self.spawn)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it until it ends or the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def deadline_s(self, timeout_s: float | None) -> float:
        """In the loop's time; None means the client's timeout."""
        if self.closed:
            raise ClientClosed("the client is closed")
        span_s = self.timeout_s if timeout_s is None else timeout_s
        return asyncio.get_running_loop().time() + span_s

    async def ask(
        self, queue: str, opcode: int, *fields: Any, timeout_s: float | None = None
    ) -> tuple[list[Any], bool]:
        """The answering frame, and whether an earlier attempt may have happened. Only for what may
        be repeated.
        """
        deadline_s = self.deadline_s(timeout_s)
        try:
            _, frame, again = await ask_until(self.routes, queue, deadline_s, opcode, *fields)
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"no answer about queue {queue!r} before the deadline: ask its info, then repeat"
            ) from error
        return frame, again

    async def ask_once(
        self, queue: str, opcode: int, *fields: Any, timeout_s: float | None = None
    ) -> tuple[Connection, list[Any]]:
        """For what must not be repeated when its answer was lost: that is OutcomeUnknown."""
        deadline_s = self.deadline_s(timeout_s)
        backoff = Backoff()
        try:
            # INFO, which may be repeated, finds the leader; only then the request itself is sent.
            if self.routes.to_node(queue) is None:
                await ask_until(self.routes, queue, deadline_s, wire.INFO)
            while True:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self.routes.connection(queue)
                    frame = await connection.call(opcode, queue, *fields)
                if frame[0] == wire.LOST:
                    raise TimeoutError
                if frame[0] == wire.ERROR and frame[2] not in wire.PASSING:
                    raise Refused(frame[2], frame[3], frame[4] if len(frame) > 4 else None)
                if frame[0] not in (wire.ERROR, wire.REDIRECT):
                    return connection, frame
                self.routes.forget(queue)
                await asyncio.sleep(backoff.next_s())
                await ask_until(self.routes, queue, deadline_s, wire.INFO)
        except TimeoutError as error:
            raise OutcomeUnknown(
                f"the connection about queue {queue!r} was lost before the answer came"
            ) from error

    async def ask_anyone(
        self, opcode: int, *fields: Any, timeout_s: float | None = None, again: bool = False
    ) -> list[Any]:
        """What any node can do. `again`: it may be repeated when its answer was lost, which is
        OutcomeUnknown otherwise.
        """
        deadline_s = self.deadline_s(timeout_s)
        backoff = Backoff()
        said, sent = "no node was asked yet", False
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    connection = await self.routes.connection()
                    sent = True
                    frame = await connection.call(opcode, *fields)
                    if frame[0] == wire.OK:
                        return frame
                    if frame[0] == wire.LOST:
                        if not again:
                            break
                        said = "the connection was lost"
                    elif frame[0] == wire.REDIRECT:
                        said, sent = "a queue has no leader now", False
                    elif frame[2] == wire.UNKNOWN:
                        break
                    elif frame[2] == wire.NOT_KNOWN:
                        reason = "the node's release cannot do that yet: upgrade all nodes"
                        raise Refused(frame[2], reason)
                    elif frame[2] in wire.PASSING:
                        said, sent = f"{frame[2]}: {frame[3]}", False
                    else:
                        raise Refused(frame[2], frame[3], frame[4] if len(frame) > 4 else None)
                    await asyncio.sleep(backoff.next_s())
            except ConnectFailed as error:
                said = str(error)
                await asyncio.sleep(backoff.next_s())
            except TimeoutError as error:
                if sent:
                    break
                raise Unreachable(f"no node could do it in time: {said}") from error
        raise OutcomeUnknown("the answer was lost, or a node lost track: it may have happened")

    async def reach(self, timeout_s: float | None) -> None:
        """Connect to any node. Raises Unreachable, with what was said before time ran out."""
        deadline_s = self.deadline_s(timeout_s)
        backoff = Backoff()
        said = ""
        while True:
            try:
                async with asyncio.timeout_at(deadline_s):
                    await self.routes.connection()
                    return
            except (ConnectFailed, TimeoutError) as error:
                if isinstance(error, ConnectFailed):
                    said = str(error)
                pause_s = backoff.next_s()
                if asyncio.get_running_loop().time() + pause_s > deadline_s:
                    said = said or f"{', '.join(self.routes.urls)}: {describe(error)}"
                    raise Unreachable(f"no node answers: {said}") from error
            await asyncio.sleep(pause_s)

    async def http_get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """One HTTP GET, at any node that answers; redirects are followed. Again while nodes answer
        that it will pass, as in a change of leader.
        """
        deadline_s = self.deadline_s(timeout_s)
        backoff = Backoff()
        reasons = Reasons()
        while True:
            passing = False
            for url in self.routes.urls:
                try:
                    async with asyncio.timeout_at(deadline_s):
                        status, value = await self._get_once(f"{url}{path}")
                    if status < 400:
                        return value
                    code = str(value.get("code", status))
                    if code not in wire.PASSING:
                        raise Refused(code, str(value.get("reason", code)))
                    passing = True
                    reasons[url] = code
                except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
                    reasons.failed(url, error)
            pause_s = backoff.next_s()
            if not passing or asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise reasons.unreachable()
            await asyncio.sleep(pause_s)

    async def _get_once(self, url: str) -> tuple[int, Any]:
        for _ in range(wire.REDIRECTS_MAX):
            # Followed by hand: aiohttp drops the credentials when another node is asked.
            async with self._http.get(
                url, headers={"Accept": "application/cbor"}, allow_redirects=False
            ) as response:
                if (location := response.headers.get("Location")) is not None:
                    url = urljoin(url, location)
                    if not self.routes.may_ask(url):
                        raise ValueError(f"a node sends us to {url}, which is not TLS")
                    continue
                data = await response.read()
                if "cbor" in response.content_type:
                    return response.status, cbor2.loads(data)
                return response.status, await response.json(content_type=None)
        raise ValueError("the nodes send us from one to another")

    async def close(self) -> None:
        """Say goodbye to every node, end every task. Idempotent."""
        if self.closed:
            return
        self.closed = True
        connections = self.routes.drop()
        with contextlib.suppress(Exception):
            await asyncio.gather(*(connection.goodbye() for connection in connections))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.close()
