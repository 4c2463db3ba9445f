"""From an HTTP request to a handler and back: who asks, what for, and how it is told."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from aiohttp import web

from node.access.auth import NAME_SHOWN_MAX, User
from node.errors import BrokerError
from node.management import (
    attention,
    audit,
    backup,
    bindings,
    clients,
    definitions,
    drain,
    exchanges,
    federation,
    groups,
    health,
    limits,
    logins,
    messages,
    nodes,
    overview,
    page,
    parameters,
    policies,
    queues,
    replicas,
    shovels,
    streams,
    upgrade,
    users,
    vhosts,
    waiting,
)
from node.management.acts import Act
from node.management.context import Call, Endpoint, Needs, Response, check_tag, has_tag
from node.management.errors import ApiError, bad_request, not_authorised, not_found, of_broker
from node.management.observer import Observer
from node.management.services import ManagementServices
from node.management.values import Body
from node.messages.plain_values import as_json
from node.protocols.basic_auth import (
    OTHER_SITES,
    BasicAuth,
    LoginRefused,
    challenge,
    claimed_name,
    of_another_site,
    of_our_page,
)

BODY_BYTES_MAX = 16 * 1024 * 1024
#: Items of a list that is written in a thread.
LONG = 200
CHALLENGE = {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'}
#: Who shows the token of the node's data folder.
LOCAL_USER = User("(this machine)", ("administrator",))
ANYBODY = User("")
#: How paths call the exchange that has no name.
DEFAULT_EXCHANGE = "amq.default"

ROUTES: tuple[Endpoint, ...] = (
    *overview.ROUTES,
    *nodes.ROUTES,
    *drain.ROUTES,
    *backup.ROUTES,
    *groups.ROUTES,
    *upgrade.ROUTES,
    *attention.ROUTES,
    *audit.ROUTES,
    *health.ROUTES,
    *clients.ROUTES,
    *queues.ROUTES,
    *messages.ROUTES,
    *waiting.ROUTES,
    *streams.ROUTES,
    *exchanges.ROUTES,
    *bindings.ROUTES,
    *vhosts.ROUTES,
    *users.ROUTES,
    *policies.ROUTES,
    *limits.ROUTES,
    *parameters.ROUTES,
    *federation.ROUTES,
    *shovels.ROUTES,
    *definitions.ROUTES,
    *logins.ROUTES,
    *replicas.ROUTES,
    *page.routes(lambda: ROUTES),
)


class _Resource(NamedTuple):
    words: tuple[str, ...]
    routes: dict[str, Endpoint]  # by method


class ManagementRoutes:
    """One per node."""

    PATH: Final = "/api{tail:(/.*)?}"

    def __init__(self, services: ManagementServices) -> None:
        self._services = services
        self._basic = BasicAuth(services.auth, "http")
        self._observer = self.observer = Observer(services)
        self._resources: dict[int, list[_Resource]] = {}  # by number of words
        for route in ROUTES:
            self._add(route)

    def _add(self, route: Endpoint) -> None:
        words = tuple(route.path.split("/")) if route.path else ()
        same = self._resources.setdefault(len(words), [])
        for resource in same:
            if resource.words == words:
                resource.routes[route.method] = route
                return
        same.append(_Resource(words, {route.method: route}))
        # What is spelled out comes before what varies.
        same.sort(key=lambda resource: [word.startswith("{") for word in resource.words])

    async def watch(self) -> None:
        """Rates: runs as long as the node does."""
        await self._observer.run()

    # --- one request ------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.StreamResponse:
        act = Act(request)
        headers: Mapping[str, str] = {}
        try:
            answer = await self._serve(request, act)
        except ApiError as found:
            error = found
        except LoginRefused as refused:
            error, headers = not_authorised(refused.reason), challenge(request, CHALLENGE)
        except BrokerError as found:
            error = of_broker(found)
        except web.HTTPRequestEntityTooLarge:
            error = ApiError(413, "too_large", "the body is too large")
        except Exception as bug:
            await act.record(self._services.audit, 500, type(bug).__name__)
            raise
        else:
            await act.record(self._services.audit, answer.status)
            if answer.stream is not None:
                return await _streamed(request, answer, answer.stream)
            long = _is_long(answer)
            return await asyncio.to_thread(_response, answer) if long else _response(answer)
        await act.record(self._services.audit, error.status, error.reason)
        return _failure(error, headers)

    async def _serve(self, request: web.Request, act: Act) -> Response:
        words = words_of(request.rel_url.raw_path)
        resource = self._find(words)
        method = "GET" if request.method == "HEAD" else request.method
        route = None if resource is None else resource.routes.get(method)
        act.route = route
        public = resource is not None and all(each.open for each in resource.routes.values())
        user = ANYBODY if public else await self._user(request, route, act)
        act.who = user.name
        if resource is None:
            raise not_found()
        if route is None:
            allowed = ", ".join(sorted(resource.routes))
            return Response(
                405,
                {"error": "method_not_allowed", "reason": f"allowed: {allowed}"},
                {"Allow": allowed},
            )
        if method != "GET" and of_another_site(request):
            raise ApiError(403, "forbidden", OTHER_SITES)
        if not route.open:
            check_tag(user, route.needs)
        names = {
            pattern[1:-1]: word
            for pattern, word in zip(resource.words, words, strict=True)
            if pattern.startswith("{")
        }
        for part in ("exchange", "source", "destination"):
            if names.get(part) == DEFAULT_EXCHANGE:
                names[part] = ""
        sees: Needs = "monitoring" if method == "GET" else "administrator"
        self._check_vhost(user, names, sees, exists=route.path != "vhosts/{vhost}")
        redirect: str | None = None
        if method == "GET" or route.form:
            body = Body({})
        elif request.content_type == "multipart/form-data":
            body, redirect = await _form(request)
        else:
            body = await _body(request)
        call = Call(
            self._services, self._observer, user, names, request.query, body, request.headers
        )
        found = await route.handler(call)
        if redirect is not None:
            return Response(303, headers={"Location": redirect})
        return found if isinstance(found, Response) else Response(200, found)

    async def _user(self, request: web.Request, route: Endpoint | None, act: Act) -> User:
        if route is not None and route.form:
            if of_another_site(request):
                raise ApiError(403, "forbidden", OTHER_SITES)
            form = await request.post()
            name, password = str(form.get("username", "")), str(form.get("password", ""))
            name = name.encode(
                errors="replace"
            ).decode()  # by its charset it may be half a character
            act.who = name[:NAME_SHOWN_MAX]
            return await self._basic.login(request, name, password)
        if "Authorization" not in request.headers and not of_our_page(request):
            raise LoginRefused("Login failed")  # as tools of RabbitMQ expect to be told
        if route is not None and route.local and self._services.local_token.admits(request):
            return LOCAL_USER
        act.who = claimed_name(request)
        return await self._basic.user(request)

    def _find(self, words: Sequence[str]) -> _Resource | None:
        for resource in self._resources.get(len(words), ()):
            if all(p.startswith("{") or p == w for p, w in zip(resource.words, words, strict=True)):
                return resource
        return None

    def _check_vhost(self, user: User, names: dict[str, str], sees: Needs, *, exists: bool) -> None:
        """Those with the tag `sees` need no permissions in the virtual host."""
        vhost = names.get("vhost")
        if vhost is None:
            return
        if self._services.catalog.entry("vhosts", (vhost,)) is None:
            if exists:
                raise not_found()
        elif not has_tag(user, sees) and not self._services.auth.may_enter(user, vhost):
            raise not_authorised(f"User not authorised to access virtual host '{vhost}'")


def words_of(raw_path: str) -> list[str]:
    """The path behind /api, cut at its slashes before it is decoded: %2F is part of a name."""
    parts = raw_path.removeprefix("/api").removeprefix("/").split("/")
    while parts and not parts[-1]:
        parts.pop()
    try:
        return [unquote(part, errors="strict") for part in parts]
    except UnicodeDecodeError:
        raise bad_request("the path is not UTF-8") from None


async def _body(request: web.Request) -> Body:
    if (request.content_length or 0) > BODY_BYTES_MAX:
        raise ApiError(413, "too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
    return Body.parse(await request.read())


async def _form(request: web.Request) -> tuple[Body, str | None]:
    """What a browser uploads: the body as a file, and where to go on this site when it is done."""
    try:
        fields = await request.post()
    except ValueError:
        raise bad_request("the form cannot be read") from None
    file, redirect = fields.get("file"), fields.get("redirect")
    if file is None:
        raise bad_request("the form has no field named file")
    if isinstance(file, web.FileField):
        raw = await asyncio.to_thread(file.file.read)
    else:
        raw = file if isinstance(file, bytes) else str(file).encode()
    if redirect is not None and not _is_here(redirect):
        raise bad_request("redirect must be a path of this site")
    return Body.parse(raw), redirect if isinstance(redirect, str) else None


def _is_here(redirect: Any) -> bool:
    """Not an address of another site, which begins with two slashes or a scheme."""
    plain = isinstance(redirect, str) and redirect.isascii() and redirect.isprintable()
    return plain and not re.match(r"[\\/]{2}|[^/?#]*:", redirect)


def _is_long(answer: Response) -> bool:
    """Would writing it as JSON hold up the loop?"""
    value: Any = answer.value
    parts: list[Any] = (
        list(cast("dict[str, Any]", value).values()) if isinstance(value, dict) else [value]
    )
    return any(isinstance(part, list) and len(cast("list[Any]", part)) > LONG for part in parts)


async def _streamed(
    request: web.Request, answer: Response, chunks: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Whoever reads it sees where it breaks off: the last chunk is missing then."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


def _response(answer: Response) -> web.Response:
    if answer.html is not None:
        return web.Response(text=answer.html, content_type="text/html")
    if answer.value is None:
        return web.Response(status=answer.status, headers=answer.headers)
    return web.Response(
        body=as_json(answer.value, _as_json).encode(errors="replace"),
        status=answer.status,
        headers=answer.headers,
        content_type="application/json",
    )


def _failure(error: ApiError, headers: Mapping[str, str]) -> web.Response:
    value = {"error": error.error, "reason": error.reason, **error.more}
    return _response(Response(error.status, value, headers))


def _as_json(value: Any) -> Any:
    """What AMQP tables hold and JSON does not."""
    if isinstance(value, (bytes, bytearray)):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        return int(value.timestamp())
    return float(value) if isinstance(value, Decimal) else str(value)
