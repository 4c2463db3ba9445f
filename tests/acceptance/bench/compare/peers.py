"""Brings the brokers that Quorate is compared with. What cannot be had is said in one line."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

from tests.testkit import rabbitmq

BUILD = Path(__file__).parents[4] / "build" / "peers"
NATS = "github.com/nats-io/nats-server/v2@latest"
#: What invoke-rc.d asks whether a package that was just installed may start its service.
POLICY = Path("/usr/sbin/policy-rc.d")


class Missing(Exception):
    """A peer that cannot be had here; the text says what is missing."""


def bring_rabbitmq() -> str:
    """Debian's package; its version. Raises Missing."""
    if not rabbitmq.installed():
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise Missing("RabbitMQ is not installed. As root: apt-get install rabbitmq-server")
        with _no_service():
            _apt("rabbitmq-server", "procps")
        if not rabbitmq.installed():
            raise Missing("apt-get could not install rabbitmq-server")
    return _version("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server").partition("-")[0]


def bring_nats() -> tuple[str, str]:
    """Built by Go from the module proxy; program and version. Raises Missing."""
    program = BUILD / "nats-server"
    if not program.exists():
        if shutil.which("go") is None and shutil.which("apt-get") and os.geteuid() == 0:
            _apt("golang-go", "ca-certificates")
        if shutil.which("go") is None:
            raise Missing("Go is missing, which builds NATS. As root: apt-get install golang-go")
        BUILD.mkdir(parents=True, exist_ok=True)
        built = subprocess.run(
            ["go", "install", NATS],
            env={**os.environ, "GOBIN": str(BUILD), "GOFLAGS": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            last = built.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise Missing(f"{_version('go', 'version')} could not build NATS: {last[0]}")
    version = re.search(r"\d+\.\d+\.\d+\S*", _version(str(program), "--version"))
    return str(program), version[0] if version else "?"


def bring_strace() -> bool:
    """Whether fsyncs can be counted."""
    if shutil.which("strace") is None and shutil.which("apt-get") and os.geteuid() == 0:
        _apt("strace")
    return shutil.which("strace") is not None


def _apt(*packages: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "-qq"], install):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def _no_service() -> Generator[None]:
    """What is installed meanwhile starts nothing, now or at the next boot."""
    made = not POLICY.exists()
    if made:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if made:
            POLICY.unlink()
        if Path("/run/systemd/system").exists():
            units = ["rabbitmq-server.service", "epmd.service", "epmd.socket"]
            subprocess.run(["systemctl", "disable", "--now", *units], check=False)


def _version(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
