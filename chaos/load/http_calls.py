"""What is asked over HTTP: lengths, exchanges and bindings."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any, cast
from urllib.parse import quote, urljoin

import aiohttp

from chaos.load.addresses import Address, Chooser
from chaos.load.driver import CALL_S_MAX, Answer

CONNECT_S_MAX = 1.0
PAUSE_S = 0.1
#: A leader may have moved on while we were sent to it.
REDIRECTS_MAX = 5
_LATER = 503  # surely not done, and may be asked again
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class HttpCalls:
    """Of one client. Made by a door when it needs it first."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._session: aiohttp.ClientSession | None = None

    async def length(self, queue: str) -> Answer:
        """Behind a barrier: all that was confirmed before is counted."""
        return await self.length_at(f"%2F/{named(queue)}")

    async def length_at(self, path: str) -> Answer:
        """As `length`. `path`: virtual host and queue, each as a part of a path."""
        answer = await self.call("GET", f"/v1/queues/{path}")
        if not answer.ok:
            return answer
        return Answer("ok", int(answer.value["messages"]), node=answer.node)

    async def call(self, method: str, path: str, body: Any = None) -> Answer:
        """Another node is asked only when this one surely did nothing."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + CALL_S_MAX
        answer = Answer("refused", reason="no node could be reached")
        while loop.time() + PAUSE_S < deadline_s:
            for address in self._chooser.shuffled():
                try:
                    async with asyncio.timeout_at(deadline_s):
                        status, value = await self._ask(address, method, path, body)
                except _UNREACHABLE:
                    self._chooser.failed(address.node)
                    continue
                except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
                    self._chooser.failed(address.node)
                    return Answer("unknown", reason=repr(error), node=address.node)
                answer = _answer(status, value, address.node)
                if status != _LATER:
                    return answer
            await asyncio.sleep(PAUSE_S)
        return answer

    async def _ask(self, address: Address, method: str, path: str, body: Any) -> tuple[int, Any]:
        session = self._session
        if session is None:
            limits = aiohttp.ClientTimeout(sock_connect=CONNECT_S_MAX)
            session = self._session = aiohttp.ClientSession(timeout=limits)
            # Else it sends a DELETE again whose answer was lost, and nobody hears of the first.
            session._retry_connection = False  # pyright: ignore[reportPrivateUsage]
        url = f"{address.url}{path}"
        given = b64encode(":".join(address.credentials).encode()).decode()
        headers = {"Authorization": f"Basic {given}"}
        for _ in range(REDIRECTS_MAX):
            # Followed by hand: aiohttp drops the credentials when another node is asked.
            async with session.request(
                method, url, json=body, headers=headers, allow_redirects=False
            ) as response:
                if (location := response.headers.get("Location")) and response.status == 307:
                    url = urljoin(url, location)
                    continue
                if "json" in response.content_type:
                    return response.status, await response.json()
                return response.status, await response.text()
        return _LATER, "the nodes send us from one to another"

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def named(name: str) -> str:
    """As a part of a path."""
    return quote(name, safe="")


def _answer(status: int, value: Any, node: str) -> Answer:
    if status < 300:
        return Answer("ok", value, node=node)
    reason = str(value)
    if isinstance(value, dict):
        reason = str(cast("dict[str, Any]", value).get("reason", reason))
    sure = status < 500 or status in (_LATER, 507)
    return Answer("refused" if sure else "unknown", reason=f"{status}: {reason}", node=node)
