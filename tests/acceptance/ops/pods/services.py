"""Services: which names there are, and which pods are behind them now."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.acceptance.ops.pods.manifest import Manifest, Spec
from tests.acceptance.ops.pods.names import DOMAIN, NameServer
from tests.acceptance.ops.pods.network import Network
from tests.acceptance.ops.pods.pod import Pod
from tests.acceptance.ops.pods.probes import port_of


class Services:
    """Of one namespace. `changed` is called whenever a pod comes, goes, or is ready or not."""

    def __init__(self, manifest: Manifest, network: Network, pods: Mapping[str, Pod]) -> None:
        self.names = NameServer()
        self._domain = f"{manifest.namespace}.svc.{DOMAIN}"
        self._network = network
        self._pods = pods
        self._services = manifest.of_kind("Service")
        self._own_name = manifest.stateful_set["spec"].get("serviceName")
        self._addresses = {
            service["metadata"]["name"]: f"10.96.0.{number + 1}"
            for number, service in enumerate(self._services)
            if service["spec"].get("clusterIP") != "None"
        }
        self._news = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def open(self, address: str) -> None:
        await self.names.open(address)
        await self._apply()
        self._following = asyncio.create_task(self._follow(), name="services")

    def changed(self) -> None:
        self._news.set()

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        self.names.close()

    async def _follow(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._apply()

    async def _apply(self) -> None:
        self.names.records = self._records()
        await self._network.forward(self._forwards())

    def _records(self) -> dict[str, list[str]]:
        records: dict[str, list[str]] = {}
        for service in self._services:
            name, spec = service["metadata"]["name"], service["spec"]
            if name in self._addresses:
                records[f"{name}.{self._domain}"] = [self._addresses[name]]
                continue
            every = bool(spec.get("publishNotReadyAddresses"))
            behind = [pod for pod in self._behind(spec) if every or pod.ready]
            records[f"{name}.{self._domain}"] = [pod.identity.address for pod in behind]
            if name == self._own_name:
                for pod in behind:
                    records[f"{pod.name}.{name}.{self._domain}"] = [pod.identity.address]
        return records

    def _forwards(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        found: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for service in self._services:
            name, spec = service["metadata"]["name"], service["spec"]
            if name in self._addresses:
                for port in spec.get("ports") or ():
                    found[self._addresses[name], int(port["port"])] = [
                        (pod.identity.address, _target(pod, port))
                        for pod in self._behind(spec)
                        if pod.ready
                    ]
        return found

    def _behind(self, spec: Spec) -> Sequence[Pod]:
        wanted: Mapping[str, Any] = spec.get("selector") or {}
        return [
            pod
            for _, pod in sorted(self._pods.items())
            if wanted and wanted.items() <= dict(pod.identity.labels).items()
        ]


def _target(pod: Pod, port: Spec) -> int:
    return port_of(pod.spec["containers"][0], port.get("targetPort", port["port"]))
