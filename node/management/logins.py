"""Who tried to log in, and what a page or a tool asks before anybody has."""

from __future__ import annotations

from typing import Any

from node.access.passwords import hash_password
from node.management.context import DONE, Call, Endpoint, Response

Json = dict[str, Any]

#: As RabbitMQ calls them. Its tools fail on any other name, so the rest is counted with HTTP.
_PROTOCOLS = {"amqp": "amqp091", "http": "http"}


async def auth(call: Call) -> Json:
    """How one logs in: HTTP Basic."""
    return {"oauth_enabled": False}


async def login(call: Call) -> Json:
    """A form with `username` and `password`. No cookie: every request says who it is from."""
    return {"name": call.user.name, "tags": list(call.user.tags)}


async def hashed(call: Call) -> Json:
    """As definitions for RabbitMQ need it."""
    kept, _ = hash_password(call.names["password"], hashing="rabbitmq_sha256")
    return {"ok": kept}


async def attempts(call: Call) -> list[Json]:
    rows, _ = await call.services.peer_rpc.request(call.node, "login_attempts", False)
    sums = {name: [0, 0] for name in _PROTOCOLS.values()}
    for protocol, (wrong, right) in rows:
        counts = sums[_PROTOCOLS.get(protocol, "http")]
        counts[0] += wrong
        counts[1] += right
    return [{"protocol": name, **_counts(counts)} for name, counts in sums.items()]


async def sources(call: Call) -> list[Json]:
    _, rows = await call.services.peer_rpc.request(call.node, "login_attempts", False)
    return [
        {
            "protocol": _PROTOCOLS.get(protocol, "http"),
            "remote_address": address,
            "username": name,
            **_counts(counts),
        }
        for protocol, address, name, counts in rows
    ]


async def forget(call: Call) -> Response:
    await call.services.peer_rpc.request(call.node, "login_attempts", True)
    return DONE


def _counts(counts: list[int]) -> Json:
    wrong, right = counts
    return {
        "auth_attempts": wrong + right,
        "auth_attempts_failed": wrong,
        "auth_attempts_succeeded": right,
    }


_ATTEMPTS = "auth/attempts/{node}"

ROUTES = (
    Endpoint("GET", "auth", auth, open=True),
    Endpoint("POST", "login", login, form=True),
    Endpoint("GET", "auth/hash_password/{password}", hashed, "administrator"),
    Endpoint("GET", _ATTEMPTS, attempts, "monitoring"),
    Endpoint("DELETE", _ATTEMPTS, forget, "administrator"),
    Endpoint("GET", f"{_ATTEMPTS}/source", sources, "monitoring"),
    Endpoint("DELETE", f"{_ATTEMPTS}/source", forget, "administrator"),
)
