"""Other streams that a stream mirrors or sources: from what a client sent to what stands in the
catalog, and whether they form a cycle. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final, NamedTuple, cast

from cluster.machine.stream.settings import origin_key, overlap, pairs_of
from cluster.machine.stream.transforms import BadTransform, transform_of
from node.messages.subjects import is_subject
from node.protocols.nats.jetstream import fields
from node.protocols.nats.jetstream.errors import (
    ApiError,
    invalid_json,
    invalid_stream,
    known,
    not_supported,
)
from node.protocols.nats.jetstream.times import ms_of_text

Config = dict[str, Any]
IsName = Callable[[str], bool]

SOURCES_MAX: Final = 256
TRANSFORMS_MAX: Final = 64


class _Kind(NamedTuple):
    """What is answered of one of these that cannot be."""

    what: str
    name: int
    filter_and_transforms: int
    source: int
    transform: int
    overlap: int
    too_small: int


_MIRROR: Final = _Kind("mirror", 10142, 10150, 10151, 10154, 10152, 10030)
_SOURCE: Final = _Kind("source", 10141, 10144, 10145, 10146, 10147, 10046)


def put(given: Mapping[str, Any], config: Config, is_name: IsName) -> None:
    """What is followed goes into the configuration, of which the rest is there."""
    mirror = fields.part(given, "mirror")
    sources = fields.parts(given, "sources")
    if mirror is not None:
        if config["subjects"]:
            raise known(10034)
        if sources:
            raise known(10031)
        for number, taken in (
            (10143, config.get("first_seq")),
            (10198, config["allow_atomic"]),
            (10209, config["allow_batched"]),
            (10173, config["allow_msg_counter"]),
            (10186, config["allow_msg_schedules"]),
        ):
            if taken:
                raise known(number)
        if config.get("subject_delete_marker_ttl"):
            raise invalid_stream("subject delete markers forbidden on mirrors")
        config["mirror"] = _origin(mirror, _MIRROR, is_name)
    elif config["mirror_direct"]:
        raise invalid_stream("stream has no mirror but does have mirror direct")
    if len(sources) > SOURCES_MAX:
        raise invalid_stream(f"a stream has at most {SOURCES_MAX} sources")
    if sources:
        if config["allow_msg_schedules"]:
            raise known(10187)
        if config["allow_msg_counter"]:
            raise not_supported("sources of a counter")
        config["sources"] = found = [_origin(each, _SOURCE, is_name) for each in sources]
        if len({origin_key(each) for each in found}) < len(found):
            raise known(10140)


def _origin(given: Mapping[str, Any], kind: _Kind, is_name: IsName) -> Config:
    name = fields.text(given, "name")
    if not is_name(name):
        raise known(kind.name)
    if any((fields.part(given, "external") or {}).values()):
        raise not_supported("external: a stream of another cluster, which needs leaf nodes,")
    if given.get("consumer"):
        raise not_supported("a consumer for what is followed")
    found: Config = {"name": name}
    start = fields.number(given, "opt_start_seq")
    if start:
        found["opt_start_seq"] = start
    at = given.get("opt_start_time")
    if at is not None:
        if ms_of_text(at) is None:
            raise invalid_json("opt_start_time is no time")
        found["opt_start_time"] = at
    subject, transforms = fields.text(given, "filter_subject"), _transforms(given, kind)
    if subject and transforms:
        raise known(kind.filter_and_transforms)
    if subject:
        if not _is_subject(subject):
            raise ApiError(
                500, 10049, f"subject filter {subject!r} for the {kind.what}: invalid subject"
            )
        found["filter_subject"] = subject
    if transforms:
        found["subject_transforms"] = transforms
    wanted = [each.encode() for each, _ in pairs_of(found)]
    if any(overlap(one, other) for one, other in combinations(wanted, 2)):
        raise known(kind.overlap)
    return found


def _is_subject(text: str) -> bool:
    """It goes into a header."""
    return is_subject(text.encode()) and text.split() == [text]


def _transforms(given: Mapping[str, Any], kind: _Kind) -> list[Config]:
    found: list[Config] = []
    transforms = fields.parts(given, "subject_transforms")
    if len(transforms) > TRANSFORMS_MAX:
        raise invalid_stream(f"there are at most {TRANSFORMS_MAX} subject transforms")
    for each in transforms:
        source, dest = fields.text(each, "src"), fields.text(each, "dest")
        if source and not _is_subject(source):
            text = f"{kind.what} transform source: invalid subject {source}"
            raise ApiError(400, kind.source, text)
        try:
            if dest:
                transform_of(source, dest)
            if dest.split() != [dest] * bool(dest):
                raise BadTransform("a destination has no spaces")
        except BadTransform as error:
            raise ApiError(400, kind.transform, f"{kind.what} transform: {error}") from None
        found.append({"src": source, "dest": dest})
    return found


def followed(config: Mapping[str, Any] | None) -> list[Config]:
    """What it says of the stream that it mirrors, or of those that it sources."""
    given: Mapping[str, Any] = config or {}
    sources = [given["mirror"]] if given.get("mirror") else given.get("sources")
    found = cast("list[Any]", sources if isinstance(sources, list) else [])
    return cast("list[Config]", [each for each in found if isinstance(each, dict)])


def names_of(config: Mapping[str, Any] | None) -> list[str]:
    return [each["name"] for each in followed(config) if isinstance(each.get("name"), str)]


def check_others(config: Config, config_of: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Beside the streams that there are. ApiError: it cannot follow these."""
    kind = _MIRROR if config.get("mirror") else _SOURCE
    most = config["max_msg_size"]
    for name in names_of(config):
        other = (config_of(name) or {}).get("max_msg_size", -1)
        if 0 < most < other:
            raise known(kind.too_small)
    check_cycle(config, config_of)


def check_cycle(config: Config, config_of: Callable[[str], Mapping[str, Any] | None]) -> None:
    """ApiError: it would follow itself."""
    seen: set[str] = set()
    waiting = names_of(config)
    while waiting:
        name = waiting.pop()
        if name == config["name"]:
            raise invalid_stream("detected cycle")
        if name not in seen:
            seen.add(name)
            waiting += names_of(config_of(name))
