"""The configuration of a stream: from what a client sent to what stands in the catalog. Pure.

What comes out has every field as nats-server shows it, defaults filled in, so that two are equal
when they mean the same. What is not built yet is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from cluster.machine.stream.settings import overlap
from cluster.machine.stream.transforms import BadTransform, transform_of
from node.messages.subjects import is_subject
from node.protocols.nats.jetstream import fields, origins
from node.protocols.nats.jetstream.errors import (
    ApiError,
    invalid_json,
    invalid_stream,
    known,
)
from node.protocols.nats.jetstream.times import NS_PER_MS, NS_PER_S

Config = dict[str, Any]

NAME_BYTES_MAX: Final = 255
DESCRIPTION_BYTES_MAX: Final = 4 * 1024
METADATA_BYTES_MAX: Final = 128 * 1024
REPLICAS_MAX: Final = 5
DEDUP_WINDOW_NS: Final = 120 * NS_PER_S
SPAN_NS_MIN: Final = 100 * NS_PER_MS
SUBJECTS_MAX: Final = 10_000
#: Ours, and not shown: since when there is the stream, in ms since the epoch.
CREATED: Final = "created_ms"

#: What a stream mirrors while it is being restored: no stream of NATS's clients has such a name.
RESTORED: Final = ".restore"

#: Limits of which everything below 1 means: none.
_LIMITS: Final = ("max_consumers", "max_msgs", "max_bytes", "max_msgs_per_subject", "max_msg_size")
_CHOICES: Final = {
    "retention": ("limits", "interest", "workqueue"),
    "discard": ("old", "new"),
    "storage": ("file", "memory"),
    "compression": ("none", "s2"),
}
_FLAGS: Final = (
    "no_ack",
    "discard_new_per_subject",
    "sealed",
    "deny_delete",
    "deny_purge",
    "allow_rollup_hdrs",
    "allow_direct",
    "mirror_direct",
    "allow_msg_ttl",
    "allow_atomic",
    "allow_batched",
    "allow_msg_counter",
    "allow_msg_schedules",
)
#: What stands for any token, in a destination.
_FUNCTION: Final = re.compile(r"\{\{[^}]*\}\}|\$\d+")
#: All that a client may say of a stream; who wrote the protocol passes over the rest.
FIELDS: Final = frozenset(
    {
        "name",
        "description",
        "metadata",
        "subjects",
        "num_replicas",
        "max_age",
        "duplicate_window",
        "subject_delete_marker_ttl",
        "first_seq",
        "placement",
        "consumer_limits",
        "persist_mode",
        *_LIMITS,
        *_CHOICES,
        *_FLAGS,
        "subject_transform",
        "republish",
        "mirror",
        "sources",
    }
)
#: Of these, lengths of time.
SPANS: Final = ("max_age", "duplicate_window", "subject_delete_marker_ttl")


def check_name(name: str) -> None:
    """Of a stream."""
    if "/" in name or "\\" in name:
        raise known(10128)
    if not is_name(name):
        raise invalid_stream("a stream needs a name without '.', '*', '>', '/', '\\' or spaces")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise invalid_stream(f"the name of a stream has at most {NAME_BYTES_MAX} bytes")


def is_name(name: str) -> bool:
    """Of a stream or a consumer: one token of a subject, and the name of a file."""
    return bool(name) and name.isprintable() and not any(c in ".*>/\\" or c.isspace() for c in name)


def stream_config(given: Mapping[str, Any]) -> Config:
    """ApiError: it cannot be."""
    name = fields.text(given, "name")
    check_name(name)
    config: Config = {"name": name}
    _describe(given, config)
    for field in _LIMITS:
        value = fields.number(given, field)
        config[field] = value if value > 0 else -1
    for field, choices in _CHOICES.items():
        value = fields.text(given, field) or choices[0]
        if value not in choices:
            raise invalid_json(f"{field} is one of {', '.join(choices)}")
        config[field] = value
    for field in _FLAGS:
        config[field] = fields.flag(given, field)
    follows = bool(given.get("sources")) or given.get("mirror") is not None
    config["subjects"] = _subjects(given, "" if follows else name)
    config["num_replicas"] = replicas = fields.number(given, "num_replicas") or 1
    if replicas < 0:
        raise known(10133)
    if replicas > REPLICAS_MAX:
        raise invalid_stream(f"maximum replicas is {REPLICAS_MAX}")
    _spans(given, config, follows=follows)
    _check(config)
    first = fields.number(given, "first_seq")
    if first > 1:
        config["first_seq"] = first
    placement = fields.part(given, "placement") or {}
    wanted = {name: fields.text(placement, name) for name in ("cluster", "preferred")}
    wanted = {**wanted, "tags": fields.texts(placement, "tags")}
    if any(wanted.values()):
        config["placement"] = {name: value for name, value in wanted.items() if value}
    limits = fields.part(given, "consumer_limits") or {}
    config["consumer_limits"] = {
        field: value
        for field in ("inactive_threshold", "max_ack_pending")
        if (value := fields.number(limits, field)) > 0
    }
    _transforms(given, config)
    origins.put(given, config, is_name)
    _persist(given, config)
    return config


def _persist(given: Mapping[str, Any], config: Config) -> None:
    """It may be asked that not all is synced, and is all the same."""
    mode = fields.text(given, "persist_mode")
    if mode not in ("", "default", "async"):
        raise invalid_json("persist_mode is default or async")
    if mode != "async":
        return
    if config["storage"] != "file":
        raise invalid_stream("async persist mode is only supported on file storage")
    if config["num_replicas"] > 1:
        raise invalid_stream("async persist mode is not supported on replicated streams")
    if config["allow_atomic"]:
        raise invalid_stream("async persist mode is not supported with atomic batch publish")
    config["persist_mode"] = mode


def _transforms(given: Mapping[str, Any], config: Config) -> None:
    wanted = fields.part(given, "subject_transform")
    if wanted:
        config["subject_transform"] = _transform(wanted, 10156, "stream transform")
    again = fields.part(given, "republish")
    if not again:
        return
    found = _transform(again, 10052, "stream configuration for republish is not valid")
    destination = _FUNCTION.sub("*", found["dest"]).encode()
    for subject in config["subjects"]:
        if overlap(destination, subject.encode()):
            raise invalid_stream("stream configuration for republish destination forms a cycle")
    if fields.flag(again, "headers_only"):
        found["headers_only"] = True
    config["republish"] = found


def _transform(given: Mapping[str, Any], number: int, what: str) -> Config:
    source, dest = fields.text(given, "src") or ">", fields.text(given, "dest")
    try:
        if not dest:
            raise BadTransform("it needs a destination")
        transform_of(source, dest)
    except BadTransform as error:
        raise ApiError(400 if number != 10052 else 500, number, f"{what}: {error}") from None
    return {"src": source, "dest": dest}


def _describe(given: Mapping[str, Any], config: Config) -> None:
    description = fields.text(given, "description")
    if len(description.encode()) > DESCRIPTION_BYTES_MAX:
        raise invalid_stream(f"a description has at most {DESCRIPTION_BYTES_MAX} bytes")
    if description:
        config["description"] = description
    metadata = fields.metadata(given)
    if sum(len(key) + len(value) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        raise invalid_stream(f"metadata has at most {METADATA_BYTES_MAX} bytes")
    if metadata:
        config["metadata"] = metadata


#: On these a server answers, so a stream that has them must not.
_OWN: Final = (b"$JS.>", b"$JSC.>", b"$NRG.>", b"$SYS.>")
_EVENTS: Final = (b"$JS.EVENT.", b"$SYS.ACCOUNT.")


def _subjects(given: Mapping[str, Any], name: str) -> list[str]:
    """`name`: the one that it has when none is said; empty: none."""
    subjects = fields.texts(given, "subjects") or ([name] if name else [])
    if len(subjects) > SUBJECTS_MAX:
        raise invalid_stream(f"a stream has at most {SUBJECTS_MAX} subjects")
    encoded = [subject.encode() for subject in subjects]
    for subject in encoded:
        if not is_subject(subject) or subject.split() != [subject]:
            raise invalid_stream(f"invalid subject {subject.decode()!r}")
        is_own = any(overlap(subject, each) for each in _OWN)
        if is_own and not subject.startswith(_EVENTS) and not fields.flag(given, "no_ack"):
            reason = f"{subject.decode()} overlaps with the server's own: that requires no_ack"
            raise invalid_stream(reason)
        if subject == b">" and fields.number(given, "num_replicas") > 1:
            raise invalid_stream("a stream of all subjects has one replica")
    for at, subject in enumerate(encoded):
        if any(overlap(subject, other) for other in encoded[:at]):
            raise invalid_stream(f"{subject.decode()} overlaps with another subject of the stream")
    return subjects


def _spans(given: Mapping[str, Any], config: Config, *, follows: bool) -> None:
    age, window = fields.number(given, "max_age"), fields.number(given, "duplicate_window")
    if age < 0 or 0 < age < SPAN_NS_MIN:
        raise invalid_stream("max age needs to be >= 100ms")
    if not window and not follows:
        window = min(age, DEDUP_WINDOW_NS) if age else DEDUP_WINDOW_NS
    if window < SPAN_NS_MIN and (window or not follows):
        raise invalid_stream("duplicates window needs to be >= 100ms")
    if age and window > age:
        raise invalid_stream("duplicates window can not be larger then max age")
    config["max_age"], config["duplicate_window"] = age, window
    marker = fields.number(given, "subject_delete_marker_ttl")
    if marker < 0 or 0 < marker < NS_PER_S:
        raise invalid_stream("subject delete marker TTL must be at least 1 second")
    if marker:
        config["subject_delete_marker_ttl"] = marker
        config["allow_msg_ttl"] = config["allow_rollup_hdrs"] = True
        config["deny_purge"] = False


def _check(config: Config) -> None:
    if config["allow_msg_counter"]:
        if config["discard"] == "new":
            raise invalid_stream("counter stream cannot use discard new")
        if config["allow_msg_ttl"]:
            raise invalid_stream("counter stream cannot use message TTLs")
        if config["allow_msg_schedules"]:
            raise invalid_stream("counter stream cannot use message schedules")
        if config["retention"] != "limits":
            raise invalid_stream("counter stream can only use limits retention")
    if config["allow_msg_schedules"]:
        if config["discard"] == "new":
            raise invalid_stream("message scheduling cannot use discard new")
        if not config["allow_rollup_hdrs"]:
            config["allow_rollup_hdrs"], config["deny_purge"] = True, False
    if config["deny_purge"] and config["allow_rollup_hdrs"]:
        raise invalid_stream("roll-ups require the purge permission")
    if config["discard_new_per_subject"]:
        if config["discard"] != "new":
            raise invalid_stream("discard new per subject requires discard new policy to be set")
        if config["max_msgs_per_subject"] <= 0:
            raise invalid_stream("discard new per subject requires max msgs per subject > 0")


#: What a stream becomes by being sealed: nothing goes, for age neither.
_AS_SEALED: Final[Config] = {
    "max_age": 0,
    "discard": "new",
    "deny_delete": True,
    "deny_purge": True,
    "allow_rollup_hdrs": False,
}


def changed(old: Config, new: Config) -> Config:
    """The new configuration, if a stream may go over to it. Both as `stream_config` makes them."""

    def fixed(what: str) -> ApiError:
        return invalid_stream(f"stream configuration update can not change {what}")

    if old["name"] != new["name"]:
        raise fixed("the name")
    if old["storage"] != new["storage"]:
        raise fixed("storage type")
    if old["retention"] != new["retention"] and "workqueue" in (
        old["retention"],
        new["retention"],
    ):
        raise fixed("retention policy to/from workqueue")
    if new.get("mirror") and new["mirror"] != old.get("mirror"):
        raise known(10055)
    if old["sealed"] and not new["sealed"]:
        raise invalid_stream("stream configuration update can not unseal a sealed stream")
    for flag, what in (("deny_delete", "deny message deletes"), ("deny_purge", "deny purge")):
        if old[flag] and not new[flag]:
            raise invalid_stream(f"stream configuration update can not cancel {what}")
    if old.get("allow_msg_counter", False) != new["allow_msg_counter"]:
        raise fixed("message counter setting")
    if old.get("persist_mode") != new.get("persist_mode"):
        raise fixed("persist mode")
    if old.get("allow_msg_schedules") and not new["allow_msg_schedules"]:
        raise invalid_stream("message schedules can not be disabled")
    if old["allow_msg_ttl"] and not new["allow_msg_ttl"]:
        raise invalid_stream("message TTL status can not be disabled")
    kept = {name: old[name] for name in ("first_seq", CREATED) if name in old}
    if new["sealed"]:
        kept |= _AS_SEALED
    return {**{name: value for name, value in new.items() if name != "first_seq"}, **kept}


def restored(config: Mapping[str, Any], number: str) -> Config:
    """That of a stream as long as it is being restored, which keeps all, and takes nothing from
    clients. By the number no two restores have the same, so none fills what another one made.
    """
    kept = {name: config[name] for name in ("name", "num_replicas", "storage", "allow_msg_ttl")}
    found = stream_config({**kept, "mirror": {"name": kept["name"]}})
    found["mirror"] = {"name": RESTORED, "restore": number}
    return found


def is_restored(config: Mapping[str, Any] | None) -> bool:
    """It is being restored."""
    mirror = (config or {}).get("mirror")
    return isinstance(mirror, dict) and cast("Config", mirror).get("name") == RESTORED


def equal(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """They mean the same."""
    return shown(old) == shown(new)


def shown(config: Mapping[str, Any]) -> Config:
    """As clients see it."""
    return {
        name: value
        for name, value in config.items()
        if name != CREATED and (value or name in _ALWAYS)
    }


_ALWAYS: Final = frozenset(
    (
        *_LIMITS,
        *_CHOICES,
        "max_age",
        "consumer_limits",
        *(
            set(_FLAGS)
            - {
                "no_ack",
                "discard_new_per_subject",
                "allow_atomic",
                "allow_batched",
                "allow_msg_counter",
                "allow_msg_schedules",
            }
        ),
    )
)
