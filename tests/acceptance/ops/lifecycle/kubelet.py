"""Says of every pod what a scheduler and a kubelet without trouble would; runs no container."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from typing import Any

from aiohttp import ClientSession, TCPConnector

NODE = "pretended"
LOOK_S = 0.2
MERGE = {"Content-Type": "application/merge-patch+json"}

Object = dict[str, Any]


class Kubelet:
    """Binds pods, reports them ready, ends the deletion of those that are to go."""

    def __init__(self, address: str, token: str, trusted: ssl.SSLContext) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"}
        self._trusted = trusted

    async def run(self) -> None:
        """Until it is cancelled."""
        connector = TCPConnector(ssl=self._trusted)
        async with ClientSession(self._address, headers=self._headers, connector=connector) as api:
            while True:
                async with api.get("/api/v1/pods") as answer:
                    pods: list[Object] = (await answer.json())["items"]
                for pod in pods:
                    await self._see_to(api, pod)
                await asyncio.sleep(LOOK_S)

    async def _see_to(self, api: ClientSession, pod: Object) -> None:
        about = pod["metadata"]
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        if "deletionTimestamp" in about:
            await api.delete(path, json={"gracePeriodSeconds": 0})
        elif "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {"metadata": {"name": about["name"]}, "target": target}
            await api.post(
                f"{path}/binding", json={"apiVersion": "v1", "kind": "Binding", **binding}
            )
        elif pod["status"].get("phase") == "Pending":
            status = {"status": _status(pod)}
            await api.patch(f"{path}/status", json=status, headers=MERGE)


def _status(pod: Object) -> Object:
    once = pod["spec"]["restartPolicy"] == "Never"
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = "False" if once else "True"
    return {
        "phase": "Succeeded" if once else "Running",
        "startTime": now,
        "conditions": [
            {"type": kind, "status": ready, "lastTransitionTime": now}
            for kind in ("ContainersReady", "Ready")
        ],
    }
