"""The messages of Raft between two members of a group, and which of them must wait for the disk.

A message is `[group, kind, term, ...]`, plain data that CBOR can hold. The kinds in `AT_ONCE`
promise nothing about the disk and leave before the iteration's fsync. All others (acknowledgements,
rejections, votes and requests for them, READMIT) must be true after a power cut: they wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# term, prev_index, prev_term, commit, [[data, term], ...] | None: commit only, no answer wanted
APPEND = "ae"
APPENDED = (
    "ao"  # term, match[, False]: my log is yours up to here, and on disk; False: do not count it
)
REJECTED = "an"  # term, prev_index, hint_index, hint_term (0: my log is too short)
PRE_VOTE = "pv"  # term asked for, last_index, last_term
PRE_VOTED = "pr"  # own term, term asked for, granted (None: yes, by a disk that does not count)
VOTE = "rv"  # term, last_index, last_term
VOTED = "vr"  # term, granted (None: as above)
TIMEOUT_NOW = "tn"  # term
INSTALL = "si"  # term, snapshot index, number, part
DIGEST = "dg"  # term, index, digest of the leader's state after it
DIGESTED = "dd"  # term, index, digest of the follower's state after it
JUDGED = "dj"  # term, index, the digest that holds: yours, or the leader's, is another
READMIT = "tr"  # term, index: with the entry there, you vote again
INSTALLED = "sa"  # term, snapshot index, number of the part received; -1: start again

#: Kinds that promise nothing about the disk.
AT_ONCE = frozenset(
    {APPEND, DIGEST, DIGESTED, JUDGED, INSTALL, INSTALLED, PRE_VOTE, PRE_VOTED, TIMEOUT_NOW}
)

Message = list[Any]

#: Stands in the place of a group in what is said between two nodes.
NODE_LEVEL = -1
#: What the groups of a node have in common to say to another: `[-1, kind, [[group, ...], ...]]`.
#: Of each group its term, last index, last term and commit index: an APPEND without entries...
BEATS = "beats"
#: ...and its term and last index: the APPENDED for it, of those that need not wait for the disk.
BEATS_ANSWERED = "beats_answered"
#: The version of the link from which on they are understood.
BEATS_SINCE = 3


def singles(kind: str, joined: Sequence[list[Any]]) -> list[Message]:
    """The messages, each of one group, for which a joined one stands."""
    if kind == BEATS:
        return [
            [group, APPEND, term, last, last_term, commit, []]
            for group, term, last, last_term, commit, *_ in joined
        ]
    return [[group, APPENDED, term, last] for group, term, last, *_ in joined]
