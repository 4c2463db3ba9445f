"""The configuration of a stream and of its consumers, as the machine needs it.

Both stand in the log as JetStream's own JSON has them: by its names, durations in nanoseconds, -1
or 0 for no limit. What only clients look at (description, metadata ...) stays there and is not
looked at here. Whoever proposes checks; a value that cannot be is taken for its default, since
what is in the log cannot be refused any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, cast, get_args

from cluster.machine.stream.transforms import BadTransform, Transform, transform_of

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
DEDUP_WINDOW_MS: Final = 120_000
ACK_WAIT_MS: Final = 30_000
ACK_PENDING_MAX: Final = 1_000
FIRST_SEQ_MAX: Final = 1 << 60

Retention = Literal["limits", "interest", "workqueue"]
AckPolicy = Literal["none", "all", "explicit"]
DeliverPolicy = Literal[
    "all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"
]

# Of each the first one is what is meant when nothing is said.
RETENTIONS: Final = get_args(Retention)
ACK_POLICIES: Final = get_args(AckPolicy)[::-1]
DELIVER_POLICIES: Final = get_args(DeliverPolicy)

# Keys of the map under `ATTR_ASKED`, of one message.
ASKED_ID = 1  # text: Nats-Msg-Id
ASKED_STREAM = 2  # text: the stream that is expected
ASKED_LAST = 3  # int: the last sequence that is expected
ASKED_LAST_SUBJECT = 4  # int: the same, of the subject
ASKED_SUBJECT = 5  # bytes: of this subject, not of the message's; may have wildcards
ASKED_LAST_ID = 6  # text: the id of the last message that is expected
ASKED_ROLLUP = 7  # text: "sub" or "all"
ASKED_TTL_MS = 8  # int: it goes after so long; 0: never, whatever `max_age` says
# int: its body is a sum, made of the one in the last message of its subject, whose sequence is
# this; below 0: of the message so many places before it in the same command
ASKED_COUNTED = 9
ASKED_DUE_MS = 10  # int: it is a schedule, which is due then
ASKED_ENDS = 11  # bytes: the schedule on this subject goes
# list: it was made of the schedule at the first number, since that is due at the second, and next
# at the third; 0: never again
ASKED_MET = 12
ASKED_MARKER = 13  # bool: it says that its subject has nothing any more, as a marker does


#: Fields of configurations that a later machine version brought than streams.
STREAM_FIELDS_SINCE: Final = {
    "subject_transform": 5,
    "republish": 5,
    "mirror": 5,
    "sources": 5,
    "allow_msg_counter": 5,
    "allow_msg_schedules": 5,
}
CONSUMER_FIELDS_SINCE: Final = {"priority_groups": 5}


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """None: no limit."""

    subjects: tuple[bytes, ...]
    retention: Retention
    messages_max: int | None
    bytes_max: int | None
    age_max_ms: int | None
    subject_messages_max: int | None
    message_bytes_max: int | None
    consumers_max: int | None
    discard_new: bool
    discard_new_per_subject: bool
    dedup_window_ms: int  # 0: ids mean nothing
    first_seq: int
    sealed: bool
    deny_delete: bool
    deny_purge: bool
    rollup: bool  # messages may ask for it
    message_ttl: bool  # messages may have one
    marker_ttl_ms: int | None  # of the markers for subjects whose last message expired
    atomic: bool  # it takes batches of which all is stored, or nothing
    counter: bool  # it takes nothing but sums
    schedules: bool  # messages may be schedules
    transform: Transform | None  # of the subjects under which messages are stored
    republished: Transform | None  # to which subjects what is stored is published again
    #: Other streams that it follows, by `origin_key`. A mirror takes from nobody else, under the
    #: sequences and with the times of the other one.
    mirror: str | None
    sources: tuple[str, ...]

    @property
    def origins(self) -> tuple[str, ...]:
        return self.sources if self.mirror is None else (self.mirror,)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    name: str
    deliver_policy: DeliverPolicy
    start_seq: int
    start_ms: int
    ack_policy: AckPolicy
    ack_wait_ms: int
    deliveries_max: int | None
    backoff_ms: tuple[int, ...]
    filters: tuple[bytes, ...]  # empty: all subjects
    ack_pending_max: int | None
    pause_until_ms: int
    deliver_subject: str | None  # push
    sampled: bool  # of its acknowledgements, a share is told


@lru_cache(maxsize=4096)
def _of_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def subjects_of(config: Mapping[str, Any] | None) -> tuple[bytes, ...]:
    return () if config is None else _subjects(config.get("subjects"))


def stream_settings(config: Mapping[str, Any]) -> StreamSettings:
    max_age_ms = _ms(config.get("max_age"))
    window_ms = _ms(config.get("duplicate_window"))
    if window_ms is None:
        window_ms = min(DEDUP_WINDOW_MS, max_age_ms or DEDUP_WINDOW_MS)
        if config.get("mirror") or config.get("sources"):
            window_ms = 0
    return StreamSettings(
        subjects=subjects_of(config),
        retention=cast(Retention, _one_of(RETENTIONS, config.get("retention"))),
        messages_max=_limit(config.get("max_msgs")),
        bytes_max=_limit(config.get("max_bytes")),
        age_max_ms=max_age_ms,
        subject_messages_max=_limit(config.get("max_msgs_per_subject")),
        message_bytes_max=_limit(config.get("max_msg_size")),
        consumers_max=_limit(config.get("max_consumers")),
        discard_new=config.get("discard") == "new",
        discard_new_per_subject=config.get("discard_new_per_subject") is True,
        dedup_window_ms=window_ms,
        first_seq=min(_limit(config.get("first_seq")) or 1, FIRST_SEQ_MAX),
        sealed=config.get("sealed") is True,
        deny_delete=config.get("deny_delete") is True,
        deny_purge=config.get("deny_purge") is True,
        rollup=config.get("allow_rollup_hdrs") is True,
        message_ttl=config.get("allow_msg_ttl") is True,
        marker_ttl_ms=(
            None if config.get("mirror") else _ms(config.get("subject_delete_marker_ttl"))
        ),
        atomic=config.get("allow_atomic") is True,
        counter=config.get("allow_msg_counter") is True,
        schedules=config.get("allow_msg_schedules") is True,
        transform=_transform(config.get("subject_transform")),
        republished=_transform(config.get("republish")),
        mirror=origin_key(config["mirror"]) if config.get("mirror") else None,
        sources=_origins(config.get("sources")),
    )


def origin_key(given: Any) -> str:
    """By which one of the streams that a stream follows is known: its name, what of it is wanted
    and what that becomes. No two sources have the same.
    """
    source = cast("Mapping[str, Any]", given if isinstance(given, Mapping) else {})
    wanted, becomes = zip(*pairs_of(source), strict=True)
    return " ".join((str(source.get("name")), "\f".join(wanted), "\f".join(becomes)))


def pairs_of(source: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Which subjects are wanted of another stream, and what each becomes; `>`: they stay."""
    given = source.get("subject_transforms")
    transforms = cast("list[Any]", given if isinstance(given, list | tuple) else [])
    maps = cast("list[dict[str, Any]]", [each for each in transforms if isinstance(each, dict)])
    found = [(str(each.get("src") or ">"), str(each.get("dest") or ">")) for each in maps]
    return found or [(str(source.get("filter_subject") or ">"), ">")]


