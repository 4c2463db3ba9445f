"""Users and what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cluster.machine.catalog_entries import NKEYS
from cluster.machine.commands import DropEntry, PutEntry
from node.access.nkeys import wrong_nkey
from node.access.passwords import RABBIT_SHA256, Hashing, hash_password, wrong_hash
from node.access.patterns import check_pattern
from node.management import shapes
from node.management.context import DONE, Call, Endpoint, Response, created, deleted
from node.management.errors import bad_request, not_found
from node.management.paging import listed_as_is
from node.management.values import Body

Json = dict[str, Any]


async def whoami(call: Call) -> Json:
    return {"name": call.user.name, "tags": list(call.user.tags)}


def users(call: Call) -> list[Json]:
    limits = call.catalog.entries("user_limits")
    return [
        shapes.user(key[0], entry, limits.get(key))
        for key, entry in sorted(call.catalog.entries("users").items())
    ]


async def list_users(call: Call) -> Any:
    return await listed_as_is(call.list_query, users(call))


async def without_permissions(call: Call) -> Any:
    known = {key[0] for key in call.catalog.entries("permissions")}
    others = [user for user in users(call) if user["name"] not in known]
    return await listed_as_is(call.list_query, others)


async def one_user(call: Call) -> Json:
    for user in users(call):
        if user["name"] == call.names["user"]:
            return user
    raise not_found()


async def put(call: Call) -> Response:
    return created(await put_user(call, call.names["user"], call.body))


async def put_user(call: Call, name: str, body: Body) -> int:
    """1: it is new."""
    hashing = call.services.settings.auth.password_hashing
    known = call.catalog.entry("users", (name,))
    user, *limits = await asyncio.to_thread(user_steps, name, body, hashing, known)
    for nkey in user.value.get(NKEYS, ()):
        owner = next((each["name"] for each in users(call) if nkey in each.get(NKEYS, ())), name)
        if owner != name:
            raise bad_request(f"the nkey {nkey} is that of user '{owner}'")
    made = await call.change(user)
    for step in limits:
        await call.change(step)
    return made


def user_steps(
    name: str, body: Body, hashing: Hashing, known: Mapping[str, Any] | None
) -> list[PutEntry]:
    """Without a password and without a hash nobody logs in by one; `known`: the user as it is, who
    keeps its keys if nothing is said of them. Hashing takes its time.
    """
    if "tags" not in body:
        raise bad_request("tags_not_present")
    kept, algorithm = "", RABBIT_SHA256
    if "password_hash" in body:
        kept = body.text("password_hash")
        algorithm = body.text("hashing_algorithm", RABBIT_SHA256)
        wrong = wrong_hash(kept, algorithm)
        if wrong is not None:
            raise bad_request(wrong)
    elif body.text("password", ""):
        kept, algorithm = hash_password(body.text("password"), hashing=hashing)
    value = {"password_hash": kept, "hashing_algorithm": algorithm, "tags": body.words("tags")}
    nkeys = body.words(NKEYS) if NKEYS in body else list((known or {}).get(NKEYS, ()))
    for nkey in nkeys:
        wrong = wrong_nkey(nkey)
        if wrong is not None:
            raise bad_request(wrong)
    if nkeys:
        value[NKEYS] = nkeys
    limits = body.mapping("limits", {})
    return [
        PutEntry("users", (name,), value),
        *([PutEntry("user_limits", (name,), limits)] if limits else []),
    ]


async def delete(call: Call) -> Response:
    return deleted(await call.change(DropEntry("users", (call.names["user"],))))


async def delete_many(call: Call) -> Response:
    for name in call.body.words("users"):
        await call.change(DropEntry("users", (name,)))
    return DONE


# --- permissions ----------------------------------------------------------------------------------


async def list_permissions(call: Call) -> list[Json]:
    entries = sorted(call.catalog.entries("permissions").items())
    user = call.names.get("user")
    if user is not None and call.catalog.entry("users", (user,)) is None:
        raise not_found()
    return [shapes.permission(key, entry) for key, entry in entries if user in (None, key[0])]


async def list_topic_permissions(call: Call) -> list[Json]:
    entries = sorted(call.catalog.entries("topic_permissions").items())
    user, vhost = call.names.get("user"), call.names.get("vhost")
    if user is not None and call.catalog.entry("users", (user,)) is None:
        raise not_found()
    return [
        shapes.topic_permission(key, entry)
        for key, entry in entries
        if user in (None, key[0]) and vhost in (None, key[1])
    ]


async def one_permission(call: Call) -> Json:
    key = (call.names["user"], call.vhost)
    entry = call.catalog.entry("permissions", key)
    if entry is None:
        raise not_found()
    return shapes.permission(key, entry)


async def put_permission(call: Call) -> Response:
    return created(await call.change(permission_step(call.names["user"], call.vhost, call.body)))


def permission_step(user: str, vhost: str, body: Body) -> PutEntry:
    value = {name: _pattern(body, name) for name in ("configure", "write", "read")}
    return PutEntry("permissions", (user, vhost), value)


def _pattern(body: Body, name: str) -> str:
    pattern = body.text(name)
    check_pattern(pattern)
    return pattern


async def delete_permission(call: Call) -> Response:
    key = (call.names["user"], call.vhost)
    return deleted(await call.change(DropEntry("permissions", key)))


async def put_topic_permission(call: Call) -> Response:
    step = topic_permission_step(call.names["user"], call.vhost, call.body)
    return created(await call.change(step))


def topic_permission_step(user: str, vhost: str, body: Body) -> PutEntry:
    exchange = body.text("exchange")
    exchange = "" if exchange == "amq.default" else exchange
    value = {name: _pattern(body, name) for name in ("write", "read")}
    return PutEntry("topic_permissions", (user, vhost, exchange), value)


async def delete_topic_permissions(call: Call) -> Response:
    user, vhost = call.names["user"], call.vhost
    keys = [k for k in call.catalog.entries("topic_permissions") if k[:2] == (user, vhost)]
    count = 0
    for key in keys:
        if call.names.get("exchange") in (None, key[2]):
            count += await call.change(DropEntry("topic_permissions", key))
    return deleted(count)


_ONE = "permissions/{vhost}/{user}"
_TOPIC = "topic-permissions/{vhost}/{user}"

ROUTES = (
    Endpoint("GET", "whoami", whoami),
    Endpoint("GET", "users", list_users, "administrator"),
    Endpoint("GET", "users/without-permissions", without_permissions, "administrator"),
    Endpoint("POST", "users/bulk-delete", delete_many, "administrator"),
    Endpoint("GET", "users/{user}", one_user, "administrator"),
    Endpoint("PUT", "users/{user}", put, "administrator"),
    Endpoint("DELETE", "users/{user}", delete, "administrator"),
    Endpoint("GET", "users/{user}/permissions", list_permissions, "administrator"),
    Endpoint("GET", "users/{user}/topic-permissions", list_topic_permissions, "administrator"),
    Endpoint("GET", "permissions", list_permissions, "administrator"),
    Endpoint("GET", _ONE, one_permission, "administrator"),
    Endpoint("PUT", _ONE, put_permission, "administrator"),
    Endpoint("DELETE", _ONE, delete_permission, "administrator"),
    Endpoint("GET", "topic-permissions", list_topic_permissions, "administrator"),
    Endpoint("GET", _TOPIC, list_topic_permissions, "administrator"),
    Endpoint("PUT", _TOPIC, put_topic_permission, "administrator"),
    Endpoint("DELETE", _TOPIC, delete_topic_permissions, "administrator"),
    Endpoint("DELETE", f"{_TOPIC}/{{exchange}}", delete_topic_permissions, "administrator"),
)
