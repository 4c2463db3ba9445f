"""Programs of the system, run and waited for; what they say when they refuse is kept."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

COMMAND_S_MAX = 60.0


class ToolFailed(Exception):
    """A program refused, or took too long; the text is its own."""


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str


async def run(
    *command: str,
    text: str = "",
    timeout_s: float = COMMAND_S_MAX,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Whatever its exit status is. Raises ToolFailed when it cannot run or end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    except OSError as error:
        raise ToolFailed(f"{command[0]}: {error}") from error
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(text.encode())
    except TimeoutError:
        raise ToolFailed(f"{' '.join(command)}: not done in {timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return Done(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def must(*command: str, text: str = "", timeout_s: float = COMMAND_S_MAX) -> str:
    """What it printed. Raises ToolFailed when it fails."""
    done = await run(*command, text=text, timeout_s=timeout_s)
    if done.code:
        raise ToolFailed(f"{' '.join(command)}: {done.err.strip() or done.out.strip()}")
    return done.out


def run_now(
    *command: str, environment: Mapping[str, str] | None = None, timeout_s: float = 1800.0
) -> str:
    """The same before there is a loop, for what takes long."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolFailed(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ToolFailed(f"{' '.join(command)}: exit status {done.returncode}\n{said}")
    return done.stdout
