"""Answers over plain HTTP: JSON, or CBOR when asked for, and what each refusal is called there."""

from __future__ import annotations

import base64
from typing import Any, cast

import cbor2
from aiohttp import web

from cluster.machine import replies as codes
from node.errors import BrokerError, OutcomeUnknown
from node.messages.plain_values import as_json
from node.protocols.basic_auth import LoginRefused, challenge

CBOR = "application/cbor"
JSON = "application/json"
RETRY_AFTER_S = "1"

_STATUS = {
    codes.NO_QUEUE: 404,
    codes.NO_CONSUMER: 404,
    codes.BAD_ARGUMENT: 400,
    "malformed_frame": 400,
    "message_too_large": 413,
    "too_large": 413,
    "overloaded": 503,
    "access_refused": 403,
    codes.NO_VHOST: 404,
    "no_message": 404,
    "disk_full": 507,
    "memory_full": 507,
    "vhost_full": 507,
    "stopping": 503,
    "no_leader": 503,
    "poisoned": 503,
    "unknown": 504,
}


def failure(
    request: web.Request, error: BrokerError, *, location: str | None = None
) -> web.Response:
    """`location`: ask there instead."""
    outcome = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
    about = {"outcome": outcome, "code": error.code, "reason": error.reason}
    if error.detail is not None:
        about["detail"] = error.detail
    if location is not None:
        return answer(request, about, status=307, headers={"Location": location})
    if isinstance(error, LoginRefused):
        return answer(request, about, status=401, headers=dict(challenge(request)))
    status = _STATUS.get(error.code, 409)
    retry = {"Retry-After": RETRY_AFTER_S} if status == 503 else {}
    return answer(request, about, status=status, headers=retry)


def _plain(value: Any) -> Any:
    """What JSON cannot hold: bytes become text when they are, base64 otherwise."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {str(key): _plain(inner) for key, inner in items}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in cast("list[Any]", value)]
    return value


def answer(
    request: web.Request, value: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    if CBOR in request.headers.get("Accept", ""):
        return web.Response(
            body=cbor2.dumps(value), status=status, headers=headers, content_type=CBOR
        )
    text = as_json(_plain(value), str)
    return web.Response(text=text + "\n", status=status, headers=headers, content_type=JSON)
