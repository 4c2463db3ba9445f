"""Who the client is: a user's name and password, from arguments or from the addresses."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit


def normal_url(address: str) -> str:
    """`127.0.0.1:8080` or a URL, as `http://127.0.0.1:8080`."""
    address = address.strip().rstrip("/")
    return address if "://" in address else f"http://{address}"


def _check(url: str) -> None:
    """Raises ValueError, which shows no password."""
    scheme, _, rest = url.partition("://")
    place = rest.partition("/")[0].rpartition("@")[2]
    example = "give host:port of a node's `http`, such as 127.0.0.1:8081"
    if scheme in ("amqp", "amqps"):
        raise ValueError(f"{scheme}://{place} is an address for clients of AMQP: {example}")
    if scheme not in ("http", "https"):
        raise ValueError(f"{scheme}://{place}: addresses begin with http:// or https://: {example}")
    try:
        parts = urlsplit(f"{scheme}://{place}")
        usable = bool(parts.hostname) and parts.port != 0 and not place.endswith(":")
        usable = usable and not any(map(str.isspace, place))
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{place!r} is no address: {example}")


def split_credentials(
    addresses: Iterable[str], user: str | None, password: str | None
) -> tuple[list[str], dict[str, str]]:
    """The addresses as URLs without names and passwords, and the headers that carry these. What
    was given apart beats what is in an address. Raises ValueError, which says no password.
    """
    urls: list[str] = []
    found: set[tuple[str, str]] = set()
    for address in addresses:
        if not address.strip():
            continue
        _check(normal_url(address))
        scheme, _, rest = normal_url(address).partition("://")
        place, slash, path = rest.partition("/")
        before, at, host = place.rpartition("@")
        if at:
            name, _, secret = before.partition(":")
            found.add((unquote(name), unquote(secret)))
        urls.append(f"{scheme}://{host}{slash}{path}")
    if user is not None:
        found = {(user, password or "")}
    elif password is not None:
        raise ValueError("a password needs the name of its user")
    if len(found) > 1:
        raise ValueError("the addresses have different users or passwords: a client is one user")
    return urls, {"Authorization": _basic(*found.pop())} if found else {}


def _basic(user: str, password: str) -> str:
    if ":" in user:
        raise ValueError("a user's name with a colon cannot be sent over HTTP")
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
