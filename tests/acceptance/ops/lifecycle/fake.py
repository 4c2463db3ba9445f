"""An API server on loopback that pretends: discovery, objects, patches, watches, and no kubelet.

It has what helm and kubectl ask for, refuses what Kubernetes refuses of a StatefulSet, and does at
once what controllers would do. It fills in no defaults, admits everything, and runs no container.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.acceptance.ops.lifecycle import protobuf
from tests.acceptance.ops.lifecycle.patches import patched
from tests.acceptance.ops.lifecycle.store import KINDS, Object, Refused, Store

VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0"}
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
BODY_BYTES_MAX = 8 << 20
WATCH_S_MAX = 60.0


class FakeServer:
    """`calls`: what was asked, for the curious."""

    def __init__(self) -> None:
        self.store = Store()
        self.calls: list[str] = []

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_get("/version", self._version)
        app.router.add_get("/openapi/v3", self._open_api_index)
        app.router.add_get("/openapi/v3/{document:.*}", self._open_api)
        app.router.add_route("*", "/{path:.*}", self._any)
        return app

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response(VERSION)

    # --- discovery -----------------------------------------------------------------------------

    def _discovered(self, path: str) -> Object | None:
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [
                {
                    "name": api.partition("/")[0],
                    "versions": [{"groupVersion": api, "version": api.partition("/")[2]}],
                    "preferredVersion": {"groupVersion": api, "version": api.partition("/")[2]},
                }
                for api in KINDS
                if "/" in api
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        api = path.removeprefix("/apis/").removeprefix("/api/")
        if api not in KINDS:
            return None
        resources = [
            {
                "name": plural,
                "singularName": kind.lower(),
                "namespaced": namespaced,
                "kind": kind,
                "shortNames": short,
                "verbs": VERBS,
            }
            for plural, kind, namespaced, short in KINDS[api]
        ]
        return {"kind": "APIResourceList", "groupVersion": api, "resources": resources}

    async def _open_api_index(self, _: web.Request) -> web.Response:
        paths = {
            _root(api): {"serverRelativeURL": f"/openapi/v3/{_root(api)}?hash=1"} for api in KINDS
        }
        return web.json_response({"paths": paths})

    async def _open_api(self, request: web.Request) -> web.Response:
        """Only what tells clients that fields are checked by the server."""
        root = request.match_info["document"]
        api = root.removeprefix("apis/").removeprefix("api/")
        group, _, version = api.rpartition("/")
        checked = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        paths = {
            f"/{root}/{'namespaces/{namespace}/' if namespaced else ''}{plural}/{{name}}": {
                "patch": {
                    "operationId": f"patch{kind}",
                    "parameters": [checked],
                    "responses": {},
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": {
                        "group": group,
                        "version": version,
                        "kind": kind,
                    },
                }
            }
            for plural, kind, namespaced, _ in KINDS.get(api, [])
        }
        info = {"title": "pretended", "version": "v1"}
        return web.json_response({"openapi": "3.0.0", "info": info, "paths": paths})

    # --- objects -------------------------------------------------------------------------------

    async def _any(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path_qs}")
        found = self._discovered(request.path.rstrip("/"))
        if found is not None:
            return web.json_response(found)
        try:
            return await self._object(request)
        except Refused as refused:
            return _status(refused)

    async def _object(self, request: web.Request) -> web.StreamResponse:
        api, namespace, plural, name, part = _parts(request.path)
        kind = next((each for own, each, *_ in KINDS.get(api, []) if own == plural), None)
        if kind is None:
            raise Refused(404, "NotFound", f"there is no {request.path} here")
        store, kept = self.store, "dryRun" not in request.query
        if request.method == "POST":
            body = await _body(request)
            new: Object = {"apiVersion": api, "kind": kind, **body}
            key = (namespace, new["metadata"]["name"])
            return web.json_response(store.create(api, plural, key, new, kept=kept), status=201)
        if name is None:
            return await self._list(request, api, plural, kind, namespace)
        key = (namespace, name)
        if part == "log":
            store.get(api, plural, key)
            return web.Response(text="this pod only pretended to run\n")
        if request.method == "GET":
            return web.json_response(store.get(api, plural, key))
        if request.method == "DELETE":
            gone = store.delete(api, plural, key)
            return web.json_response(gone)
        if request.method == "PUT":
            new = await _body(request)
            return web.json_response(store.change(api, plural, key, new, kept=kept))
        if request.method == "PATCH":
            old, patch = store.get(api, plural, key), json.loads(await request.read())
            try:
                new = patched(old, patch, request.content_type)
            except ValueError as error:
                raise Refused(415, "UnsupportedMediaType", str(error)) from error
            return web.json_response(store.change(api, plural, key, new, kept=kept))
        raise Refused(405, "MethodNotAllowed", request.method)

    async def _list(
        self, request: web.Request, api: str, plural: str, kind: str, namespace: str | None
    ) -> web.StreamResponse:
        if request.query.get("watch") in {"1", "true"}:
            return await self._watch(request, api, plural, namespace)
        items = list(self._selected(request, api, plural, namespace))
        about = {"resourceVersion": str(self.store.version)}
        return web.json_response(
            {"kind": f"{kind}List", "apiVersion": api, "metadata": about, "items": items}
        )

    async def _watch(
        self, request: web.Request, api: str, plural: str, namespace: str | None
    ) -> web.StreamResponse:
        """What there is, and what changes, until the client has seen enough."""
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        seen: dict[str, str] = {}
        async with asyncio.timeout(WATCH_S_MAX):
            while request.transport is not None and not request.transport.is_closing():
                for each in self._selected(request, api, plural, namespace):
                    uid, version = each["metadata"]["uid"], each["metadata"]["resourceVersion"]
                    if seen.get(uid) != version:
                        event = {"type": "MODIFIED" if uid in seen else "ADDED", "object": each}
                        seen[uid] = version
                        await answer.write(json.dumps(event).encode() + b"\n")
                await asyncio.sleep(0.02)
        return answer

    def _selected(
        self, request: web.Request, api: str, plural: str, namespace: str | None
    ) -> Iterator[Object]:
        names = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        labels = [
            part.replace("==", "=").split("=", 1)
            for part in request.query.get("labelSelector", "").split(",")
            if "=" in part and "!" not in part
        ]
        for (place, name), each in list(self.store.all(api, plural).items()):
            own: dict[str, str] = each["metadata"].get("labels") or {}
            if namespace not in {None, place} or (names and names != name):
                continue
            if all(own.get(key) == value for key, value in labels):
                yield each


def _root(api: str) -> str:
    return f"api/{api}" if api == "v1" else f"apis/{api}"


def _parts(path: str) -> tuple[str, str | None, str, str | None, str | None]:
    """API version, namespace, plural, name, subresource."""
    words = path.strip("/").split("/")
    core = words[0] == "api"
    api, rest = (words[1], words[2:]) if core else ("/".join(words[1:3]), words[3:])
    namespace = None
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    rest += [""] * (3 - len(rest))
    return api, namespace, rest[0], rest[1] or None, rest[2] or None


async def _body(request: web.Request) -> Object:
    body = await request.read()
    return protobuf.decode(body) if body.startswith(protobuf.MAGIC) else json.loads(body)


def _status(refused: Refused) -> web.Response:
    answer: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": refused.reason,
        "code": refused.code,
        "message": str(refused),
    }
    return web.json_response(answer, status=refused.code)


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[FakeServer, str]]:
    """The server and its address, on a free port."""
    server = FakeServer()
    runner = web.AppRunner(server.application(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield server, f"http://{host}:{port}"
    finally:
        await runner.cleanup()
