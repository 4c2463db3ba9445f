"""The kinds of input: each makes operations, of which at least one should not be as it is."""

from __future__ import annotations

import base64
import json
from random import Random
from typing import Any

from tests.acceptance.fuzz.inputs import HOLD_S_MAX, Draft, Kinds
from tests.acceptance.fuzz.nats import wire

_SPACES = b" \t\r\n\v\f"
_WORDS = [b"a", b"b", b"*", b">", b"", b"$JS", b"API", b"fuzz", b"fuzz-0", b"\xff\xfe", b"\xc3\xbc"]
_PREFIXES = [b"$JS.API.", b"$JS.ACK.", b"$JS.FC.", b"$SYS.", b"_INBOX.", b"$KV.", b"fuzz.fuzz-0."]
_NUMBERS: list[Any] = [
    0,
    1,
    -1,
    2,
    100,
    10**9,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    1.5,
    1e300,
]


# --- what is right, to be spoilt ------------------------------------------------------------------


def session(random: Random) -> list[bytes]:
    """Operations of a client, all of them allowed."""
    stream = random.choice(wire.STREAMS).encode()
    subject = b"fuzz.%b.a" % stream
    body = random.randbytes(random.choice((0, 1, 100, 3_000)))
    head = wire.header((b"Nats-Msg-Id", b"%d" % random.randrange(50)), (b"A", b"1"))
    next_subject = b"$JS.API.CONSUMER.MSG.NEXT.%b.%b" % (stream, wire.CONSUMER.encode())
    parts: list[list[bytes]] = [
        [wire.sub(b"a.*", b"1"), wire.sub(b"a.>", b"2", b"q"), wire.sub(subject, b"3")],
        [wire.pub(b"a.b", body)] * random.randrange(1, 20),
        [wire.pub(b"nowhere", body, wire.INBOX + b"1")],
        [wire.hpub(b"a.b", head, body)],
        [wire.pub(subject, body, wire.INBOX + b"2")] * random.randrange(1, 20),
        [wire.hpub(subject, head, body, wire.INBOX + b"3")],
        [wire.unsub(b"1", b"3"), wire.unsub(b"2")],
        [wire.ask(next_subject, {"batch": 5, "no_wait": True})],
        [wire.ask(b"$JS.API.STREAM.INFO." + stream, {"subjects_filter": ">"})],
        [wire.PING, b"PONG\r\n"],
    ]
    return [each for part in random.sample(parts, random.randrange(2, 8)) for each in part]


def _plain(data: bytes) -> bytes:
    """One word of a line."""
    return data.translate(None, _SPACES) or b"x"


def subject_of(random: Random) -> bytes:
    """One that one may send, with anything in it but what would end the word."""
    match random.randrange(6):
        case 0:
            words = [random.choice(_WORDS) for _ in range(random.choice((1, 2, 3, 8)))]
            return _plain(b".".join(words))
        case 1:
            return _plain(random.randbytes(random.choice((1, 3, 40))))
        case 2:
            return b".".join([random.choice((b"a", b"*", b""))] * random.choice((100, 1_500)))
        case 3:
            return _plain(random.choice(_PREFIXES) + random.choice(_WORDS))
        case 4:
            return b"a" * random.choice((255, 256, 3_000))
        case _:
            names = [*wire.STREAMS, *wire.OWN_STREAMS]
            words = [random.choice(names).encode(), b"reader", b"*", b">", b"1", b""]
            tail = b".".join(random.choices(words, k=random.randrange(1, 8)))
            return _plain(random.choice(_PREFIXES) + random.choice(VERBS).encode() + b"." + tail)


# --- operations that are wrong --------------------------------------------------------------------


def random_bytes(random: Random) -> Draft:
    begins = (b"", b"", wire.connect(), b"PUB ", b"CONNECT {", b"\r\n" * 9)
    return Draft([random.choice(begins), random.randbytes(random.choice((1, 8, 100, 5_000)))])


def wrong_start(random: Random) -> Draft:
    """Something else than CONNECT, or before it; a client of another protocol."""
    other = (
        b"GET /varz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01\x02\0\1\0\1\xfc\x03\x03",
        wire.PING,
        wire.sub(b"a", b"1"),
        wire.pub(b"a", b"x"),
        b"INFO {}\r\n",
        b"+OK\r\n",
    )
    return Draft([random.choice(other), wire.connect(), *session(random)])


