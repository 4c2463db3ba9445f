"""What happens to the pods, each time under load."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from tests.acceptance.ops.pods.judging import Seen
from tests.acceptance.ops.pods.manifest import part
from tests.acceptance.ops.pods.pod import Ending, Pod
from tests.acceptance.ops.pods.stage import Stage

READY_S_MAX = 300.0
LOOK_S = 0.05

Scene = Callable[[Stage], Awaitable[Seen]]


async def start(stage: Stage) -> Seen:
    """All pods, from nothing until they are available; then what they run as is looked at."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await stage.stateful_set.start(READY_S_MAX)
    took_s = loop.time() - began_s

    async def look(seen: Seen) -> None:
        seen.took_s = took_s
        for pod in stage.stateful_set.pods.values():
            seen.wrong += held_to(pod)
            if pod.restarts:
                seen.wrong.append(f"{pod.name} was restarted {pod.restarts} times")

    return await stage.under_load("start", look)


async def rolling_restart(stage: Stage) -> Seen:
    async def roll(seen: Seen) -> None:
        endings = await stage.stateful_set.roll(READY_S_MAX)
        _tell(seen, endings)

    return await stage.under_load("rolling restart", roll)


async def upgrade(stage: Stage) -> Seen:
    """From the image of an earlier release to the one of this."""

    async def roll(seen: Seen) -> None:
        before = stage.stateful_set.images()
        stage.stateful_set.use_image(stage.later_image)
        _tell(seen, await stage.stateful_set.roll(READY_S_MAX))
        after = stage.stateful_set.images()
        seen.facts.append(f"{before} -> {after}")
        async with asyncio.timeout(READY_S_MAX):
            while not stage.said("machine_upgrade"):  # groups rise when the last pod is there
                await asyncio.sleep(LOOK_S)
        if before & after or after != {stage.later_image}:
            seen.wrong.append(f"pods run {after}, and ran {before}")

    return await stage.under_load("upgrade", roll)


async def killed_pod(stage: Stage) -> Seen:
    """Each once, so that leaders of all groups are among them."""

    async def kill(seen: Seen) -> None:
        for name in stage.stateful_set.names():
            before, after = await stage.stateful_set.kill(name, READY_S_MAX)
            seen.facts.append(f"{name}: {before} -> {after}")
            if before == after:
                seen.wrong.append(f"{name} has the address that it had")

    return await stage.under_load("killed pods", kill)


async def stuck_pod(stage: Stage) -> Seen:
    """Its process stands still: nobody but the liveness probe brings it back."""

    async def stick(seen: Seen) -> None:
        loop = asyncio.get_running_loop()
        name = stage.stateful_set.names()[0]
        pod = stage.stateful_set.pods[name]
        assert pod.container is not None
        restarts, began_s = pod.restarts, loop.time()
        os.kill(pod.container.pid, signal.SIGSTOP)
        async with asyncio.timeout(READY_S_MAX):
            while pod.restarts == restarts:
                await asyncio.sleep(LOOK_S)
        seen.facts.append(f"{name} was started again after {loop.time() - began_s:.1f} s")
        await stage.stateful_set.until_ready([name], READY_S_MAX)

    return await stage.under_load("stuck pod", stick)


async def delete_all(stage: Stage) -> Seen:
    """Clients are there all the time; then the pods come back with the disks that they had."""

    async def delete(seen: Seen) -> None:
        _tell(seen, await stage.stateful_set.delete())
        await stage.stateful_set.start(READY_S_MAX)

    return await stage.under_load("delete all", delete)


SCENES: Mapping[str, Scene] = {
    "start": start,
    "upgrade": upgrade,
    "rolling-restart": rolling_restart,
    "killed-pods": killed_pod,
    "stuck-pod": stuck_pod,
    "delete-all": delete_all,
}


def _tell(seen: Seen, endings: list[Ending]) -> None:
    for ending in endings:
        hook = "none" if ending.hook_s is None else f"{ending.hook_s:.1f} s"
        seen.facts.append(f"{ending.pod}: preStop {hook}, gone after {ending.took_s:.1f} s")
        if ending.hook_said:
            seen.wrong.append(f"{ending.pod}: preStop {ending.hook_said}")
        if ending.killed:
            seen.wrong.append(f"{ending.pod} did not end within its grace period")
        elif ending.code:
            seen.wrong.append(f"{ending.pod} ended with exit status {ending.code}")


def held_to(pod: Pod) -> list[str]:
    """Where its process has more rights than the manifest gives it: asked of the kernel."""
    assert pod.container is not None
    security = part(pod.container.spec, "securityContext")
    process = Path(f"/proc/{pod.container.pid}")
    rows = (line.split(":", 1) for line in (process / "status").read_text("ascii").splitlines())
    status = {row[0]: row[1].split() for row in rows}
    mounts = [line.split() for line in (process / "mountinfo").read_text("utf-8").splitlines()]
    root = next(mount for mount in mounts if mount[4] == "/")
    wrong: list[str] = []
    if (user := security.get("runAsUser")) is not None and set(status["Uid"]) != {str(user)}:
        wrong.append(f"runs as {status['Uid']}")
    if security.get("readOnlyRootFilesystem") and "ro" not in root[5].split(","):
        wrong.append("its root can be written")
    drops = part(security, "capabilities").get("drop") or ()
    if "ALL" in drops and int(status["CapBnd"][0], 16):
        wrong.append(f"has capabilities {status['CapBnd'][0]}")
    if security.get("allowPrivilegeEscalation") is False and status["NoNewPrivs"] != ["1"]:
        wrong.append("may gain privileges")
    if part(security, "seccompProfile").get("type") == "RuntimeDefault" and status["Seccomp"] != [
        "2"
    ]:
        wrong.append("has no seccomp filter")
    return [f"{pod.name}: {each}" for each in wrong]
