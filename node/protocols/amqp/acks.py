"""basic.ack by hand: consumers that ack one by one send many, in ascending order."""

from __future__ import annotations

import struct
from typing import Final

from node.protocols.amqp.events import Acks, Event, Method
from node.protocols.amqp.methods import decode_method

ACK: Final = 0x003C0050
#: Payload of the frame: the method, the tag, and a bit.
ACK_BYTES: Final = 13

_FRAME = struct.Struct(">11sQBB")
_HEAD = struct.Struct(">BHII")
_METHOD: Final = 1
_FRAME_END: Final = 0xCE


def read_acks(channel: int, data: bytes, at: int, events: list[Event]) -> int:
    """As many acks of the channel as follow each other."""
    last = events[-1] if events else None
    if type(last) is Acks and last.channel == channel:
        ranges = last.ranges
        low, high = ranges.pop()
    else:
        ranges = []
        low, high = 0, -1  # none yet: no single tag is next to it
    size = _FRAME.size
    wanted = _HEAD.pack(_METHOD, channel, ACK_BYTES, ACK)
    whole = (len(data) - at) // size * size
    single_zero = False
    for head, tag, bits, end in _FRAME.iter_unpack(memoryview(data)[at : at + whole]):
        if head != wanted or end != _FRAME_END:
            break
        if bits & 1:
            if high >= 0:
                ranges.append((low, high))
            low, high = 0, tag
        elif tag == high + 1 and low:
            high = tag
        elif tag:
            if high >= 0:
                ranges.append((low, high))
            low = high = tag
        else:
            single_zero = True
            break
        at += size
    if high >= 0:
        ranges.append((low, high))
        if not (type(last) is Acks and ranges is last.ranges):
            events.append(Acks(channel, ranges))
    if single_zero:
        events.append(Method(channel, decode_method(ACK, data, at + 11, at + 20)))
        at += size
    return at
