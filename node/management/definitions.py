"""Definitions: all that administrators and clients have declared, as one document.

Operator policies and limits of virtual hosts travel as parameters, as in RabbitMQ. An import is
planned on a copy of the catalog first (`import_plan`), and carried out as one change, so it is done
as a whole or not at all. Importing the same twice changes nothing; what is there already under a
name stays as it is where it could only be replaced by removing it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.codec.entries import encode_command
from cluster.machine.catalog_commands import CatalogStep
from cluster.machine.commands import DeclareQueue
from node.access.passwords import RABBIT_ALGORITHMS, RABBIT_SHA256, Hashing, hash_password
from node.errors import Refused, reply_of
from node.management import shapes
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import ApiError, bad_request
from node.management.import_plan import (
    IN_CLUSTER,
    IN_VHOST,
    OPERATOR_POLICY,
    VHOST_LIMITS,
    Finding,
    ImportPlan,
)
from node.management.limits import limits
from node.management.parameters import parameters
from node.management.policies import policies
from node.management.users import users
from node.management.values import Body
from node.version import PRODUCT, PRODUCT_VERSION, RABBITMQ_VERSION

Json = dict[str, Any]

#: Objects planned between two breaths of the loop.
AT_ONCE = 50
#: The machine version from which on a change of the catalog may have many steps.
WHOLE_SINCE = 3
#: Of one change of the catalog, which every node applies at one go.
STEPS_MAX = 2_000
STEPS_BYTES_MAX = 1 << 20
#: Objects named in the sentence of a refusal, and in its report.
NAMED_MAX = 10
REPORTED_MAX = 10_000


# --- export ---------------------------------------------------------------------------------------


async def export_all(call: Call) -> Json:
    catalog = call.catalog
    return {
        **_versions(),
        "users": users(call),
        "vhosts": [
            {
                "name": key[0],
                "description": entry["description"],
                "tags": list(entry["tags"]),
                "metadata": shapes.vhost_metadata(entry),
                "default_queue_type": entry["default_queue_type"] or "undefined",
            }
            for key, entry in sorted(catalog.entries("vhosts").items())
        ],
        "permissions": [
            shapes.permission(*each) for each in sorted(catalog.entries("permissions").items())
        ],
        "topic_permissions": [
            shapes.topic_permission(*each)
            for each in sorted(catalog.entries("topic_permissions").items())
        ],
        "global_parameters": parameters(call, is_global=True),
        **_of_vhosts(call, call.vhosts()),
    }


async def export_vhost(call: Call) -> Json:
    """Nothing in it says which virtual host it was: it can be imported into another one."""
    shown = _of_vhosts(call, [call.vhost])
    for section in shown.values():
        for item in section:
            del item["vhost"]
    return {**_versions(), **shown}


def _versions() -> Json:
    return {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": PRODUCT,
        "product_version": PRODUCT_VERSION,
    }


def _of_vhosts(call: Call, vhosts: Sequence[str]) -> dict[str, list[Json]]:
    catalog = call.catalog
    every_limit = [
        {
            "component": VHOST_LIMITS,
            "vhost": each["vhost"],
            "name": "limits",
            "value": each["value"],
        }
        for each in limits(call, "vhost")
    ]
    operators = [
        {
            "component": OPERATOR_POLICY,
            "vhost": each["vhost"],
            "name": each["name"],
            "value": {key: each[key] for key in ("pattern", "definition", "priority", "apply-to")},
        }
        for each in policies(call, "operator_policies")
    ]
    return {
        "parameters": [*parameters(call, is_global=False), *every_limit, *operators],
        "policies": policies(call, "policies"),
        "queues": [
            {
                "name": info.name,
                "vhost": info.vhost,
                "durable": info.durable,
                "auto_delete": info.auto_delete,
                "arguments": dict(info.arguments),
            }
            for vhost in vhosts
            for info in catalog.queues(vhost)
            if not info.exclusive
        ],
        "exchanges": [
            _without("user_who_performed_action", shapes.exchange(info))
            for vhost in vhosts
            for info in catalog.exchanges(vhost)
            if info.name and not info.name.startswith("amq.")
        ],
        "bindings": [
            _without("properties_key", shapes.binding(info))
            for vhost in vhosts
            for info in catalog.bindings(vhost)
        ],
    }


def _without(name: str, row: Json) -> Json:
    return {key: value for key, value in row.items() if key != name}


# --- import ---------------------------------------------------------------------------------------


async def import_these(call: Call) -> Response:
    """Whole, or into the virtual host of the path: all of it or nothing."""
    skip = call.query.get("skip")
    if skip not in (None, "unsupported"):
        raise bad_request("skip may be unsupported")
    plan = await _planned(call, skip=skip is not None)
    if plan.refused:
        raise _refusal(plan.refused)
    await _carry_out(call, plan.steps)
    report = [finding.shown() for finding in plan.findings]
    return Response(200, {"imported": plan.imported, "report": report}) if report else DONE


def _asks_for_group(arguments: Any) -> bool:
    """What is no object is refused with all else that is wrong."""
    return isinstance(arguments, dict) and "x-queue-group" in arguments


async def _planned(call: Call, *, skip: bool) -> ImportPlan:
    vhost = call.names.get("vhost")
    order = IN_VHOST if vhost is not None else (*IN_CLUSTER, *IN_VHOST)
    sections = [(name, call.body.objects(name)) for name in order]
    hashing = call.services.settings.auth.password_hashing
    for name, items in sections:
        if name == "users":
            items[:] = [await _hashed(item, hashing) for item in items]
    await call.catch_up()
    cluster = call.services.cluster
    names = [
        (vhost or item.values.get("vhost"), item.values.get("name"))
        for section, items in sections
        for item in (items if section == "queues" else ())
    ]
    texts = [(v, n) for v, n in names if isinstance(v, str) and isinstance(n, str)]
    reply_of(await cluster.names.finish_deletions(texts))
    makes_groups = any(
        name == "queues" and _asks_for_group(item.values.get("arguments"))
        for name, items in sections
        for item in items
    )
    if makes_groups and not await cluster.names.may_make_groups():
        reason = "too few nodes can vote in a new group now: try again when they are back"
        raise ApiError(503, "service_unavailable", reason)
    plan = ImportPlan(
        call.catalog.copy(),
        node=cluster.node,
        user=call.user.name,
        hashing=hashing,
        prepare=cluster.names.prepared,
        vhost=vhost,
        skip=skip,
    )
    for name, items in sections:
        for place, item in enumerate(items):
            plan.take(name, item)
            if place % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
    return plan


async def _hashed(item: Body, hashing: Hashing) -> Body:
    """Of a user, in whose place a password would be hashed on the loop."""
    password = item.values.get("password")
    if not isinstance(password, str) or not password or "password_hash" in item:
        return item
    kept, algorithm = await asyncio.to_thread(hash_password, password, hashing=hashing)
    return Body({**item.values, "password_hash": kept, "hashing_algorithm": algorithm})


def _refusal(refused: Sequence[Finding]) -> ApiError:
    words = [f"{each.section} '{each.name[:80]}': {each.reason}" for each in refused[:NAMED_MAX]]
    if len(refused) > NAMED_MAX:
        words.append(f"and {len(refused) - NAMED_MAX} more, which the report names")
    end = "nothing was imported"
    if any(each.outcome == "unsupported" for each in refused):
        end += "; what is not supported here can be left out (?skip=unsupported)"
    report = [finding.shown() for finding in refused[:REPORTED_MAX]]
    return ApiError(400, "bad_request", "; ".join([*words, end]), {"report": report})


async def _carry_out(call: Call, steps: Sequence[CatalogStep]) -> None:
    """As one change of the catalog when it is no longer than may be, and else as few."""
    done = 0
    for part in _parts(steps):
        try:
            await _change(call, part)
        except Refused as refused:
            reason = f"the cluster changed meanwhile: {refused.reason}; import again"
            if done:
                reason += f" ({done} of {len(steps)} changes were made)"
            raise Refused(refused.code, reason) from None
        done += len(part)


async def _change(call: Call, steps: Sequence[CatalogStep]) -> None:
    cluster = call.services.cluster
    if call.catalog.version >= WHOLE_SINCE:
        reply_of(await cluster.names.change_all(steps))
        return
    for step in steps:  # a node of an earlier release would not know the whole
        if isinstance(step, DeclareQueue):
            reply_of(await cluster.names.declare(step))
        else:
            await call.change(step)


def _parts(steps: Sequence[CatalogStep]) -> Iterator[Sequence[CatalogStep]]:
    part: list[CatalogStep] = []
    size = 0
    for step in steps:
        step_bytes = len(encode_command(step))
        if part and (len(part) >= STEPS_MAX or size + step_bytes > STEPS_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(step)
        size += step_bytes
    if part:
        yield part


async def export_route(call: Call) -> Json:
    hashes = call.query.get("hashes")
    if hashes not in (None, "rabbitmq"):
        raise bad_request("hashes may be rabbitmq")
    shown = await export_all(call)
    if hashes is not None:
        shown["users"] = [_for_rabbitmq(user) for user in shown["users"]]
    return shown


def _for_rabbitmq(user: Json) -> Json:
    """It cannot read other hashes, and takes an empty one for a user who cannot log in."""
    if user["hashing_algorithm"] in RABBIT_ALGORITHMS:
        return user
    return {**user, "password_hash": "", "hashing_algorithm": RABBIT_SHA256}


ROUTES = (
    Endpoint("GET", "definitions", export_route, "administrator"),
    Endpoint("POST", "definitions", import_these, "administrator"),
    Endpoint("GET", "definitions/{vhost}", export_vhost, "administrator"),
    Endpoint("POST", "definitions/{vhost}", import_these, "administrator"),
)