def _origins(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(dict.fromkeys(map(origin_key, cast("Sequence[Any]", value))))


def consumer_settings(config: Mapping[str, Any]) -> ConsumerSettings:
    """`start_ms` and `pause_until_ms` come as `opt_start_ms` and `pause_until_ms`, in ms since the
    epoch: who proposes reads the dates.
    """
    backoff = config.get("backoff")
    waits = cast("list[Any]", backoff) if isinstance(backoff, list) else []
    backoff_ms = tuple(_ms(each) or 0 for each in waits if type(each) is int)
    deliver_to = config.get("deliver_subject")
    filters = _subjects(config.get("filter_subjects")) or _subjects([config.get("filter_subject")])
    pending_max = config.get("max_ack_pending")
    return ConsumerSettings(
        name=str(config.get("name") or config.get("durable_name") or ""),
        deliver_policy=cast(DeliverPolicy, _one_of(DELIVER_POLICIES, config.get("deliver_policy"))),
        start_seq=_limit(config.get("opt_start_seq")) or 0,
        start_ms=_limit(config.get("opt_start_ms")) or 0,
        ack_policy=cast(AckPolicy, _one_of(ACK_POLICIES, config.get("ack_policy"))),
        ack_wait_ms=backoff_ms[0] if backoff_ms else _ms(config.get("ack_wait")) or ACK_WAIT_MS,
        deliveries_max=_limit(config.get("max_deliver")),
        backoff_ms=backoff_ms,
        filters=filters,
        ack_pending_max=(
            None
            if type(pending_max) is int and pending_max < 0
            else _limit(pending_max) or ACK_PENDING_MAX
        ),
        pause_until_ms=_limit(config.get("pause_until_ms")) or 0,
        deliver_subject=deliver_to if deliver_to and isinstance(deliver_to, str) else None,
        sampled=bool(config.get("sample_freq")),
    )


def matches(pattern: bytes, subject: bytes) -> bool:
    """Is the subject, which has no wildcards, one of those that the pattern means?"""
    if pattern in (subject, b">"):
        return True
    wanted, given = pattern.split(b"."), subject.split(b".")
    for at, token in enumerate(wanted):
        if token == b">":
            return len(given) > at
        if at >= len(given) or (token not in (b"*", given[at])):
            return False
    return len(wanted) == len(given)


def overlap(one: bytes, other: bytes) -> bool:
    """Is there a subject that both patterns mean?"""
    ones, others = one.split(b"."), other.split(b".")
    for a, b in zip(ones, others, strict=False):
        if b">" in (a, b):
            return True
        if a != b and b"*" not in (a, b):
            return False
    return len(ones) == len(others)


def _transform(value: Any) -> Transform | None:
    match value:
        case {"src": str(source), "dest": str(dest)} if dest:
            try:
                return transform_of(source, dest)
            except BadTransform:
                return None
        case _:
            return None


def _limit(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    return next((each for each in choices if each == value), choices[0])


def _ms(ns: Any) -> int | None:
    """At least 1: a span that is asked for is not none."""
    return max(1, ns // NS_PER_MS) if type(ns) is int and ns > 0 else None


def _subjects(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list | tuple):
        return ()
    return tuple(
        _of_text(each) for each in cast("list[Any]", value) if isinstance(each, str) and each
    )
