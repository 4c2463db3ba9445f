"""Celery with real workers in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery, chord, group
from celery.exceptions import TaskRevokedError
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from tests.acceptance.clients.programs import celery_app, program
from tests.acceptance.clients.programs.program import Given, equal, until

CELERY = (sys.executable, "-m", "celery", "-A", "tests.acceptance.clients.programs.celery_app")


@dataclass
class Bench:
    """An application, its settings, and a folder for what tasks leave behind."""

    app: Celery
    settings: dict[str, Any]
    folder: Path

    @property
    def tasks(self) -> str:
        return self.app.conf.task_default_queue

    def count(self) -> int:
        """Messages that are ready in the queue of tasks."""
        with self.app.connection_for_write() as connection:
            return Queue(self.tasks, channel=connection).queue_declare(passive=True).message_count

    def worker(self, name: str = "worker") -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*CELERY, "worker", "-c", "2", "-n", f"{name}@clients", "-l", "INFO"],
                env={**os.environ, celery_app.SETTINGS_NAME: json.dumps(self.settings)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def connect_to(self, urls: list[str]) -> None:
        """From now on, the first of these that answers."""
        self.app.close()
        self.settings["broker"] = ";".join(urls)
        self.app = celery_app.made(self.settings)

    @contextlib.contextmanager
    def working(self) -> Iterator[subprocess.Popen[bytes]]:
        worker = self.worker()
        try:
            yield worker
        finally:
            kill(worker)


def kill(worker: subprocess.Popen[bytes]) -> None:
    """With its children, and at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


@contextlib.contextmanager
def bench(
    given: Given, what: str, *, backend: str = "rpc://", quorum: bool = False
) -> Iterator[Bench]:
    """Each its own names: kombu remembers what it declared, and would not declare it again."""
    with tempfile.TemporaryDirectory(prefix="quorate-celery-") as folder:
        settings = {
            "broker": given.url,
            "backend": f"file://{folder}" if backend == "file" else backend,
            "prefix": given.name(what),
            "quorum": quorum,
        }
        made = Bench(celery_app.made(settings), settings, Path(folder))
        try:
            yield made
        finally:
            with contextlib.suppress(Exception):
                clean(made)
            made.app.close()


def clean(made: Bench) -> None:
    """What an application leaves in a broker, but for the levels of delayed delivery: all
    applications share those."""
    prefix = made.settings["prefix"]
    exchanges = (f"{prefix}.control.pidbox", f"reply.{prefix}.control.pidbox")
    with made.app.connection_for_write() as connection:
        connection.ensure_connection(max_retries=10)
        Queue(made.tasks, channel=connection).delete()
        for name in (*exchanges, f"{prefix}.events", made.tasks):
            Exchange(name, channel=connection).delete()


def confirms(given: Given) -> str:
    with bench(given, "confirms") as made:
        for number in range(200):
            made.app.send_task("add", (number, 1))
        equal(made.count(), 200, "messages in the queue of tasks")
    return "200 tasks confirmed"


def acks(given: Given) -> str:
    """The worker holds no more than its prefetch, and acknowledges all."""
    with bench(given, "acks") as made:
        waiting = [made.app.send_task("add", (number, 1)) for number in range(100)]
        with made.working() as worker:
            found = [each.get(timeout=program.WAIT_S_MAX) for each in waiting]
            equal(found, list(range(1, 101)), "results")
            # A result may be here before its task's acknowledgement has left the worker.
            worker.terminate()
            worker.wait(program.WAIT_S_MAX)
        equal(made.count(), 0, "messages after the worker is gone")
    return "100 tasks done, none comes back"


def channel_error(given: Given) -> str:
    with bench(given, "channel-error") as made, made.app.connection_for_write() as connection:
        missing = Queue(given.name("missing"), channel=connection)
        try:
            missing.queue_declare(passive=True)
        except connection.channel_errors as error:
            text = str(error)
            equal(error.code, 404, "code")
        else:
            raise AssertionError("a queue that is not there was found")
        equal(connection.connected, True, "the connection is open")
        made.app.send_task("add", (1, 2), connection=connection)
        equal(made.count(), 1, "messages in the queue of tasks")
    return text


def results(given: Given) -> str:
    with bench(given, "results") as made, made.working():
        add = made.app.signature
        several = group(add("add", (number, number)) for number in range(20)).apply_async()
        equal(several.get(timeout=program.WAIT_S_MAX), [2 * n for n in range(20)], "group")
        chained = (add("add", (1, 2)) | add("add", (4,))).apply_async()
        equal(chained.get(timeout=program.WAIT_S_MAX), 7, "chain")
        failed = made.app.send_task("fail")
        try:
            failed.get(timeout=program.WAIT_S_MAX)
        except ValueError as error:
            return f"group, chain, and {error!r} through rpc://"
    raise AssertionError("the error of a task did not come")


