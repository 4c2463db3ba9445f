"""CBOR as we use it: only plain data, and every complaint is a CodecError."""

from __future__ import annotations

from typing import Any, NoReturn

import cbor2

from cluster.codec.errors import CodecError


def _refuse_sharing(_: Any, __: bool = False) -> NoReturn:
    raise CodecError("shared references are not plain data")


# A shared reference can make a value contain itself, which nothing behind this door expects.
_DECODERS: dict[int, Any] = {28: _refuse_sharing, 29: _refuse_sharing}


def pack(value: Any) -> bytes:
    """Plain data to bytes."""
    try:
        return cbor2.dumps(value)
    except Exception as error:  # foreign types raise what they like, all of it means the same here
        raise CodecError(f"cannot be written as CBOR: {error}") from error


def unpack(data: bytes | bytearray | memoryview) -> Any:
    """Bytes to plain data."""
    try:
        return cbor2.loads(data, semantic_decoders=_DECODERS)
    except Exception as error:  # garbage reaches many corners of a decoder
        raise CodecError(f"not valid CBOR: {error}") from error
