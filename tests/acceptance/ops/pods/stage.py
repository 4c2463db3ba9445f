"""Where scenes take place: the chart's pods on this machine, and clients beside them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from chaos.history import read_history
from tests.acceptance.ops.pods.container import Runtime
from tests.acceptance.ops.pods.judging import Seen, judge
from tests.acceptance.ops.pods.load import DRAIN_S_MAX, HISTORY, PREPARE_S_MAX
from tests.acceptance.ops.pods.manifest import Manifest, credentials
from tests.acceptance.ops.pods.names import resolver_settings
from tests.acceptance.ops.pods.network import CLIENTS, GATEWAY, Network
from tests.acceptance.ops.pods.pod import Kubelet, Pod
from tests.acceptance.ops.pods.services import Services
from tests.acceptance.ops.pods.stateful_set import StatefulSet
from tests.acceptance.ops.pods.tools import run_now
from tests.acceptance.ops.pods.volumes import Volumes

#: Load goes on for so long before and after what happens.
CALM_S = 3.0

Action = Callable[[Seen], Awaitable[None]]


class LoadFailed(Exception):
    """The clients' process ended, or did not say what was waited for."""


class Stage:
    """Made by `opened`."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        stateful_set: StatefulSet,
        services: Services,
        volumes: Volumes,
        events: list[str],
    ) -> None:
        self.stateful_set = stateful_set
        self.missing = volumes.missing
        self.later_image = ""  # of the release that pods are upgraded to
        self.events = events
        self._folder = folder
        self._credentials = credentials(manifest)
        self._services = services
        self._host = next(
            each["metadata"]["name"]
            for each in manifest.of_kind("Service")
            if each["spec"].get("clusterIP") != "None"
        )

    def said(self, words: str) -> bool:
        """By a pod, in its log."""
        logs = (self._folder / "logs").glob("*.log")
        return any(words in log.read_text(encoding="utf-8", errors="replace") for log in logs)

    async def under_load(self, name: str, action: Action) -> Seen:
        """What clients see of it, from before it until all that they published is taken out."""
        seen = Seen(name)
        folder = self._folder / name.replace(" ", "-")
        folder.mkdir()
        async with self._clients(folder) as clients:
            await _said(clients, "flowing", PREPARE_S_MAX)
            await asyncio.sleep(CALM_S)
            began_ns = time.monotonic_ns()
            await action(seen)
            ended_ns = time.monotonic_ns()
            await asyncio.sleep(CALM_S)
            assert clients.stdin is not None
            clients.stdin.write(b"end\n")
            await _said(clients, "drained", DRAIN_S_MAX)
            await clients.wait()
        seen.took_s = seen.took_s or (ended_ns - began_ns) / 1e9
        judge(seen, read_history(folder / HISTORY), began_ns, ended_ns)
        return seen

    @asynccontextmanager
    async def _clients(self, folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
        with (folder / "clients.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(
                    "ip",
                    "netns",
                    "exec",
                    CLIENTS,
                    sys.executable,
                    "-m",
                    "tests.acceptance.ops.pods.load",
                ),
                *(str(folder), "--host", self._host, "--credentials", self._credentials),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
            try:
                yield process
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def close(self) -> None:
        for pod in list(self.stateful_set.pods.values()):
            await pod.vanish()
        await self._services.close()


async def _said(process: asyncio.subprocess.Process, word: str, timeout_s: float) -> None:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(timeout_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise LoadFailed(f"clients: not {word} within {timeout_s:g} s") from None
    if line.decode().strip() != word:
        code = await process.wait()
        raise LoadFailed(f"clients: not {word}, but ended with {code}: see clients.log")


@asynccontextmanager
async def opened(
    folder: Path, manifest: Manifest, cgroup: str, say: Callable[[str], None]
) -> AsyncGenerator[Stage]:
    """Inside the sandbox: network, names, disks; no pods yet."""
    logs = folder / "logs"
    logs.mkdir()
    runtime = Runtime(cgroup, logs)
    runtime.open()
    network, volumes = Network(), Volumes(folder)
    await network.open()
    pods: dict[str, Pod] = {}
    services = Services(manifest, network, pods)
    await services.open(GATEWAY)
    resolver = resolver_settings(GATEWAY, manifest.namespace)
    own = folder / "resolv.conf"
    own.write_text(resolver, encoding="utf-8")
    run_now("mount", "--bind", str(own), "/etc/resolv.conf")
    events: list[str] = []
    began_s = time.monotonic()

    def note(pod: str, text: str) -> None:
        events.append(f"{time.monotonic() - began_s:7.1f} s  {pod}: {text}")
        say(events[-1])

    kubelet = Kubelet(runtime, network, volumes, manifest, resolver, note, services.changed)
    stage = Stage(folder, manifest, StatefulSet(kubelet, manifest, pods), services, volumes, events)
    try:
        yield stage
    finally:
        await stage.close()
