"""The configuration of a consumer: from what a client sent to what the machine keeps. Pure.

What comes out is JetStream's own map with defaults filled in, and two fields more, of which the
machine reads the points in time: `opt_start_ms` and `pause_until_ms`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from cluster.machine.stream.settings import matches, overlap
from node.messages.subjects import is_literal, is_subject
from node.protocols.nats.jetstream import fields
from node.protocols.nats.jetstream.errors import (
    ApiError,
    invalid_json,
    invalid_stream,
    known,
)
from node.protocols.nats.jetstream.priorities import GROUP, POLICIES
from node.protocols.nats.jetstream.stream_config import is_name
from node.protocols.nats.jetstream.times import NS_PER_MS, NS_PER_S, ms_of_text

Config = dict[str, Any]

NAME_BYTES_MAX: Final = 255
DESCRIPTION_BYTES_MAX: Final = 4 * 1024
METADATA_BYTES_MAX: Final = 128 * 1024
ACK_WAIT_NS: Final = 30 * NS_PER_S
ACK_PENDING_MAX: Final = 1_000
WAITING_MAX: Final = 512
PIN_NS: Final = 120 * NS_PER_S
HEARTBEAT_NS_MIN: Final = 100 * NS_PER_MS
#: An ephemeral consumer that nobody uses goes after so long.
INACTIVE_NS: Final = 5 * NS_PER_S

_POLICIES: Final = {
    "all": "all",
    "last": "last",
    "last_per_subject": "last per subject",
    "new": "new",
    "by_start_sequence": "by start sequence",
    "by_start_time": "by start time",
}
#: Ours, and not shown.
_OWN: Final = ("opt_start_ms", "pause_until_ms")
#: Until when a consumer is paused.
_PAUSE: Final = ("pause_until", "pause_until_ms")
#: May be changed while the consumer is at work.
_EDITABLE: Final = frozenset(
    {
        "description",
        "metadata",
        "ack_wait",
        "backoff",
        "max_deliver",
        "max_ack_pending",
        "sample_freq",
        "headers_only",
        "max_batch",
        "max_expires",
        "max_bytes",
        "inactive_threshold",
        "num_replicas",
        "deliver_group",
        "deliver_subject",
        "filter_subject",
        "filter_subjects",
        "pause_until",
        "pause_until_ms",
        "rate_limit_bps",
        "priority_groups",
        "priority_policy",
        "priority_timeout",
    }
)
#: All that a client may say of a consumer.
FIELDS: Final = (_EDITABLE - set(_OWN)) | {
    "name",
    "durable_name",
    "deliver_policy",
    "opt_start_seq",
    "opt_start_time",
    "ack_policy",
    "replay_policy",
    "flow_control",
    "idle_heartbeat",
    "deliver_group",
    "priority_groups",
    "priority_policy",
    "priority_timeout",
}
#: Of these, lengths of time.
SPANS: Final = (
    "ack_wait",
    "backoff",
    "max_expires",
    "inactive_threshold",
    "idle_heartbeat",
    "priority_timeout",
)
_SAMPLES: Final = re.compile(r"(\d{1,3})%?")


def consumer_config(given: Mapping[str, Any], stream: Mapping[str, Any]) -> Config:
    """Its name may be missing yet. `stream`: the stream's configuration. ApiError: it cannot be."""
    config: Config = {}
    _names(given, config)
    _describe(given, config)
    config["ack_policy"] = policy = fields.text(given, "ack_policy") or "none"
    if policy not in ("none", "all", "explicit"):
        raise invalid_json(f"{policy!r} is no ack_policy")
    config["replay_policy"] = fields.text(given, "replay_policy") or "instant"
    if config["replay_policy"] not in ("instant", "original"):
        raise invalid_json("this is no replay_policy")
    _replicas(given, stream, config)
    _waits(given, config)
    _limits(given, stream, config)
    deliver = fields.text(given, "deliver_subject")
    if deliver:
        _push(given, stream, config, deliver)
    else:
        _pull(given, stream, config)
    _filters(given, config)
    _start(given, config)
    _pause(given, config)
    if stream.get("retention") == "workqueue":
        if policy != "explicit":
            raise known(10098)
        if config["deliver_policy"] != "all":
            raise known(10101)
    config["headers_only"] = fields.flag(given, "headers_only")
    _sampling(given, config)
    _priorities(given, config)
    return {name: value for name, value in config.items() if value or name in _ALWAYS}


_ALWAYS: Final = frozenset(
    ("deliver_policy", "ack_policy", "max_deliver", "replay_policy", "num_replicas")
)


def _names(given: Mapping[str, Any], config: Config) -> None:
    name, durable = fields.text(given, "name"), fields.text(given, "durable_name")
    for each, what in ((name, "name"), (durable, "durable name")):
        if each and not is_name(each):
            if "/" in each or "\\" in each:
                raise known(10127)
            raise invalid_stream(f"consumer {what} can not contain '.', '*', '>', '\\', '/'")
        if len(each.encode()) > NAME_BYTES_MAX:
            raise ApiError(
                400, 10102, f"consumer name is too long, maximum allowed is {NAME_BYTES_MAX}"
            )
    if name and durable and name != durable:
        raise known(10132)
    if durable:
        config["durable_name"] = durable
    config["name"] = name or durable


