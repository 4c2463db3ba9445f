"""The page at `/`: its files, and the sessions of who logs in with it. What it shows it gets from
the API, as everybody does.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from node.access.auth import Auth, User
from node.errors import AccessRefused, BrokerError
from node.management.errors import ApiError, bad_request, not_authorised, not_found, of_broker
from node.messages.plain_values import loads
from node.protocols.basic_auth import (
    OTHER_SITES,
    BasicAuth,
    LoginRefused,
    of_another_site,
    of_our_page,
    session_cookie,
)
from node.version import PRODUCT_VERSION

FOLDER: Final = Path(__file__).parent / "ui"
TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
LOGIN_BYTES_MAX: Final = 4_096
#: In index.html, for where the files are.
PLACE: Final = "{{files}}"

HEADERS: Final = {
    # Nothing but what this node serves, no script in a page, and nobody may frame it.
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none';"
        " object-src 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Files:
    """Read once. Where they are says what is in them, so that browsers may keep them."""

    @cached_property
    def _raw(self) -> dict[str, bytes]:
        paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in TYPES)
        return {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}

    @cached_property
    def place(self) -> str:
        digest = hashlib.sha256()
        for name, body in self._raw.items():
            digest.update(f"{name} {len(body)} ".encode() + body)
        return f"ui/{digest.hexdigest()[:16]}"

    @cached_property
    def index(self) -> bytes:
        return self._raw["index.html"].replace(PLACE.encode(), self.place.encode())

    @cached_property
    def packed(self) -> dict[str, bytes]:
        """All but the page itself."""
        names = self._raw.keys() - {"index.html"}
        return {name: gzip.compress(self._raw[name], mtime=0) for name in names}

    def get(self, name: str) -> bytes | None:
        return None if name == "index.html" else self._raw.get(name)


class Site:
    """One per node."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth
        self._basic = BasicAuth(auth, "http")
        self._files = Files()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/", self._index)
        app.router.add_get("/ui/session", self._who)
        app.router.add_post("/ui/session", self._login)
        app.router.add_delete("/ui/session", self._logout)
        app.router.add_get("/ui/{hash}/{name:.+}", self._file)

    # --- files ------------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        tag = self._files.place.rpartition("/")[2]
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": f'"{tag}"'}
        if tag in [each.value for each in request.if_none_match or ()]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=self._files.index, headers=headers, content_type="text/html")

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = self._files.get(name)
        if body is None or f"ui/{request.match_info['hash']}" != self._files.place:
            return _failure(not_found())
        headers = {**HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
        headers["Vary"] = "Accept-Encoding"
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = self._files.packed[name]
        kind = TYPES[name[name.rindex(".") :]]
        return web.Response(body=body, headers=headers, content_type=kind, charset="utf-8")

    # --- sessions ---------------------------------------------------------------------------------

    async def _who(self, request: web.Request) -> web.Response:
        """Nobody is no error: it is what the page asks first."""
        if not of_our_page(request) or of_another_site(request):
            return _failure(ApiError(403, "forbidden", OTHER_SITES))
        try:
            return _told(await self._basic.user(request))
        except BrokerError:
            return _answer({"name": None})

    async def _login(self, request: web.Request) -> web.Response:
        try:
            if not of_our_page(request) or of_another_site(request):
                raise AccessRefused(OTHER_SITES)
            name, password = await _credentials(request)
            user = await self._basic.login(request, name, password)
        except LoginRefused as refused:
            return _failure(not_authorised(refused.reason))
        except AccessRefused as refused:
            return _failure(ApiError(403, "forbidden", refused.reason))
        except ApiError as error:
            return _failure(error)
        except BrokerError as error:
            return _failure(of_broker(error))
        response = _told(user)
        response.set_cookie(
            session_cookie(request),
            self._auth.browser_login(user),
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        if not of_our_page(request) or of_another_site(request):
            return _failure(ApiError(403, "forbidden", OTHER_SITES))
        cookie = session_cookie(request)
        self._auth.browser_logout(request.cookies.get(cookie, ""))
        response = web.Response(status=204)
        response.del_cookie(cookie)
        return response


async def _credentials(request: web.Request) -> tuple[str, str]:
    if (request.content_length or 0) > LOGIN_BYTES_MAX:
        raise ApiError(413, "too_large", f"a login has at most {LOGIN_BYTES_MAX} bytes")
    try:
        given = loads(await request.read())
    except ValueError:
        given = None
    match given:
        case {"username": str(name), "password": str(password)}:
            return name, password
        case _:
            raise bad_request('a login is {"username": "...", "password": "..."}')


def _told(user: User) -> web.Response:
    return _answer({"name": user.name, "tags": list(user.tags), "version": PRODUCT_VERSION})


def _answer(value: Any, status: int = 200) -> web.Response:
    return web.json_response(value, status=status, headers={"Cache-Control": "no-store"})


def _failure(error: ApiError) -> web.Response:
    return _answer({"error": error.error, "reason": error.reason}, error.status)
