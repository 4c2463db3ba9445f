"""What clients are shown of streams, consumers and messages, as JSON has it. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node.protocols.nats.jetstream import consumer_config, stream_config
from node.protocols.nats.jetstream.priorities import Pin
from node.protocols.nats.jetstream.times import NEVER, NS_PER_MS, text_of_ms

Json = dict[str, Any]


class State(Protocol):
    """`StreamState` of the machine."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def first_seq(self) -> int: ...
    @property
    def first_ms(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def last_ms(self) -> int: ...
    @property
    def subjects(self) -> int: ...
    @property
    def deleted(self) -> int: ...
    @property
    def consumers(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    current: bool
    lag: int
    active_ns: int  # since it was heard


def cluster(name: str, leader: str | None, peers: Iterable[Peer]) -> Json:
    found: Json = {"name": name}
    if leader is not None:
        found["leader"] = leader
    rows = [
        {"name": each.name, "current": each.current, "active": each.active_ns}
        | ({"lag": each.lag} if each.lag else {})
        | ({} if each.current else {"offline": True})
        for each in peers
    ]
    if rows:
        found["replicas"] = rows
    return found


def stream(
    config: Mapping[str, Any],
    state: State,
    group: Json,
    now_ms: int,
    *,
    subjects: Sequence[tuple[bytes, int]] | None = None,
    deleted: Sequence[int] | None = None,
) -> Json:
    created = config.get(stream_config.CREATED, 0)
    return {
        "config": stream_config.shown(config),
        "created": text_of_ms(created or state.first_ms or 1),
        "state": _state(state, subjects, deleted),
        "cluster": group,
        "ts": text_of_ms(now_ms),
    }


def _state(
    state: State, subjects: Sequence[tuple[bytes, int]] | None, deleted: Sequence[int] | None
) -> Json:
    found: Json = {
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq if state.last_seq or state.first_seq > 1 else 0,
        "first_ts": text_of_ms(state.first_ms if state.messages else 0),
        "last_seq": state.last_seq,
        "last_ts": text_of_ms(state.last_ms),
        "consumer_count": state.consumers,
    }
    if state.subjects:
        found["num_subjects"] = state.subjects
    if state.deleted:
        found["num_deleted"] = state.deleted
    if subjects is not None:
        found["subjects"] = {name.decode(errors="replace"): count for name, count in subjects}
    if deleted:
        found["deleted"] = list(deleted)
    return found


class Known(Protocol):
    """`ConsumerInfo` of the machine."""

    @property
    def delivered_consumer(self) -> int: ...
    @property
    def delivered_stream(self) -> int: ...
    @property
    def last_delivered_ms(self) -> int: ...
    @property
    def floor_consumer(self) -> int: ...
    @property
    def floor_stream(self) -> int: ...
    @property
    def last_ack_ms(self) -> int: ...
    @property
    def ack_pending(self) -> int: ...
    @property
    def redelivered(self) -> int: ...
    @property
    def pending(self) -> int: ...


def consumer(
    stream_name: str,
    name: str,
    created_ms: int,
    config: Mapping[str, Any],
    known: Known,
    group: Json,
    now_ms: int,
    *,
    waiting: int,
    bound: bool,
    pin: Pin | None = None,
) -> Json:
    found: Json = {
        "stream_name": stream_name,
        "name": name,
        "created": text_of_ms(created_ms),
        "config": consumer_config.shown(config),
        "delivered": _pair(
            known.delivered_consumer, known.delivered_stream, known.last_delivered_ms
        ),
        "ack_floor": _pair(known.floor_consumer, known.floor_stream, known.last_ack_ms),
        "num_ack_pending": known.ack_pending,
        # Of those that are never delivered again nats-server counts none.
        "num_redelivered": 0 if config.get("max_deliver") == 1 else known.redelivered,
        "num_waiting": waiting,
        "num_pending": known.pending,
        "cluster": group,
    }
    if bound:
        found["push_bound"] = True
    groups: list[str] = config.get("priority_groups") or []
    if groups:
        found["priority_groups"] = [_group(groups[0] if pin is None else pin.group, pin)]
    found |= paused(config, now_ms) or {}
    found.pop("pause_until", None)
    found["ts"] = text_of_ms(now_ms)
    return found


def _group(name: str, pin: Pin | None) -> Json:
    if pin is None:
        return {"group": name, "pinned_ts": NEVER}
    return {"group": name, "pinned_client_id": pin.id, "pinned_ts": text_of_ms(pin.since_ms)}


def _pair(own: int, stream_: int, ms: int) -> Json:
    found: Json = {"consumer_seq": own, "stream_seq": stream_}
    if ms:
        found["last_active"] = text_of_ms(ms)
    return found


def paused(config: Mapping[str, Any], now_ms: int) -> Json | None:
    until_ms = config.get("pause_until_ms", 0)
    if until_ms <= now_ms:
        return None
    return {
        "paused": True,
        "pause_until": text_of_ms(until_ms),
        "pause_remaining": (until_ms - now_ms) * NS_PER_MS,
    }


def message(subject: bytes, seq: int, header: bytes | None, body: bytes, stored_ms: int) -> Json:
    found: Json = {"subject": subject.decode(errors="replace"), "seq": seq}
    if header:
        found["hdrs"] = base64.b64encode(header).decode()
    if body:
        found["data"] = base64.b64encode(body).decode()
    found["time"] = text_of_ms(stored_ms)
    return found
