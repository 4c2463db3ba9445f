"""Definitions: all that administrators and clients have declared, as one document.

Operator policies and limits of virtual hosts travel as parameters, as in RabbitMQ. Importing the
same twice changes nothing; what is there already under a name stays as it is where it could only be
replaced by removing it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from node.errors import BrokerError
from node.management import shapes
from node.management.bindings import bind_these
from node.management.context import DONE, Answer, Call, Route
from node.management.errors import ApiError, bad_request, of_broker
from node.management.exchanges import declare_exchange
from node.management.limits import limits, put_limit
from node.management.parameters import parameters, put_parameter
from node.management.policies import policies, put_policy
from node.management.queues import declare_queue
from node.management.users import put_permission_of, put_topic_permission_of, put_user, users
from node.management.values import Body
from node.management.version import PRODUCT, PRODUCT_VERSION, RABBITMQ_VERSION
from node.management.vhosts import put_vhost

Json = dict[str, Any]
Put = Callable[[Call, Body], Awaitable[Any]]

#: Of one section, that are carried out at a time.
AT_ONCE = 50

OPERATOR_POLICY = "operator_policy"
VHOST_LIMITS = "vhost-limits"


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
                "metadata": {"description": entry["description"], "tags": list(entry["tags"])},
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
            {
                "name": info.name,
                "vhost": info.vhost,
                "type": info.type,
                "durable": info.durable,
                "auto_delete": info.auto_delete,
                "internal": info.internal,
                "arguments": dict(info.arguments),
            }
            for vhost in vhosts
            for info in catalog.exchanges(vhost)
            if info.name and not info.name.startswith("amq.")
        ],
        "bindings": [
            {key: value for key, value in shapes.binding(info).items() if key != "properties_key"}
            for vhost in vhosts
            for info in catalog.bindings(vhost)
        ],
    }


# --- import ---------------------------------------------------------------------------------------


async def import_these(call: Call) -> Answer:
    """Whole, or into the virtual host of the path."""
    order: list[tuple[str, Put]] = [
        ("parameters", _put_parameter),
        ("policies", _put_policy),
        ("queues", _declare_queue),
        ("exchanges", _declare_exchange),
        ("bindings", _bind),
    ]
    if "vhost" not in call.names:
        order = [
            ("vhosts", _put_vhost),
            ("users", _put_user),
            ("permissions", _put_permission),
            ("topic_permissions", _put_topic_permission),
            ("global_parameters", _put_global),
            *order,
        ]
    sections = [(name, put, call.body.objects(name)) for name, put in order]
    for name, put, items in sections:
        for start in range(0, len(items), AT_ONCE):
            some = items[start : start + AT_ONCE]
            await asyncio.gather(*[_import(call, name, put, item) for item in some])
    return DONE


async def _import(call: Call, section: str, put: Put, item: Body) -> None:
    """What is wrong with one is said with its name."""
    try:
        await put(call, item)
    except (ApiError, BrokerError) as error:
        failure = of_broker(error) if isinstance(error, BrokerError) else error
        word = "bad_request" if failure.status in (401, 404) else failure.error
        status = 400 if word == "bad_request" else failure.status
        name = item.values.get("name", item.values.get("source", ""))
        raise ApiError(status, word, f"{section} {str(name)[:80]!r}: {failure.reason}") from None


def _vhost(call: Call, item: Body) -> str:
    return call.names.get("vhost") or item.text("vhost")


async def _put_vhost(call: Call, item: Body) -> None:
    await put_vhost(call, item.text("name"), item)


async def _put_user(call: Call, item: Body) -> None:
    await put_user(call, item.text("name"), item)


async def _put_permission(call: Call, item: Body) -> None:
    await put_permission_of(call, item.text("user"), item.text("vhost"), item)


async def _put_topic_permission(call: Call, item: Body) -> None:
    await put_topic_permission_of(call, item.text("user"), item.text("vhost"), item)


async def _put_global(call: Call, item: Body) -> None:
    await put_parameter(call, ("", "", item.text("name")), item)


async def _put_parameter(call: Call, item: Body) -> None:
    component, vhost, name = item.text("component"), _vhost(call, item), item.text("name")
    if component == OPERATOR_POLICY:
        value = Body(item.mapping("value"))
        await put_policy(call, "operator_policies", vhost, name, value)
    elif component == VHOST_LIMITS:
        value = Body(item.mapping("value"))
        for limit in value.values:
            await put_limit(call, "vhost", vhost, limit, value.integer(limit))
    else:
        await put_parameter(call, (component, vhost, name), item)


async def _put_policy(call: Call, item: Body) -> None:
    await put_policy(call, "policies", _vhost(call, item), item.text("name"), item)


async def _declare_queue(call: Call, item: Body) -> None:
    vhost, name = _vhost(call, item), item.text("name")
    if call.catalog.queue(vhost, name) is None:
        await declare_queue(call, vhost, name, item)


async def _declare_exchange(call: Call, item: Body) -> None:
    vhost, name = _vhost(call, item), item.text("name")
    if call.catalog.exchange(vhost, name) is None:
        await declare_exchange(call, vhost, name, item)


async def _bind(call: Call, item: Body) -> None:
    kind = item.text("destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise bad_request("destination_type is queue or exchange")
    if item.text("source"):  # every queue is bound to the default exchange anyway
        await bind_these(
            call,
            _vhost(call, item),
            item.text("source"),
            cast("Any", kind),
            item.text("destination"),
            item,
        )


ROUTES = (
    Route("GET", "definitions", export_all, "administrator"),
    Route("POST", "definitions", import_these, "administrator"),
    Route("GET", "definitions/{vhost}", export_vhost, "administrator"),
    Route("POST", "definitions/{vhost}", import_these, "administrator"),
)
