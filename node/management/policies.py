"""Policies, and those of operators, which go over them."""

from __future__ import annotations

from typing import Any, Literal

from cluster.machine.commands import DropEntry, PutEntry
from cluster.machine.policies import wrong_definition
from node.access.patterns import check_pattern
from node.links.federation.upstreams import check_policy
from node.management import shapes
from node.management.context import Call, Endpoint, Handler, Response, created, deleted
from node.management.errors import bad_request, not_found
from node.management.paging import listed_as_is
from node.management.unsupported import check_definition
from node.management.values import Body

Json = dict[str, Any]
Table = Literal["policies", "operator_policies"]


def policies(call: Call, table: Table) -> list[Json]:
    vhosts = set(call.vhosts())
    entries = sorted(call.catalog.entries(table).items())
    return [shapes.policy(key, entry) for key, entry in entries if key[0] in vhosts]


def policy_step(table: Table, vhost: str, name: str, body: Body) -> PutEntry:
    check_pattern(body.text("pattern"))
    definition = body.mapping("definition")
    check_definition(definition, table)
    wrong = wrong_definition(definition, table)
    if wrong is not None:
        raise bad_request(wrong)
    check_policy(definition, operator=table == "operator_policies")
    value = {
        "pattern": body.text("pattern"),
        "definition": definition,
        "priority": body.integer("priority", 0),
        "apply_to": body.text("apply-to", "all" if table == "policies" else "queues"),
    }
    return PutEntry(table, (vhost, name), value)


def _routes(
    table: Table, path: str, writer: Literal["policymaker", "administrator"]
) -> list[Endpoint]:
    async def list_all(call: Call) -> Any:
        return await listed_as_is(call.list_query, policies(call, table))

    async def one(call: Call) -> Json:
        key = (call.vhost, call.name)
        entry = call.catalog.entry(table, key)
        if entry is None:
            raise not_found()
        return shapes.policy(key, entry)

    async def put(call: Call) -> Response:
        return created(await call.change(policy_step(table, call.vhost, call.name, call.body)))

    async def delete(call: Call) -> Response:
        return deleted(await call.change(DropEntry(table, (call.vhost, call.name))))

    one_path = f"{path}/{{vhost}}/{{name}}"
    handlers: list[tuple[str, str, Handler, Literal["management", "policymaker", "administrator"]]]
    handlers = [
        ("GET", path, list_all, "management"),
        ("GET", f"{path}/{{vhost}}", list_all, "management"),
        ("GET", one_path, one, "management"),
        ("PUT", one_path, put, writer),
        ("DELETE", one_path, delete, writer),
    ]
    return [Endpoint(*each) for each in handlers]


ROUTES = (
    *_routes("policies", "policies", "policymaker"),
    *_routes("operator_policies", "operator-policies", "administrator"),
)
