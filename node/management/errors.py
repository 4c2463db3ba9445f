"""How a management request ends when it does not succeed, in RabbitMQ's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cluster.machine import replies as codes
from node.errors import BrokerError, Elsewhere, OutcomeUnknown


class ApiError(Exception):
    """`error` is a word for programs, `reason` a sentence; `more` stands beside them."""

    def __init__(
        self, status: int, error: str, reason: str, more: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(reason)
        self.more = more or {}
        self.status = status
        self.error = error
        self.reason = reason


def bad_request(reason: str) -> ApiError:
    return ApiError(400, "bad_request", reason)


def not_found() -> ApiError:
    return ApiError(404, "Object Not Found", "Not Found")


def no_such(reason: str) -> ApiError:
    """As `not_found`, in our own words, where RabbitMQ has no such path."""
    return ApiError(404, "not_found", reason)


def not_authorised(reason: str) -> ApiError:
    return ApiError(401, "not_authorised", reason)


_STATUS = {
    codes.NO_QUEUE: (404, "not_found"),
    codes.NO_EXCHANGE: (404, "not_found"),
    codes.NO_VHOST: (404, "not_found"),
    codes.NO_USER: (404, "not_found"),
    codes.NO_NODE: (404, "not_found"),
    codes.NOT_ALLOWED: (401, "not_authorised"),
    codes.PROTECTED_VHOST: (412, "precondition_failed"),
    "access_refused": (401, "not_authorised"),
    "message_too_large": (413, "too_large"),
    "too_large": (413, "too_large"),
    "disk_full": (507, "insufficient_storage"),
    "vhost_full": (507, "insufficient_storage"),
    "memory_full": (507, "insufficient_storage"),
    "overloaded": (503, "service_unavailable"),
    "stopping": (503, "service_unavailable"),
    codes.NO_GROUP: (503, "service_unavailable"),
    codes.COMMAND_SKIPPED: (500, "internal_error"),
    "poisoned": (503, "service_unavailable"),
}


def of_broker(error: BrokerError) -> ApiError:
    """What the broker says, said by this API. What it does not know of is the client's mistake."""
    if isinstance(error, Elsewhere):
        return ApiError(503, "service_unavailable", error.reason)
    if isinstance(error, OutcomeUnknown):
        return ApiError(504, "timeout", error.reason)
    status, word = _STATUS.get(error.code, (400, "bad_request"))
    return ApiError(status, word, error.reason)
