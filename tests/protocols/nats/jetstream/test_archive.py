"""The bytes of a stream's backup: whatever is cut or changed in them is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.codec.cbor import pack
from node.protocols.nats.jetstream import archive
from node.protocols.nats.jetstream.archive import (
    ArchiveReader,
    BadArchive,
    ConsumerState,
    End,
    Frame,
    Head,
    Ids,
    Message,
)

HEADER = b"NATS/1.0\r\na: b\r\n\r\n"
MESSAGES = [
    Message(3, 1_000, b"orders.new", b"", b"x" * 100),
    Message(7, 1_001, b"", HEADER, b""),
]
CONSUMER = ConsumerState(
    {"name": "c"}, 8, (9, 7, 1_000), (2, 3, 1_001), [(7, 7, 0, 3)], [(1, 1)], [(2, 2), (5, 6)]
)
END = End(9, 1_002, 2, [CONSUMER], "last")
IDS = Ids([("id", 3, 1_000), ("last", 7, 1_001)])
WHOLE = (
    archive.head_of("S") + archive.messages_of(MESSAGES) + archive.ids_of(IDS) + archive.end_of(END)
)


def read(data: bytes, size: int) -> tuple[list[Frame], ArchiveReader]:
    reader = ArchiveReader()
    found: list[Frame] = []
    for at in range(0, len(data), size):
        found += reader.feed(data[at : at + size])
    return found, reader


@given(st.integers(1, len(WHOLE)))
def test_it_is_read_however_it_is_cut(size: int):
    found, reader = read(WHOLE, size)

    assert found == [Head("S"), MESSAGES, IDS, END]
    assert not reader.is_cut


@given(st.integers(1, len(WHOLE) - 1))
def test_what_is_missing_is_seen(size: int):
    found, reader = read(WHOLE[:size], 64)

    assert reader.is_cut or END not in found


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_a_byte_that_changed_is_seen(at: int, change: int):
    data = bytearray(WHOLE)
    data[at] ^= change
    try:
        found, reader = read(bytes(data), 64)
    except BadArchive:
        return
    assert reader.is_cut or found[-1:] != [END]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"PK\x03\x04 something else", "no backup of a stream"),
        (archive.IDENTIFIERS[0] + b"\x00\x10\x00\x00" + bytes(16), "nats-server made"),
        (archive.IDENTIFIERS[0] + b"\x80\x08\x00\x00quorate2", "a later release"),
        (archive.IDENTIFIERS[0] + archive._chunk(["head", 3, "S"]), "a later release"),
        (archive.IDENTIFIERS[0] + archive._chunk(["other"]), "none that is known"),
        (archive.IDENTIFIERS[0] + archive._chunk({"a": 1}), "malformed"),
        (archive.IDENTIFIERS[0] + archive._chunk(["messages", [[1, 1, b"a.*", b"", b""]]]), "mal"),
        (archive.IDENTIFIERS[0] + archive._chunk(["messages", [[1, 1, b"a", b"x", b""]]]), "mal"),
        (archive.IDENTIFIERS[0] + archive._chunk(["end", 1, 1, 0, [["c"]]]), "malformed"),
        (archive.IDENTIFIERS[0] + archive._chunk(["end", 1, 1, 0, [], 7]), "malformed"),
        (archive.IDENTIFIERS[0] + archive._chunk(["ids", [["a", 1, "2"]]]), "malformed"),
    ],
)
def test_what_is_none_is_refused_in_words(data: bytes, why: str):
    with pytest.raises(BadArchive, match=why):
        read(data, 1_000)


def test_a_backup_of_form_1_is_read():
    """Each was delivered once, as far as it tells."""
    config = {"name": "c"}
    consumers = [[config, 3, 7, 2, [[4, 4], [6, 7]], False], [config, 0, 4, 9, [], True]]
    data = archive.IDENTIFIERS[0] + archive._chunk(["head", 1, "S"])
    found, _ = read(data + archive._chunk(["end", 9, 1_002, 0, consumers]), 1_000)

    held = [(4, 4, 0, 1), (6, 7, 0, 1)]
    first = ConsumerState(config, 8, (7, 7, 0), (3, 3, 0), held, (), ())
    second = ConsumerState(config, 0, (4, 4, 0), (0, 0, 0), [], (), ())
    assert found == [Head("S"), End(9, 1_002, 0, [first, second])]


def test_a_frame_that_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    large = archive._chunk(["messages", [[1, 1, b"a", b"", bytes(1 << 20)]]])
    assert len(large) < 1 << 14 < len(pack(bytes(1 << 20)))
    monkeypatch.setattr(archive, "FRAME_BYTES_MAX", 1 << 19)
    with pytest.raises(BadArchive, match="a frame has more"):
        read(archive.IDENTIFIERS[0] + large, 1_000)
    with pytest.raises(BadArchive, match="larger than"):
        archive.messages_of([Message(1, 1, b"a", b"", bytes(1 << 20))])
