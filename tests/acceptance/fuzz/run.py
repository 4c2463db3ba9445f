"""A cluster, its well-behaved clients, and inputs until the time is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorate.local import LocalCluster
from tests.acceptance.fuzz.amqp.target import AmqpTarget
from tests.acceptance.fuzz.attack import attack
from tests.acceptance.fuzz.inputs import Input, found, make
from tests.acceptance.fuzz.nats.target import NatsTarget
from tests.acceptance.fuzz.target import Steady, Target
from tests.acceptance.fuzz.watch import Watch

TARGETS: dict[str, Callable[[], Target]] = {"amqp": AmqpTarget, "nats": NatsTarget}

#: Inputs at once; those that take their time have places of their own.
AT_ONCE = 24
SLOW_AT_ONCE = 40
#: However little time there is, or however slow the machine.
ROUNDS_MIN = 3
#: The part of the run after which memory is looked at for the first time.
WARM_UP = 0.3
SETTINGS = 'log_level = "warning"\n'


@dataclass
class Result:
    """What was found, and by what."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    findings: list[str] = field(default_factory=list[str])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    saved: Path | None = None


class Fuzz:
    """One run: `Fuzz(...).run()`."""

    def __init__(
        self,
        protocol: str,
        folder: Path,
        seed: int,
        *,
        seconds: float = 0,
        replay: list[Input] | None = None,
        progress: Callable[[float, str], None] = lambda _at, _what: None,
    ) -> None:
        self.result = Result(seed)
        self._protocol = protocol
        self._target = TARGETS[protocol]()
        self._folder = folder
        self._seconds = seconds
        self._replay = replay
        self._progress = progress
        self._recent: list[Input] = []  # what may be to blame for the next finding
        self._slow: set[asyncio.Task[None]] = set()

    async def run(self) -> Result:
        cluster = LocalCluster.prepare(
            self._folder, fresh=True, preferred_ports=False, settings=SETTINGS
        )
        target = self._target
        steady, watch = target.steady(cluster.nodes), Watch(cluster.nodes, target)
        try:
            await cluster.start_all()
            await cluster.until_ready()
            await target.prepare(cluster)
            await steady.start()
            await self._inputs(cluster, steady, watch)
            if not self.result.findings:
                await self._aftermath(steady, watch)
            self.result.facts |= {
                **steady.facts,
                "slowest answer of /health/live": f"{watch.slowest_answer_s * 1000:.0f} ms",
            }
        finally:
            await steady.stop()
            for task in self._slow:
                task.cancel()
            self.result.findings += await cluster.stop()
        return self.result

    async def _inputs(self, cluster: LocalCluster, steady: Steady, watch: Watch) -> None:
        ports = [self._target.port(node) for node in cluster.nodes]
        start_s = time.monotonic()
        asked_s = 0.0
        for inputs in self._rounds(start_s):
            self._recent += inputs
            async with asyncio.TaskGroup() as group:
                for each in inputs:
                    work = self._one(ports[each.number % len(ports)], each)
                    if each.slow and self._replay is None:
                        task = asyncio.create_task(work)
                        self._slow.add(task)
                        task.add_done_callback(self._slow.discard)
                    else:
                        group.create_task(work)
            if len(self._slow) > SLOW_AT_ONCE:
                await asyncio.wait(self._slow, return_when=asyncio.FIRST_COMPLETED)
            now_s = time.monotonic()
            if now_s - asked_s > 1 or self._replay is not None:
                asked_s = now_s
                await watch.ask()
            watch.look()
            if now_s - start_s < self._seconds * WARM_UP:
                watch.remember_memory()
            self._progress(now_s - start_s, f"{sum(self.result.kinds.values()):,} inputs")
            if self._found(steady, watch):
                self._save()
                return
            del self._recent[: -4 * AT_ONCE]
        if self._slow:
            await asyncio.wait(self._slow)

    def _rounds(self, start_s: float) -> Iterator[list[Input]]:
        if self._replay is not None:
            yield from ([each] for each in self._replay)
            return
        target = self._target
        yield found(target.found, target.goodbye)
        first = 0
        while time.monotonic() - start_s < self._seconds or first < ROUNDS_MIN * AT_ONCE:
            yield [
                make(target.kinds, target.goodbye, self.result.seed, first + each)
                for each in range(AT_ONCE)
            ]
            first += AT_ONCE

    async def _one(self, port: int, given: Input) -> None:
        answers = self._target.answers()
        await attack(port, given, answers)
        self.result.kinds[given.kind] += 1
        self.result.codes.update(answers.codes or {"nothing": 1})
        what = f"{given.kind} (number {given.number})"
        if not answers.connected:
            self.result.findings.append(f"{what}: no connection to port {port}")
        self.result.findings += [f"{what}: {each}" for each in answers.owed]

    async def _aftermath(self, steady: Steady, watch: Watch) -> None:
        self._progress(self._seconds, "waiting for the end of all that was begun")
        await watch.until_alone(steady.connections_a_node, steady.listed)
        await steady.drain()
        await watch.read_lists()
        await watch.ask()
        watch.look()
        watch.check_memory()
        if self._found(steady, watch):
            self._save()

    def _found(self, steady: Steady, watch: Watch) -> bool:
        for source in (steady, watch):
            self.result.findings += source.findings
            source.findings.clear()
        return bool(self.result.findings)

    def _save(self) -> None:
        self.result.saved = self._folder / "inputs.json"
        save(self.result.saved, self._protocol, self._recent)


def save(path: Path, protocol: str, inputs: Iterable[Input]) -> None:
    path.write_text(json.dumps([protocol, [each.as_json() for each in inputs]]))


def load(path: Path) -> tuple[str, list[Input]]:
    """The protocol, and what was sent by it."""
    protocol, inputs = json.loads(path.read_text())
    return protocol, [Input.of_json(each) for each in inputs]
