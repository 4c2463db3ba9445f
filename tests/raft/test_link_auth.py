"""The handshake of two nodes, frames in and frames out, no sockets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.raft.link_auth import (
    LINK_VERSIONS,
    LinkHandshake,
    LinkIdentity,
    LinkRefused,
    names_match,
)
from cluster.types import NodeId

SECRET = b"a cluster secret"


def shake(
    node: str,
    *,
    dialing: str | None = None,
    secret: bytes | None = SECRET,
    cluster: str = "c1",
    nonce: bytes | None = None,
    links: tuple[int, int] = LINK_VERSIONS,
    plain: bool = False,
) -> LinkHandshake:
    return LinkHandshake(
        LinkIdentity(NodeId(node), cluster, 7, links, f"machine=1-{links[1]}"),
        secret=secret,
        dialing=None if dialing is None else NodeId(dialing),
        admit=lambda _: None,
        nonce=nonce,
        plain=plain,
    )


def converse(dialer: LinkHandshake, acceptor: LinkHandshake) -> None:
    frames = dialer.start()
    receiver, sender = acceptor, dialer
    while frames:
        frames = [answer for frame in frames for answer in receiver.receive(frame)]
        receiver, sender = sender, receiver


def test_two_nodes_with_the_same_secret_prove_themselves() -> None:
    dialer, acceptor = shake("n1", dialing="n2"), shake("n2")
    converse(dialer, acceptor)
    assert dialer.done
    assert acceptor.done
    said = (LINK_VERSIONS, f"machine=1-{LINK_VERSIONS[1]}")
    assert dialer.peer == LinkIdentity(NodeId("n2"), "c1", 7, *said)
    assert acceptor.peer == LinkIdentity(NodeId("n1"), "c1", 7, *said)


@pytest.mark.parametrize(
    ("one", "other", "version"),
    [((1, 2), (1, 2), 2), ((1, 2), (2, 3), 2), ((1, 3), (1, 2), 2), ((2, 3), (3, 4), 3)],
)
def test_the_newest_version_that_both_speak_holds(
    one: tuple[int, int], other: tuple[int, int], version: int
) -> None:
    dialer, acceptor = shake("n1", dialing="n2", links=one), shake("n2", links=other)
    converse(dialer, acceptor)
    assert (dialer.done, acceptor.done) == (True, True)
    assert (dialer.version, acceptor.version) == (version, version)


def test_two_that_have_no_version_in_common_are_refused_in_words() -> None:
    dialer, acceptor = shake("n1", dialing="n2", links=(1, 2)), shake("n2", links=(3, 4))
    with pytest.raises(
        LinkRefused, match=r"versions 1 to 2 .* this node versions 3 to 4"
    ) as refused:
        converse(dialer, acceptor)
    assert refused.value.code == "protocol_version"


def test_the_first_release_is_answered_in_its_own_form_and_runs_what_it_ran() -> None:
    dialer, acceptor = shake("n1", dialing="n2", plain=True), shake("n2")
    assert len(dialer.start()[0]) == 7
    converse(dialer, acceptor)
    assert (dialer.done, acceptor.done) == (True, True)
    assert (dialer.version, acceptor.version) == (1, 1)
    assert acceptor.peer == LinkIdentity(NodeId("n1"), "c1", 7, (1, 1), "")


def test_who_no_longer_speaks_version_1_refuses_the_first_release() -> None:
    with pytest.raises(LinkRefused, match="version 1 of the link protocol, this node versions 2"):
        converse(shake("n1", dialing="n2", plain=True), shake("n2", links=(2, 3)))


def test_a_hello_that_says_more_than_we_know_is_understood() -> None:
    dialer, acceptor = shake("n1", dialing="n2"), shake("n2")
    (hello,) = dialer.start()
    (answer,) = acceptor.receive([*hello, {"of": "a later release"}])
    assert answer[:3] == [1, "quorate-link", 2]


def test_an_offer_that_was_changed_on_the_way_proves_nothing() -> None:
    dialer, acceptor = shake("n1", dialing="n2"), shake("n2")
    (hello,) = dialer.start()
    (answer,) = acceptor.receive([*hello[:3], [1, 1], *hello[4:]])
    (proof,) = dialer.receive(answer)
    with pytest.raises(LinkRefused) as refused:
        acceptor.receive(proof)
    assert refused.value.code == "wrong_secret"


@pytest.mark.parametrize(
    ("dialer", "acceptor", "code"),
    [
        (shake("n1", dialing="n2", secret=b"other"), shake("n2"), "wrong_secret"),
        (shake("n1", dialing="n2", secret=None), shake("n2"), "wrong_secret"),
        (shake("n1", dialing="n2"), shake("n2", secret=None), "wrong_secret"),
        (shake("n1", dialing="n2", cluster="c2"), shake("n2"), "other_cluster"),
        (shake("n1", dialing="n3"), shake("n2"), "other_node"),
        (shake("n2", dialing="n1"), shake("n2"), "own_node_id"),
    ],
)
def test_the_wrong_peer_is_refused_with_its_reason(
    dialer: LinkHandshake, acceptor: LinkHandshake, code: str
) -> None:
    with pytest.raises(LinkRefused) as refused:
        converse(dialer, acceptor)
    assert refused.value.code == code


def test_another_version_of_the_protocol_is_refused_before_anything_else_is_looked_at() -> None:
    with pytest.raises(LinkRefused) as refused:
        shake("n2").receive([1, "quorate-link", 99, {"fields": "of the future"}])
    assert refused.value.code == "protocol_version"


def test_a_proof_sent_back_to_its_author_proves_nothing() -> None:
    dialer = shake("n1", dialing="n2", nonce=b"x" * 32)
    (hello,) = dialer.start()
    mirrored = [*hello[:6], "n2", *hello[7:]]
    (proof,) = dialer.receive(mirrored)
    with pytest.raises(LinkRefused) as refused:
        dialer.receive(proof)
    assert refused.value.code == "wrong_secret"


def test_a_recorded_conversation_cannot_be_played_again() -> None:
    dialer, acceptor = shake("n1", dialing="n2"), shake("n2")
    (hello,) = dialer.start()
    (answer,) = acceptor.receive(hello)
    (proof,) = dialer.receive(answer)
    later = shake("n2")
    later.receive(hello)
    with pytest.raises(LinkRefused) as refused:
        later.receive(proof)
    assert refused.value.code == "wrong_secret"


def test_nothing_is_proven_before_the_proof() -> None:
    acceptor = shake("n2")
    acceptor.receive(shake("n1", dialing="n2").start()[0])
    assert not acceptor.done
    with pytest.raises(LinkRefused):
        acceptor.receive([[0, "a message"]])


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_other_frame_is_refused_and_nothing_worse(frame: Any) -> None:
    with pytest.raises(LinkRefused):
        shake("n2").receive(frame)


def test_a_certificate_is_for_the_names_in_it() -> None:
    certificate = {
        "subjectAltName": (("DNS", "n1"), ("DNS", "*.brokers.svc"), ("IP Address", "10.0.0.1"))
    }
    assert names_match(certificate, ["N1"])
    assert names_match(certificate, ["n9", "10.0.0.1"])
    assert names_match(certificate, ["n2.brokers.svc"])
    assert not names_match(certificate, ["n2", "a.n2.brokers.svc", "brokers.svc"])
    assert not names_match(None, ["n1"])
    assert not names_match({}, ["n1"])
