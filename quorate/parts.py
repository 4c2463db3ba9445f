"""Bodies that are too large for one frame: sent in parts, before the publish that names them."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any
from uuid import uuid4

from quorate import wire
from quorate.core import Core
from quorate.errors import Refused

_OUT_OF_SEQUENCE = "out_of_sequence"
_names = count(1)
_process = uuid4().hex


async def upload(core: Core, queue: str, body: bytes, deadline_s: float) -> list[Any]:
    """[upload, parts] as PUBLISH wants it, once all parts behind the head are safe. A part may be
    repeated, so a change of leader only costs time.
    """
    name = f"{_process}:{next(_names)}"
    starts = range(wire.HEAD_BYTES, len(body), wire.PART_BYTES)
    kept: list[list[int]] = []
    loop = asyncio.get_running_loop()

    async def send(number: int) -> list[int]:
        data = body[starts[number] : starts[number] + wire.PART_BYTES]
        left_s = max(0.0, deadline_s - loop.time())
        frame, _ = await core.ask(queue, wire.PUBLISH_PART, name, number, data, timeout_s=left_s)
        index, offset = frame[2]
        return [index, offset, len(data)]

    while len(kept) < len(starts):
        numbers = range(len(kept), min(len(kept) + wire.PARTS_AT_ONCE, len(starts)))
        found = await asyncio.gather(*map(send, numbers), return_exceptions=True)
        for each in found:
            if isinstance(each, Refused) and each.code == _OUT_OF_SEQUENCE:
                # One before it went another way, or all were forgotten.
                del kept[int(each.detail or 0) :]
                break
            if isinstance(each, BaseException):
                raise each
            kept.append(each)
    return [name, kept]
