"""Kubernetes' protobuf envelope, as far as helm uses it: it posts its release Secrets so."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

MAGIC = b"k8s\0"
# Wire types of protobuf that occur.
VARINT, LENGTH = 0, 2


def decode(body: bytes) -> dict[str, Any]:
    """A Secret or a ConfigMap. ValueError for anything else."""
    if not body.startswith(MAGIC):
        raise ValueError("no Kubernetes envelope")
    envelope = dict(_fields(body[len(MAGIC) :]))  # runtime.Unknown: 1 typeMeta, 2 raw
    about = dict(_fields(envelope[1]))  # 1 apiVersion, 2 kind
    version, kind = about[1].decode(), about[2].decode()
    if kind not in {"Secret", "ConfigMap"}:
        raise ValueError(f"a {kind} as protobuf is not read here")
    found: dict[str, Any] = {"apiVersion": version, "kind": kind, "metadata": {}, "data": {}}
    for number, value in _fields(envelope[2]):
        if number == 1:
            found["metadata"] = _metadata(value)
        elif number == 2:
            key, content = _entry(value)
            secret = kind == "Secret"
            found["data"][key] = base64.b64encode(content).decode() if secret else content.decode()
        elif number == 3 and kind == "Secret":
            found["type"] = value.decode()
    return found


def _metadata(raw: bytes) -> dict[str, Any]:
    names = {1: "name", 3: "namespace", 6: "resourceVersion"}
    maps = {11: "labels", 12: "annotations"}
    found: dict[str, Any] = {}
    for number, value in _fields(raw):
        if number in names and value:
            found[names[number]] = value.decode()
        elif number in maps:
            key, content = _entry(value)
            found.setdefault(maps[number], {})[key] = content.decode()
    return found


def _entry(raw: bytes) -> tuple[str, bytes]:
    entry = dict(_fields(raw))
    return entry.get(1, b"").decode(), entry.get(2, b"")


def _fields(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of one message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = raw[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        tag = varint()
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            yield number, varint()
        elif kind == LENGTH:
            length = varint()
            yield number, raw[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {kind} does not occur in Secrets")
