"""A container of a pod, started by podman just as its manifest says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.ops.pods.identity import Identity, variables_of
from tests.acceptance.ops.pods.images import STORE
from tests.acceptance.ops.pods.manifest import Manifest, Spec, Unsupported, expanded, quantity
from tests.acceptance.ops.pods.network import of_namespace
from tests.acceptance.ops.pods.tools import Done, ToolFailed, run

HOME = Path("/run/podman")
CALL_S_MAX = 60.0


@dataclass(frozen=True)
class Runtime:
    """podman with a store of its own in the sandbox, over the images that were built outside."""

    cgroup: str
    logs: Path

    def open(self) -> None:
        HOME.mkdir()
        storage = HOME / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{HOME}/root"\nrunroot = "{HOME}/run"\n'
            f'[storage.options]\nadditionalimagestores = ["{STORE}/root"]\n',
            encoding="utf-8",
        )
        os.environ["CONTAINERS_STORAGE_CONF"] = str(storage)
        os.environ["CONTAINERS_CONF"] = str(STORE.parent / "containers.conf")

    async def podman(self, *arguments: str, timeout_s: float = CALL_S_MAX) -> Done:
        return await run("podman", *arguments, timeout_s=timeout_s)


@dataclass(frozen=True)
class Place:
    """What the containers of a pod share."""

    identity: Identity
    namespace: str  # of the network
    volumes: Mapping[str, Path]
    etc: Path  # hosts, resolv.conf


class Container:
    """One start of it; another start is another one."""

    def __init__(self, runtime: Runtime, place: Place, number: int, container: Spec) -> None:
        self._runtime = runtime
        self.name = f"{place.identity.name}-{place.identity.uid[:8]}-{container['name']}-{number}"
        self.spec = container
        self._place = place
        self.pid = 0

    @property
    def log(self) -> Path:
        return self._runtime.logs / f"{self.name}.log"

    async def start(self, pod: Spec, manifest: Manifest) -> None:
        """Raises ToolFailed."""
        arguments = run_arguments(pod, self.spec, self._place, manifest)
        where = (f"--name={self.name}", f"--cgroup-parent=/{self._runtime.cgroup}")
        log = (f"--log-opt=path={self.log}",)
        done = await self._runtime.podman("run", "--detach", *where, *log, *arguments)
        if done.code:
            raise ToolFailed(f"{self.name} cannot be started: {done.err.strip()}")
        inspected = await self._runtime.podman("inspect", "--format", "{{.State.Pid}}", self.name)
        self.pid = int(inspected.out or 0)

    async def wait(self) -> int:
        """Its exit status, when it has ended."""
        waiting = ("wait", "--interval=50ms", self.name)
        done = await self._runtime.podman(*waiting, timeout_s=86_400.0)
        return int(done.out.split()[0]) if done.out.split() else -1

    async def kill(self, name: str) -> None:
        """By a signal; it may have ended."""
        await self._runtime.podman("kill", f"--signal={name}", self.name)

    async def execute(self, command: Sequence[str], timeout_s: float) -> Done:
        """Inside. Raises ToolFailed."""
        return await self._runtime.podman("exec", self.name, *command, timeout_s=timeout_s)

    async def remove(self) -> None:
        await self._runtime.podman("rm", "--force", "--time=0", self.name)


def run_arguments(pod: Spec, container: Spec, place: Place, manifest: Manifest) -> list[str]:
    """For `podman run`, up to the end of the line."""
    variables = variables_of(container, place.identity, manifest)
    found = [
        "--pull=never",
        f"--network=ns:{of_namespace(place.namespace)}",
        "--no-hosts",
        f"--hostname={place.identity.name}",
        f"--volume={place.etc / 'hosts'}:/etc/hosts:ro",
        f"--volume={place.etc / 'resolv.conf'}:/etc/resolv.conf:ro",
        *_security(pod, container),
        *_limits(container),
        *_mounts(container, place.volumes, variables),
        *(f"--env={name}={value}" for name, value in variables.items()),
    ]
    if (folder := container.get("workingDir")) is not None:
        found.append(f"--workdir={folder}")
    if command := container.get("command"):
        found.append("--entrypoint=" + json.dumps([expanded(str(c), variables) for c in command]))
    found.append(container["image"])
    return found + [expanded(str(each), variables) for each in container.get("args") or ()]


def _security(pod: Spec, container: Spec) -> list[str]:
    of_pod: Mapping[str, Any] = pod.get("securityContext") or {}
    its: Mapping[str, Any] = {**of_pod, **(container.get("securityContext") or {})}
    user, group = its.get("runAsUser"), its.get("runAsGroup")
    if its.get("runAsNonRoot") and user == 0:
        raise Unsupported("runAsNonRoot with user 0: no kubelet starts that")
    found = ["--read-only-tmpfs=false"]
    if user is not None:
        found.append(f"--user={user}" + (f":{group}" if group is not None else ""))
    if (shared := of_pod.get("fsGroup")) is not None:
        found.append(f"--group-add={shared}")
    if its.get("readOnlyRootFilesystem"):
        found.append("--read-only")
    if its.get("privileged"):
        raise Unsupported("a privileged container")
    if its.get("allowPrivilegeEscalation") is False:
        found.append("--security-opt=no-new-privileges")
    capabilities: Mapping[str, Any] = its.get("capabilities") or {}
    found += [f"--cap-drop={each}" for each in capabilities.get("drop") or ()]
    found += [f"--cap-add={each}" for each in capabilities.get("add") or ()]
    profile = (its.get("seccompProfile") or {"type": "Unconfined"})["type"]
    if profile == "Unconfined":
        found.append("--security-opt=seccomp=unconfined")
    elif profile != "RuntimeDefault":
        raise Unsupported(f"a seccomp profile {profile}")
    return found


def _limits(container: Spec) -> list[str]:
    resources: Mapping[str, Any] = container.get("resources") or {}
    limits: Mapping[str, Any] = resources.get("limits") or {}
    requests: Mapping[str, Any] = resources.get("requests") or {}
    found: list[str] = []
    if "memory" in limits:
        size = int(quantity(limits["memory"]))
        found += [f"--memory={size}b", f"--memory-swap={size}b"]
    if "cpu" in limits:
        # More than the machine has is no limit, and podman refuses it.
        found.append(f"--cpus={min(quantity(limits['cpu']), os.cpu_count() or 1)}")
    if "cpu" in requests:
        found.append(f"--cpu-shares={max(2, int(1024 * quantity(requests['cpu'])))}")
    return found


def _mounts(
    container: Spec, volumes: Mapping[str, Path], variables: Mapping[str, str]
) -> list[str]:
    found: list[str] = []
    for mount in container.get("volumeMounts") or ():
        if mount["name"] not in volumes:
            raise Unsupported(f"a mount of {mount['name']}, which is no volume of the pod")
        inner = expanded(mount.get("subPathExpr", ""), variables) or mount.get("subPath", "")
        source = volumes[mount["name"]] / inner
        if inner and not source.exists():
            source.mkdir(parents=True)
        how = ":ro" if mount.get("readOnly") else ""
        found.append(f"--volume={source}:{mount['mountPath']}{how}")
    return found