def connect_options(random: Random) -> Draft:
    """The first line of a client, with anything in it."""
    match random.randrange(5):
        case 0:
            names = [*wire.OPTIONS, "auth_token", "jwt", "nkey", "sig", "echo", "tls_required"]
            values: tuple[Any, ...] = (
                None,
                True,
                1,
                2,
                -1,
                "",
                "x" * 500,
                [],
                {},
                1.5,
                [[]],
                "\ud800",
                "/guest",
            )
            wrong = {random.choice(names): random.choice(values) for _ in range(2)}
            line = b"CONNECT %b\r\n" % json.dumps({**wire.OPTIONS, **wrong}).encode()
        case 1:
            depth = random.choice((10, 900, 1_900))
            line = b"CONNECT %b\r\n" % (b'{"a":' * depth + b"1" + b"}" * depth)[:4_000]
        case 2:
            texts = (b"", b"[]", b"1", b"null", b"{", b'{"a":NaN}', b'"x"', b"{}{}", b"\xff")
            line = b"CONNECT %b\r\n" % random.choice(texts)
        case 3:
            line = b'CONNECT {"user":"%b"}\r\n' % (b"x" * random.choice((4_050, 4_096, 20_000)))
        case _:
            line = wire.connect(user=wire.LIMITED, **{"pass": "wrong"})
    return Draft([line, *session(random)])


def nkeys(random: Random) -> Draft:
    """Who says to have a key, and has not."""
    options = {name: value for name, value in wire.OPTIONS.items() if name not in ("user", "pass")}
    keys: tuple[Any, ...] = (
        wire.NKEY,
        wire.NKEY.lower(),
        wire.NKEY[:-1],
        "U" * 56,
        "x" * 500,
        1,
        [],
    )
    signed = base64.b64encode(random.randbytes(random.choice((0, 1, 63, 64, 500)))).decode()
    signatures: tuple[Any, ...] = (
        signed,
        signed.rstrip("="),
        "",
        "\ud800",
        "\u00fc" * 64,
        {},
        None,
    )
    given = {"nkey": random.choice(keys), "sig": random.choice(signatures)}
    line = b"CONNECT %b\r\n" % json.dumps({**options, **given}).encode()
    return Draft([line, *session(random)])


def spoilt(random: Random) -> Draft:
    """A session with a few bytes that are others, missing or too many."""
    data = bytearray(b"".join(wire.opened() + session(random)))
    for _ in range(random.choice((1, 1, 2, 8))):
        at = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                data[at] = random.randrange(256)
            case 1:
                del data[at : at + random.choice((1, 2, 50))]
            case 2:
                data[at:at] = random.choice((b"\r\n", b" ", b"\0", random.randbytes(9)))
            case _:
                data[at:at] = data[at : at + random.choice((2, 30))]
    return Draft([bytes(data)])


def wrong_numbers(random: Random) -> Draft:
    """Sizes that are none, or not those of what follows."""
    most = wire.PAYLOAD_BYTES_MAX
    numbers = (b"", b"-1", b"x", b"1.5", b"0x10", b"+1", b"9" * 4_000, b"\xb2", b"%d" % (most + 1))
    number, other = random.choice(numbers), random.choice((b"0", b"12", b"20", *numbers))
    operations = (
        b"PUB a %b\r\nx\r\n" % number,
        b"PUB a b %b\r\nx\r\n" % number,
        b"HPUB a %b %b\r\nx\r\n" % (number, other),
        b"HPUB a b %b %b\r\nx\r\n" % (other, number),
        b"PUB a 5\r\nxxxxxxxx\r\n",
        b"HPUB a 12 5\r\nNATS/1.0\r\n\r\n\r\n",
        b"PUB a b c d 1\r\nx\r\n",
        b"PUB\r\n",
        b"SUB a\r\n",
        b"SUB a b c d\r\n",
        b"UNSUB\r\n",
    )
    return Draft([*wire.opened(), random.choice(operations)], polite=True)


def long_lines(random: Random) -> Draft:
    size = wire.CONTROL_LINE_BYTES_MAX + random.choice((-8, -1, 0, 1, 100, 100_000))
    line = random.choice((b"SUB ", b"PUB ", b"PING ", b"UNSUB ")) + b"a" * size
    return Draft([*wire.opened(), line, random.choice((b"", b"\r\n", b" 1\r\n"))])


# --- what a connection survives -------------------------------------------------------------------


