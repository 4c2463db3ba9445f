"""The trie of subjects against a matcher that is slow and obvious."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.types import NodeId
from node.messages.subjects import is_literal, is_subject
from node.protocols.nats.interest import (
    Interest,
    Remote,
    Subscription,
    Taker,
    Trie,
)
from node.protocols.nats.reader import Publish

tokens = st.sampled_from([b"a", b"b", b"ab", b"*", b""])
wanted = st.lists(tokens.filter(bool), min_size=1, max_size=4).flatmap(
    lambda found: st.sampled_from([b".".join(found), b".".join([*found[:-1], b">"])])
)
published = st.lists(tokens, min_size=1, max_size=5).map(b".".join)


def matches(pattern: list[bytes], subject: list[bytes]) -> bool:
    """As one would explain it."""
    if pattern == [b">"]:
        return len(subject) > 0
    if not pattern or not subject:
        return not pattern and not subject
    return pattern[0] in {b"*", subject[0]} and matches(pattern[1:], subject[1:])


@given(
    st.lists(st.tuples(st.booleans(), wanted, st.integers(0, 2)), max_size=30),
    st.lists(published, min_size=1, max_size=10),
)
def test_a_message_finds_those_that_want_it(
    steps: list[tuple[bool, bytes, int]], subjects: list[bytes]
):
    trie = Trie[int]()
    there: set[tuple[bytes, int]] = set()
    for comes, pattern, item in steps:
        if comes:
            trie.add(pattern, item)
            there.add((pattern, item))
        else:
            trie.remove(pattern, item)
            there.discard((pattern, item))
        for subject in subjects:
            split = subject.split(b".")
            found = [item for pattern, item in there if matches(pattern.split(b"."), split)]
            assert sorted(trie.find(subject)) == ([] if b"" in split else sorted(found))
    for pattern, item in there:
        trie.remove(pattern, item)

    assert trie.empty


def test_subjects_have_no_empty_tokens_and_wildcards_where_they_may_be():
    for subject in (b"a", b"a.b", b"*", b">", b"a.*.b", b"*.>", b"a*", b"a>", b"$SYS.x"):
        assert is_subject(subject)
    for subject in (b"", b".", b"a.", b".a", b"a..b", b">.a", b"a.>.b"):
        assert not is_subject(subject)
        assert not is_literal(subject)
    for subject in (b"a.*", b"a.>", b"*", b">"):
        assert not is_literal(subject)
    for subject in (b"a", b"a.b*", b"a>"):
        assert is_literal(subject)


class Nobody:
    """Takes everything."""

    def deliver(
        self, subscription: Subscription, message: Publish, payloads: list[bytes], by: Taker | None
    ) -> list[bytes]:
        return []


def subscription(subject: bytes, queue: bytes = b"") -> Subscription:
    return Subscription(Nobody(), b"1", subject, queue)


N1, N2 = NodeId("n1"), NodeId("n2")


def test_a_match_says_who_and_which_nodes_and_which_groups():
    interest = Interest()
    one, two, of_group = subscription(b"a.b"), subscription(b"a.*"), subscription(b"a.>", b"g")
    for each in (one, two, of_group):
        interest.add(each.subject, each)
    for subject, remote in (
        (b"a.b", Remote(N1, b"")),
        (b"a.>", Remote(N1, b"")),
        (b"*.b", Remote(N2, b"g")),
        (b"a.b", Remote(N2, b"g")),
        (b"a.b", Remote(N1, b"h")),
        (b"b.b", Remote(N2, b"")),
    ):
        interest.add(subject, remote)

    match = interest.match(b"a.b")

    assert sorted(each.subject for each in match.plain) == [b"a.*", b"a.b"]
    assert match.nodes == [N1]
    assert {name: (g.members, g.nodes) for name, g in match.groups.items()} == {
        b"g": ([of_group], [N2]),
        b"h": ([], [N1]),
    }


def test_what_is_remembered_follows_who_comes_and_goes():
    interest = Interest()
    literal, wild = subscription(b"a.b"), subscription(b"a.*")
    assert interest.match(b"a.b").plain == []

    interest.add(b"a.b", literal)
    assert interest.match(b"a.b").plain == [literal]
    interest.add(b"a.*", wild)
    assert len(interest.match(b"a.b").plain) == 2
    interest.remove(b"a.b", literal)
    assert interest.match(b"a.b").plain == [wild]
    interest.remove(b"a.*", wild)
    assert interest.match(b"a.b").plain == []
    assert interest.empty


@given(st.lists(wanted, max_size=30), st.lists(tokens.filter(bool), min_size=1, max_size=4))
def test_subjects_that_differ_in_their_last_token_are_looked_up_once(
    subjects: list[bytes], start: list[bytes]
):
    trie = Trie[bytes]()
    for subject in subjects:
        trie.add(subject, subject)
    literal = [b"a" if token == b"*" else token for token in start]

    found = trie.find_alike(b".".join(literal))

    named = [
        each
        for each in (subject.split(b".") for subject in subjects)
        if len(each) > len(literal)
        and each[len(literal)] not in {b"*", b">"}
        and matches(each[: len(literal)], literal)
    ]
    if found is None:
        assert named
    else:
        assert not named
        assert sorted(found) == sorted(trie.find(b".".join([*literal, b"zzz"])))


@given(st.lists(wanted, max_size=5))
def test_what_may_begin_with_a_token_is_known(subjects: list[bytes]):
    trie = Trie[bytes]()
    for subject in subjects:
        trie.add(subject, subject)

    firsts = {subject.split(b".")[0] for subject in subjects}
    assert trie.begins(b"a") == bool(firsts & {b"a", b"*", b">"})