def _describe(given: Mapping[str, Any], config: Config) -> None:
    config["description"] = description = fields.text(given, "description")
    if len(description.encode()) > DESCRIPTION_BYTES_MAX:
        most = DESCRIPTION_BYTES_MAX
        raise ApiError(400, 10107, f"consumer description is too long, maximum allowed is {most}")
    config["metadata"] = metadata = fields.metadata(given)
    if sum(len(key) + len(value) for key, value in metadata.items()) > METADATA_BYTES_MAX:
        most = METADATA_BYTES_MAX
        raise ApiError(400, 10135, f"consumer metadata exceeds maximum size of {most}")


def _replicas(given: Mapping[str, Any], stream: Mapping[str, Any], config: Config) -> None:
    config["num_replicas"] = replicas = fields.number(given, "num_replicas")
    if replicas > stream.get("num_replicas", 1):
        raise known(10126)
    if replicas < 0:
        raise known(10133)
    if stream.get("retention") != "limits" and replicas not in (0, stream.get("num_replicas", 1)):
        raise known(10134)
    config["mem_storage"] = fields.flag(given, "mem_storage")


def _waits(given: Mapping[str, Any], config: Config) -> None:
    config["backoff"] = backoff = fields.numbers(given, "backoff")
    if any(each < 0 for each in backoff):
        raise known(10184)
    wait = fields.number(given, "ack_wait")
    if wait < 0:
        raise known(10183)
    if not wait and config["ack_policy"] != "none":
        wait = ACK_WAIT_NS
    config["ack_wait"] = backoff[0] if backoff else wait
    most = fields.number(given, "max_deliver")
    config["max_deliver"] = most = most if most > 0 else -1
    if backoff and most != -1 and len(backoff) > most:
        raise known(10116)


def _limits(given: Mapping[str, Any], stream: Mapping[str, Any], config: Config) -> None:
    limits: Mapping[str, Any] = stream.get("consumer_limits") or {}
    pending = fields.number(given, "max_ack_pending")
    most = limits.get("max_ack_pending", 0)
    if not pending:
        pending = most
    if pending > 0 and config["ack_policy"] == "none" and given.get("deliver_subject"):
        raise known(10082)
    if not pending and config["ack_policy"] != "none":
        pending = ACK_PENDING_MAX
    if most and pending > most:
        raise ApiError(400, 10121, f"consumer max ack pending exceeds system limit of {most}")
    config["max_ack_pending"] = max(-1, pending)
    inactive = max(0, fields.number(given, "inactive_threshold"))
    longest = limits.get("inactive_threshold", 0)
    if not inactive:
        inactive = longest or (0 if config.get("durable_name") else INACTIVE_NS)
    if longest and inactive > longest:
        raise ApiError(400, 10153, f"consumer inactive threshold exceeds system limit of {longest}")
    config["inactive_threshold"] = inactive


def _push(
    given: Mapping[str, Any], stream: Mapping[str, Any], config: Config, deliver: str
) -> None:
    subject = deliver.encode()
    if not is_literal(subject):
        raise known(10079 if is_subject(subject) else 10112)
    if subject.split() != [subject]:
        raise known(10112)
    if any(matches(each.encode(), subject) for each in stream.get("subjects", ())):
        raise known(10081)
    if fields.number(given, "max_waiting"):
        raise known(10080)
    heartbeat = max(0, fields.number(given, "idle_heartbeat"))
    if 0 < heartbeat < HEARTBEAT_NS_MIN:
        raise known(10083)
    if fields.flag(given, "flow_control"):
        if not heartbeat:
            raise known(10108)
        config["flow_control"] = True
    config["deliver_subject"] = deliver
    config["deliver_group"] = fields.text(given, "deliver_group")
    config["idle_heartbeat"] = heartbeat
    config["rate_limit_bps"] = fields.number(given, "rate_limit_bps")


def _pull(given: Mapping[str, Any], stream: Mapping[str, Any], config: Config) -> None:
    if config["ack_policy"] == "none" and stream.get("retention") == "workqueue":
        raise known(10084)
    if fields.number(given, "rate_limit_bps") > 0:
        raise known(10086)
    if fields.number(given, "idle_heartbeat") > 0:
        raise known(10088)
    if fields.flag(given, "flow_control"):
        raise known(10089)
    waiting = fields.number(given, "max_waiting")
    config["max_waiting"] = waiting if waiting > 0 else WAITING_MAX
    config["max_batch"] = max(0, fields.number(given, "max_batch"))
    expires = max(0, fields.number(given, "max_expires"))
    if 0 < expires < NS_PER_MS:
        raise known(10115)
    config["max_expires"] = expires
    config["max_bytes"] = max(0, fields.number(given, "max_bytes"))


