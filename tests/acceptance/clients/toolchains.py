"""What a client needs besides Python: found, or fetched into a cache outside the repository.

Versions are pinned where each toolchain keeps them: package.json, go.mod, pom.xml; of a tool, here.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PREPARE_S_MAX = 300.0
NATSCLI = "0.5.1"
#: Of what has to be compiled, with all that it is made of.
BUILD_S_MAX = 3_600.0


class MissingError(Exception):
    """The toolchain is not here, or cannot fetch; the text says what to install."""


class BrokenError(Exception):
    """A program of ours does not compile."""


@dataclass(frozen=True)
class Program:
    """How to start a client's program; one JSON argument is added."""

    command: list[str]
    environment: dict[str, str]


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "quorate" / "clients"


def python(module: str, needs: str | None = None) -> Callable[[], Awaitable[Program]]:
    """`needs`: a library that an environment made earlier may lack."""

    async def prepare() -> Program:
        if needs is not None and importlib.util.find_spec(needs) is None:
            raise MissingError(f"{needs} is missing: make setup")
        return Program([sys.executable, "-m", f"tests.acceptance.clients.programs.{module}"], {})

    return prepare


async def natscli() -> Program:
    binary = _need("go", "golang-go")
    folder = cache() / f"natscli-{NATSCLI}"
    if not (folder / "nats").exists():
        folder.mkdir(parents=True, exist_ok=True)
        package = f"github.com/nats-io/natscli/nats@v{NATSCLI}"
        command = ("env", f"GOBIN={folder}", binary, "install", package)
        await _run(*command, at=folder, within_s=BUILD_S_MAX)
    found = await python("natscli_program")()
    return Program(found.command, {"PATH": f"{folder}:{os.environ['PATH']}"})


async def c_tools() -> Program:
    for tool in ("amqp-publish", "amqp-consume", "amqp-get", "amqp-declare-queue"):
        _need(tool, "amqp-tools")
    return Program([sys.executable, "-m", "tests.acceptance.clients.programs.c_tools"], {})


def node(name: str) -> Callable[[], Awaitable[Program]]:
    async def prepare() -> Program:
        node_binary, npm = _need("node", "nodejs"), _need("npm", "npm")
        folder = _folder(name, f"{name}/package.json", f"{name}/package-lock.json")
        if not (folder / "ready").exists():
            await _run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", at=folder)
            (folder / "ready").touch()
        return Program(
            [node_binary, str(HERE / name / "client.js")],
            {"NODE_PATH": str(folder / "node_modules")},
        )

    return prepare


def go(name: str, *sources: str) -> Callable[[], Awaitable[Program]]:
    """`sources`: besides what every program of Go has."""

    async def prepare() -> Program:
        binary = _need("go", "golang-go")
        own = (f"{name}/{file}" for file in ("go.mod", "go.sum", "main.go"))
        folder = _folder(name, *own, *sources)
        if not (folder / "client").exists():
            await _run(binary, "mod", "download", at=folder)
            command = (binary, "build", "-o", "client", ".")
            await _run(*command, at=folder, failure=BrokenError, within_s=BUILD_S_MAX)
        return Program([str(folder / "client")], {})

    return prepare


def java(name: str, *sources: str) -> Callable[[], Awaitable[Program]]:
    """`sources`: besides what every program of Java has."""

    async def prepare() -> Program:
        javac, maven = _need("javac", "openjdk-17-jdk-headless"), _need("mvn", "maven")
        own = (f"{name}/pom.xml", f"{name}/Client.java", "java/Protocol.java")
        folder = _folder(name, *own, *sources)
        if not (folder / "ready").exists():
            jars = f"-DoutputDirectory={folder / 'jars'}"
            await _run(maven, "-q", "-B", "dependency:copy-dependencies", jars, at=folder)
            files = sorted(map(str, folder.glob("*.java")))
            arguments = ("-cp", "jars/*", "-d", "classes", *files)
            await _run(javac, *arguments, at=folder, failure=BrokenError)
            (folder / "ready").touch()
        runtime = _need("java", "openjdk-17-jre-headless")
        return Program([runtime, "-cp", f"{folder}/classes:{folder}/jars/*", "Client"], {})

    return prepare


