"""Runs a client's program: hears its steps, kills for it, and goes on after one that hangs."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import psutil

from tests.acceptance.clients.brokers import Broker
from tests.acceptance.clients.roster import Client, kills
from tests.acceptance.clients.toolchains import BrokenError, MissingError, Program

ROOT = Path(__file__).resolve().parents[3]
#: A program that says nothing for so long hangs. Its own waits are shorter.
SILENCE_S_MAX = 200.0


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"
    #: The client does not do such things.
    NOT_OFFERED = "–"


@dataclass(frozen=True)
class Result:
    """How a step of a client went."""

    client: str
    step: str
    outcome: Outcome
    detail: str
    seconds: float = 0.0


async def run_client(client: Client, broker: Broker) -> list[Result]:
    """Every step, one result each."""
    try:
        program = await client.prepare()
    except MissingError as error:
        return [Result(client.name, each, Outcome.NOT_RUN, str(error)) for each in client.steps]
    except BrokenError as error:
        return [Result(client.name, each, Outcome.FAILED, str(error)) for each in client.steps]
    results: list[Result] = []
    steps = [step for step in client.steps if broker.killable or not kills(step)]
    why = "this broker's nodes cannot be killed from here"
    results += [
        Result(client.name, step, Outcome.NOT_RUN, why)
        for step in client.steps
        if step not in steps
    ]
    while steps:
        found = await _run(client, program, broker, steps)
        results += found
        steps = steps[len(found) :]
    return results


async def _run(client: Client, program: Program, broker: Broker, steps: list[str]) -> list[Result]:
    """The steps to the end, or to one that ends or hangs the program: that one has failed."""
    given = {
        "urls": broker.urls,
        "websockets": broker.websocket_urls,
        "prefix": f"clients.{client.name}.{secrets.token_hex(3)}",
        "steps": steps,
    }
    results: list[Result] = []
    with tempfile.TemporaryFile() as errors:
        process = await asyncio.create_subprocess_exec(
            *program.command,
            json.dumps(given),
            cwd=ROOT,
            env={**os.environ, **program.environment},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
        try:
            failure = await _listen(process, client, broker, steps, results)
        finally:
            _kill(process.pid)
            await process.wait()
            await broker.mend()
        if len(results) < len(steps):
            end = _end(errors)
            failure = f"{failure}: {end}" if end else failure
            results.append(Result(client.name, steps[len(results)], Outcome.FAILED, failure))
    return results


def _kill(pid: int) -> None:
    """With all that it started, such as workers."""
    with suppress(psutil.NoSuchProcess):
        program = psutil.Process(pid)
        for each in (*program.children(recursive=True), program):
            with suppress(psutil.NoSuchProcess):
                each.kill()


async def _listen(
    process: asyncio.subprocess.Process,
    client: Client,
    broker: Broker,
    steps: list[str],
    results: list[Result],
) -> str:
    """Until all steps are told; else what went wrong."""
    assert process.stdin is not None
    assert process.stdout is not None
    began = time.monotonic()
    while len(results) < len(steps):
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                line = await process.stdout.readline()
        except TimeoutError:
            return f"said nothing for {SILENCE_S_MAX:g} s"
        if not line:
            return f"ended with status {await process.wait()}"
        said = _parsed(line)
        if "ask" in said:
            answer = await _answer(broker, said["ask"], said["queue"])
            process.stdin.write(json.dumps(answer).encode() + b"\n")
            with suppress(ConnectionError):  # it has ended meanwhile: its output says so
                await process.stdin.drain()
        elif "step" in said:
            if said["step"] != steps[len(results)]:
                return f"told of step {said['step']} out of turn"
            seconds = time.monotonic() - began
            await broker.mend()
            began = time.monotonic()
            results.append(
                Result(client.name, said["step"], OUTCOMES[said["ok"]], said["detail"], seconds)
            )
    return ""


OUTCOMES = {True: Outcome.OK, False: Outcome.FAILED, None: Outcome.NOT_OFFERED}


def _parsed(line: bytes) -> dict[str, Any]:
    """A line of the protocol; other lines are a library's chatter."""
    with suppress(ValueError):
        said: Any = json.loads(line)
        if isinstance(said, dict):
            return cast("dict[str, Any]", said)
    return {}


async def _answer(broker: Broker, ask: str, queue: str) -> dict[str, Any]:
    leader = await broker.leader(queue)
    if ask == "leader":
        return {"urls": [leader, *(url for url in broker.urls if url != leader)]}
    await broker.kill(leader)
    return {"killed": leader}


def _end(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
