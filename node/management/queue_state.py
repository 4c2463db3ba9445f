"""What a queue's leader knows of it, as it travels to the node that is asked why messages do not
move: see `situation`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from cluster.machine import QueueMachine
from cluster.machine.commands import QueueConfig
from cluster.machine.interface import ConsumerView, QueueView, Row
from cluster.types import QueueId
from node.management.diagnosis import CONSUMERS_SHOWN, ConsumerState, KeyState, QueueState

Json = dict[str, Any]

KIND = "queue_state"
#: Messages in flight that are looked at to tell how long consumers have held them.
HELD_LOOKED_AT = 1_000
#: Of the first messages it is told how often they came back as dead letters.
DEATHS_LOOKED_AT = 50


def state_here(machine: QueueMachine, queue: QueueId, lost: tuple[int, int]) -> Json | None:
    """As a map that travels between nodes. `lost`: what expired and what overflowed of late."""
    view = machine.queue(queue)
    if view is None:
        return None
    counters = machine.counters.of[queue]
    held = machine.browse(queue, 1, HELD_LOOKED_AT, "unsettled")
    oldest: dict[int, Row] = {}
    for row in held:
        oldest.setdefault(cast("int", row.consumer), row)
    delayed = min(
        (row.due_ms for row in machine.browse(queue, 1, HELD_LOOKED_AT, "delayed") if row.due_ms),
        default=None,
    )
    waiting = machine.browse(queue, 1, DEATHS_LOOKED_AT)
    state = QueueState(
        now_ms=machine.now_ms,
        ready=view.ready_count,
        unsettled=view.unsettled_count,
        delayed=view.delayed_count,
        outbox=view.dead_letter_count,
        paused=view.paused,
        single_active=view.config.single_active_consumer,
        published=counters.published,
        due_ms=delayed,
        held_up_since_ms=counters.held_up_since_ms,
        timed_out_ms=counters.timed_out_ms,
        expired=lost[0],
        overflowed=lost[1],
        loops=max((_deaths_in(view.name, row) for row in waiting), default=0),
        refuses=refused_by(view.config, view.ready_count + view.delayed_count, view.ready_bytes),
        consumers=[
            _consumer(machine, view.config, each, oldest.get(each.key)) for each in view.consumers
        ],
        keys=_keys(machine, queue, view),
    )
    return asdict(state)


def _who(view: ConsumerView) -> str:
    return f"{view.tag}\0{view.session}"


def _keys(machine: QueueMachine, queue: QueueId, view: QueueView) -> list[KeyState]:
    """Only when nothing else is ready."""
    if machine.has_free(queue):
        return []
    held = machine.held_keys(queue, CONSUMERS_SHOWN)
    who = {each.key: _who(each) for each in view.consumers}
    return [
        KeyState(each.name, each.waiting, None if key is None else who[key]) for each, key in held
    ]


def _deaths_in(queue: str, row: Row) -> int:
    return sum(each["count"] for each in row.chunk.deaths or () if each["queue"] == queue)


def _consumer(
    machine: QueueMachine, config: QueueConfig, view: ConsumerView, oldest: Row | None
) -> ConsumerState:
    attached = machine.attached(view.session)
    since_ms = None
    if oldest is not None and oldest.due_ms and config.consumer_timeout_ms:
        since_ms = oldest.due_ms - (view.timeout_ms or config.consumer_timeout_ms)
    return ConsumerState(
        who=_who(view),
        status=view.status,
        node=None if attached is None else attached[0],
        credit=view.credit,
        held=view.unsettled,
        room=view.room,
        since_ms=since_ms,
        until_ms=None if attached is None else attached[1],
    )


def refused_by(config: QueueConfig, count: int, size: int) -> str | None:
    """The limit for which so many waiting messages, of so many bytes, let nothing in any more."""
    if config.overflow == "drop-head":
        return None
    if config.max_length is not None and count >= config.max_length:
        return f"x-max-length {config.max_length:,}"
    if config.max_length_bytes is not None and size >= config.max_length_bytes:
        return f"x-max-length-bytes {config.max_length_bytes:,}"
    return None
