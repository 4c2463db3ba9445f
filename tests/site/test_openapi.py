"""The OpenAPI document is one, and what a node answers is as it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from yarl import URL

from docs.site.reference import STREAMS, openapi
from tests.node.management.api import api_of
from tests.node.nodes import Nodes

#: Made before it is asked what there is. Text is the body as it is.
MADE: list[tuple[str, str, Any]] = [
    ("PUT", "/api/vhosts/shop", {"description": "for shops"}),
    ("PUT", "/api/users/clerk", {"password": "a secret", "tags": "management"}),
    ("PUT", "/api/permissions/%2F/clerk", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "/api/topic-permissions/%2F/clerk", {"exchange": "e", "write": ".*", "read": ".*"}),
    ("PUT", "/api/topic-permissions/%2F/clerk", {"exchange": "f", "write": ".*", "read": ".*"}),
    ("PUT", "/api/exchanges/%2F/e", {"type": "topic", "durable": True}),
    ("PUT", "/api/exchanges/%2F/f", {"type": "fanout", "durable": True}),
    ("PUT", "/api/queues/%2F/orders", {"durable": True, "arguments": {"x-max-length": 1_000}}),
    ("PUT", "/v1/queues/%2F/later", {"arguments": {"x-delivery-limit": 3}}),
    ("POST", "/api/bindings/%2F/e/e/q/orders", {"routing_key": "new.#"}),
    ("POST", "/api/bindings/%2F/e/f/e/e", {"routing_key": ""}),
    (
        "PUT",
        "/api/policies/%2F/long",
        {"pattern": "^orders$", "definition": {"max-length": 500}, "apply-to": "queues"},
    ),
    (
        "PUT",
        "/api/operator-policies/%2F/short",
        {"pattern": "^x$", "definition": {"max-length": 5}},
    ),
    ("PUT", "/api/vhost-limits/shop/max-queues", {"value": 10}),
    ("PUT", "/api/user-limits/clerk/max-connections", {"value": 10}),
    ("PUT", "/api/global-parameters/colour", {"value": "green"}),
    ("PUT", "/api/cluster-name", {"name": "a cluster"}),
    (
        "PUT",
        "/api/parameters/federation-upstream/%2F/afar",
        {"value": {"uri": "amqp://127.0.0.1:1"}},
    ),
    ("PUT", "/api/upgrade/hold", {}),
    ("POST", "/api/queues/quorum/%2F/orders/replicas/add", {"node": "n1"}),
    ("POST", "/api/backup", {}),
    ("PUT", "/api/streams/%2F/EVENTS", {"subjects": ["events.*"]}),
    ("PUT", "/api/streams/%2F/EVENTS/consumers/reader", {}),
    (
        "POST",
        "/api/exchanges/%2F/e/publish",
        {
            "routing_key": "new.one",
            "payload": "first",
            "payload_encoding": "string",
            "properties": {"headers": {"colour": "green"}},
        },
    ),
    ("POST", "/v1/queues/%2F/orders/messages", "second"),
    ("POST", "/v1/queues/%2F/later/messages", "third"),
    ("POST", "/v1/queues/%2F/later/get", {"count": 1, "auto_settle": False}),
    ("POST", "/v1/queues/%2F/later/pause", {"paused": True}),
    (
        "POST",
        "/api/queues/%2F/orders/get",
        {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"},
    ),
]
#: Of paths that are asked.
NAMES = {
    "vhost": "%2F",
    "queue": "orders",
    "exchange": "e",
    "source": "f",
    "destination": "e",
    "kind": "e",
    "key": "~",
    "user": "clerk",
    "username": "guest",
    "node": "n1",
    "stream": "EVENTS",
    "consumer": "reader",
    "component": "federation-upstream",
    "password": "secret",
    "pattern": ".*",
    "protocol": "http",
    "within": "1",
    "unit": "days",
}
#: What `{name}` is, by the beginning of the path.
NAMED = {
    "/api/policies": "long",
    "/api/operator-policies": "short",
    "/api/global-parameters": "colour",
    "/api/parameters": "afar",
    "/api/groups": "default-1",
    "/v1/queues": "orders",
}
QUERIES = {"/v1/queues/{vhost}/{name}/history": "?position=1"}
DELETED = (
    "/api/streams/%2F/EVENTS/consumers/reader",
    "/api/streams/%2F/EVENTS",
    "/api/queues/%2F/orders/contents",
    "/api/queues/%2F/orders",
    "/v1/queues/%2F/later",
    "/api/policies/%2F/long",
    "/api/operator-policies/%2F/short",
    "/api/topic-permissions/%2F/clerk/e",
    "/api/topic-permissions/%2F/clerk",
    "/api/user-limits/clerk/max-connections",
    "/api/global-parameters/colour",
    "/api/auth/attempts/n1/source",
    "/api/upgrade/hold",
    "/api/exchanges/%2F/f",
    "/api/users/clerk",
    "/api/vhosts/shop",
)


class Contract:
    """What the document says of an operation, and what was seen to differ."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self.wrong: list[str] = []
        self.answered: set[str] = set()

    def of(self, method: str, path: str) -> tuple[str, dict[str, Any]]:
        words = path.partition("?")[0].split("/")
        fits = [
            template
            for template, methods in self._document["paths"].items()
            if method.lower() in methods
            and len(each := template.split("/")) == len(words)
            and all(a == b or a.startswith("{") for a, b in zip(each, words, strict=True))
        ]
        assert fits, f"{method} {path} is not in the document"
        found = min(fits, key=lambda template: template.count("{"))
        return found, self._document["paths"][found][method.lower()]

    def check(self, method: str, path: str, sent: Any, status: int, text: str) -> None:
        template, operation = self.of(method, path)
        name = f"{method} {template}"
        if isinstance(sent, dict) and sent:
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" not in content:
                self.wrong.append(f"{name}: no body of a request is known")
            else:
                self._fits(f"{name}, request", content["application/json"]["schema"], sent)
        if status >= 400:
            responses = operation["responses"]
            answer = responses.get(str(status), responses["default"])
            content = answer["content"]["application/json"]
            of_error = content["schema"]["$ref"].rpartition("/")[2]
            schemas = self._document["components"]["schemas"]
            self._fits(f"{name}, {status}", schemas[of_error], json.loads(text))
            return
        if str(status) not in operation["responses"]:
            self.wrong.append(f"{name}: {status} is not in the document: {text[:200]}")
            return
        self.answered.add(name)
        content = operation["responses"][str(status)].get("content", {})
        if text and "application/json" in content:
            schema = content["application/json"]["schema"]
            self._fits(f"{name}, {status}", schema, json.loads(text))
        elif text and name not in STREAMS:
            self.wrong.append(f"{name}: {status} has a body that is not in the document")

    def _fits(self, where: str, schema: Mapping[str, Any], value: Any) -> None:
        for error in OAS31Validator(schema).iter_errors(value):
            at = ".".join(str(part) for part in error.absolute_path)
            self.wrong.append(f"{where}: {at}: {error.message[:200]}")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi()


