"""What the broker refused, as AMQP says it: the code, and how much must end for it."""

from __future__ import annotations

from cluster.machine import replies as codes
from node.broker.ingress import INTERNAL_EXCHANGE
from node.errors import BrokerError, Elsewhere, OutcomeUnknown
from node.messages.amqp_errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
    ChannelError_,
    ConnectionError_,
)

_OF_CHANNEL = {
    codes.NO_QUEUE: NOT_FOUND,
    codes.NO_EXCHANGE: NOT_FOUND,
    codes.NO_CONSUMER: NOT_FOUND,
    codes.EXCLUSIVE_USE: ACCESS_REFUSED,
    codes.EXCLUSIVE_OWNER: RESOURCE_LOCKED,
    codes.SINGLE_ACTIVE: RESOURCE_LOCKED,
    codes.NOT_ALLOWED: ACCESS_REFUSED,
    INTERNAL_EXCHANGE: ACCESS_REFUSED,
    "access_refused": ACCESS_REFUSED,
    codes.INEQUIVALENT: PRECONDITION_FAILED,
    codes.IN_USE: PRECONDITION_FAILED,
    codes.NOT_EMPTY: PRECONDITION_FAILED,
    codes.BAD_ARGUMENT: PRECONDITION_FAILED,
    codes.LIMIT_REACHED: PRECONDITION_FAILED,
    codes.UNKNOWN_DELIVERY: PRECONDITION_FAILED,
}
_OF_CONNECTION = {
    "unknown_exchange_type": COMMAND_INVALID,
    codes.NO_VHOST: NOT_ALLOWED,
    codes.WRONG_KIND: NOT_IMPLEMENTED,
}


#: Where RabbitMQ publishes what happens in it, with a plugin.
EVENTS = "amq.rabbitmq.event"


def refusal(error: BrokerError) -> AmqpError:
    """The broker's word as a close of the channel, or, where AMQP 0-9-1 says so, of all."""
    if isinstance(error, (Elsewhere, OutcomeUnknown)):
        # As RabbitMQ says of a queue whose home node is down.
        return ChannelError_(NOT_FOUND, f"{error.reason}; too few of its nodes are up, or busy")
    if error.code in _OF_CONNECTION:
        return ConnectionError_(_OF_CONNECTION[error.code], error.reason)
    code = _OF_CHANNEL.get(error.code)
    if code is None:
        return ConnectionError_(INTERNAL_ERROR, error.reason)
    reason = _with_hint(error.reason) if error.code == codes.NO_EXCHANGE else error.reason
    return ChannelError_(code, reason)


def no_queue(vhost: str, name: str) -> ChannelError_:
    return ChannelError_(NOT_FOUND, f"no queue '{name}' in vhost '{vhost}'")


def no_exchange(vhost: str, name: str) -> ChannelError_:
    return ChannelError_(NOT_FOUND, _with_hint(f"no exchange '{name}' in vhost '{vhost}'"))


def _with_hint(reason: str) -> str:
    """Who looks for RabbitMQ's events learns where they are."""
    if EVENTS not in reason:
        return reason
    return f"{reason}; events are not published here: read the audit log and the metrics"


def locked(vhost: str, name: str) -> ChannelError_:
    return ChannelError_(
        RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'. It could be"
        " originally declared on another connection or the exclusive property value does not"
        " match that of the original declaration.",
    )