def survived(frames: list[bytes], replies: int = 0, **options: Any) -> Draft:
    """None of it closes the connection: a PING behind it is answered, and so many requests."""
    start = wire.asking(**options) if replies else wire.opened(**options)
    return Draft([*start, *frames, wire.PING], polite=True, replies=replies + 1)


def odd_subjects(random: Random) -> Draft:
    """Published to, subscribed to, or both."""
    frames: list[bytes] = []
    for number in range(random.choice((1, 5, 50))):
        subject, other = subject_of(random), subject_of(random)
        sid = b"%d" % random.choice((number, 0, 10**12))
        frames += random.choice(
            (
                [wire.sub(subject, sid)],
                [wire.sub(subject, sid, b"q"), wire.pub(subject, b"x")],
                [wire.pub(subject, b"x")],
                [wire.pub(subject, b"x", b"odd.reply")],
                [wire.sub(subject, _plain(random.randbytes(9))), wire.unsub(sid, b"1")],
            )
        )
        if len(subject) + len(other) < wire.CONTROL_LINE_BYTES_MAX - 20:
            frames.append(wire.pub(subject, b"x", other))
    return survived(frames, pedantic=random.random() < 0.5)


def forbidden(random: Random) -> Draft:
    """By a user who may do next to nothing."""
    frames: list[bytes] = []
    for _ in range(random.choice((1, 10))):
        subject = random.choice((b"a", b"mine.a", b"fuzz.fuzz-0.a", b"$JS.API.INFO", b">", b"*"))
        frames += [wire.sub(subject, b"%d" % random.randrange(5)), wire.pub(subject, b"x")]
        frames.append(wire.pub(b"mine.a", b"x", subject))
    login: dict[str, Any] = {"user": wire.LIMITED, "pass": wire.LIMITED}
    return survived(frames, **login)


def odd_headers(random: Random) -> Draft:
    """Into a stream, which answers each, and to who is subscribed."""
    frames: list[bytes] = []
    count = random.choice((1, 10))
    for number in range(count):
        subject = b"fuzz.%b.h" % random.choice(wire.STREAMS).encode()
        head = _header(random)
        reply = wire.INBOX + b"%d" % number
        frames.append(wire.hpub(subject, head, random.choice((b"", b"x" * 50)), reply))
    if random.random() < 0.5:
        frames.insert(0, wire.sub(b"fuzz.>", b"all"))
    return survived(frames, count)


def _header(random: Random) -> bytes:
    values: list[bytes] = [
        b"",
        b"0",
        b"-1",
        b"1",
        b"9" * 400,
        b"never",
        b"5s",
        b"1h",
        b"1e9",
        b"\xff",
    ]
    values += [
        b"sub",
        b"all",
        b"fuzz-0",
        b">",
        b"*",
        b"@every 1s",
        b"@at 2099-01-01T00:00:00Z",
        b"+1",
    ]
    fields = [
        (random.choice(_HEADERS), random.choice(values)) for _ in range(random.choice((1, 1, 2, 5)))
    ]
    block = wire.header(*fields)
    match random.randrange(8):
        case 0:
            return random.randbytes(random.choice((1, 12, 100)))
        case 1:
            return block[: random.randrange(len(block))]
        case 2:
            return block.replace(b"\r\n", b"\n")
        case 3:
            return wire.header(*[(b"A", b"%d" % each) for each in range(2_000)])
        case 4:
            return block.replace(b": ", random.choice((b":", b"  :  ", b" ", b"::")))
        case _:
            return block


_HEADERS: list[bytes] = [
    *(b"Nats-Msg-Id", b"Nats-Expected-Stream", b"Nats-Expected-Last-Sequence", b"Nats-TTL"),
    *(b"Nats-Expected-Last-Subject-Sequence", b"Nats-Expected-Last-Subject-Sequence-Subject"),
    *(b"Nats-Expected-Last-Msg-Id", b"Nats-Rollup", b"Nats-Batch-Id", b"Nats-Batch-Sequence"),
    *(b"Nats-Batch-Commit", b"Nats-Incr", b"Nats-Schedule", b"Nats-Schedule-Target"),
    *(b"Nats-Schedule-TTL", b"Nats-Marker-Reason", b"nats-msg-id", b"", b"\xff", b"Status"),
]

