"""What lets a command on the node's own machine act without a password: a file that only the
node's own user can read.

In a container there is no password at hand, and Kubernetes' preStop must drain the node all the
same. Who can read the data folder can do worse than that.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from node.protocols.basic_auth import PROXY_HEADERS, is_loopback

FILE = "local-token"
SCHEME = "bearer"


class Local(NamedTuple):
    """What the file says: where this node answers, and what to show there."""

    url: str
    token: str


class LocalToken:
    """A new one each start; the file is gone when the node is."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._token = secrets.token_urlsafe(32)

    def write(self, url: str) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"url": url, "token": self._token}, stream)
        fresh.replace(self._file)

    def remove(self) -> None:
        self._file.unlink(missing_ok=True)

    def admits(self, request: web.Request) -> bool:
        """It comes from this machine, itself and not by a proxy, and shows the token."""
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != SCHEME or not _is_from_here(request):
            return False
        return hmac.compare_digest(shown.strip().encode(), self._token.encode())


def read(folder: Path) -> Local:
    """OSError or ValueError: there is none that can be read."""
    value = json.loads((folder / FILE).read_text(encoding="utf-8"))
    return Local(str(value["url"]), str(value["token"]))


def _is_from_here(request: web.Request) -> bool:
    """From loopback, or from the very address that was connected to: only this machine has it."""
    if any(header in request.headers for header in PROXY_HEADERS):
        return False
    if is_loopback(request.remote):
        return True
    transport = request.transport
    own = None if transport is None else transport.get_extra_info("sockname")
    return bool(own) and request.remote == own[0]
