"""The kinds of input: each makes frames, of which at least one should not be as it is."""

from __future__ import annotations

import math
import struct
from random import Random
from typing import Any

from pamqp import base
from pamqp.commands import Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from node.broker.bodies import HEAD_BYTES, PART_BYTES, PARTED_OVER_BYTES
from tests.acceptance.fuzz.amqp import wire
from tests.acceptance.fuzz.inputs import HOLD_S_MAX, Draft, Kinds

# --- a session that is right, to be spoilt --------------------------------------------------------


def session(random: Random, channel: int = 1) -> list[bytes]:
    """Frames of one channel, all of them allowed."""
    queue = random.choice(wire.QUEUES)
    own = f"fuzz-own-{random.randrange(4)}"
    body = random.randbytes(random.choice((0, 1, 100, 3_000)))
    parts: list[list[bytes]] = [
        [wire.method(channel, Queue.Declare, queue=own, exclusive=True, auto_delete=True)],
        [wire.method(channel, Exchange.Declare, exchange="fuzz-x", exchange_type="topic")],
        [wire.method(channel, Queue.Bind, queue=queue, exchange="amq.topic", routing_key="a.*.#")],
        [wire.method(channel, Confirm.Select)],
        [wire.method(channel, Basic.Qos, prefetch_count=random.choice((0, 1, 100)))],
        wire.publish(channel, queue, body),
        wire.publish(channel, "a.b.c", body, "amq.topic", mandatory=True),
        wire.publish(channel, "nowhere", body, mandatory=True) * random.randrange(1, 20),
        [
            wire.method(
                channel,
                Basic.Consume,
                queue=queue,
                consumer_tag="me",
                no_ack=random.random() < 0.3,
                arguments=wire.entry("x-priority", b"I", b"\0\0\0\5"),
            )
        ],
        [wire.method(channel, Basic.Get, queue=queue)],
        [wire.method(channel, Basic.Ack, delivery_tag=tag) for tag in range(1, 4)],
        [wire.method(channel, Basic.Nack, delivery_tag=0, multiple=True, requeue=True)],
        [wire.method(channel, Basic.Cancel, consumer_tag="me")],
        [wire.method(channel, Basic.Recover, requeue=True)],
        [wire.method(channel, Queue.Purge, queue=queue)],
        [wire.method(channel, Channel.Flow, active=True)],
        [wire.frame(wire.HEARTBEAT, 0, b"")],
    ]
    return [each for part in random.sample(parts, random.randrange(2, 9)) for each in part]


def random_method(random: Random, kind: type[base.Frame] | None = None) -> tuple[Any, bytes]:
    """Any of pamqp's with any arguments of the right types: the class, and its payload."""
    kind = kind or random.choice(wire.METHODS)
    values: dict[str, Any] = {}
    for name in kind.attributes():
        match kind.amqp_type(name):
            case "bit":
                values[name] = random.random() < 0.3
            case "shortstr":
                words = [*wire.QUEUES, *wire.EXCHANGES, "", "direct", "topic", "a.b", "me"]
                values[name] = random.choice(words)
            case "longstr":
                values[name] = random.choice((b"", b"\0guest\0guest", random.randbytes(20)))
            case "table":
                values[name] = wire.random_table(random)
            case _:
                values[name] = random.choice((0, 1, 2, 100, 2**15, 2**31, 2**63, 2**64 - 1))
    return kind, wire.payload(kind, values)


# --- kinds ----------------------------------------------------------------------------------------


def random_bytes(random: Random) -> Draft:
    prefix = random.choice((b"", b"AMQP", wire.PROTOCOL_HEADER))
    return Draft([prefix + random.randbytes(random.choice((1, 8, 100, 5_000, 100_000)))])