def rust(name: str) -> Callable[[], Awaitable[Program]]:
    async def prepare() -> Program:
        cargo = _need("cargo", "cargo")
        folder = _folder(
            name, *(f"{name}/{file}" for file in ("Cargo.toml", "Cargo.lock", "main.rs"))
        )
        binary = folder / "target" / "debug" / "client"
        if not binary.exists():
            await _run(cargo, "fetch", "--locked", at=folder)
            command = (cargo, "build", "--offline", "--locked")
            await _run(*command, at=folder, failure=BrokenError, within_s=BUILD_S_MAX)
        return Program([str(binary)], {})

    return prepare


#: rabbitmqadmin of the second generation, a crate.
RABBITMQADMIN_VERSION = "2.35.0"


async def rabbitmqadmin() -> Program:
    """Built once from its crate, which takes a while."""
    cargo = _need("cargo", "cargo")
    folder = cache() / f"rabbitmqadmin-{RABBITMQADMIN_VERSION}"
    binary = folder / "bin" / "rabbitmqadmin"
    if not binary.exists():
        folder.mkdir(parents=True, exist_ok=True)
        arguments = ("--version", RABBITMQADMIN_VERSION, "--locked", "--debug", "--root")
        command = (cargo, "install", "rabbitmqadmin", *arguments, str(folder))
        await _run(*command, at=folder, within_s=BUILD_S_MAX)
    return Program([str(binary)], {})


#: What Terraform's provider speaks with.
rabbit_hole = go("rabbithole")


async def perf_test() -> Program:
    runtime, maven = _need("java", "openjdk-17-jre-headless"), _need("mvn", "maven")
    folder = _folder("perftest", "perftest/pom.xml")
    if not (folder / "ready").exists():
        jars = f"-DoutputDirectory={folder / 'jars'}"
        await _run(maven, "-q", "-B", "dependency:copy-dependencies", jars, at=folder)
        (folder / "ready").touch()
    return Program([runtime, "-cp", f"{folder}/jars/*", "com.rabbitmq.perf.PerfTest"], {})


async def ruby() -> Program:
    """bunny as a package of Debian's, or any gem that is installed."""
    binary = _need("ruby", "ruby ruby-bunny")
    if not await _succeeds(binary, "-e", "require 'bunny'"):
        raise MissingError("bunny is missing. On Debian: apt-get install ruby-bunny")
    return Program([binary, str(HERE / "ruby" / "client.rb")], {})


async def php() -> Program:
    """php-amqplib as a package of Debian's, or by composer for this user."""
    binary = _need("php", "php-cli php-amqplib")
    home = os.environ.get("COMPOSER_HOME") or Path.home() / ".config" / "composer"
    places = (
        Path("/usr/share/php/PhpAmqpLib/autoload.php"),
        Path(home) / "vendor" / "autoload.php",
    )
    autoload = next((place for place in places if place.exists()), None)
    if autoload is None:
        raise MissingError(
            "php-amqplib is missing. On Debian: apt-get install php-amqplib;"
            " elsewhere: composer global require php-amqplib/php-amqplib"
        )
    return Program([binary, str(HERE / "php" / "client.php")], {"AMQPLIB_AUTOLOAD": str(autoload)})


async def _succeeds(*command: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0


def _need(tool: str, package: str) -> str:
    if (found := shutil.which(tool)) is None:
        raise MissingError(f"{tool} is missing. On Debian: apt-get install {package}")
    return found


def _folder(name: str, *files: str) -> Path:
    """A cached folder with these files, without theirs; another one when any of them changes."""
    digest = hashlib.sha256()
    for file in files:
        digest.update((HERE / file).read_bytes())
    folder = cache() / f"{name}-{digest.hexdigest()[:16]}"
    if not folder.exists():
        folder.mkdir(parents=True)
        for file in files:
            shutil.copy(HERE / file, folder)
    return folder


async def _run(
    *command: str,
    at: Path,
    failure: type[Exception] = MissingError,
    within_s: float = PREPARE_S_MAX,
) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=at,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(within_s):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise MissingError(f"{command[0]} {command[1]} did not end in time") from None
    if process.returncode:
        end = " ".join(said.decode(errors="replace").split())[:600]
        raise failure(f"{Path(command[0]).name} {command[1]} failed: {end}")
