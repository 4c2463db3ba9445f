"""A client of the management API."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from yarl import URL

from node.node import Node


class Reply(NamedTuple):
    status: int
    value: Any
    headers: dict[str, str]


class Api:
    """As one user."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self._headers = {"Authorization": aiohttp.encode_basic_auth(user, password)}

    def as_user(self, user: str, password: str) -> Api:
        return Api(self.url, user, password)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def ask(
        self, method: str, path: str, body: Any = None, *, auth: bool = True, **headers: str
    ) -> Reply:
        """`path` behind /api/, quoted already."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body)
        async with (
            aiohttp.ClientSession(headers=self._headers if auth else {}) as session,
            session.request(
                method,
                URL(f"{self.url}/api/{path}", encoded=True),
                data=data,
                headers={name.replace("_", "-"): value for name, value in headers.items()},
                allow_redirects=False,
            ) as response,
        ):
            return await _reply(response)

    async def upload(self, path: str, form: aiohttp.FormData) -> Reply:
        """As a browser sends a file."""
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.post(f"{self.url}/api/{path}", data=form, allow_redirects=False) as response,
        ):
            return await _reply(response)

    async def get(self, path: str) -> Any:
        reply = await self.ask("GET", path)
        assert reply.status == 200, reply
        return reply.value

    async def put(self, path: str, **body: Any) -> int:
        reply = await self.ask("PUT", path, {k.replace("_to", "-to"): v for k, v in body.items()})
        assert reply.status in (201, 204), reply
        return reply.status

    async def post(self, path: str, **body: Any) -> Reply:
        return await self.ask("POST", path, body)

    async def delete(self, path: str) -> int:
        return (await self.ask("DELETE", path)).status

    # --- short for what tests do often ------------------------------------------------------------

    async def queue(self, name: str, vhost: str = "/", **arguments: Any) -> int:
        given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        path = f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}"
        return await self.put(path, durable=True, arguments=given)

    async def publish(self, key: str, payload: str, exchange: str = "amq.default", **props: Any):
        reply = await self.post(
            f"exchanges/%2F/{exchange}/publish",
            routing_key=key,
            payload=payload,
            payload_encoding="string",
            properties=props,
        )
        assert reply.status == 200, reply
        return reply.value["routed"]

    async def take(
        self, queue: str, count: int = 1, ackmode: str = "ack_requeue_false", **more: Any
    ) -> list[dict[str, Any]]:
        reply = await self.post(
            f"queues/%2F/{queue}/get", count=count, ackmode=ackmode, encoding="auto", **more
        )
        assert reply.status == 200, reply
        return reply.value


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    text = await response.text()
    return Reply(response.status, json.loads(text) if text else None, dict(response.headers))


def api_of(node: Node) -> Api:
    return Api(f"http://{node.http_address}", "guest", "guest")
