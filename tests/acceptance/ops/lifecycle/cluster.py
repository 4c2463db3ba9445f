"""A cluster as helm and kubectl see it: an address, and commands that are run against it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.ops.chart import tools

COMMAND_S_MAX = 300.0

Object = dict[str, Any]


class CommandFailed(Exception):
    """Says which command failed and what it said."""


@dataclass(frozen=True)
class Cluster:
    """`flags`: values that this kind of server needs; `pods_run`: whether containers do."""

    name: str
    kubeconfig: Path
    home: Path
    flags: Sequence[str] = ()
    logs: bool = True

    async def helm(self, *arguments: str) -> str:
        return await self._run(str(tools.helm()), *arguments)

    async def refused(self, *arguments: str) -> str:
        """What helm says when it refuses, or a CommandFailed when it does not."""
        try:
            await self.helm(*arguments)
        except CommandFailed as failed:
            return str(failed)
        raise CommandFailed(f"helm {' '.join(arguments)} was not refused")

    async def items(self, kind: str, namespace: str) -> list[Object]:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise tools.ToolMissing(
                "kubectl is missing. On Debian: apt-get install kubernetes-client"
            )
        listed = await self._run(kubectl, "get", kind, "--namespace", namespace, "--output", "json")
        return json.loads(listed)["items"]

    async def names(self, kind: str, namespace: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in await self.items(kind, namespace))

    async def item(self, kind: str, namespace: str, name: str) -> Object:
        for each in await self.items(kind, namespace):
            if each["metadata"]["name"] == name:
                return each
        raise CommandFailed(f"there is no {kind} {name} in {namespace}")

    async def _run(self, *command: str) -> str:
        # A home of its own: both keep what they discovered of a server there, by its address.
        environment = {**os.environ, "HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig)}
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                out, err = await process.communicate()
        except TimeoutError as error:
            process.kill()
            raise CommandFailed(f"{' '.join(command)} did not end") from error
        if process.returncode:
            said = err.decode().strip()
            raise CommandFailed(f"{Path(command[0]).name} {' '.join(command[1:])}: {said}")
        return out.decode()


def write_kubeconfig(path: Path, address: str, user: Object | None = None, ca: str = "") -> None:
    """JSON is YAML."""
    cluster: Object = {"server": address}
    if ca:
        cluster["certificate-authority"] = ca
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "here", "cluster": cluster}],
                "users": [{"name": "here", "user": user or {}}],
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
            }
        )
    )
