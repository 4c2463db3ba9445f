"""Which user a request comes from: by HTTP Basic, or by the session of a browser."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Collection, Mapping

from aiohttp import web

from node.access.auth import Auth, Protocol, User
from node.errors import AccessRefused

CHALLENGE = {"WWW-Authenticate": 'Basic realm="quorate", charset="UTF-8"'}
#: A proxy on this machine says so, and then the request may be anybody's.
PROXY_HEADERS = (
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-IP",
)

#: Our own page says so: without it the session of a browser counts for nothing, since no page of
#: another site can say it, and no browser asks for a password by itself.
PAGE_HEADER = "Quorate-Page"

OTHER_SITES = "pages of other sites may not change anything"


class LoginRefused(AccessRefused):
    """Nobody we know: HTTP 401, where a user who may not do something gets 403."""


class BasicAuth:
    """Where that is allowed, a request from the machine itself without credentials is guest's."""

    def __init__(self, auth: Auth, protocol: Protocol) -> None:
        self._auth = auth
        self._protocol: Protocol = protocol

    async def user(self, request: web.Request) -> User:
        """Raises LoginRefused, or Refused when it cannot be said now."""
        loopback = comes_from_here(request, self._auth.hosts)
        given = request.headers.get("Authorization")
        if given is not None:
            acts = request.method not in {"GET", "HEAD"} or "Upgrade" in request.headers
            if self._protocol == "native" and acts and of_another_site(request):
                raise AccessRefused(OTHER_SITES)
            return await self.login(request, *_credentials(given))
        if of_our_page(request):
            return self._of_browser(request, loopback=loopback)
        # A browser sends an origin with what a page asks for: any page, of whatever site.
        if self._auth.passwordless_guest and loopback and "Origin" not in request.headers:
            guest = await self._auth.guest()
            if guest is not None:
                return guest
        raise LoginRefused("name and password of a user are needed (HTTP Basic)")

    def _of_browser(self, request: web.Request, *, loopback: bool) -> User:
        if of_another_site(request):
            raise AccessRefused(OTHER_SITES)
        token = request.cookies.get(session_cookie(request), "")
        user = self._auth.browser_user(token, loopback=loopback)
        if user is None:
            raise LoginRefused("the session is over: log in again")
        return user

    async def login(self, request: web.Request, name: str, password: str) -> User:
        """Raises as `user` does."""
        try:
            return await self._auth.login(
                name,
                password,
                loopback=comes_from_here(request, self._auth.hosts),
                address=request.remote or "",
                protocol=self._protocol,
            )
        except AccessRefused as error:
            raise LoginRefused(error.reason) from None


def of_our_page(request: web.Request) -> bool:
    return PAGE_HEADER in request.headers


def challenge(request: web.Request, header: Mapping[str, str] = CHALLENGE) -> Mapping[str, str]:
    """With a 401. Our page asks for the password itself."""
    return {} if of_our_page(request) else header


def session_cookie(request: web.Request) -> str:
    """Cookies know no ports, and behind each port of a machine may be another node."""
    port = request.host.rpartition(":")[2]
    return f"quorate-{port if port.isascii() and port.isdecimal() else 'session'}"


def comes_from_here(request: web.Request, hosts: Collection[str]) -> bool:
    """From a program on this machine that meant this node. A browser on it may be made to ask for
    others: a site lets its own name resolve to 127.0.0.1, so that its pages may read what the node
    answers; but that name is then in `Host`. `hosts`: names of this node besides loopback's.
    """
    if not is_loopback(request.remote) or any(each in request.headers for each in PROXY_HEADERS):
        return False
    named = [host_of(each) for each in request.headers.getall("Host", ())]
    return len(named) == 1 and (
        named[0] == "localhost" or named[0] in hosts or is_loopback(named[0])
    )


def host_of(address: str) -> str:
    """Of `host:port`, `[host]:port` or `host`."""
    address = address.strip().lower()
    if address.startswith("["):
        return address[1:].partition("]")[0]
    host, colon, port = address.rpartition(":")
    return (host if colon and port.isdigit() else address).rstrip(".")


def of_another_site(request: web.Request) -> bool:
    """A browser remembers passwords, and another site's page must not use them. Browsers say
    which site it is by `Sec-Fetch-Site`, or, where that is not told without TLS, by `Origin`.
    """
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        return True
    origin = request.headers.get("Origin")
    return origin is not None and origin.partition("://")[2].lower() != request.host.lower()


def is_loopback(address: str | None) -> bool:
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _credentials(header: str) -> tuple[str, str]:
    scheme, _, coded = header.partition(" ")
    try:
        text = base64.b64decode(coded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    name, found, password = text.partition(":")
    if scheme.lower() != "basic" or not found:
        raise LoginRefused("Authorization is not that of HTTP Basic")
    return name, password


def claimed_name(request: web.Request) -> str:
    """Whom a request says it is from, before that is known to be true. Empty: nobody."""
    try:
        return _credentials(request.headers.get("Authorization", ""))[0]
    except LoginRefused:
        return ""
