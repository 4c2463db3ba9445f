"""What is asked by the subject of a request to JetStream's API. Pure."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

PREFIX: Final = b"$JS.API."
#: What those with a domain put behind the domain's prefix as it is: keys and objects.
STORES: Final = (b"$KV.", b"$O.")
#: What concerns all nodes, or an account as a whole.
ADMINISTRATION: Final = (b"$JS.API.META.", b"$JS.API.ACCOUNT.")


class Call(NamedTuple):
    verb: str  # such as STREAM.CREATE
    stream: str = ""
    consumer: str = ""
    rest: str = ""  # what is behind: a filter, or the subject of a direct get


#: By verb: how many tokens there are behind it, of stream and consumer.
_VERBS: Final = {
    "INFO": 0,
    "META.LEADER.STEPDOWN": 0,
    "ACCOUNT.PURGE": 1,  # the account
    "STREAM.NAMES": 0,
    "STREAM.LIST": 0,
    "STREAM.CREATE": 1,
    "STREAM.UPDATE": 1,
    "STREAM.INFO": 1,
    "STREAM.DELETE": 1,
    "STREAM.PURGE": 1,
    "STREAM.SNAPSHOT": 1,
    "STREAM.RESTORE": 1,
    "STREAM.MSG.GET": 1,
    "STREAM.MSG.DELETE": 1,
    "STREAM.LEADER.STEPDOWN": 1,
    "STREAM.PEER.REMOVE": 1,
    "CONSUMER.NAMES": 1,
    "CONSUMER.LIST": 1,
    "CONSUMER.INFO": 2,
    "CONSUMER.DELETE": 2,
    "CONSUMER.PAUSE": 2,
    "CONSUMER.UNPIN": 2,
    "CONSUMER.RESET": 2,
    "CONSUMER.LEADER.STEPDOWN": 2,
    "CONSUMER.MSG.NEXT": 2,
    "CONSUMER.DURABLE.CREATE": 2,
}


def prefix_of(domain: str) -> bytes:
    """In the place of PREFIX, for clients that name the domain. Nothing without one."""
    return b"$JS.%b.API." % domain.encode() if domain else b""


def without_domain(subject: bytes, prefix: bytes) -> bytes:
    """The same for those that name none."""
    rest = subject[len(prefix) :]
    return rest if rest.startswith(STORES) else PREFIX + rest


@lru_cache(1024)
def call_of(subject: bytes) -> Call | None:
    """Of a subject that begins with the prefix. None: nothing is asked by it."""
    try:
        words = subject[len(PREFIX) :].decode().split(".")
    except UnicodeDecodeError:
        return None
    match words:
        case ["DIRECT", "GET", stream]:
            return Call("DIRECT.GET", stream)
        case ["DIRECT", "GET", stream, *rest]:
            return Call("DIRECT.GET", stream, rest=".".join(rest))
        case ["CONSUMER", "CREATE", stream]:
            return Call("CONSUMER.CREATE", stream)
        case ["CONSUMER", "CREATE", stream, consumer, *rest]:
            return Call("CONSUMER.CREATE", stream, consumer, ".".join(rest))
        case _:
            pass
    for size in (1, 2, 3):
        verb = ".".join(words[:size])
        count = _VERBS.get(verb)
        if count == len(words) - size:
            stream, consumer = [*words[size:], "", ""][:2]
            return Call(verb, stream, consumer)
    return None


def subject_of(call: Call) -> str:
    """By which it is asked."""
    return ".".join((PREFIX.decode() + call.verb, *filter(None, call[1:])))


def type_of(verb: str) -> str:
    """Of the answer."""
    if verb == "INFO":
        name = "account_info"
    elif verb in ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE"):
        name = "consumer_create"
    elif verb == "STREAM.PEER.REMOVE":
        name = "stream_remove_peer"
    else:
        name = verb.lower().replace(".", "_")
    return f"io.nats.jetstream.api.v1.{name}_response"