#: Each is answered once, whatever is asked.
VERBS = [
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    *(f"STREAM.{each}" for each in ("CREATE", "UPDATE", "INFO", "DELETE", "PURGE")),
    *("STREAM.MSG.GET", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE"),
    *(f"CONSUMER.{each}" for each in ("NAMES", "LIST", "INFO", "DELETE", "PAUSE", "CREATE")),
    *("CONSUMER.DURABLE.CREATE", "CONSUMER.UNPIN", "DIRECT.GET", "META.LEADER.STEPDOWN", "NONE"),
]


SYSTEM = ["VARZ", "CONNZ", "SUBSZ", "JSZ", "ACCOUNTZ", "ROUTEZ", "HEALTHZ", "STATSZ", "IDZ", "NONE"]


def api_requests(random: Random) -> Draft:
    """Any verb, of any stream and consumer, with any JSON or none."""
    frames: list[bytes] = []
    count = random.choice((1, 5, 20))
    for number in range(count):
        verb = random.choice(VERBS)
        # Those that others publish into must stay, and answer.
        kept = () if verb.endswith(("CREATE", "UPDATE", "DELETE")) else wire.STREAMS
        name = random.choice((*kept, *wire.OWN_STREAMS, "nope"))
        body = _api_body(random, verb, name)
        words = [verb]
        if verb.startswith(("STREAM.", "CONSUMER.", "DIRECT.")) and not verb.endswith("S.LIST"):
            words.append(name)
        if verb.startswith("CONSUMER.") and random.random() < 0.8:
            words.append(random.choice((wire.CONSUMER, "own", "nope", "own.fuzz.>")))
        frames.append(wire.ask(b"$JS.API." + ".".join(words).encode(), body, number))
    return survived(frames, count)


def system_requests(random: Random) -> Draft:
    """About nodes, with any options or none."""
    frames: list[bytes] = []
    names = ("server_name", "host", "cluster", "exact_match", "sort", "state", "limit", "offset")
    more = ("cid", "subscriptions", "subscriptions_detail", "account", "acc", "stream", "test")
    for number in range(random.choice((1, 5, 20))):
        what = random.choice(("", *(f".{each}" for each in SYSTEM)))
        server = random.choice(
            ("SERVER.PING", "SERVER.n1.1", "SERVER", "USER.INFO", "ACCOUNT.PING")
        )
        body = random.choice((b"", b"{", {}, _object(random, (*names, *more))))
        frames.append(wire.ask(f"$SYS.REQ.{server}{what}".encode(), body, number))
    return survived(frames)


def _api_body(random: Random, verb: str, name: str) -> Any:
    match random.randrange(10):
        case 0:
            return b""
        case 1:
            return random.choice((b"{", b"[]", b"1", b"null", b'{"a":NaN}', b"\xff", b'"\\ud800"'))
        case 2:
            depth = random.choice((50, 100_000))
            return b"[" * depth + b"]" * random.choice((0, depth))
        case 3:
            return _object(random, _REQUEST)
        case _:
            pass
    if verb.startswith("STREAM."):
        sane = {"name": name, "subjects": [f"fuzz.{name}.>"], "max_msgs": 50}
        if verb in ("STREAM.CREATE", "STREAM.UPDATE"):
            return sane | _object(random, _STREAM)
    elif verb.startswith("CONSUMER."):
        config = {"durable_name": "own", "ack_policy": "explicit"} | _object(random, _CONSUMER)
        return {"stream_name": name, "config": config} | (
            _object(random, ("action", "pause_until")) if random.random() < 0.3 else {}
        )
    return _object(random, _REQUEST)


def _object(random: Random, names: tuple[str, ...]) -> dict[str, Any]:
    return {
        random.choice(names): _value(random, 2) for _ in range(random.choice((0, 1, 1, 2, 2, 5)))
    }


def _value(random: Random, depth: int) -> Any:
    """Of any type, and often of one that is meant."""
    match random.randrange(8):
        case 0:
            return random.choice((None, True, False))
        case 1 | 2:
            return random.choice(_NUMBERS)
        case 3 if depth:
            return [_value(random, depth - 1) for _ in range(random.randrange(3))]
        case 4 if depth:
            return {random.choice(_DEEP): _value(random, depth - 1) for _ in range(2)}
        case _:
            return random.choice(_TEXTS)


_TEXTS = [
    *("", "x", "fuzz-0", "fuzz.fuzz-0.>", "fuzz.*.a", ">", "*", "a b", ".", "a..b", "\ud83d\ude00"),
    *("limits", "interest", "workqueue", "old", "new", "file", "memory", "s2", "none", "all"),
    *("explicit", "last", "last_per_subject", "by_start_sequence", "by_start_time", "original"),
    *("2020-01-01T00:00:00Z", "9999-12-31T23:59:59.999999999Z", "0000-00-00", "create", "update"),
    *(
        "50%",
        "flow_control",
        "overflow",
        "pinned_client",
        "x" * 3_000,
        "\0",
        "$JS.API.>",
        "_INBOX.x",
    ),
]
_DEEP = ("name", "filter_subject", "src", "dest", "cluster", "max_ack_pending", "opt_start_seq")
_STREAM = (
    *("name", "description", "subjects", "retention", "max_consumers", "max_msgs", "max_bytes"),
    *("max_age", "max_msgs_per_subject", "max_msg_size", "discard", "discard_new_per_subject"),
    *("storage", "num_replicas", "no_ack", "duplicate_window", "placement", "mirror", "sources"),
    *("compression", "first_seq", "subject_transform", "republish", "allow_direct", "sealed"),
    *("mirror_direct", "deny_delete", "deny_purge", "allow_rollup_hdrs", "consumer_limits"),
    *("allow_msg_ttl", "subject_delete_marker_ttl", "allow_msg_counter", "allow_atomic"),
    *("allow_msg_schedules", "persist_mode", "metadata", "pedantic", "unknown"),
)
_CONSUMER = (
    *("name", "durable_name", "description", "deliver_policy", "opt_start_seq", "opt_start_time"),
    *("ack_policy", "ack_wait", "max_deliver", "backoff", "filter_subject", "filter_subjects"),
    *("replay_policy", "rate_limit_bps", "sample_freq", "max_waiting", "max_ack_pending"),
    *("flow_control", "idle_heartbeat", "headers_only", "max_batch", "max_expires", "max_bytes"),
    *("deliver_subject", "deliver_group", "inactive_threshold", "num_replicas", "mem_storage"),
    *("metadata", "pause_until", "priority_groups", "priority_policy", "priority_timeout"),
)
_REQUEST = (
    *("offset", "subject", "filter", "seq", "keep", "subjects_filter", "deleted_details"),
    *("last_by_subj", "next_by_subj", "start_time", "batch", "max_bytes", "multi_last"),
    *("up_to_seq", "up_to_time", "no_erase", "no_hdr", "pause_until", "stream_name", "config"),
)
_PULL = (
    *("batch", "expires", "max_bytes", "no_wait", "idle_heartbeat", "group", "min_pending"),
    *("min_ack_pending", "id", "priority"),
)


def pulls_and_acks(random: Random) -> Draft:
    """Of the consumers that are there, with any numbers and any words."""
    frames: list[bytes] = []
    for number in range(random.choice((1, 10))):
        stream, consumer = random.choice(wire.STREAMS).encode(), wire.CONSUMER.encode()
        frames.append(wire.pub(b"fuzz.%b.p" % stream, b"x"))
        body: Any = _object(random, _PULL)
        if random.random() < 0.3:
            body = random.choice((b"", b"5", b"-1", b"9" * 400, b"{", b"[]", b"\xff"))
        subject = b"$JS.API.CONSUMER.MSG.NEXT.%b.%b" % (stream, consumer)
        frames.append(wire.ask(subject, body, number))
        tokens = [b"%d" % random.choice((0, 1, 2, 5, 2**63, 2**64, 10**30)) for _ in range(5)]
        if random.random() < 0.3:
            tokens[random.randrange(5)] = random.choice((b"x", b"-1", b"*", b"1.2", b"\xff"))
        where = random.choice((b"", b"_.szMpdrwD.", b"domain.hash."))
        acked = b"$JS.ACK.%b%b.%b.%b" % (where, stream, consumer, b".".join(tokens))
        acks = (
            b"",
            b"+ACK",
            b"-NAK",
            b'-NAK {"delay": 1}',
            b'-NAK {"delay": "x"}',
            b"+WPI",
            b"+TERM",
        )
        acks += (
            b"+TERM why",
            b"+NXT",
            b"+NXT 5",
            b'+NXT {"batch": -1}',
            b"+XXX",
            b"\xff",
            b"-NAK {",
        )
        reply = random.choice((b"", wire.INBOX + b"9"))
        frames.append(wire.pub(acked, random.choice(acks), reply))
        frames.append(wire.pub(b"$JS.FC.%b.%b.x" % (stream, consumer), b""))
    frames.insert(0, wire.sub(wire.INBOX + b"*", b"inbox"))
    return Draft([*wire.opened(), *frames], polite=random.random() < 0.5)


def subscription_flood(random: Random) -> Draft:
    """To the limit, and over it."""
    count = random.choice((500, 3_000, 12_000))
    shape = random.choice((b"f.%d", b"f.*.%d", b"%d.>", b"f"))
    frames = [
        wire.sub(shape % number if b"%d" in shape else shape, b"%d" % number)
        for number in range(count)
    ]
    frames += [wire.pub(b"f.1", b"x")] * 20 + [
        wire.unsub(b"%d" % each) for each in range(0, count, 3)
    ]
    return survived(frames)


def fan_out(random: Random) -> Draft:
    """A few messages to thousands of subscriptions of one client."""
    count = random.choice((100, 2_000))
    queue = random.choice((b"", b"q"))
    frames = [wire.sub(b"fan.>", b"%d" % number, queue) for number in range(count)]
    frames += [wire.unsub(b"%d" % number, b"3") for number in range(0, count, 2)]
    return survived(frames + [wire.pub(b"fan.out", b"x" * 100)] * 20, echo=random.random() < 0.8)


def large_messages(random: Random) -> Draft:
    """Around the limit, into a stream and past it."""
    most = wire.PAYLOAD_BYTES_MAX
    sizes = [random.choice((most - 1, most, most // 2, 70_000)) for _ in range(3)]
    frames = [
        wire.pub(random.choice((b"fuzz.fuzz-2.large", b"large")), bytes(size)) for size in sizes
    ]
    return survived(frames)


def again(random: Random) -> Draft:
    """CONNECT comes again, with other options."""
    frames = session(random)
    for _ in range(random.choice((1, 3))):
        options = {
            "verbose": random.random() < 0.5,
            "pedantic": random.random() < 0.5,
            "headers": random.random() < 0.7,
            "user": random.choice(("guest", "nobody")),
        }
        frames.insert(random.randrange(len(frames) + 1), wire.connect(**options))
    return Draft(wire.opened() + frames, polite=True)


# --- how it is sent -------------------------------------------------------------------------------


def half_open(random: Random) -> Draft:
    """Nothing, or half a CONNECT, and then silence."""
    line = wire.connect()
    return Draft(
        [line[: random.choice((0, 1, len(line) - 1))]], hold_s=random.uniform(0.5, HOLD_S_MAX)
    )


def slow_loris(random: Random) -> Draft:
    return Draft(wire.opened() + session(random)[:2], pause_s=random.choice((0.001, 0.005)))


def never_reads(random: Random) -> Draft:
    """A subscriber to what it publishes, or who pulls, whose socket is full."""
    body = random.randbytes(50_000)
    if random.random() < 0.5:
        frames = [wire.sub(b"full.>", b"1"), *[wire.pub(b"full.a", body)] * 400]
    else:
        subject = b"$JS.API.CONSUMER.MSG.NEXT.fuzz-1.reader"
        frames = [wire.pub(b"fuzz.fuzz-1.full", body)] * 40
        frames += wire.asking()[1:] + [wire.ask(subject, {"batch": 100, "no_wait": True})] * 50
    return Draft(wire.opened() + frames, reads=False, hold_s=random.uniform(0.5, HOLD_S_MAX))


def sudden_end(random: Random) -> Draft:
    """Cut off anywhere, with much begun."""
    start = b"".join(wire.opened())
    data = start + b"".join(session(random) * 3)
    return Draft([data[: random.randrange(len(start), len(data) + 1)]])


KINDS: Kinds = {
    "random bytes": (4, random_bytes),
    "wrong start": (4, wrong_start),
    "connect options": (6, connect_options),
    "nkeys": (2, nkeys),
    "spoilt session": (24, spoilt),
    "wrong numbers": (8, wrong_numbers),
    "long lines": (4, long_lines),
    "odd subjects": (12, odd_subjects),
    "forbidden": (4, forbidden),
    "odd headers": (12, odd_headers),
    "api requests": (24, api_requests),
    "system requests": (4, system_requests),
    "pulls and acks": (12, pulls_and_acks),
    "subscription flood": (1, subscription_flood),
    "fan-out": (1, fan_out),
    "large messages": (2, large_messages),
    "connect again": (4, again),
    "half open": (3, half_open),
    "slow loris": (1, slow_loris),
    "never reads": (2, never_reads),
    "sudden end": (8, sudden_end),
}