def protocol_header(random: Random) -> Draft:
    header = bytearray(wire.PROTOCOL_HEADER)
    header[random.randrange(8)] = random.randrange(256)
    other = random.choice((bytes(header), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\1"))
    return Draft([other, *wire.handshake()[1:]])


def spoilt_handshake(random: Random) -> Draft:
    frames = wire.handshake()
    if random.random() < 0.5:
        place = random.randrange(1, len(frames))
        frames[place] = _spoil(random, frames[place])
    else:
        kinds = (Connection.StartOk, Connection.TuneOk, Connection.Open, Connection.SecureOk, None)
        _, payload = random_method(random, random.choice(kinds))
        frames.insert(random.randrange(1, 5), wire.frame(wire.METHOD, 0, payload))
    return Draft(frames)


def _spoil(random: Random, frame: bytes) -> bytes:
    raw = bytearray(frame)
    match random.randrange(8):
        case 0 | 1:  # flip bits
            for _ in range(random.choice((1, 1, 2, 8))):
                raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
        case 2:  # a wrong length
            near = len(raw) - 8 + random.choice((-1, 1, -8, 8))
            size = random.choice((near, 0, 3, wire.FRAME_BYTES_MAX, 2**31, 2**32 - 1))
            raw[3:7] = (size % 2**32).to_bytes(4)
        case 3:  # truncated
            del raw[random.randrange(len(raw)) :]
        case 4:  # another channel
            raw[1:3] = random.choice((0, 2, 2047, 2048, 65_535)).to_bytes(2)
        case 5:  # another type
            raw[0] = random.randrange(256)
        case 6:  # bytes in between
            place = random.randrange(len(raw))
            raw[place:place] = random.randbytes(random.choice((1, 4, 100)))
        case _:  # oversized
            raw = bytearray(wire.frame(raw[0], 1, bytes(wire.FRAME_BYTES_MAX + 1)))
    return bytes(raw)


def spoilt_frames(random: Random) -> Draft:
    frames = session(random)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(frames))
        match random.randrange(5):
            case 0 | 1 | 2:
                frames[place] = _spoil(random, frames[place]) or b"\0"
            case 3:
                frames.insert(place, frames[random.randrange(len(frames))])
            case _:
                frames.insert(place, random.randbytes(20))
    return Draft(wire.opened(1) + frames)


def wrong_order(random: Random) -> Draft:
    """Method, header and body as they should not follow each other, on one or two channels."""
    frames: list[bytes] = []
    for _ in range(random.randrange(1, 6)):
        body = random.randbytes(random.choice((0, 10, 1_000)))
        channel = random.choice((1, 1, 2))
        whole = wire.publish(channel, random.choice(wire.QUEUES), body)
        size = random.choice((0, 1, len(body) + 1, len(body) - 1, 2**31, 2**63, 2**64 - 1))
        whole += wire.content(channel, body, size=size)
        random.shuffle(whole)
        frames += whole[: random.randrange(1, len(whole) + 1)]
    return Draft(wire.opened(1, 2) + frames)


def unknown_methods(random: Random) -> Draft:
    index = random.choice(
        (
            random.randrange(2**32),
            random.choice(wire.METHODS).index & 0xFFFF0000 | random.randrange(200),
            random.choice((0, 90, 200)) << 16 | random.randrange(200),
        )
    )
    payload = index.to_bytes(4) + random.randbytes(random.choice((0, 1, 50)))
    return Draft([*wire.opened(1), wire.frame(wire.METHOD, random.choice((0, 1)), payload)])


def large_tables(random: Random) -> Draft:
    """As large as a frame may be."""
    count = random.choice((1_000, 9_000))
    same = random.random() < 0.3
    table = b"".join(
        wire.entry("k" if same else f"k{number}", b"I", number.to_bytes(4))
        for number in range(count)
    )
    return _with_table(random, table)


def nested_tables(random: Random) -> Draft:
    depth = random.choice((10, 63, 64, 65, 500, 5_000))
    kind = random.choice((b"F", b"A"))
    inner = b""
    for _ in range(depth):
        value = kind + wire.long(inner)
        inner = wire.short("n") + value if kind == b"F" else value
    table = inner if kind == b"F" else wire.short("n") + inner
    if random.random() < 0.2:  # a length inside that says too much
        table = table.replace(wire.long(b""), (2**31).to_bytes(4))
    return _with_table(random, table)


def no_numbers(random: Random) -> Draft:
    """NaN and infinities, of either width, within anything that may hold them."""
    number = random.choice((math.nan, -math.nan, math.inf, -math.inf))
    value = random.choice((b"d" + struct.pack(">d", number), b"f" + struct.pack(">f", number)))
    for _ in range(random.choice((0, 0, 1, 5, 62))):
        if random.random() < 0.5:
            value = b"A" + wire.long(value)
        else:
            value = b"F" + wire.long(wire.short("n") + value)
    return _with_table(random, wire.short(random.choice(("x-mine", "x-max-length"))) + value)


def _with_table(random: Random, table: bytes) -> Draft:
    table = table[: wire.FRAME_BYTES_MAX - 200]
    match random.randrange(5):
        case 0:
            start = wire.method(
                0,
                Connection.StartOk,
                client_properties=table,
                mechanism="PLAIN",
                response=b"\0guest\0guest",
            )
            return Draft([wire.PROTOCOL_HEADER, start, *wire.handshake()[2:]])
        case 1:
            asked = wire.method(1, Queue.Declare, queue="fuzz-own", exclusive=True, arguments=table)
        case 2:
            asked = wire.method(
                1, Queue.Bind, queue="fuzz-0", exchange="amq.headers", arguments=table
            )
        case 3:
            asked = wire.method(1, Basic.Consume, queue="fuzz-0", arguments=table)
        case _:
            headers = b"\x20\x00" + wire.long(table)
            where = random.choice(
                ({"exchange": "amq.headers"}, {"routing_key": random.choice(wire.QUEUES)})
            )
            asked = wire.method(1, Basic.Publish, **where) + b"".join(
                wire.content(1, b"x", headers)
            )
    return Draft([*wire.opened(1), asked])


def bad_text(random: Random) -> Draft:
    """Names that are no UTF-8, or hold what names do not."""
    bad = random.choice((b"\xff\xfe", b"\xc3", b"a\0b", b"\xed\xa0\x80", b"\n\r", b"x" * 255))
    kinds = (
        Queue.Declare,
        Exchange.Declare,
        Queue.Bind,
        Basic.Consume,
        Basic.Publish,
        Basic.Cancel,
        Basic.Get,
        Channel.Close,
        Connection.UpdateSecret,
        Connection.Close,
    )
    kind = random.choice(kinds)
    texts = [name for name in kind.attributes() if kind.amqp_type(name).endswith("str")]
    values: dict[str, Any] = dict.fromkeys(random.sample(texts, 1), bad)
    channel = 0 if kind.index >> 16 == Connection.frame_id else 1
    frames = [wire.method(channel, kind, **values)]
    if kind is Basic.Publish:
        properties = b"\x80\x00" + wire.short(random.choice((bad, b"text/plain")))
        frames += wire.content(1, b"x", properties)
    return Draft(wire.opened(1) + frames)


def extreme_numbers(random: Random) -> Draft:
    numbers = (0, 1, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
    frames: list[bytes] = []
    for _ in range(random.randrange(1, 6)):
        number = random.choice(numbers)
        frames.append(
            random.choice(
                (
                    wire.method(1, Basic.Qos, prefetch_count=number, prefetch_size=number),
                    wire.method(1, Basic.Ack, delivery_tag=number, multiple=number % 2),
                    wire.method(1, Basic.Nack, delivery_tag=number, requeue=True),
                    wire.method(1, Basic.Reject, delivery_tag=number),
                    wire.method(1, Basic.Publish, ticket=number, routing_key="fuzz-0")
                    + b"".join(wire.content(1, b"x", b"\x09\x40" + bytes(1) + b"\xff" * 10)),
                    wire.method(
                        1,
                        Queue.Declare,
                        queue="fuzz-numbers",
                        exclusive=True,
                        arguments=wire.entry(
                            random.choice(("x-max-length", "x-message-ttl", "x-expires")),
                            b"l",
                            number.to_bytes(8),
                        ),
                    ),
                    wire.method(
                        1,
                        Basic.Consume,
                        queue="fuzz-0",
                        arguments=wire.entry("x-priority", b"l", number.to_bytes(8)),
                    ),
                )
            )
        )
    tune = wire.method(
        0,
        Connection.TuneOk,
        channel_max=random.choice(numbers) if random.random() < 0.2 else 2047,
        frame_max=random.choice(numbers) if random.random() < 0.2 else wire.FRAME_BYTES_MAX,
        heartbeat=random.choice((0, 65_535)),
    )
    opening = wire.opened(1)
    opening[2] = tune
    return Draft(opening + frames)


def any_methods(random: Random) -> Draft:
    """All of pamqp's methods, the server's too, in any order."""
    frames: list[bytes] = []
    for _ in range(random.choice((1, 5, 20, 60))):
        kind, payload = random_method(random)
        channel = 0 if kind.index >> 16 == Connection.frame_id else random.choice((1, 1, 2))
        frames.append(wire.frame(wire.METHOD, channel, payload))
    return Draft(wire.opened(1, 2) + frames, polite=True)


def client_methods(random: Random) -> Draft:
    """Only what a client may say on an open channel: these get far."""
    kinds: tuple[type[base.Frame], ...] = (
        Exchange.Declare,
        Exchange.Delete,
        Exchange.Bind,
        Exchange.Unbind,
        Queue.Declare,
        Queue.Bind,
        Queue.Unbind,
        Queue.Purge,
        Queue.Delete,
        Basic.Qos,
        Basic.Consume,
        Basic.Cancel,
        Basic.Get,
        Basic.Ack,
        Basic.Nack,
        Basic.Reject,
        Basic.Recover,
        Confirm.Select,
        Tx.Select,
        Tx.Commit,
        Tx.Rollback,
        Basic.Publish,
    )
    channels = (1, 2, 3, 4)
    frames: list[bytes] = []
    for _ in range(random.choice((4, 12, 40))):
        kind, payload = random_method(random, random.choice(kinds))
        channel = random.choice(channels)
        frames.append(wire.frame(wire.METHOD, channel, payload))
        if kind is Basic.Publish:
            frames += wire.content(channel, random.randbytes(random.choice((0, 10, 2_000))))
    return Draft(wire.opened(*channels) + frames, polite=True)


def channel_flood(random: Random) -> Draft:
    """Opened and closed, with a consumer in between now and then."""
    frames: list[bytes] = []
    for _ in range(random.choice((50, 500))):
        channel = random.randrange(1, 50)
        frames.append(wire.method(channel, Channel.Open))
        if random.random() < 0.1:
            frames.append(wire.method(channel, Basic.Consume, queue=random.choice(wire.QUEUES)))
        frames.append(wire.method(channel, Channel.Close, reply_code=200))
    return Draft(wire.handshake() + frames, polite=True)


def many_channels(random: Random) -> Draft:
    """To the limit, and over it."""
    count = random.choice((500, 2_047, 2_048))
    opens = [wire.method(number, Channel.Open) for number in range(1, count + 1)]
    return Draft(wire.handshake() + opens, polite=True)


def half_open(random: Random) -> Draft:
    """Some of the handshake, and then silence."""
    frames = wire.handshake()[: random.randrange(4)]
    return Draft(frames, hold_s=random.uniform(0.5, HOLD_S_MAX))


def slow_loris(random: Random) -> Draft:
    return Draft(wire.handshake(), pause_s=random.choice((0.005, 0.02, 0.06)))


def never_reads(random: Random) -> Draft:
    """A consumer, or a publisher of what comes back, whose socket is full."""
    body = random.randbytes(4_000)
    if random.random() < 0.5:
        frames = wire.publish(1, "fuzz-7", body) * 200
        frames.append(wire.method(1, Basic.Consume, queue="fuzz-7", no_ack=True))
        frames += wire.publish(1, "fuzz-7", body) * 200
    else:
        frames = wire.publish(1, "nowhere", body, mandatory=True) * 1_500
    return Draft(wire.opened(1) + frames, reads=False, hold_s=random.uniform(0.5, HOLD_S_MAX))


def sudden_end(random: Random) -> Draft:
    """Cut off anywhere, with much begun."""
    frames = wire.opened(1) + session(random)
    data = b"".join(frames)
    begun = len(b"".join(wire.opened(1)))
    return Draft([data[: random.randrange(begun, len(data) + 1)]])


def large_bodies(random: Random) -> Draft:
    """In many frames, around the sizes at which they go in parts; cut off, with a size that is not
    theirs, and among what other channels say.
    """
    channels = (1, 2, 3)
    threads: list[list[bytes]] = []
    for channel in channels[: random.choice((1, 2, 2))]:
        frames: list[bytes] = []
        if random.random() < 0.5:
            frames.append(wire.method(channel, random.choice((Confirm.Select, Tx.Select))))
        for _ in range(random.choice((1, 1, 2))):
            frames += _large_publish(random, channel)
        end = random.choice((Basic.Get, Queue.Purge, Queue.Delete, Tx.Commit, Channel.Close, None))
        if end is not None:
            _, payload = random_method(random, end)
            frames.append(wire.frame(wire.METHOD, channel, payload))
        threads.append(frames)
    queue = random.choice(wire.QUEUES)
    beside = wire.method(3, Basic.Consume, queue=queue, no_ack=True)
    threads.append([beside, *wire.publish(3, queue, b"small"), wire.method(3, Basic.Get)])
    frames = []
    while any(threads):
        thread = random.choice([each for each in threads if each])
        count = random.choice((1, 1, 5, len(thread)))
        frames += thread[:count]
        del thread[:count]
    reads = random.random() < 0.9
    return Draft(wire.opened(*channels) + frames, reads=reads, polite=reads)


def _large_publish(random: Random, channel: int) -> list[bytes]:
    edge = random.choice(
        (PART_BYTES, PARTED_OVER_BYTES, 2 * PART_BYTES + HEAD_BYTES, 3 * PART_BYTES)
    )
    size = edge + random.choice((-1, 0, 1))
    announced = size
    if random.random() < 0.3:
        wrong = (size - 1, size + 1, size + PART_BYTES, WHOLE_BODY_BYTES_MAX + 1, 2**63)
        announced = random.choice(wrong)
    where = random.choice(({"routing_key": random.choice(wire.QUEUES)}, {"routing_key": "nowhere"}))
    flags = {"mandatory": random.random() < 0.3}
    frames = [
        wire.method(channel, Basic.Publish, **where, **flags),
        *wire.content(channel, bytes(size), size=announced),
    ]
    if random.random() < 0.3:  # no more of it: the next frame is something else
        del frames[random.randrange(1, len(frames)) :]
    return frames


def after_the_close(random: Random) -> Draft:
    """The client has closed, its channel or all of it, and goes on as if it had not."""
    frames = session(random)
    channel = wire.method(1, Channel.Close, reply_code=200, reply_text="bye")
    for _ in range(random.choice((1, 1, 2))):
        close = random.choice((channel, wire.goodbye()))
        frames.insert(random.randrange(len(frames) + 1), close)
    rest = session(random, random.choice((1, 1, 2)))
    match random.randrange(5):
        case 0:
            rest = [_spoil(random, each) or b"\0" for each in rest]
        case 1:
            rest = [random.randbytes(random.choice((1, 100, 50_000)))]
        case 2:
            rest = wire.publish(1, random.choice(wire.QUEUES), random.randbytes(4_000)) * 200
        case 3:
            rest = [wire.method(1, Channel.Open), *rest]
        case _:
            pass
    hold_s = random.uniform(0.0, 1.0) if random.random() < 0.1 else 0.0
    return Draft([*wire.opened(1), *frames, *rest], hold_s=hold_s)


KINDS: Kinds = {
    "random bytes": (4, random_bytes),
    "protocol header": (2, protocol_header),
    "spoilt handshake": (8, spoilt_handshake),
    "spoilt frames": (24, spoilt_frames),
    "wrong order": (10, wrong_order),
    "unknown methods": (4, unknown_methods),
    "large tables": (3, large_tables),
    "nested tables": (4, nested_tables),
    "no numbers": (4, no_numbers),
    "bad text": (6, bad_text),
    "extreme numbers": (8, extreme_numbers),
    "any methods": (12, any_methods),
    "client methods": (24, client_methods),
    "channel flood": (2, channel_flood),
    "many channels": (1, many_channels),
    "half open": (3, half_open),
    "slow loris": (1, slow_loris),
    "never reads": (2, never_reads),
    "sudden end": (8, sudden_end),
    "large bodies": (4, large_bodies),
    "after the close": (8, after_the_close),
}
