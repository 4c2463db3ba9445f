"""The Celery application that the program and its workers share; settings come by environment."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

SETTINGS_NAME = "QUORATE_CLIENTS_CELERY"


def made(settings: dict[str, Any]) -> Celery:
    """`settings`: broker, backend, prefix, quorum."""
    app = Celery("clients", broker=settings["broker"], backend=settings["backend"])
    prefix = settings["prefix"]
    app.conf.update(
        task_default_queue=f"{prefix}.tasks",
        task_default_exchange=f"{prefix}.tasks",
        task_default_routing_key=f"{prefix}.tasks",
        control_exchange=f"{prefix}.control",
        event_exchange=f"{prefix}.events",
        broker_connection_retry_on_startup=True,
        broker_connection_timeout=5,
        broker_transport_options={"confirm_publish": True},
        task_publish_retry_policy={"max_retries": 50, "interval_start": 0, "interval_max": 0.5},
        worker_prefetch_multiplier=5,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        result_expires=600,
    )
    if settings["quorum"]:
        app.conf.update(
            task_default_queue_type="quorum",
            # Countdowns then wait in queues of the broker, which route by topic.
            task_default_exchange_type="topic",
        )
    app.task(name="add")(add)
    app.task(name="fail")(fail)
    app.task(name="total")(total)
    app.task(name="note", ignore_result=True, acks_late=True)(note)
    app.task(name="redelivered", bind=True, acks_late=True)(redelivered)
    return app


def add(left: int, right: int) -> int:
    return left + right


def fail() -> None:
    raise ValueError("on purpose")


def total(numbers: list[int]) -> int:
    return sum(numbers)


def note(file: str, line: str) -> None:
    with Path(file).open("a") as out:
        out.write(f"{line}\n")


def redelivered(task: Task, started: str) -> bool:
    """Stays at it when the message comes for the first time."""
    if not task.request.delivery_info["redelivered"]:
        Path(started).touch()
        time.sleep(600)
    return bool(task.request.delivery_info["redelivered"])


if SETTINGS_NAME in os.environ:
    app = made(json.loads(os.environ[SETTINGS_NAME]))
