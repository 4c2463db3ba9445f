"""Streams and their consumers: what JetStream's API does, by HTTP.

Configurations and answers are JetStream's, checked and made by the same code. Lengths of time may
be texts, such as `"1h30m"`; a field that nobody knows is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cluster.machine.catalog import QueueInfo
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import ApiError, bad_request
from node.management.messages import encoded
from node.management.paging import listed, listed_as_is
from node.protocols.nats.jetstream import given, origins, shown, stream_config
from node.protocols.nats.jetstream.errors import NO_MESSAGE, NO_SUCH_SEQUENCE
from node.protocols.nats.jetstream.errors import ApiError as StreamError
from node.protocols.nats.jetstream.requests import Call as Request
from node.protocols.nats.jetstream.times import text_of_ms

Json = dict[str, Any]

#: JetStream's numbers, for what is there already and in the way.
_CONFLICTS: Final = frozenset({10058, 10065, 10013, 10100, 10148})
_BUG: Final = 10051
_FILTERS: Final = ("filter_subject", "filter_subjects")
_SHOWN: Final = ("config", "created", "state", "cluster", "mirror", "sources", "ts")
_GET_WORDS: Final = ("seq", "last_by_subj", "next_by_subj", "start_time")


async def ask(call: Call, verb: str, said: Json | None = None, consumer: str = "") -> Json:
    """Of the stream of the path."""
    request = Request(verb, call.names["stream"], consumer)
    try:
        return await call.services.streams.request(call.vhost, request, said or {})
    except StreamError as error:
        raise _failed(error) from None


def _failed(error: StreamError) -> ApiError:
    """Where JetStream says 500 of what the client did wrong, this is 400."""
    status, word = 400, "bad_request"
    if error.code == 404 or error.text == NO_MESSAGE or error.number == NO_SUCH_SEQUENCE:
        status, word = 404, "not_found"
    elif error.number in _CONFLICTS:
        status, word = 409, "conflict"
    elif error.code == 503:
        status, word = 503, "service_unavailable"
    elif error.number == _BUG:
        status, word = 500, "internal_error"
    reason = error.text.removeprefix("invalid JSON: ")  # what it is about has been read as such
    return ApiError(status, word, reason, {"err_code": error.number})


def _given(call: Call, read: Callable[[Mapping[str, Any]], Json]) -> Json:
    try:
        return read(call.body.values)
    except StreamError as error:
        raise _failed(error) from None


# --- streams --------------------------------------------------------------------------------------


async def list_streams(call: Call) -> Any:
    infos = [info for vhost in call.vhosts() for info in call.catalog.streams(vhost)]

    async def look(some: Sequence[QueueInfo]) -> list[Json]:
        known = await call.services.streams.infos(some)
        return [_stream(info, known.get((info.vhost, info.name))) for info in some]

    return await listed(call.list_query, infos, lambda info: info.name, look)


def _stream(info: QueueInfo, known: Json | None) -> Json:
    """`known` None: no leader answers, so there is no state."""
    named: Json = {"name": info.name, "vhost": info.vhost}
    if known is not None:
        return named | known
    config = info.stream or {}
    return named | {
        "config": stream_config.shown(config),
        "created": text_of_ms(config.get(stream_config.CREATED, 0)),
        "state": None,
        "cluster": shown.cluster("", None, ()),
    }


async def one_stream(call: Call) -> Json:
    asked: Json = {}
    if "subjects_filter" in call.query:
        asked["subjects_filter"] = call.query["subjects_filter"]
    if call.flag("deleted_details"):
        asked["deleted_details"] = True
    found = await ask(call, "STREAM.INFO", asked)
    named: Json = {"name": call.names["stream"], "vhost": call.vhost}
    return named | {key: found[key] for key in _SHOWN if key in found}


def _wanted(call: Call) -> Json:
    """Of a stream that is made or changed. What it collects, its owner may read."""
    access = call.access
    access.check("configure", "queue", call.names["stream"])
    wanted = _given(call, given.of_stream)
    for subject in (*call.body.words("subjects", []), *origins.names_of(wanted)):
        access.check("read", "queue", subject)
    return wanted


async def put_stream(call: Call) -> Response:
    name = call.names["stream"]
    wanted = _wanted(call)
    await call.catch_up()
    known = call.catalog.queue(call.vhost, name) is not None
    found = await ask(call, "STREAM.CREATE", {"name": name, **wanted})
    return Response(200 if known else 201, _made(call, found))


async def patch_stream(call: Call) -> Json:
    """What is not said stays as it is."""
    wanted = _wanted(call)
    before: Json = (await ask(call, "STREAM.INFO"))["config"]
    found = await ask(call, "STREAM.UPDATE", {**before, **wanted})
    return _made(call, found)


def _made(call: Call, found: Json) -> Json:
    named: Json = {"name": call.names["stream"], "vhost": call.vhost}
    return named | {key: value for key, value in found.items() if key != "did_create"}


async def delete_stream(call: Call) -> Response:
    call.access.check("configure", "queue", call.names["stream"])
    await ask(call, "STREAM.DELETE")
    return DONE


async def purge(call: Call) -> Json:
    call.access.check("configure", "queue", call.names["stream"])
    unknown = sorted(call.body.values.keys() - {"filter", "seq", "keep"})
    if unknown:
        raise bad_request(f"a purge has filter, seq or keep, not {unknown[0]!r}")
    found = await ask(call, "STREAM.PURGE", dict(call.body.values))
    return {"purged": found["purged"]}


# --- messages -------------------------------------------------------------------------------------


async def get_message(call: Call) -> Json:
    call.access.check("read", "queue", call.names["stream"])
    asked: Json = {name: call.query[name] for name in _GET_WORDS if name in call.query}
    if "seq" in asked:
        asked["seq"] = _sequence(call)
    if not asked:
        raise bad_request(f"which message? say one of {', '.join(_GET_WORDS)}")
    found: Json = (await ask(call, "STREAM.MSG.GET", asked))["message"]
    body = base64.b64decode(found.get("data", ""))
    block = base64.b64decode(found.get("hdrs", "")).decode(errors="replace")
    return {
        "subject": found["subject"],
        "seq": found["seq"],
        "time": found["time"],
        "headers": _headers(block),
        "payload_bytes": len(body),
        **encoded(body),
    }


def _sequence(call: Call) -> int:
    text = call.query.get("seq", "")
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 19):
        raise bad_request(f"seq is the sequence of a message, not {text!r}")
    return int(text)


def _headers(block: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in block.split("\r\n")[1:]:
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key, []).append(value.strip())
    return found


async def delete_message(call: Call) -> Response:
    call.access.check("configure", "queue", call.names["stream"])
    await ask(call, "STREAM.MSG.DELETE", {"seq": _sequence(call)})
    return DONE


# --- consumers ------------------------------------------------------------------------------------


async def list_consumers(call: Call) -> Any:
    rows: list[Json] = []
    while True:
        page = await ask(call, "CONSUMER.LIST", {"offset": len(rows)})
        rows += page["consumers"]
        if not page["consumers"] or len(rows) >= page["total"]:
            return await listed_as_is(call.list_query, rows)


async def one_consumer(call: Call) -> Json:
    return await ask(call, "CONSUMER.INFO", consumer=call.names["consumer"])


async def put_consumer(call: Call) -> Response:
    """It stays until it is deleted, unless it has an `inactive_threshold`."""
    name, config = call.names["consumer"], _wanted_consumer(call)
    try:
        known = bool(await one_consumer(call))
    except ApiError as error:
        if error.status != 404:
            raise
        known = False
    found = await _put_consumer(call, "create", {"durable_name": name, **config})
    return Response(200 if known else 201, found)


async def patch_consumer(call: Call) -> Json:
    """What is not said stays as it is."""
    wanted = _wanted_consumer(call)
    before: Json = (await one_consumer(call))["config"]
    for one, other in (_FILTERS, _FILTERS[::-1]):
        if one in wanted:
            before.pop(other, None)
    return await _put_consumer(call, "update", {**before, **wanted})


def _wanted_consumer(call: Call) -> Json:
    call.access.check("read", "queue", call.names["stream"])
    return _given(call, given.of_consumer)


async def _put_consumer(call: Call, action: str, config: Json) -> Json:
    stream, name = call.names["stream"], call.names["consumer"]
    asked: Json = {"stream_name": stream, "action": action, "config": {"name": name, **config}}
    return await ask(call, "CONSUMER.CREATE", asked, name)


async def delete_consumer(call: Call) -> Response:
    call.access.check("read", "queue", call.names["stream"])
    await ask(call, "CONSUMER.DELETE", consumer=call.names["consumer"])
    return DONE


async def pause(call: Call) -> Json:
    """It gets nothing until then."""
    call.access.check("read", "queue", call.names["stream"])
    until = call.body.text("pause_until")
    return await ask(call, "CONSUMER.PAUSE", {"pause_until": until}, call.names["consumer"])


async def resume(call: Call) -> Response:
    call.access.check("read", "queue", call.names["stream"])
    await ask(call, "CONSUMER.PAUSE", {}, call.names["consumer"])
    return DONE


_ONE: Final = "streams/{vhost}/{stream}"
_CONSUMER: Final = f"{_ONE}/consumers/{{consumer}}"

ROUTES = (
    Endpoint("GET", "streams", list_streams),
    Endpoint("GET", "streams/{vhost}", list_streams),
    Endpoint("GET", _ONE, one_stream),
    Endpoint("PUT", _ONE, put_stream),
    Endpoint("PATCH", _ONE, patch_stream),
    Endpoint("DELETE", _ONE, delete_stream),
    Endpoint("POST", f"{_ONE}/purge", purge),
    Endpoint("GET", f"{_ONE}/message", get_message),
    Endpoint("DELETE", f"{_ONE}/message", delete_message),
    Endpoint("GET", f"{_ONE}/consumers", list_consumers),
    Endpoint("GET", _CONSUMER, one_consumer),
    Endpoint("PUT", _CONSUMER, put_consumer),
    Endpoint("PATCH", _CONSUMER, patch_consumer),
    Endpoint("DELETE", _CONSUMER, delete_consumer),
    Endpoint("PUT", f"{_CONSUMER}/pause", pause),
    Endpoint("DELETE", f"{_CONSUMER}/pause", resume),
)