def with_chord(given: Given) -> str:
    """A chord needs results that can be read more than once: files here."""
    with bench(given, "chord", backend="file") as made, made.working():
        header = [made.app.signature("add", (number, 1)) for number in range(10)]
        # Its counter is a task of Celery's own, retried every second.
        answer = chord(header)(made.app.signature("total"))
        equal(answer.get(timeout=program.WAIT_S_MAX), 55, "total")
    return "10 tasks and their callback"


def control(given: Given) -> str:
    with bench(given, "control") as made, made.working():
        heard: dict[str, Any] = {}

        def pinged() -> bool:
            for answer in made.app.control.ping(timeout=0.5):
                heard.update(answer)
            return bool(heard)

        until(pinged, "an answer to a ping")
        equal(heard, {"worker@clients": {"ok": "pong"}}, "answer")
        # One worker answers; it is not waited for a second one.
        inspect = made.app.control.inspect(timeout=program.WAIT_S_MAX, limit=1)
        (registered,) = (inspect.registered() or {}).values()
        equal({"add", "fail", "total"} <= set(registered), True, "registered tasks")
        (queues,) = (inspect.active_queues() or {}).values()
        equal([each["name"] for each in queues], [made.tasks], "queues")
        made.app.control.add_consumer(given.name("more"), reply=True)
        more = made.app.send_task("add", (2, 3), queue=given.name("more"))
        equal(more.get(timeout=program.WAIT_S_MAX), 5, "a task in the queue that was added")
        made.app.control.cancel_consumer(given.name("more"), reply=True)
        with made.app.connection_for_write() as connection:
            Queue(given.name("more"), channel=connection).delete()
    return "ping, inspect, add_consumer"


def revoke(given: Given) -> None:
    with bench(given, "revoke") as made, made.working():
        made.app.send_task("add", (0, 0)).get(timeout=program.WAIT_S_MAX)
        later = made.app.send_task("add", (1, 1), countdown=5)
        made.app.control.revoke(later.id, reply=True)
        try:
            later.get(timeout=program.WAIT_S_MAX)
        except TaskRevokedError:
            return
    raise AssertionError("a revoked task was done")


def countdown(given: Given) -> str:
    """Held by the worker, and in queues of the broker when the queue is replicated."""
    took: list[str] = []
    for quorum in (False, True):
        with bench(given, f"countdown-{int(quorum)}", quorum=quorum) as made, made.working():
            made.app.send_task("add", (0, 0)).get(timeout=program.WAIT_S_MAX)
            began = time.monotonic()
            later = made.app.send_task("add", (1, 1), countdown=2)
            equal(later.get(timeout=program.WAIT_S_MAX), 2, "result")
            seconds = time.monotonic() - began
            equal(seconds > 1, True, f"{seconds:.1f} s are enough")
            took.append(f"{seconds:.1f} s")
    return " and ".join(took)


def acks_late(given: Given) -> str:
    with bench(given, "acks-late") as made:
        started = made.folder / "started"
        first = made.worker("first")
        try:
            waiting = made.app.send_task("redelivered", (str(started),))
            until(started.exists, "the task begins")
        finally:
            kill(first)
        with made.working():
            equal(waiting.get(timeout=program.WAIT_S_MAX), True, "redelivered")
    return "redelivered to another worker"


def failover(given: Given) -> str:
    """Publisher and worker begin at the node that is killed."""
    with bench(given, "failover", quorum=True) as made:
        noted = made.folder / "noted"
        made.app.send_task("note", (str(noted), "begin"), ignore_result=True)
        state = program.Failover(given.led(made.tasks))
        made.connect_to(state.urls)
        try:
            return publish_throughout(given, made, state, noted)
        finally:
            made.connect_to(state.urls[1:])


def publish_throughout(given: Given, made: Bench, state: program.Failover, noted: Path) -> str:
    with made.working():
        until(noted.exists, "the first task")
        while not state.done:
            try:
                made.app.send_task("note", (str(noted), state.next.decode()), ignore_result=True)
            except OperationalError as error:
                state.lost(error)
            else:
                state.confirm(given, made.tasks)
        seen: list[bytes] = []

        def all_done() -> bool:
            seen[:] = [line for line in noted.read_bytes().split() if line != b"begin"]
            return set(state.confirmed) <= set(seen)

        # A worker tries for 20 s to declare its delays at the node that is gone.
        until(all_done, "all tasks that are confirmed", wait_s=3 * program.WAIT_S_MAX)
        return state.verdict(seen)


def shutdown(given: Given) -> str:
    with bench(given, "shutdown") as made, made.working() as worker:
        made.app.send_task("add", (0, 0)).get(timeout=program.WAIT_S_MAX)
        made.app.control.shutdown()
        status = worker.wait(program.WAIT_S_MAX)
    return f"the worker ended with status {status}"


if __name__ == "__main__":
    program.run({**vars(), "chord": with_chord})
