"""The life of one pod, as a kubelet leads it: volumes, start, probes, restarts, and its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.acceptance.ops.pods.container import Container, Place, Runtime
from tests.acceptance.ops.pods.identity import Identity
from tests.acceptance.ops.pods.manifest import Manifest, Spec, Unsupported, part
from tests.acceptance.ops.pods.network import Network
from tests.acceptance.ops.pods.probes import Outcome, poll
from tests.acceptance.ops.pods.tools import ToolFailed
from tests.acceptance.ops.pods.volumes import Volumes

BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 10.0
#: A hook that is at it when the time is over gets this much more, once.
HOOK_EXTRA_S = 2.0
INIT_S_MAX = 120.0

Note = Callable[[str, str], None]


@dataclass(frozen=True)
class Ending:
    """How a pod ended."""

    pod: str
    took_s: float
    hook_s: float | None = None  # preStop; None: there is none
    hook_said: str = ""  # what was wrong with it
    killed: bool = False  # the grace period was over
    code: int | None = None


@dataclass(frozen=True)
class Kubelet:
    """What all pods are made with."""

    runtime: Runtime
    network: Network
    volumes: Volumes
    manifest: Manifest
    resolver: str
    note: Note
    changed: Callable[[], None]  # what is ready is another than before


class Pod:
    """From its creation until it is gone; the next one of this name is another pod."""

    def __init__(
        self, kubelet: Kubelet, identity: Identity, spec: Spec, claims: list[Spec]
    ) -> None:
        if len(spec["containers"]) != 1:
            raise Unsupported(f"{len(spec['containers'])} containers in a pod")
        self.identity = identity
        self.spec = spec
        self.container: Container | None = None
        self.restarts = 0
        self.ready_since_s: float | None = None
        self.terminating = False
        self._kubelet = kubelet
        self._claims = claims
        self._serving: asyncio.Task[None] | None = None
        self.failure = ""  # of a container that could not be started
        self._ended = asyncio.Event()
        self._code: int | None = None

    @property
    def name(self) -> str:
        return self.identity.name

    @property
    def ready(self) -> bool:
        return self.ready_since_s is not None

    @property
    def namespace(self) -> str:
        return f"{self.name}-{self.identity.uid[:8]}"

    async def start(self) -> None:
        """Raises ToolFailed or Unsupported; it goes on by itself."""
        identity, kubelet = self.identity, self._kubelet
        volumes = await kubelet.volumes.of_pod(self.spec, self._claims, identity, kubelet.manifest)
        etc = kubelet.runtime.logs.parent / "etc" / identity.uid
        etc.mkdir(parents=True)
        domain = f"{identity.headless}.{identity.namespace}.svc.cluster.local"
        (etc / "hosts").write_text(
            f"127.0.0.1\tlocalhost\n{identity.address}\t{self.name}.{domain}\t{self.name}\n",
            encoding="utf-8",
        )
        (etc / "resolv.conf").write_text(kubelet.resolver, encoding="utf-8")
        place = Place(identity, self.namespace, volumes, etc)
        for each in self.spec.get("initContainers") or ():
            await self._initialize(place, each)
        self._serving = asyncio.create_task(self._serve(place), name=f"serve {self.name}")
        self._serving.add_done_callback(self._served)

    async def _initialize(self, place: Place, spec: Spec) -> None:
        container = Container(self._kubelet.runtime, place, 0, spec)
        await container.start(self.spec, self._kubelet.manifest)
        async with asyncio.timeout(INIT_S_MAX):
            code = await container.wait()
        if code:
            raise ToolFailed(f"init container {container.name} ended with {code}: {container.log}")
        await container.remove()

    async def _serve(self, place: Place) -> None:
        """Started again whenever it ends, until it is to end."""
        kubelet, backoff_s = self._kubelet, BACKOFF_S_MIN
        spec = self.spec["containers"][0]
        while True:
            container = Container(kubelet.runtime, place, self.restarts, spec)
            await container.start(self.spec, kubelet.manifest)
            self.container = container
            kubelet.note(self.name, f"started, {self.identity.address}")
            probing = asyncio.create_task(self._probe(container), name=f"probe {self.name}")
            self._code = await container.wait()
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            self._unready("ended")
            self._ended.set()
            kubelet.note(self.name, f"ended with exit status {self._code}")
            if self.terminating:
                return
            await asyncio.sleep(backoff_s)
            if self.terminating:
                return
            self._ended.clear()
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
            self.restarts += 1

    def _served(self, serving: asyncio.Task[None]) -> None:
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self.failure = f"{type(error).__name__}: {error}"
            self._kubelet.note(self.name, self.failure)
            self._ended.set()

    # --- probes

    async def _probe(self, container: Container) -> None:
        spec, address = container.spec, self.identity.address

        async def started(wrong: Outcome) -> bool:
            if wrong is not None:
                await self._restart(container, f"startup probe failed: {wrong}")
            return False

        async def alive(wrong: Outcome) -> bool:
            if wrong is None:
                return True
            await self._restart(container, f"liveness probe failed: {wrong}")
            return False

        async def may_serve(wrong: Outcome) -> bool:
            if wrong is not None:
                self._unready(f"not ready: {wrong}")
            elif not self.ready and not self.terminating:
                self.ready_since_s = time.monotonic()
                self._kubelet.note(self.name, "ready")
                self._kubelet.changed()
            return True

        if (startup := spec.get("startupProbe")) is not None:
            await poll(startup, container, address, started)
        polls = [
            poll(spec[name], container, address, tell)
            for name, tell in (("livenessProbe", alive), ("readinessProbe", may_serve))
            if name in spec
        ]
        if "readinessProbe" not in spec:
            await may_serve(None)
        await asyncio.gather(*polls)

    async def _restart(self, container: Container, why: str) -> None:
        if not self.terminating:
            self._kubelet.note(self.name, why)
            await container.kill("KILL")

    def _unready(self, why: str) -> None:
        if self.ready:
            self.ready_since_s = None
            self._kubelet.note(self.name, why)
            self._kubelet.changed()

    # --- its end

    async def delete(self) -> Ending:
        """The hook, SIGTERM, and SIGKILL when the grace period is over."""
        began_s = time.monotonic()
        grace_s = float(self.spec.get("terminationGracePeriodSeconds", 30))
        self.terminating = True
        self._kubelet.note(self.name, f"to end within {grace_s:g} s")
        self._unready("out of the services")
        container = self.container
        hook_s, hook_said, killed = None, "", False
        if container is not None and not self._ended.is_set():
            hook: dict[str, Any] = dict(part(part(container.spec, "lifecycle"), "preStop"))
            if hook:
                hook_said = await self._run_hook(container, hook, grace_s)
                hook_s = time.monotonic() - began_s
                self._kubelet.note(self.name, f"preStop {hook_said or 'done'} after {hook_s:.1f} s")
            await container.kill("TERM")
            left_s = max(began_s + grace_s - time.monotonic(), HOOK_EXTRA_S)
            try:
                async with asyncio.timeout(left_s):
                    await self._ended.wait()
            except TimeoutError:
                killed = True
                self._kubelet.note(self.name, "the grace period is over: SIGKILL")
                await container.kill("KILL")
                await self._ended.wait()
        await self._leave()
        took_s = time.monotonic() - began_s
        return Ending(self.name, took_s, hook_s, hook_said, killed, self._code)

    async def _run_hook(self, container: Container, hook: Spec, grace_s: float) -> str:
        """What was wrong, if anything."""
        if "sleep" in hook:
            await asyncio.sleep(float(hook["sleep"]["seconds"]))
            return ""
        if "exec" not in hook:
            raise Unsupported(f"a preStop hook by {', '.join(hook)}")
        try:
            done = await container.execute(hook["exec"]["command"], grace_s)
        except ToolFailed as error:
            return f"hangs: {error}"
        if done.code:
            return f"failed with {done.code}: {(done.out + done.err).strip()[-300:]}"
        return ""

    async def vanish(self) -> Ending:
        """As with a machine that dies: no hook, no word."""
        began_s = time.monotonic()
        self.terminating = True
        if self.container is not None:
            await self.container.kill("KILL")
            await self._ended.wait()
        self._kubelet.note(self.name, "killed, and its address is gone")
        await self._leave()
        return Ending(self.name, time.monotonic() - began_s, code=self._code)

    async def _leave(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)
        if self.container is not None:
            await self.container.remove()
        await self._kubelet.network.remove(self.namespace)
        self._kubelet.volumes.forget(self.identity)
        self._kubelet.changed()
