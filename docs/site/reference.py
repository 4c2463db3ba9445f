"""References made from what they describe: routes of HTTP as OpenAPI and a page, and commands.

Routes come from the tables that serve them; what bodies hold, from what handlers read and answer
(`python -m tests.site.learn` writes bodies.json).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from docs.site.schemas import published
from node.management.app import ROUTES
from node.protocols.native.http import HttpRoutes
from node.protocols.native.http_history import HistoryRoutes
from node.version import PRODUCT_VERSION
from quorate.cli.app import command_line

Api = Literal["/api", "/v1"]
#: Of each operation: its query, its body and its answers.
BODIES = Path(__file__).with_name("bodies.json")
#: What a publish by HTTP takes beside CBOR: one message, with headers about it.
PUBLISH = "POST /v1/queues/{vhost}/{name}/messages"
CBOR = "application/cbor"
JSON = "application/json"
#: Without a schema: what is streamed, or is a page.
STREAMS = {
    "GET /api/backup/{group}": "application/octet-stream",
    "GET /api": "text/html",
    "GET /api/index.html": "text/html",
}
TEXT = {"type": "string"}
ERRORS: dict[str, dict[str, Any]] = {
    "ManagementError": {
        "type": "object",
        "properties": {"error": TEXT, "reason": TEXT},
        "required": ["error", "reason"],
    },
    "Refusal": {
        "type": "object",
        "properties": {
            "outcome": {"enum": ["refused", "unknown"]},
            "code": TEXT,
            "reason": TEXT,
            "detail": {},
        },
        "required": ["outcome", "code", "reason"],
    },
    "FailedCheck": {
        "type": "object",
        "properties": {"status": {"const": "failed"}, "reason": TEXT},
        "required": ["status", "reason"],
    },
}
PARAMETER = re.compile(r"{(\w+)}")
#: By handler, where its docstring does not say it to somebody who reads of the route alone.
SUMMARIES = {
    "overview.overview": "The cluster at a glance: versions, rates, totals.",
    "overview.version": "The version of the node.",
    "overview.tags": "Tags of the cluster.",
    "overview.nothing": "An empty list, for tools that ask.",
    "nodes.list_nodes": "All nodes.",
    "nodes.one_node": "One node.",
    "nodes.memory": "Memory of a node, in bytes.",
    "nodes.memory_relative": "Memory of a node, in percent.",
    "nodes.delete_node": "Remove a node for good.",
    "drain.put_drain": "Drain a node; answers when it is drained.",
    "drain.delete_drain": "End the drain: the node serves again.",
    "backup.list_made": "Backups that were made, newest first.",
    "backup.record": "Remember that a backup was made.",
    "backup.post_backup": "Begin a backup: one moment of all groups.",
    "backup.get_group": "The backup of one group, as a stream.",
    "groups.list_groups": "All Raft groups.",
    "groups.one_group": "One Raft group.",
    "groups.put_members": "Say which nodes hold the group.",
    "groups.post_spread": "Move groups so that nodes hold about as many.",
    "upgrade.show": "What each node can run, and what the groups run.",
    "upgrade.hold": "Hold the cluster at its machine version.",
    "upgrade.finish": "Let the cluster rise to the newest machine version.",
    "health.alarms": "Whether any node has an alarm.",
    "health.local_alarms": "Whether this node has an alarm.",
    "health.certificates": "Whether a certificate of this node ends soon.",
    "health.port_listener": "Whether a port is listened on.",
    "health.protocol_listener": "Whether a protocol is listened for.",
    "health.virtual_hosts": "Whether all virtual hosts run here.",
    "health.quorum_critical": "Whether a group would stop if this node went away.",
    "health.in_service": "Whether the node serves clients.",
    "health.connection_limit": "Whether the node has room for more connections.",
    "health.cluster_size": "Whether the cluster has the nodes that it should have.",
    "health.metadata_store": "Whether this node has read its copy of the catalog.",
    "health.leaderless_queues": "Queues whose group has no leader.",
    "clients.list_connections": "Connections of clients.",
    "clients.one_connection": "One connection.",
    "clients.close_connection": "Close a connection.",
    "clients.list_channels": "Channels of AMQP's clients.",
    "clients.close_connections": "Close all connections of a user.",
    "clients.one_channel": "One channel.",
    "clients.list_consumers": "Consumers of queues.",
    "queues.list_queues": "Queues, filtered, sorted and by pages.",
    "queues.one_queue": "One queue.",
    "queues.declare": "Declare a queue.",
    "queues.delete": "Delete a queue.",
    "queues.purge": "Delete all ready messages of a queue.",
    "queues.pause": "Pause a queue: it delivers nothing.",
    "queues.resume": "Let a queue deliver again.",
    "queues.replicas": "How far each copy of a queue is.",
    "messages.publish": "Publish a message to an exchange.",
    "messages.get": "Take messages from a queue.",
    "messages.aliveness": "Send a message through a queue and take it out again.",
    "waiting.peek": "Messages as they are, without taking them.",
    "waiting.select": "Which waiting messages match.",
    "waiting.move": "Move waiting messages to another queue.",
    "waiting.copy": "Copy waiting messages to another queue.",
    "waiting.list_delayed": "Delayed messages of a queue.",
    "waiting.one_delayed": "One delayed message.",
    "waiting.retime": "Change when a delayed message is due.",
    "attention.attention": "What is wrong now, then what may become wrong.",
    "waiting.split": "Split a queue over several shards.",
    "waiting.join": "Make one queue of its shards again.",
    "waiting.extend": "Hold on longer to all that consumers of a queue hold.",
    "waiting.cancel": "Take a delayed message away.",
    "streams.list_streams": "Streams.",
    "streams.one_stream": "One stream, and its state.",
    "streams.put_stream": "Make a stream, or find it as it shall be.",
    "streams.patch_stream": "Change settings of a stream.",
    "streams.delete_stream": "Delete a stream.",
    "streams.purge": "Delete messages of a stream.",
    "streams.get_message": "One message of a stream.",
    "streams.delete_message": "Delete one message of a stream.",
    "streams.list_consumers": "Consumers (cursors) of a stream.",
    "streams.one_consumer": "One consumer of a stream.",
    "streams.put_consumer": "Make a consumer of a stream, or find it as it shall be.",
    "streams.patch_consumer": "Change settings of a consumer.",
    "streams.delete_consumer": "Delete a consumer of a stream.",
    "streams.pause": "Pause a consumer until a time.",
    "streams.resume": "Let a consumer go on.",
    "exchanges.list_exchanges": "Exchanges.",
    "exchanges.one_exchange": "One exchange.",
    "exchanges.declare": "Declare an exchange.",
    "exchanges.delete": "Delete an exchange.",
    "bindings.list_bindings": "Bindings.",
    "bindings.from_exchange": "Bindings of which the exchange is the source.",
    "bindings.to_exchange": "Bindings that lead to the exchange.",
    "bindings.to_queue": "Bindings that lead to the queue.",
    "bindings.between": "Bindings between the two.",
    "bindings.bind": "Bind.",
    "bindings.one_binding": "One binding.",
    "bindings.unbind": "Unbind.",
    "vhosts.list_vhosts": "Virtual hosts.",
    "vhosts.one_vhost": "One virtual host.",
    "vhosts.put": "Make or change a virtual host.",
    "vhosts.delete": "Delete a virtual host with all that is in it.",
    "vhosts.protect": "Protect a virtual host from deletion.",
    "vhosts.unprotect": "Let a virtual host be deleted again.",
    "vhosts.start": "Nothing to do: it runs on every node that is up.",
    "vhosts.permissions": "Permissions in a virtual host.",
    "vhosts.topic_permissions": "Topic permissions in a virtual host.",
    "users.whoami": "Who asks, with which tags.",
    "users.list_users": "Users.",
    "users.without_permissions": "Users who have no permission anywhere.",
    "users.delete_many": "Delete several users.",
    "users.one_user": "One user.",
    "users.put": "Make or change a user.",
    "users.delete": "Delete a user.",
    "users.list_permissions": "Permissions.",
    "users.list_topic_permissions": "Topic permissions.",
    "users.one_permission": "What a user may do in a virtual host.",
    "users.put_permission": "Say what a user may do in a virtual host.",
    "users.delete_permission": "Take a user's permissions in a virtual host away.",
    "users.put_topic_permission": "Say to and from which routing keys a user may publish and bind.",
    "users.delete_topic_permissions": "Take a user's topic permissions away.",
    "policies.list_all": "Policies.",
    "policies.one": "One policy.",
    "policies.put": "Make or change a policy.",
    "policies.delete": "Delete a policy.",
    "limits.listed": "Limits.",
    "limits.put": "Set a limit.",
    "limits.delete": "Lift a limit.",
    "parameters.list_parameters": "Parameters of shovels and federation.",
    "parameters.one": "One parameter.",
    "parameters.put": "Make or change a parameter.",
    "parameters.delete": "Delete a parameter.",
    "parameters.list_global": "Global parameters.",
    "parameters.get_cluster_name": "The name of the cluster.",
    "parameters.put_cluster_name": "Name the cluster.",
    "federation.list_links": "Federation links, and how they are.",
    "federation.list_down": "Federation links in trouble.",
    "federation.restart": "Connect a federation link anew.",
    "shovels.list_all": "Shovels, and how they are.",
    "shovels.one": "One shovel.",
    "shovels.delete": "Delete a shovel.",
    "shovels.restart": "Connect a shovel anew.",
    "definitions.export_route": "Export definitions: all of the cluster as one document.",
    "definitions.import_these": "Import definitions: all of it or nothing.",
    "definitions.export_vhost": "Export the definitions of a virtual host.",
    "logins.auth": "How to log in: HTTP Basic.",
    "logins.login": "Check a user name and password.",
    "logins.hashed": "The hash of a password, as RabbitMQ makes it.",
    "logins.attempts": "Logins at a node, by protocol.",
    "logins.forget": "Count logins from zero again.",
    "logins.sources": "Logins at a node, by source.",
    "replicas.grow": "Give the groups of matching queues a copy on a node.",
    "replicas.shrink": "Take a node's copies of groups away.",
    "replicas.add": "Give a queue's group a copy on a node.",
    "replicas.remove": "Take a queue's group off a node.",
    "page.page": "A page with every route.",
    "http._status": "Nodes, groups and leaders.",
    "http._queues": "All queues.",
    "http._queue": "One queue.",
    "http._declare": "Declare a queue.",
    "http._delete": "Delete a queue.",
    "http._publish": "Publish messages; answers when a majority has them on disk.",
    "http._get": "Take messages.",
    "http._settle": "Settle, return or discard messages.",
    "http._peek": "Look at messages without taking them.",
    "http._purge": "Delete all ready messages of a queue.",
    "http._pause": "Pause a queue, or let it deliver again.",
    "http_history._by_id": "What happened to a message, by its id.",
    "http_history._by_queue": "What happened to a message, by its place or its publisher's number.",
}


@dataclass(frozen=True)
class Route:
    method: str
    path: str  # with the prefix
    section: str
    summary: str
    needs: str

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}"


def bodies() -> dict[str, Any]:
    """By method and path."""
    known = json.loads(BODIES.read_text(encoding="utf-8"))
    for operation in known.values():
        if "body" in operation:
            operation["body"] = published(operation["body"])
        answers = operation["answers"]
        operation["answers"] = {s: None if a is None else published(a) for s, a in answers.items()}
    return known


def management_routes() -> list[Route]:
    return [
        Route(
            route.method,
            f"/api/{route.path}".rstrip("/"),
            route.path.partition("/")[0] or "overview",
            summary(route.handler),
            "nobody" if route.open else route.needs,
        )
        for route in ROUTES
    ]


class _Listed(HttpRoutes):
    """The same routes, with handlers that are not wrapped: they are only listed."""

    def __init__(self) -> None:
        self.operations: dict[Any, str] = {}

    def guarded(self, handler: Any, operation: str | None = None) -> Any:
        self.operations[handler] = operation or "a user"
        return handler


def native_routes() -> list[Route]:
    listed = _Listed()
    app = web.Application()
    listed.add_to(app)
    history = HistoryRoutes.__new__(HistoryRoutes)
    history._routes = listed
    history.add_to(app)
    found = [
        Route(
            route.method,
            route.resource.canonical,
            route.resource.canonical.split("/")[2],
            summary(route.handler),
            listed.operations[route.handler],
        )
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    ]
    connect = "The native protocol, over a WebSocket."
    return [*found, Route("GET", "/v1/connect", "connect", connect, "a user")]


def summary(handler: Any) -> str:
    """What it does, in a sentence: told here, by its docstring, or at least by its name."""
    module, name = handler.__module__.rpartition(".")[2], handler.__name__
    if (told := SUMMARIES.get(f"{module}.{name}")) is not None:
        return told
    text = inspect.getdoc(handler) or f"{name.strip('_').replace('_', ' ').capitalize()}."
    return " ".join(text.split("\n\n")[0].split())


def openapi() -> dict[str, Any]:
    """All routes of HTTP, as a document of OpenAPI 3.1."""
    known = bodies()
    paths: dict[str, dict[str, Any]] = {}
    for api, routes in (("management", management_routes()), ("native", native_routes())):
        for route in routes:
            operation = _operation(api, route, known.get(route.key, {}))
            paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quorate",
            "version": PRODUCT_VERSION,
            "description": "Made from the routes of a node, and from what their handlers read and"
            " answer. The management API also takes booleans and numbers as text.",
        },
        "servers": [{"url": "http://127.0.0.1:8081"}],
        "security": [{"basic": []}],
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": ERRORS,
        },
        "paths": paths,
    }


def _operation(api: str, route: Route, known: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "tags": [f"{api}: {route.section}"],
        "operationId": f"{route.method.lower()} {route.path}",
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": TEXT}
                for name in PARAMETER.findall(route.path)
            ),
            *(
                {"name": name, "in": "query", "schema": schema}
                for name, schema in known.get("query", {}).items()
            ),
        ],
        "responses": _responses(api, route, known.get("answers", {})),
    }
    if route.needs == "nobody":
        operation["security"] = []
    if "body" in known:
        content = {JSON: {"schema": known["body"]}}
        if api == "native":
            content[CBOR] = {"schema": known["body"]}
        if route.key == PUBLISH:
            del content[JSON]
            content["application/octet-stream"] = {"schema": {}}
        operation["requestBody"] = {"content": content}
    return operation


def _responses(api: str, route: Route, answers: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, schema in answers.items():
        found[status] = {"description": MEANS[status]}
        if schema is not None:
            found[status]["content"] = {JSON: {"schema": schema}}
    if route.key in STREAMS:
        found["200"] = {"description": MEANS["200"], "content": {STREAMS[route.key]: {}}}
    if route.path == "/v1/connect":
        found["101"] = {"description": "From here on frames: see docs/protocol.md"}
    if route.path.startswith("/api/health/checks/"):
        content = {JSON: {"schema": {"$ref": "#/components/schemas/FailedCheck"}}}
        found["503"] = {"description": MEANS["503"], "content": content}
    error = "ManagementError" if api == "management" else "Refusal"
    found["default"] = {
        "description": "It was not done, and why"
        + ("" if api == "management" else "; 307: ask the leader, at `Location`"),
        "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{error}"}}},
    }
    return found


MEANS = {
    "200": "Done",
    "201": "It is new",
    "204": "Done; nothing to tell",
    "303": "Go on there",
    "503": "It is not well, and why",
}


def http_page() -> str:
    """Every route of HTTP, by section."""
    known = bodies()
    lines = [
        "# HTTP API",
        "",
        "Every route that a node serves, made from its tables of routes.",
        "As a document for tools: [openapi.json](openapi.json), OpenAPI 3.1. What fields mean",
        "is told in [Management API](../management.md) and [Native protocol](../protocol.md).",
        "",
        "Below the routes of a section stand the fields of their bodies. Fields marked with * are",
        "always there, or must be given. An answer may have more fields than are listed.",
        "",
        "Names in paths are percent-encoded: the virtual host `/` is `%2F`. Log in by HTTP Basic.",
    ]
    groups: list[tuple[str, str, list[Route]]] = [
        ("Management API", "the tag", management_routes()),
        ("Native protocol", "may", native_routes()),
    ]
    for title, needs, routes in groups:
        lines += ["", f"## {title}"]
        for section in sorted({route.section for route in routes}):
            lines += ["", f"### {title.split()[0]}: {section}", ""]
            lines += [f"| | path | does | {needs} |", "|---|---|---|---|"]
            lines += [
                f"| **{route.method}** | `{route.path}` | {_cell(route.summary)} | {route.needs} |"
                for route in routes
                if route.section == section
            ]
            for route in routes:
                if route.section == section:
                    lines += _fields_of(route, known.get(route.key, {}))
    return "\n".join(lines) + "\n"


def _fields_of(route: Route, known: dict[str, Any]) -> list[str]:
    """What its bodies hold, folded."""
    parts: list[tuple[str, Any]] = []
    if query := known.get("query"):
        parts.append(("query", {"type": "object", "properties": query}))
    if body := known.get("body"):
        parts.append(("body", body))
    parts += [(f"answer {status}", s) for status, s in known.get("answers", {}).items() if s]
    if not parts:
        return []
    lines = ["", f'??? abstract "`{route.method} {route.path}`"', ""]
    for title, schema in parts:
        lines += [f"    **{title[0].upper()}{title[1:]}**", "", "    ```yaml"]
        lines += [f"    {line}" for line in _outline(schema, "")]
        lines += ["    ```", ""]
    return lines


def _outline(schema: dict[str, Any], indent: str) -> Iterator[str]:
    """One line for each field."""
    properties: dict[str, Any] = schema.get("properties", {})
    items: dict[str, Any] = schema.get("items", {})
    if not indent and not properties:
        yield f"{_kind(schema)}:" if items.get("properties") else _kind(schema)
        indent = "  "
        properties = items.get("properties", {})
        schema = items or schema
    needed = schema.get("required", [])
    rows = list(properties.items())
    if "additionalProperties" in schema:
        rows.append(("(name)", schema["additionalProperties"]))
    for name, inner in rows:
        default = f" = {json.dumps(inner['default'])}" if "default" in inner else ""
        yield f"{indent}{name}{'*' if name in needed else ''}: {_kind(inner)}{default}"
        below = inner if "properties" in inner or "additionalProperties" in inner else None
        below = below or inner.get("items", {})
        if "properties" in below or "additionalProperties" in below:
            yield from _outline(below, indent + "  ")


def _kind(schema: dict[str, Any]) -> str:
    types = schema.get("type", "any")
    each = [types] if isinstance(types, str) else types
    return " or ".join(
        f"list of {_kind(schema.get('items', {}))}" if one == "array" else one for one in each
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")


def commands() -> Iterator[tuple[list[str], Any]]:
    """Every command that does something, with the words that lead to it, in the order of help."""

    def below(words: list[str], command: Any, context: Any) -> Iterator[tuple[list[str], Any]]:
        inner = type(context)(command, info_name=words[-1], parent=context)
        if not hasattr(command, "list_commands"):
            yield words, command
            return
        for name in command.list_commands(inner):
            found = command.get_command(inner, name)
            if found is not None and not found.hidden:
                yield from below([*words, name], found, inner)

    root = command_line()
    context = root.make_context("quorate", [], resilient_parsing=True)
    for name in root.list_commands(context):
        found = root.get_command(context, name)
        if found is not None and not found.hidden:
            yield from below(["quorate", name], found, context)


def cli_page() -> str:
    """Every command, with its arguments and options."""
    shared = {"--url", "--json", "--timeout", "--user", "--password-file", "--ca", "--cert"}
    shared |= {"--context", "--help"}
    lines = [
        "# Command line",
        "",
        "Every command of `quorate`, made from the commands themselves. Those that ask a cluster",
        "also take `--url`, `--user`, `--password-file`, `--ca`, `--cert`, `--context`,",
        "`--timeout` and `--json`; `--help` tells all. What shows something takes `--watch`; lists",
        "take `--filter` and `--sort`.",
    ]
    section = ""
    for words, command in commands():
        if words[1] != section:
            section = words[1]
            lines += ["", f"## {section}"]
        help_text = inspect.cleandoc(command.help or "").replace("\f", "")
        lines += ["", f"### `{' '.join(words)}` {{ #{'-'.join(words[1:])} }}"]
        lines += ["", _prose(help_text)]
        rows: list[str] = []
        for parameter in command.params:
            names = [*parameter.opts, *parameter.secondary_opts]
            hidden = getattr(parameter, "hidden", False)
            if hidden or shared & set(names) or parameter.name.startswith("here_"):
                continue
            argument = parameter.param_type_name == "argument"
            shown = [parameter.name] if argument else names
            told = _cell(_prose(getattr(parameter, "help", None) or ""))
            rows.append(f"| {', '.join(f'`{each}`' for each in shown)} | {told} |")
        if rows:
            lines += ["", "| | |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _prose(text: str) -> str:
    """Without the marks that colour it in a terminal."""
    return re.sub(r"\[/?(?:bold|dim|red|green|yellow|cyan)\]", "", " ".join(text.split()))


def openapi_text() -> str:
    return json.dumps(openapi(), indent=1)


#: By where the site has them.
PAGES = {
    "reference/http.md": http_page,
    "reference/cli.md": cli_page,
    "reference/openapi.json": openapi_text,
}
