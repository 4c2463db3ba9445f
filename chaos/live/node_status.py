"""What the harness asks a node over HTTP, as the user whom every node has."""

from __future__ import annotations

import contextlib
from base64 import b64encode
from typing import Any, Literal, cast

import aiohttp

ASK_S_MAX = 2.0
GUEST = {"Authorization": f"Basic {b64encode(b'guest:guest').decode()}"}


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S_MAX), headers=GUEST)


async def is_healthy(http: aiohttp.ClientSession, url: str, what: Literal["live", "ready"]) -> bool:
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with http.get(f"{url}/health/{what}") as answer:
            return answer.status == 200
    return False


async def status_of(url: str, *, digests: bool) -> dict[str, Any] | None:
    """None: it does not answer."""
    path = f"{url}/v1/status{'?digests' if digests else ''}"
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
        async with session() as http, http.get(path) as answer:
            if answer.status == 200:
                return cast("dict[str, Any]", await answer.json())
    return None


async def told(method: str, url: str, body: Any = None, *, timeout_s: float) -> str | None:
    """What somebody who runs the cluster tells a node to do. None: done; else why not."""
    limit = aiohttp.ClientTimeout(total=timeout_s)
    try:
        async with session() as http, http.request(method, url, json=body, timeout=limit) as answer:
            return None if answer.status < 300 else f"{answer.status}: {await answer.text()}"
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return repr(error)
