"""Versions: what a release can read and write, and from when on a replica behaves differently.

Every replica of a group must compute the same state from the same log, whichever release runs it.
So a change of what `apply` does, or of what a snapshot or a digest holds, takes effect only from
the machine version that brought it. A group begins with version 1 and rises by the command
`UpgradeMachine`, which its leader proposes once every member can run the new version. Code asks
`context.version` (in `apply`) or `machine.version` and keeps the older behaviour for older
versions, since logs that hold them are replayed for as long as they exist. Also a command at which
`apply` raised is such behaviour: every replica skipped it, so what mends that takes effect from a
new machine version on.

| version | since   | what it changed |
|---------|---------|-----------------|
| 1       | 0.1     | everything before versions were negotiated |
| 2       | 0.2     | the first negotiated version; each use of `context.version` says for what |
| 3       | 0.3     | room kept for transactions, changes of the catalog as one, sums in digests |
|         |         | and in the log's hash chain |
| 4       | 0.3     | streams |
| 5       | 0.3     | of streams: atomic batches, priority groups, transforms, republish, |
|         |         | mirrors and sources, counters, schedules, resets, reasons; |
|         |         | what nobody acknowledges is held until it was sent, |
|         |         | what was sent to nobody is taken back, and known if it perhaps was; |
|         |         | changes of consumers leave the rest of their settings, |
|         |         | and hold for what was delivered; clients' own markers have none; |
|         |         | a delay holds also for what waits already, |
|         |         | of which each -NAK is told; |
|         |         | by interest what a consumer was delivered too often stays; |
|         |         | a rollup is taken where its subject is full; |
|         |         | they wait for the sequence with which they begin; |
|         |         | parameters say who put them |
|         |         | of users: nkeys; of queues: messages are withdrawn, retimed, |
|         |         | fetched by position, and end no cycle of dead letters when they are |
|         |         | brought back; message groups; |
|         |         | federation: exchanges that others read from, policies with patterns; |
|         |         | ids that every queue takes once; eras of logs: numbers skip what was |
|         |         | lost, the catalog knows who survived, and gives no id again; |
|         |         | settings that are older than those a queue has change nothing; |
|         |         | a deleted queue is not made again while the catalog has it; |
|         |         | what a stream would refuse refuses the whole transaction; |
|         |         | room is kept until the group that decides says that it is over; |
|         |         | dead letters for a full stream wait, and are not refused; |
|         |         | those that cannot go are put off, and others pass them; |
|         |         | a queue stays split over all shards that are there; |
|         |         | policies for streams |

A node says at every start what it can run, in the catalog: see `declared`. The text stands among
its addresses, which releases before 0.2 keep and copy without looking at them; so replicas of such
a release hold the same catalog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

#: The newest version that this release runs; it runs every older one, too.
MACHINE_VERSION: Final = 5

#: From when on exchanges of type `x-federation-upstream` and policies by a pattern are known.
FEDERATION_SINCE: Final = 5

#: From when on policies can be for streams alone, and have all of RabbitMQ's keys for them.
STREAM_POLICIES_SINCE: Final = 5

#: From when on states know the era of their log, which a recovery or a restore begins.
ERAS_SINCE: Final = 5

#: From when on who does not acknowledge holds messages of interest until they are sent.
SENT_SINCE: Final = 5

#: From when on what a consumer of a stream was delivered follows a change of its settings.
FOLLOWS_SINCE: Final = 5

#: From when on a consumer may say of what waits to be delivered again that it shall wait longer;
#: what it says of that is told.
MOVES_SINCE: Final = 5

#: From when on a consumer of a stream may begin at a sequence that is yet to come.
AHEAD_SINCE: Final = 5

#: From when on a stream by interest keeps what a consumer was delivered too often.
EXHAUSTED_STAY_SINCE: Final = 5

#: From when on a rollup is taken where its subject has as many messages as it may have.
ROLLUPS_FIT_SINCE: Final = 5

#: From when on ids of messages outlive a purge of the whole stream.
IDS_STAY_SINCE: Final = 5

#: From when on a purge below a sequence that is yet to come makes that the next one.
PURGES_AHEAD_SINCE: Final = 5

#: From when on a stream knows which of its clients' messages are markers.
MARKERS_SINCE: Final = 5

#: From when on a queue knows as of which moment of the catalog it has its settings.
AS_OF_SINCE: Final = 5

#: From when on a group fences the ids of queues that the catalog still has.
FENCES_SINCE: Final = 5

#: From when on a queue is asked for all by which it may refuse a message before a transaction is
#: decided, and a stream refuses none of it then.
ASKS_ALL_SINCE: Final = 5

#: From when on room is kept until the group that decides has said what became of the transaction.
RESOLVES_SINCE: Final = 5

#: From when on a stream takes what other queues bring it in order, when there is room.
CARRIED_SINCE: Final = 5

#: From when on a queue stays split over all of its shards that are there.
SPLITS_SINCE: Final = 5

#: The key of the text among a node's addresses.
VERSIONS: Final = "versions"
#: Releases that do not say what they can run are older than versions are.
BEFORE_VERSIONS: Final = 1

_RANGE = re.compile(r"([a-z]+)=(\d{1,9})-(\d{1,9})", re.ASCII)


class NeedsNewer(Exception):
    """What a later release wrote, and this one cannot use: it must not apply any of it."""

    def __init__(self, what: str, needed: int | None, newest: int) -> None:
        version = "a later version" if needed is None else f"machine version {needed}"
        super().__init__(
            f"{what} needs {version}, and this release runs {newest} at most: start the release"
            " that wrote it, or a later one; nothing is lost"
        )
        self.needed = needed


def declared(ranges: Mapping[str, tuple[int, int]]) -> str:
    """What a release can run as text: for each kind of version the oldest and the newest."""
    return " ".join(f"{kind}={first}-{last}" for kind, (first, last) in ranges.items())


def understood(text: str) -> dict[str, tuple[int, int]]:
    """The other way; words of a later release are passed over."""
    matches = (_RANGE.fullmatch(word) for word in text.split())
    return {m[1]: (int(m[2]), int(m[3])) for m in matches if m is not None}


def newest_machine(text: str) -> int:
    """The newest machine version that a node with this text runs."""
    return understood(text).get("machine", (1, BEFORE_VERSIONS))[1]