def test_it_is_a_document_of_openapi(document: dict[str, Any]):
    OpenAPIV31SpecValidator(document).validate()


def test_every_operation_says_what_it_answers(document: dict[str, Any]):
    silent = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if set(operation["responses"]) == {"default"}
    ]

    assert silent == []


async def test_a_node_answers_as_it_says(document: dict[str, Any], tmp_path: Path):
    contract = Contract(document)
    async with Nodes(tmp_path) as nodes:
        url = api_of(nodes.one).url
        address = nodes.one.amqp.address
        assert address is not None
        amqp = pika.URLParameters(f"amqp://guest:guest@{address}/%2F")
        connection = await asyncio.to_thread(lambda: pika.BlockingConnection(amqp))
        channel = await asyncio.to_thread(connection.channel)
        login = aiohttp.encode_basic_auth("guest", "guest")
        async with aiohttp.ClientSession(headers={"Authorization": login}) as session:

            async def ask(method: str, path: str, body: Any = None) -> Any:
                text = isinstance(body, str)
                async with session.request(
                    method,
                    URL(url + path, encoded=True),
                    data=body if text else None,
                    json=None if text else body,
                    allow_redirects=False,
                ) as response:
                    said = await response.text()
                contract.check(method, path, body, response.status, said)
                return json.loads(said) if said[:1] in {"{", "["} else None

            for method, path, body in MADE:
                await ask(method, path, body)
            # Held by a consumer, so that there is one to tell of.
            await asyncio.to_thread(lambda: channel.basic_consume("orders", lambda *_: None))
            clients = (await ask("GET", "/api/connections"))[0]["name"]
            channels = (await ask("GET", "/api/channels"))[0]["name"]
            peeked = (await ask("GET", "/v1/queues/%2F/later/peek"))["messages"][0]["message"]
            for template, methods in document["paths"].items():
                operation = methods.get("get")
                path = template.replace("{connection}", str(URL(clients)).replace("/", "%2F"))
                path = path.replace("{channel}", str(URL(channels)).replace("/", "%2F"))
                path = path.replace("{message}", peeked)
                path = path.replace("{port}", url.rpartition(":")[2])
                for prefix, name in NAMED.items():
                    if path.startswith(prefix):
                        path = path.replace("{name}", name)
                for name, value in NAMES.items():
                    path = path.replace(f"{{{name}}}", value)
                if operation is None or "{" in path or template in {"/v1/connect", "/api"}:
                    continue
                if f"GET {template}" not in STREAMS:
                    await ask("GET", path + QUERIES.get(template, ""))
            # A check that fails.
            await ask("GET", "/api/health/checks/port-listener/1")
            await asyncio.to_thread(connection.close)
            for path in DELETED:
                await ask("DELETE", path)
            await ask("GET", "/v1/queues/%2F/nowhere")

    assert contract.wrong == [], "\n".join(contract.wrong)
    assert len(contract.answered) > 120