def _filters(given: Mapping[str, Any], config: Config) -> None:
    one, several = fields.text(given, "filter_subject"), fields.texts(given, "filter_subjects")
    if one and several:
        raise known(10136)
    if "" in several:
        raise known(10139)
    encoded = [each.encode() for each in ([one] if one else several)]
    for at, subject in enumerate(encoded):
        if not is_subject(subject) or subject.split() != [subject]:
            raise invalid_stream("malformed subject")
        if any(overlap(subject, other) for other in encoded[:at]):
            raise known(10138)
    config["filter_subject"], config["filter_subjects"] = one, several


def _start(given: Mapping[str, Any], config: Config) -> None:
    policy = fields.text(given, "deliver_policy") or "all"
    words = _POLICIES.get(policy)
    if words is None:
        raise invalid_json(f"{policy!r} is no deliver_policy")
    seq, point = fields.number(given, "opt_start_seq"), given.get("opt_start_time")
    head = f"consumer delivery policy is deliver {words}, but optional"
    if seq and policy != "by_start_sequence":
        raise ApiError(400, 10094, f"{head} start sequence is also set")
    if point is not None and policy != "by_start_time":
        raise ApiError(400, 10094, f"{head} start time is also set")
    if policy == "by_start_sequence":
        if seq <= 0:
            raise ApiError(400, 10094, f"{head} start sequence is not set")
        config["opt_start_seq"] = seq
    if policy == "by_start_time":
        if point is None:
            raise ApiError(400, 10094, f"{head} start time is not set")
        ms = ms_of_text(point)
        if ms is None:
            raise invalid_json("opt_start_time is no point in time")
        config["opt_start_time"], config["opt_start_ms"] = point, ms
    if policy == "last_per_subject" and not (config["filter_subject"] or config["filter_subjects"]):
        raise ApiError(400, 10094, f"{head} filter subject is not set")
    config["deliver_policy"] = policy


def _pause(given: Mapping[str, Any], config: Config) -> None:
    point = given.get("pause_until")
    if point is None:
        return
    ms = ms_of_text(point)
    if ms is None:
        raise invalid_json("pause_until is no point in time")
    if ms:
        config["pause_until"], config["pause_until_ms"] = point, ms


def _sampling(given: Mapping[str, Any], config: Config) -> None:
    config["sample_freq"] = text = fields.text(given, "sample_freq")
    found = _SAMPLES.fullmatch(text)
    if text and (found is None or int(found[1]) > 100):
        raise ApiError(400, 10095, f"failed to parse consumer sampling configuration: {text!r}")


def share_of(config: Mapping[str, Any]) -> int:
    """Per cent of its acknowledgements that are told."""
    found = _SAMPLES.fullmatch(config.get("sample_freq") or "")
    return 0 if found is None else int(found[1])


def _priorities(given: Mapping[str, Any], config: Config) -> None:
    policy = fields.text(given, "priority_policy") or "none"
    groups = fields.texts(given, "priority_groups")
    timeout = max(0, fields.number(given, "priority_timeout"))
    if policy not in POLICIES:
        raise invalid_json(f"{policy!r} is no priority_policy")
    if policy == "none":
        if groups:
            raise known(10196)
        if timeout:
            raise known(10197)
        return
    if config.get("deliver_subject"):
        raise known(10178)
    if not groups:
        raise known(10159)
    for group in groups:
        if not group:
            raise known(10161)
        if GROUP.fullmatch(group) is None:
            raise known(10162)
    if policy == "pinned_client":
        timeout = timeout or PIN_NS
    config["priority_policy"], config["priority_groups"] = policy, groups
    config["priority_timeout"] = timeout


def changed(old: Mapping[str, Any], new: Config) -> Config:
    """The new configuration, if a consumer may go over to it."""
    for field in sorted({*old, *new} - _EDITABLE - {"opt_start_time"}):  # `opt_start_ms` tells it
        if old.get(field) != new.get(field):
            field = field.replace("_ms", "_time")
            raise ApiError(500, 10012, f"{field.replace('_', ' ')} can not be updated")
    if bool(old.get("deliver_subject")) != bool(new.get("deliver_subject")):
        raise ApiError(500, 10012, "can not update a pull consumer to a push one, or back")
    return new


def paused_as(known: Mapping[str, Any], config: Config) -> Config:
    """Who creates or changes one that there is neither pauses nor resumes it: only `CONSUMER.PAUSE`
    does, since applications create theirs whenever they start.
    """
    kept = {name: known[name] for name in _PAUSE if name in known}
    return {name: value for name, value in config.items() if name not in _PAUSE} | kept


def check_workqueue(config: Config, others: Mapping[str, Mapping[str, Any]]) -> None:
    """No message of a work queue may be for two consumers. `others`: by name, all there are."""
    own = subjects_of(config)
    for name, other in others.items():
        if name == config["name"]:
            continue
        theirs = subjects_of(other)
        if not own or not theirs:
            raise known(10099)
        if any(overlap(a, b) for a in own for b in theirs):
            raise known(10100)


def subjects_of(config: Mapping[str, Any]) -> list[bytes]:
    one = config.get("filter_subject")
    return [each.encode() for each in ([one] if one else config.get("filter_subjects") or [])]


def shown(config: Mapping[str, Any]) -> Config:
    """As clients see it."""
    return {name: value for name, value in config.items() if name not in _OWN}
