"""Who the client is: a user's name and password, from arguments or from the addresses."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import unquote


def normal_url(address: str) -> str:
    """`127.0.0.1:8080` or a URL, as `http://127.0.0.1:8080`."""
    address = address.strip().rstrip("/")
    return address if "://" in address else f"http://{address}"


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
