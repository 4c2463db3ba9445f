"""All tables and their columns: the one place that says what each holds.

Times that end in `_ns` are nanoseconds since 1970 by the wall clock of the node that wrote the
record, as in the log; durations that end in `_ns` are by its monotonic clock. Times that end in
`_ms` are the leader's stamps, which every replica saw alike. `group` is the number of a Raft group,
`index` and `term` are Raft's. In which order a node wrote its segments is worked out in
`replication/order.py`: in an archive numbers may begin again, and clocks are set back.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

_WHERE = (
    "cluster string, node string, file string, segment bigint, created_ns bigint, offset bigint"
)

#: Every record of every segment, as the data source `raftlog` yields them. Of a record that cannot
#: be read (kind `corrupt`, or `torn`: the end that a crash may leave) group is -1, the times are
#: those of the record before, and `detail` says why. Of other records without a command `detail`
#: is the payload as JSON. `command` is what was given to the journal: a byte for the type, then
#: the entry.
RECORDS: Final = (
    f"{_WHERE}, boot string, kind string, group int, index bigint, term bigint, wall_ns bigint,"
    " mono_ns bigint, bytes int, hash binary, command binary, detail string"
)

TABLES: Final[dict[str, str]] = {
    "records": RECORDS,
    # --- what was read
    # source: log | archive. copy: the same segment was given twice, this one is only checked.
    # status: sound | torn | corrupt | empty. `last`: may have a torn end.
    "segments": (
        "cluster string, node string, file string, segment bigint, created_ns bigint, boot string,"
        " bytes bigint, source string, copy boolean, last boolean, status string, records bigint,"
        " entries bigint, first_ns bigint, last_ns bigint"
    ),
    # Files of which nothing was read. foreign: a segment of another node than the others beside it.
    "unread": (
        "cluster string, node string, file string, bytes bigint, foreign boolean, reason string"
    ),
    # kind: bad record | broken chain | missing segment | missing entries | lost end | bad snapshot
    "corruption": (
        "cluster string, node string, file string, segment bigint, offset bigint, group int,"
        " first bigint, last bigint, kind string, reason string, at_ns bigint"
    ),
    # Records of the rare kinds, which many tables are made of: terms, roles, links, rounds, clocks.
    "notes": (
        f"{_WHERE}, boot string, kind string, group int, index bigint, term bigint, wall_ns bigint,"
        " mono_ns bigint, detail string"
    ),
    # By second of a boot's monotonic clock, where there are records: the first and the last one,
    # and between which bounds the wall clock was ahead of the monotonic one.
    "beats": (
        "cluster string, node string, boot string, file string, segment bigint, created_ns bigint,"
        " second bigint, records bigint, first_ns bigint, last_ns bigint, first_offset bigint,"
        " last_offset bigint, ahead_min_ns bigint, ahead_max_ns bigint"
    ),
    # One life of a node's process, and its last record. ended: orderly | killed | open (it still
    # runs, as far as is known)
    "lives": (
        "cluster string, node string, boot string, life int, from_ns bigint, to_ns bigint,"
        " ended string, file string, offset bigint"
    ),
    # --- replication
    # kind: entry | live-entry | installed-entry. type: command | noop | membership.
    # outcome: committed | pending | voided, as this node's log says. commit_ns, sync_ns: from its
    # append until the log says so; null when it does not.
    "entries": (
        f"{_WHERE}, kind string, group int, index bigint, term bigint, hash binary, type string,"
        " bytes int, wall_ns bigint, mono_ns bigint, outcome string, commit_ns bigint,"
        " sync_ns bigint"
    ),
    # Each committed index once, as most nodes have it: how many, and a bit for each by its name.
    "merged": (
        "group int, index bigint, term bigint, hash binary, nodes int, holders bigint, at_ns bigint"
    ),
    # Nodes of the cluster, as far as any log speaks of them. groups: of which it is a member, by
    # their newest word; member: of the cluster, as far as is known; said_by: whose logs name it.
    "members": (
        "node string, given boolean, member boolean, groups array<int>, said_by array<string>"
    ),
    # What Raft, and a disk that keeps what it was given, never let happen. code: of the finding.
    "breaches": (
        "code string, group int, node string, term bigint, first bigint, last bigint, at_ns bigint,"
        " file string, offset bigint, count bigint, detail string"
    ),
    # Same index, another entry. committed: on two nodes differently, which must not be.
    "divergence": (
        "group int, index bigint, committed boolean, copies array<struct<node: string, term:"
        " bigint, hash: string, outcome: string, file: string, offset: bigint>>"
    ),
    # All that logs lack; explained: segments are gone that may have held it.
    "lacks": (f"{_WHERE}, group int, first bigint, last bigint, reason string, explained boolean"),
    # Committed entries that a node's log once had, or said to have, and has no more.
    "missing": (
        "group int, node string, first bigint, last bigint, file string, offset bigint,"
        " reason string"
    ),
    # One candidacy that got a vote, or won. leader: null when nobody is known to have won.
    # cause: what became of the leader before. first (of the group) | killed | silent | stepped
    # down | handed over | stopped (in order, it or so many others that it could not lead) |
    # unknown; of a candidacy that came to nothing: contested. without_leader_ms: by the clocks
    # corrected
    "elections": (
        "group int, term bigint, candidate string, at_ns bigint, voters array<struct<node: string,"
        " at_ns: bigint, file: string, offset: bigint>>, leader string, led_ns bigint, cause"
        " string, before string, without_leader_ms double, file string, offset bigint"
    ),
    # A leader's time, until it says that it leads no more, its life ends, or another one leads.
    # ended: handed over | stopped | killed | stepped down | deposed (another one led) | open
    "leaders": (
        "group int, term bigint, leader string, from_ns bigint, to_ns bigint, ended string,"
        " file string, offset bigint"
    ),
    # minute_ns: begin of the minute. Quantiles in ms.
    "commit_latency": (
        "node string, group int, minute_ns bigint, leads boolean, entries bigint, bytes bigint,"
        " sync_p50 double, sync_p99 double, sync_max double, commit_p50 double, commit_p95 double,"
        " commit_p99 double, commit_max double"
    ),
    # What nodes noted of their syncs, about once a second.
    "syncs": (
        "node string, at_ns bigint, records bigint, bytes bigint, syncs bigint, longest_ms double,"
        " file string, offset bigint"
    ),
    # By second: how far a follower's log is behind what is committed. down: its process or its copy
    # is not there. here_ms: for how long both are; null: from the beginning.
    "lag": (
        "node string, group int, at_ns bigint, leader string, committed bigint, index bigint,"
        " lag_entries bigint, lag_ms double, down boolean, here_ms double"
    ),
    "snapshots": (
        "node string, group int, index bigint, term bigint, at_ns bigint, installed boolean,"
        " file string, offset bigint"
    ),
    # --- time
    # A node that noted nothing for a while, though it was up and heard others, or that says so
    # itself. A slow disk is none: notes are timed when they are made. syncing: one sync was under
    # way all the time. cause: process (none of its threads ran) | loop (others of its threads ran)
    # | machine (its monotonic clock stood still too) | unknown. The first record behind it.
    "standstills": (
        "node string, boot string, from_ns bigint, to_ns bigint, ms double, syncing boolean,"
        " cause string, file string, offset bigint"
    ),
    # links: what a node heard of another. event: up | down | gone
    "links": ("node string, peer string, at_ns bigint, event string, file string, offset bigint"),
    # How far the clock of `peer` is ahead of that of `node`, from the quickest sample of the minute
    "clocks": (
        "node string, peer string, minute_ns bigint, offset_ms double, bound_ms double,"
        " samples bigint"
    ),
    # What to add to times of a node in that minute to compare them with those of others; minute_ns
    # null: in minutes without a measurement.
    "shifts": "node string, minute_ns bigint, shift_ns bigint",
    # The wall clock against the monotonic one, between two records of one life.
    "clock_jumps": ("node string, file string, offset bigint, at_ns bigint, jump_ms double"),
    # --- what the replay says: see cluster/history/group_replay.py. A row is about the positions
    # `first` to `last` of a queue; (index, ordinal, step) is their order within a group. event:
    #   published  entry, entry_offset: where the body of `first` lies; the bodies of the others
    #              follow it there. publisher, seqno (of `first`) when there are any
    #   letter     as published: a dead letter of another queue of this group; reason: of its death
    #   known      as published: was in the state that the replay began with; consumer and token
    #              when it was unsettled there
    #   duplicate, refused   not stored; first and last are sequence numbers then
    #   delivered, got       consumer, session, token, acquired (times before), failed, entry
    #   settled    consumer; reason `auto`: by its delivery
    #              (of a stream no consumer, and reason `acked`: by all who wanted it, so it left)
    #   handed, acked        a message of a stream to one of its consumers, and by it; it stays.
    #              consumer, session: its name; acquired (times before)
    #   returned   consumer; failed: 1 when it counts as a failed delivery;
    #              reason: asked | ended | unsent (it never left, and is not counted)
    #   died       reason: rejected | expired | maxlen | delivery_limit; goes: on as a dead letter
    #   moved      a dead letter that was carried to another group
    #   purged, deleted      left with the others
    #   withdrawn  taken out while it waited: cancelled, or moved to another queue
    #   active     the single active consumer from this token on; consumer null: nobody
    #   subscribed, consumer_ended (reason), queue_created, queue_deleted; no positions
    #   digest     reason: of the replayed state after this entry; no queue
    #   replayed   the end of a span (ordinal): first and last entry; entry, token, seqno: how many
    #              entries, commands, messages; reason: why it ended before its time; no queue
    # at_ms of `known` is when it was stored; `index` is that of the state. Who numbers nothing has
    # `duplicate` and `refused` counted from 1 in the batch, and no seqno; entry and entry_offset
    # say which bodies are meant.
    "events": (
        "group int, index bigint, term bigint, ordinal int, step int, at_ms bigint, event string,"
        " queue bigint, vhost string, name string, first bigint, last bigint, entry bigint,"
        " entry_offset int, consumer bigint, session string, token bigint, acquired int,"
        " failed int, publisher string, seqno bigint, reason string, goes boolean, sac boolean"
    ),
    # The replay's own state against what nodes noted (source: digest | snapshot).
    "states": (
        "group int, index bigint, node string, source string, noted string, replayed string,"
        " agrees boolean, file string, offset bigint"
    ),
    # What was replayed: from which state on, and why it ended where it did.
    "replays": (
        "group int, span int, base bigint, base_file string, first bigint, last bigint, node"
        " string, entries bigint, commands bigint, messages bigint, failed string"
    ),
    # --- messages
    # outcome: settled | died (reason) | purged | withdrawn | deleted; when the log ends: ready |
    # unsettled.
    # message: GROUP-ENTRY-OFFSET; only a dead letter has that of the message that it was. Counts
    # are of what the log shows; of a message that was there before, the first delivery may be
    # unknown.
    # last_index: of the entry that delivered it last; held_ms: how long that consumer had it; null:
    # has it still. broken: codes of the findings that it shows, most often none.
    "messages": (
        "group int, queue bigint, vhost string, name string, position bigint, message string,"
        " entry bigint, entry_offset int, publisher string, seqno bigint, published_ms bigint,"
        " confirm_ms double, deliveries int, redeliveries int, first_delivered_ms bigint,"
        " last_delivered_ms bigint, last_consumer bigint, last_index bigint, held_ms bigint,"
        " returns int, failed int, outcome string, outcome_ms bigint, reason string,"
        " broken array<string>"
    ),
    # kind: confirm | deliver | settle; by minute of the publish, in ms
    "latency": (
        "group int, queue bigint, vhost string, name string, kind string, minute_ms bigint,"
        " messages bigint, p50 double, p95 double, p99 double, longest double"
    ),
    # What came in (dead letters too), was handed out, and left, by second.
    "throughput": (
        "group int, queue bigint, vhost string, name string, second_ms bigint, published bigint,"
        " delivered bigint, redelivered bigint, settled bigint, returned bigint, dead bigint"
    ),
    # What consumers hold at the end of the log (oldest_ms: when the oldest was delivered;
    # oldest_entry: by which entry), and the longest that each ever held one message: how long, what
    # one, and the entry that delivered it.
    "unacked": (
        "group int, queue bigint, vhost string, name string, consumer bigint, session string,"
        " held bigint, oldest_ms bigint, oldest_position bigint, oldest_entry bigint, longest_ms"
        " bigint, longest_position bigint, longest_entry bigint"
    ),
    # By queue and minute in which something was delivered. messages, consumers: that were delivered
    # again, and that got them; entry: of the first such delivery.
    "redelivery": (
        "group int, queue bigint, vhost string, name string, minute_ms bigint, delivered bigint,"
        " redelivered bigint, messages bigint, consumers bigint, entry bigint"
    ),
    # Single active consumer: who was active between which tokens.
    "sac": (
        "group int, queue bigint, vhost string, name string, consumer bigint, session string,"
        " token bigint, from_ms bigint, to_ms bigint, until_token bigint, entry bigint"
    ),
    # --- what clients say, where there is a history of theirs
    "client_findings": (
        "checker string, kind string, queue string, message string, op bigint, at_ms bigint,"
        " detail string"
    ),
    # --- the answer
    "findings": (
        "code string, severity string, title string, group int, queue string, first bigint,"
        " last bigint, term bigint, node string, file string, offset bigint, message string,"
        " from_ns bigint, to_ns bigint, count bigint, detail string"
    ),
}

_ARROW: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.string()),
}


def arrow_schema(columns: str) -> pa.Schema:
    """Of columns as Spark is told them, for those who make rows of them without Spark."""
    named = (column.split() for column in re.split(", *", columns))
    return pa.schema([(name, _ARROW[kind]) for name, kind in named])
