"""kube-apiserver and kube-controller-manager, built with Go into the tools' cache."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from pathlib import Path

from tests.acceptance.ops.chart.tools import ToolMissing, folder

SOURCE = Path(__file__).parent / "control"
VERSION = "v1.34.1"
BUILD_S_MAX = 25 * 60
_ABOUT = "k8s.io/component-base/version"
LINK = f"-s -w -X {_ABOUT}.gitVersion={VERSION} -X {_ABOUT}.gitMajor=1 -X {_ABOUT}.gitMinor=34"


async def control_plane() -> Path:
    """The binary. The first time takes many minutes of both cores, at the lowest priority."""
    files = sorted(SOURCE.iterdir())
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    target = folder() / f"control-{key}"
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise ToolMissing(
            "Go is missing, and kube-apiserver must be built: install Go 1.24 or later"
        )
    folder().mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", "19", go, "build", "-trimpath", "-ldflags", LINK, "-o", str(part), "."),
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(BUILD_S_MAX):
            _, said = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise ToolMissing(
            f"kube-apiserver was not built within {BUILD_S_MAX} s; what was compiled is kept:"
            " run it again"
        ) from error
    if process.returncode:
        raise ToolMissing(f"kube-apiserver was not built: {said.decode()[-500:]}")
    part.rename(target)
    return target
