"""A client of the management API under /api, by which users, policies and their like are kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self, cast
from urllib.parse import quote, urlencode

import aiohttp

from quorate.connection import Reasons, describe
from quorate.credentials import split_credentials
from quorate.errors import OutcomeUnknown, Refused, Unreachable
from quorate.routes import Backoff

#: The most that the API tells at once.
PAGE_SIZE = 500
#: A node that cannot be connected to within this is left for the next one.
CONNECT_S_MAX = 3.0

Json = dict[str, Any]


class Management:
    """As one user; without a name it is guest, whom nodes take from their own machine. `token`:
    what a node's data folder holds, for what that is good for, on the node's own machine.

    Parts of a path are given as they are, and are quoted here. What is refused is Refused, with the
    API's word for it; a 404 is `not_found`, a wrong password `login_refused`.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._urls, headers = split_credentials(addresses, user, password)
        if token is not None:
            headers = {"Authorization": f"Bearer {token}"}
        if not headers:
            _, headers = split_credentials((), "guest", "guest")
        self._timeout_s = timeout_s
        self._asked_last: list[str] = []  # those that gave no answer, the latest at the end
        self._http = aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=tls if tls is not None else True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S_MAX),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    # --- what may be asked ------------------------------------------------------------------------

    async def get(self, *path: str, **query: str) -> Any:
        _, value = await self._ask("GET", path, query=query)
        return value

    async def find(self, *path: str) -> Json | None:
        """None: there is none."""
        try:
            return cast("Json", await self.get(*path))
        except Refused as refused:
            if refused.code != "not_found":
                raise
            return None

    async def all(self, *path: str, **query: str) -> list[Json]:
        """A list, page after page."""
        rows: list[Json] = []
        page = 1
        while True:
            size = str(PAGE_SIZE)
            try:
                answer: Any = await self.get(*path, page=str(page), page_size=size, **query)
            except Refused as refused:
                if refused.code == "page_out_of_range":  # the list became shorter meanwhile
                    return rows
                raise
            if isinstance(answer, list):  # short ones have no pages
                return cast("list[Json]", answer)
            rows += answer["items"]
            if page >= answer["page_count"]:
                return rows
            page += 1

    async def put(self, *path: str, body: Json) -> bool:
        """Whether it is new."""
        status, _ = await self._ask("PUT", path, body=body)
        return status == 201

    async def put_and_get(self, *path: str, body: Json) -> Json:
        """What was done."""
        _, value = await self._ask("PUT", path, body=body)
        return cast("Json", value)

    async def patch(self, *path: str, body: Json) -> Json:
        """What it is by now."""
        _, value = await self._ask("PATCH", path, body=body)
        return cast("Json", value)

    async def post(
        self, *path: str, body: Json, query: Json | None = None, repeat: bool = True
    ) -> Any:
        """`repeat`: a node that cannot do it now may be asked again."""
        _, value = await self._ask("POST", path, query=query, body=body, repeat=repeat)
        return value

    async def nodes_here(self) -> dict[str, str]:
        """Which of the addresses is which node, of those that answer."""
        found: dict[str, str] = {}
        for url in self._urls:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    status, value = await self._ask_once("GET", url + "/api/overview", None)
                if status == 200:
                    found[value["node"]] = url
        return found

    async def stream(self, at: str, *path: str, **query: str) -> AsyncIterator[bytes]:
        """A long answer of this very node, piece by piece. Unreachable: it broke off."""
        url = at if "://" in at else f"http://{at}"
        url += "/api/" + "/".join(quote(part, safe="") for part in path) + "?" + urlencode(query)
        try:
            async with self._http.get(url) as response:
                if response.status != 200:
                    value = json.loads(await response.text())
                    raise Refused(_word(value, response.status), _reason(value, response.status))
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{at}: {describe(error)}") from error

    async def delete(self, *path: str, **query: str) -> None:
        await self._ask("DELETE", path, query=query)

    # --- at any node that answers -----------------------------------------------------------------

    async def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: Json | None = None,
        body: Json | None = None,
        repeat: bool = True,
    ) -> tuple[int, Any]:
        if "" in path:
            raise Refused("bad_request", f"a name is empty in {'/'.join(path)}")
        target = "/api/" + "/".join(quote(part, safe="") for part in path)
        if query:
            target += "?" + urlencode(query)
        data = None if body is None else json.dumps(body).encode()
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        backoff = Backoff()
        reasons = Reasons()
        while True:
            passing = False
            for url in self._in_order():
                if asyncio.get_running_loop().time() >= deadline_s:
                    break  # it is not this one's fault
                try:
                    async with asyncio.timeout_at(deadline_s):
                        status, value = await self._ask_once(method, url + target, data)
                    if status != 503:
                        return status, value
                    passing = repeat
                    reasons[url] = _reason(value, status)
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    self._asked_last = [each for each in self._asked_last if each != url] + [url]
                    if method != "GET" and not isinstance(error, aiohttp.ClientConnectorError):
                        why = f"{url}: {describe(error)}"
                        raise OutcomeUnknown(f"no answer came: {why}") from error
                    reasons.failed(url, error)
            pause_s = backoff.next_s()
            if not passing or asyncio.get_running_loop().time() + pause_s > deadline_s:
                raise reasons.unreachable()
            await asyncio.sleep(pause_s)

    def _in_order(self) -> list[str]:
        """A node that hangs would take all the time of each question."""
        last = self._asked_last
        return [url for url in self._urls if url not in last] + last

    async def _ask_once(self, method: str, url: str, data: bytes | None) -> tuple[int, Any]:
        async with self._http.request(method, url, data=data) as response:
            text = await response.text()
            try:
                value = json.loads(text) if text else None
            except ValueError:
                value = None
            status = response.status
            if status == 504:
                raise OutcomeUnknown(_reason(value, status))
            if status >= 400 and status != 503:
                is_login = status == 401 and "WWW-Authenticate" in response.headers
                report = cast("Json", value).get("report") if isinstance(value, dict) else None
                word = "login_refused" if is_login else _word(value, status)
                raise Refused(word, _reason(value, status), report)
            return status, value


def _word(value: Any, status: int) -> str:
    if status == 404:
        return "not_found"
    return str(cast("Json", value).get("error")) if isinstance(value, dict) else str(status)


def _reason(value: Any, status: int) -> str:
    reason = cast("Json", value).get("reason") if isinstance(value, dict) else None
    reason = reason.removeprefix("Validation failed\n\n") if isinstance(reason, str) else reason
    return str(reason or f"HTTP status {status}")
