"""What a StatefulSet's controller does: pods whose names stay, one at a time when they change."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from copy import deepcopy

from tests.acceptance.ops.pods.identity import Identity
from tests.acceptance.ops.pods.manifest import Manifest, Spec, Unsupported, part
from tests.acceptance.ops.pods.network import GATEWAY
from tests.acceptance.ops.pods.pod import Ending, Kubelet, Pod

LOOK_S = 0.05
#: A pod that ends this often will not become ready.
RESTARTS_MAX = 3


class NotReady(Exception):
    """Pods were not ready in time; the text says which, and since when nothing happened."""


class StatefulSet:
    """`pods`: those that there are now, by name; shared with the services."""

    def __init__(self, kubelet: Kubelet, manifest: Manifest, pods: dict[str, Pod]) -> None:
        self._kubelet = kubelet
        self._manifest = manifest
        self._object = manifest.stateful_set
        self._spec = self._object["spec"]
        self.pods = pods
        self._annotations: dict[str, str] = {}
        strategy = part(self._spec, "updateStrategy").get("type", "RollingUpdate")
        if strategy != "RollingUpdate":
            raise Unsupported(f"updateStrategy {strategy}")

    @property
    def name(self) -> str:
        return self._object["metadata"]["name"]

    @property
    def min_ready_s(self) -> float:
        return float(self._spec.get("minReadySeconds", 0))

    def names(self) -> list[str]:
        return [f"{self.name}-{ordinal}" for ordinal in range(int(self._spec.get("replicas", 1)))]

    async def start(self, ready_s_max: float) -> None:
        """All at once, or each when the one before it is ready, as podManagementPolicy says."""
        if self._spec.get("podManagementPolicy", "OrderedReady") == "Parallel":
            await asyncio.gather(*(self._create(name) for name in self.names()))
            await self.until_ready(self.names(), ready_s_max)
        else:
            for name in self.names():
                await self._create(name)
                await self.until_ready([name], ready_s_max)

    async def roll(self, ready_s_max: float) -> list[Ending]:
        """The template changed: from the highest ordinal down, each when the last is available."""
        self._annotations["kubectl.kubernetes.io/restartedAt"] = str(time.time_ns())
        endings: list[Ending] = []
        for name in reversed(self.names()):
            ending = await self.pods[name].delete()
            del self.pods[name]
            endings.append(ending)
            await self._create(name)
            await self.until_ready([name], ready_s_max)
        return endings

    def use_image(self, image: str) -> None:
        """From the next pod on."""
        template = deepcopy(self._spec["template"])  # pods that run keep theirs
        for each in (
            *(template["spec"].get("initContainers") or ()),
            *template["spec"]["containers"],
        ):
            each["image"] = image
        self._spec["template"] = template

    def images(self) -> set[str]:
        """Of the pods that run."""
        containers = [pod.container for pod in self.pods.values()]
        return {each.spec["image"] for each in containers if each is not None}

    async def kill(self, name: str, ready_s_max: float) -> tuple[str, str]:
        """Without a word; its addresses, the old one and that of the pod that comes for it."""
        pod = self.pods[name]
        await pod.vanish()
        del self.pods[name]
        await self._create(name)
        await self.until_ready([name], ready_s_max)
        return pod.identity.address, self.pods[name].identity.address

    async def delete(self) -> list[Ending]:
        """All at once, as when it is deleted or scaled to nothing with Parallel."""
        endings = await asyncio.gather(*(pod.delete() for pod in self.pods.values()))
        self.pods.clear()
        self._kubelet.changed()
        return list(endings)

    async def until_ready(self, names: Sequence[str], ready_s_max: float) -> None:
        """For minReadySeconds without a break. Raises NotReady."""
        until_s = time.monotonic() + ready_s_max
        while True:
            now_s = time.monotonic()
            late = [name for name in names if not self._available(name, now_s)]
            if not late:
                return
            if now_s > until_s:
                raise NotReady(f"not ready within {ready_s_max:g} s: {', '.join(late)}")
            for pod in (self.pods[name] for name in late):
                if pod.restarts >= RESTARTS_MAX:
                    raise NotReady(f"{pod.name} ends whenever it is started: see logs/")
                if pod.failure:
                    raise NotReady(f"{pod.name}: {pod.failure}")
            await asyncio.sleep(LOOK_S)

    def _available(self, name: str, now_s: float) -> bool:
        since_s = self.pods[name].ready_since_s
        return since_s is not None and now_s - since_s >= self.min_ready_s

    async def _create(self, name: str) -> None:
        template = self._spec["template"]
        uid = str(uuid.uuid4())
        address = await self._kubelet.network.add(f"{name}-{uid[:8]}")
        identity = Identity(
            name=name,
            uid=uid,
            namespace=self._manifest.namespace,
            headless=self._spec.get("serviceName", ""),
            address=address,
            node_address=GATEWAY,
            service_account=template["spec"].get("serviceAccountName", "default"),
            labels={
                **(template["metadata"].get("labels") or {}),
                "statefulset.kubernetes.io/pod-name": name,
                "apps.kubernetes.io/pod-index": name.rpartition("-")[2],
            },
            annotations={**(template["metadata"].get("annotations") or {}), **self._annotations},
        )
        claims: list[Spec] = list(self._spec.get("volumeClaimTemplates") or ())
        pod = Pod(self._kubelet, identity, template["spec"], claims)
        self.pods[name] = pod
        self._kubelet.changed()
        await pod.start()
