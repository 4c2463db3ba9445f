"""What can be found: how bad it is, the rule in one sentence, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["violation", "unreadable", "warning"]

#: Exit status of the command; the worst finding decides, in this order.
EXITS: Final[dict[str, int]] = {"violation": 5, "unreadable": 3, "warning": 1}
CLEAN: Final = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of anomaly."""

    code: str
    severity: Severity
    title: str
    rule: str
    advice: str


_DAMAGED = (
    "Keep the files. Rebuild the node from its peers: stop it, move its data folder away, start it"
    " with an empty one (docs/members.md). Then look at its disk."
)
_BUG = "Keep the folders of all nodes and report it: no fault of the surroundings explains this."

RULES: Final[dict[str, Rule]] = {
    rule.code: rule
    for rule in (
        Rule(
            "divergence",
            "violation",
            "Committed entries differ",
            "Two nodes committed different entries at one index of a group.",
            _BUG + " Messages may be lost or doubled from that index on.",
        ),
        Rule(
            "two_leaders",
            "violation",
            "Two leaders in one term",
            "Two nodes said that they lead a group in the same term.",
            _BUG,
        ),
        Rule(
            "missing_entry",
            "violation",
            "A committed entry is gone",
            "A node's log had a committed entry, or said so, and has it no more.",
            "Was the folder restored from an older copy, or a disk that lies about fsync? "
            + _DAMAGED,
        ),
        Rule(
            "minority_commit",
            "violation",
            "Committed without a majority",
            "A majority of a group's members lack an entry that another one takes for committed.",
            _BUG + " What was confirmed with it may be lost.",
        ),
        Rule(
            "vote_twice",
            "violation",
            "Two votes in one term",
            "A node voted for two candidates of a group in the same term.",
            "Was its folder restored from an older copy, or a disk that lies about fsync? " + _BUG,
        ),
        Rule(
            "unelected_leader",
            "violation",
            "A leader without a majority",
            "A node led a term in which, as the others' logs show, no majority had voted for it.",
            _BUG,
        ),
        Rule(
            "term_back",
            "violation",
            "A term went back",
            "A node was in a later term of a group before, by its own log.",
            _BUG,
        ),
        Rule(
            "commit_back",
            "violation",
            "A commit went back",
            "A node had said before that more entries of a group are committed.",
            _BUG,
        ),
        Rule(
            "needless_truncation",
            "violation",
            "Entries cut off without a conflict",
            "A node cut entries off its log that were the same when they came again.",
            _BUG + " In between it lacked what it may have acknowledged.",
        ),
        Rule(
            "folder_rolled_back",
            "violation",
            "A folder was replaced by an older copy",
            "Other nodes heard a start of this one that its own log does not know.",
            "Never copy a data folder back: rebuild the node from its peers, with an empty one"
            " (docs/members.md). If what was given of it was copied before the others': copy it"
            " again.",
        ),
        Rule(
            "state_mismatch",
            "violation",
            "A replica's state is not what the log implies",
            "The digest that a node noted differs from that of the replayed log.",
            "Was the replay done with the release that was running? If it was: " + _BUG,
        ),
        Rule(
            "settled_again",
            "violation",
            "Settled, then delivered again",
            "A message was delivered after its settlement had been accepted.",
            _BUG,
        ),
        Rule(
            "unflagged_duplicate",
            "violation",
            "Delivered twice without the flag",
            "A message was delivered again and not marked as redelivered.",
            _BUG,
        ),
        Rule(
            "sac_overlap",
            "violation",
            "Two active consumers",
            "A queue with a single active consumer gave messages to one that was not the active"
            " one, or took an old token after it had given out a newer one.",
            _BUG + " Have stores refuse tokens older than the newest they have seen.",
        ),
        Rule(
            "lost_message",
            "violation",
            "A confirmed message never came",
            "A client was told that a message is safe, the queue was drained, and it never came.",
            _BUG,
        ),
        Rule(
            "client_anomaly",
            "violation",
            "Clients saw what must not be",
            "The history of the clients breaks a promise: doubled, out of order, or settled twice.",
            _BUG,
        ),
        Rule(
            "corrupt_segment",
            "unreadable",
            "A file is damaged",
            "A record, or the chain of hashes, is not what was written.",
            _DAMAGED,
        ),
        Rule(
            "archive_gap",
            "unreadable",
            "Segments or entries are missing",
            "What was given does not hold all that the nodes wrote.",
            "Give the missing files too, or another node's archive; what nobody has cannot be"
            " judged.",
        ),
        Rule(
            "member_not_given",
            "unreadable",
            "A node's log was not given",
            "Logs that were given name a member of the cluster of which there is no segment.",
            "Give its folder or its archive too: what only it has cannot be judged.",
        ),
        Rule(
            "foreign_segment",
            "unreadable",
            "A segment of another node",
            "In the folder of one node lies a segment that another node wrote. It was not read.",
            "Put it back to its own node's segments; a node does not start with it in its folder.",
        ),
        Rule(
            "unread_file",
            "unreadable",
            "A file was not read",
            "Beside segments, or called nearly like one, is a file that is none or cannot be read.",
            "Unpack it if it is a packed log, let it be read, or move away what is none.",
        ),
        Rule(
            "not_replayed",
            "unreadable",
            "Not all was replayed",
            "Entries of a group could not be replayed: what they led to is not known.",
            "Give what is missing too: another node's folder, or its archive with the snapshots in"
            " it. Replay with the release that was running; of running nodes, take copies first.",
        ),
        Rule(
            "leader_lost",
            "warning",
            "A leader was lost",
            "A group's leader ended or fell silent without handing over, and another was elected.",
            "If it was not planned, find out why that node ended: its own log, the kernel's"
            " (out of memory), the orchestrator's.",
        ),
        Rule(
            "flapping_leader",
            "warning",
            "Leadership flaps",
            "A group changed its leader again and again without anybody asking for it.",
            "Look at links and pauses at these times; give nodes more CPU, or a longer election"
            " timeout.",
        ),
        Rule(
            "process_stood_still",
            "warning",
            "A process stood still",
            "A node that was up did nothing for a while: its process, or its event loop, was held.",
            "Stopped, starved of CPU, or its machine was paused: look at the host, its limits and"
            " its hypervisor at this time. Its disk is not to blame for it.",
        ),
        Rule(
            "slow_sync",
            "warning",
            "A slow disk",
            "One fsync took long.",
            "Confirms wait for the disk: look at what else writes to it; use faster storage.",
        ),
        Rule(
            "slow_disk",
            "warning",
            "A disk slower than its peers",
            "For minutes the fsyncs of a node took many times as long as those of its peers.",
            "A disk that fails, or that others write to: compare the hosts, replace it before it"
            " holds up a leader.",
        ),
        Rule(
            "lagging_replica",
            "warning",
            "A replica lagged",
            "A follower that was up was far behind what the group had committed.",
            "While it lags, losing one more node stops the group: look at its CPU, disk and link.",
        ),
        Rule(
            "clock_jump",
            "warning",
            "A clock jumped",
            "A node's wall clock moved against its monotonic clock.",
            "Have time corrected slowly (chrony without makestep). TTLs and delays follow the"
            " clocks of a majority, so they moved only if most of them jumped.",
        ),
        Rule(
            "clock_offset",
            "warning",
            "Clocks disagree",
            "The clocks of two nodes differ by more than the error of the measurement explains.",
            "Synchronise them: TTLs and delays move with every change of leader otherwise, by up"
            " to raft.clock_offset_ms_max; a clock further off is not stamped with.",
        ),
        Rule(
            "stuck_unacked",
            "warning",
            "Stuck with a consumer",
            "A delivery is neither settled nor returned for long.",
            "The consumer hangs or has forgotten it: look at it, or cancel it; then it is"
            " delivered to another one.",
        ),
        Rule(
            "late_settle",
            "warning",
            "Nearly too late",
            "A consumer settled a delivery shortly before it would have been taken for stuck.",
            "With a little more load it is over its consumer timeout, and gets all again: make it"
            " quicker, let it extend its lease, or raise the timeout.",
        ),
        Rule(
            "redelivery_storm",
            "warning",
            "Redelivery storm",
            "Within a minute most deliveries of a queue were repetitions.",
            "A consumer returns what it gets at once: give the queue a delivery limit with a"
            " dead-letter exchange, or delayed retries.",
        ),
        Rule(
            "poison_message",
            "warning",
            "A poison message",
            "One message failed again and again.",
            "Look at it (`quorate message`), fix the consumer; set a delivery limit and a"
            " dead-letter exchange so that it leaves.",
        ),
        Rule(
            "dead_letter_loop",
            "warning",
            "A dead-letter loop",
            "One message died in the same queue again and again, and came back as a dead letter.",
            "Its dead-letter exchange leads back to where it died: have consumers give up after"
            " some deaths (header `x-death`), or end the way in a queue that nobody rejects from.",
        ),
    )
}

#: Rules that judge what a replay says.
OF_REPLAY: Final = (
    "state_mismatch",
    "settled_again",
    "unflagged_duplicate",
    "sac_overlap",
    "stuck_unacked",
    "late_settle",
    "redelivery_storm",
    "poison_message",
    "dead_letter_loop",
)


def exit_status(severities: set[str]) -> int:
    """The worst one's."""
    return next((status for each, status in EXITS.items() if each in severities), CLEAN)
