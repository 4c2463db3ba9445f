"""What streams promise, from what their clients were told: see `chaos.load.streams` for the ops.

- what was acknowledged stays where it was said to be, once, and sequences have no gaps
- each consumer is handed everything that its filter takes, in order, each time with a place of its
  own and a greater count, and while somebody may still acknowledge it nobody else is
- what was acknowledged with an answer is never handed out to who asks afterwards
- registers that are compared and set are linearizable
- a mirror has what the other stream has, under the same sequences; of what a stream sources it has
  each message once, in order
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, Final

from chaos.checker.verdict import Checker, Verdict, judge
from chaos.history import Op

DONE: Final = ("+ACK", "+TERM")
#: Clocks of nodes do not run alike, and a new leader's begins where those of most are.
EARLY_S_MAX: Final = 1.0

Key = tuple[str, str]  # stream and body, or stream and consumer, or stream and subject


@dataclass(eq=False)
class _Seen:
    """A history, sorted."""

    streams: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    consumers: dict[Key, dict[str, Any]] = field(default_factory=dict[Key, dict[str, Any]])
    drained: set[Key] = field(default_factory=set[Key])
    #: By stream and body.
    attempts: dict[Key, list[Op]] = field(default_factory=dict[Key, list[Op]])
    stored: dict[Key, list[Op]] = field(default_factory=dict[Key, list[Op]])
    refused: Counter[Key] = field(default_factory=Counter[Key])
    handed: dict[Key, list[dict[str, Any]]] = field(default_factory=dict[Key, list[dict[str, Any]]])
    #: By stream and body, as read by the subject.
    read: dict[Key, set[int]] = field(default_factory=dict[Key, set[int]])
    #: By stream: (subject, body) by sequence.
    contents: dict[str, dict[int, tuple[str, str]]] = field(
        default_factory=dict[str, dict[int, tuple[str, str]]]
    )
    firsts: dict[str, int] = field(default_factory=dict[str, int])
    lasts: dict[str, int] = field(default_factory=dict[str, int])

    def keeps_all(self, stream: str) -> bool:
        about = self.streams[stream]
        return about["retention"] == "limits" and not about["each"]

    def sequences(self) -> Iterator[tuple[Key, int]]:
        """Where each message was ever said to be."""
        for key, ops in self.stored.items():
            for op in ops:
                yield key, op.value["sequence"]
        for (stream, _), rows in self.handed.items():
            for row in rows:
                yield (stream, row["body"]), row["sequence"]
        for stream, rows in self.contents.items():
            for sequence, (_, body) in rows.items():
                yield (stream, body), sequence
        for (stream, body), sequences in self.read.items():
            for sequence in sequences:
                yield (stream, body), sequence


def _seen(ops: Sequence[Op]) -> _Seen:
    seen = _Seen()
    for op in ops:
        value = op.value
        match op.f:
            case "stream":
                seen.streams[value["stream"]] = value
            case "consumer":
                seen.consumers[value["stream"], value["consumer"]] = value
            case "drained":
                seen.drained.add((value["stream"], value["consumer"]))
            case "put":
                key = value["stream"], value["body"]
                if op.type == "invoke":
                    seen.attempts.setdefault(key, []).append(op)
                elif op.type == "ok":
                    seen.stored.setdefault(key, []).append(op)
                elif op.type == "refused":
                    seen.refused[key] += 1
            case "handed":
                seen.handed.setdefault((value["stream"], value["consumer"]), []).append(value)
            case "read":
                if "body" in value:
                    key = value["stream"], value["body"]
                    seen.read.setdefault(key, set()).add(value["sequence"])
            case "content":
                stream = value["stream"]
                seen.contents[stream] = {row[0]: (row[1], row[2]) for row in value["rows"]}
                seen.firsts[stream], seen.lasts[stream] = value["first"], value["last"]
            case _:
                pass
    return seen


# --- what streams hold ----------------------------------------------------------------------------


def stream_contents(*, true_clocks: bool = True) -> Checker:
    """Without `true_clocks` nobody can tell for how long an id is remembered."""

    def check(ops: Sequence[Op]) -> Verdict:
        seen = _seen(ops)
        places: dict[Key, set[int]] = {}
        owners: dict[tuple[str, int], set[str]] = {}
        for (stream, body), sequence in seen.sequences():
            places.setdefault((stream, body), set()).add(sequence)
            owners.setdefault((stream, sequence), set()).add(body)
        judged = {
            key: found
            for key, found in places.items()
            if true_clocks or not _with_id(seen.attempts.get(key, ()))
        }
        new = {
            key: sum(not op.value["duplicate"] for op in ops_) for key, ops_ in seen.stored.items()
        }
        return judge(
            "contents",
            {
                "lost": list(_lost(seen)),
                "nobody put it there": [
                    f"{stream} {body}"
                    for stream, body in places
                    if (stream, body) not in seen.attempts
                ],
                "refused, yet stored": [
                    f"{stream} {body} at {sorted(found)}"
                    for (stream, body), found in judged.items()
                    if seen.refused[stream, body]
                    and seen.refused[stream, body] == len(seen.attempts.get((stream, body), ()))
                ],
                "stored twice": [
                    f"{stream} {body} at {sorted(found)}"
                    for (stream, body), found in judged.items()
                    if len(found) > 1
                ],
                "new twice": [
                    f"{stream} {body}"
                    for (stream, body), count in new.items()
                    if count > 1 and (stream, body) in judged
                ],
                "two under one sequence": [
                    f"{stream} {sequence}: {sorted(bodies)}"
                    for (stream, sequence), bodies in owners.items()
                    if len(bodies) > 1
                ],
                "gaps": list(_gaps(seen)),
            },
            undecided={
                "not read in the end": sorted(
                    {stream for stream, _ in seen.stored if stream not in seen.contents}
                )
            },
            reported={
                "stored": len(seen.stored),
                "duplicates": sum(
                    op.value["duplicate"] for each in seen.stored.values() for op in each
                ),
                "refused": seen.refused.total(),
                "held": sum(map(len, seen.contents.values())),
            },
        )

    return check


def _with_id(attempts: Sequence[Op]) -> bool:
    return any(op.value["id"] for op in attempts)


def _lost(seen: _Seen) -> Iterator[str]:
    latest: dict[Key, tuple[int, str]] = {}
    for stream, rows in seen.contents.items():
        for sequence, (subject, body) in rows.items():
            latest[stream, subject] = max(latest.get((stream, subject), (0, "")), (sequence, body))
    for (stream, body), ops in seen.stored.items():
        if stream not in seen.contents or seen.streams[stream]["retention"] != "limits":
            continue
        for op in ops:
            sequence, subject = op.value["sequence"], op.value["subject"]
            said = f"{stream} {subject} {body} (op {op.index}: {sequence})"
            found = seen.contents[stream].get(sequence)
            if found is None:
                last, _ = latest.get((stream, subject), (0, ""))
                if seen.keeps_all(stream) or last < sequence:
                    yield said
            elif found != (subject, body):
                yield f"{said}, but there is {found}"


def _gaps(seen: _Seen) -> Iterator[str]:
    for stream, rows in seen.contents.items():
        if seen.keeps_all(stream) and rows:
            missing = set(range(1, seen.lasts[stream] + 1)) - set(rows)
            if missing:
                yield f"{stream}: {sorted(missing)[:10]} of {seen.lasts[stream]}"


# --- what consumers are handed --------------------------------------------------------------------


def stream_deliveries(*, steady_clocks: bool = True) -> Checker:
    """Without `steady_clocks` nobody can tell how long a node waits for an acknowledgement."""
    return partial(_deliveries, steady_clocks)


def _deliveries(steady_clocks: bool, ops: Sequence[Op]) -> Verdict:
    seen = _seen(ops)
    anomalies: dict[str, list[str]] = {
        "one place twice": [],
        "the count does not grow": [],
        "out of order": [],
        "against the filter": [],
        "handed again, and it takes no acks": [],
        "never handed": [],
        "handed to two": list(_early(seen, ops)) if steady_clocks else [],
    }
    again = 0
    for (stream, name), rows in seen.handed.items():
        where, about = f"{stream} {name}", seen.consumers[stream, name]
        if about["policy"] == "none":  # see `Feed`: a new leader may send the last ones once more
            rows = list({(row["place"], row["sequence"]): row for row in rows}.values())
        places = Counter(row["place"] for row in rows)
        anomalies["one place twice"] += [
            f"{where}: place {place}" for place, count in places.items() if count > 1
        ]
        by_sequence: dict[int, list[dict[str, Any]]] = {}
        ordered = sorted(rows, key=lambda row: row["place"])
        for row in ordered:
            by_sequence.setdefault(row["sequence"], []).append(row)
        again += len(rows) - len(by_sequence)
        for sequence, each in by_sequence.items():
            if len(each) > 1 and about["policy"] == "none":
                anomalies["handed again, and it takes no acks"].append(f"{where}: {sequence}")
            counts = [row["count"] for row in each]
            if any(after <= before for before, after in pairwise(counts)):
                anomalies["the count does not grow"].append(f"{where}: {sequence}: {counts}")
        first = [row["sequence"] for row in ordered if row["count"] == 1]
        anomalies["out of order"] += [
            f"{where}: {after} after {before}"
            for before, after in pairwise(first)
            if after < before
        ]
        anomalies["against the filter"] += [
            f"{where}: {row['subject']}"
            for row in rows
            if not matches(about["filter"], row["subject"])
        ]
    handed = _handed(seen)
    for (stream, body), stored in seen.stored.items():
        subject, sequence = stored[0].value["subject"], stored[0].value["sequence"]
        for (of, name), about in seen.consumers.items():
            if of != stream or about["policy"] != "explicit" or (of, name) not in seen.drained:
                continue
            if matches(about["filter"], subject) and (of, name, sequence) not in handed:
                anomalies["never handed"].append(f"{stream} {name}: {sequence} {body}")
    return judge(
        "deliveries",
        anomalies,
        undecided={
            "not drained": [
                f"{stream} {name}"
                for (stream, name), about in seen.consumers.items()
                if about["policy"] == "explicit" and (stream, name) not in seen.drained
            ]
        },
        reported={"handed": sum(map(len, seen.handed.values())), "again": again},
    )


def _early(seen: _Seen, ops: Sequence[Op]) -> Iterator[str]:
    """Handed out again before the time was over that who has it has to acknowledge it, which began
    after he had asked. What somebody gave back himself may come at any time. So may what an
    acknowledgement of a later message would mean too: a new leader does not know what the one
    before has sent, and hands out all of it first.
    """
    asked_ns = {op.index: op.monotonic_ns for op in ops if op.f == "pull"}
    given_back = {_one(op) for op in ops if op.f == "ack" and op.value["word"] == "-NAK"}
    handed: dict[tuple[str, str, int], list[Op]] = {}
    for op in ops:
        if op.f == "handed" and seen.consumers[_one(op)[:2]]["policy"] == "explicit":
            handed.setdefault(_one(op), []).append(op)
    for one, each in handed.items():
        if one in given_back:
            continue
        wait_s = seen.consumers[one[:2]]["ack_wait_s"]
        for before, after in pairwise(sorted(each, key=lambda op: op.value["place"])):
            passed_s = (after.monotonic_ns - asked_ns[before.value["pull"]]) / 1e9
            if passed_s < wait_s - EARLY_S_MAX:
                yield (
                    f"{' '.join(map(str, one))}: to {before.process}, and {passed_s:.2f} s after"
                    f" that asked to {after.process} (op {after.index})"
                )


def _one(op: Op) -> tuple[str, str, int]:
    return op.value["stream"], op.value["consumer"], op.value["sequence"]


def matches(pattern: str, subject: str) -> bool:
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(words) <= len(wanted):
            return False
        words = words[: len(wanted)]
    return len(wanted) == len(words) and all(
        one in ("*", other) for one, other in zip(wanted, words, strict=True)
    )


# --- acknowledgements -----------------------------------------------------------------------------


def stream_acks(ops: Sequence[Op]) -> Verdict:
    """Who asks after an acknowledgement was answered is not handed that message any more."""
    done: dict[tuple[str, str, int], int] = {}  # the op that said so first
    up_to: dict[Key, list[tuple[int, int]]] = {}  # (op, sequence), both growing
    answered = 0
    wrong: list[str] = []
    left: list[str] = []
    queues = {
        op.value["stream"]
        for op in ops
        if op.f == "stream" and op.value["retention"] == "workqueue"
    }
    for op in ops:
        value = op.value
        if op.f == "ack" and op.type == "ok" and value["word"] in DONE:
            answered += 1
            consumer = value["stream"], value["consumer"]
            done.setdefault((*consumer, value["sequence"]), op.index)
            if value["all"]:
                marks = up_to.setdefault(consumer, [])
                if not marks or marks[-1][1] < value["sequence"]:
                    marks.append((op.index, value["sequence"]))
        elif op.f == "handed":
            consumer = value["stream"], value["consumer"]
            by = done.get((*consumer, value["sequence"]), op.index)
            for index, sequence in up_to.get(consumer, ()):
                if value["sequence"] <= sequence:
                    by = min(by, index)
                    break
            if by < value["pull"]:
                wrong.append(
                    f"{' '.join(consumer)}: {value['sequence']}, acknowledged by op {by}, asked"
                    f" for by op {value['pull']}, handed by op {op.index}"
                )
        elif op.f == "content" and value["stream"] in queues:
            gone = {sequence for stream, _, sequence in done if stream == value["stream"]}
            left += [f"{value['stream']} {row[0]}" for row in value["rows"] if row[0] in gone]
    return judge(
        "acks",
        {"handed after it was acknowledged": wrong, "still in the work queue": left},
        reported={"answered": answered},
    )


# --- registers ------------------------------------------------------------------------------------


def stream_registers(*, true_clocks: bool = True) -> Checker:
    """Each subject of a stream that keeps one message of each is a register, whose versions are
    sequences. As these grow, an order of all ops is known: that of the versions, the write before
    those who see it. It must contradict neither what was compared nor who ended before who began.
    """

    def check(ops: Sequence[Op]) -> Verdict:
        registers = {op.value["stream"] for op in ops if op.f == "stream" and op.value["each"] == 1}
        by_subject: dict[Key, list[Op]] = {}
        for op in ops:
            if op.f in ("put", "read") and op.value["stream"] in registers:
                by_subject.setdefault((op.value["stream"], op.value["subject"]), []).append(op)
        anomalies: dict[str, list[str]] = {
            "another was there": [],
            "refused, and it was the last": [],
            "out of thin air": [],
            "seen too late": [],
        }
        sets = looks = 0
        for mine in by_subject.values():
            made = [op for op in mine if op.f == "put" and op.type == "ok"]
            sets += len(made)
            looks += sum(op.f == "read" and op.type == "ok" for op in mine)
            _compare(mine, made, anomalies)
            if true_clocks:
                _explain(mine, made, anomalies["out of thin air"])
            _order(mine, anomalies["seen too late"])
        return judge("registers", anomalies, reported={"sets": sets, "reads": looks})

    return check


def _version(op: Op) -> int | None:
    """That this outcome saw or made."""
    if op.type == "ok":
        return op.value["sequence"]
    return op.value.get("found") if op.type == "refused" else None


def _compare(mine: Sequence[Op], made: Sequence[Op], anomalies: dict[str, list[str]]) -> None:
    versions = sorted({version for op in mine if (version := _version(op))})
    for op in made:
        expected, sequence = op.value["expected"], op.value["sequence"]
        between = [version for version in versions if expected < version < sequence]
        if between or sequence <= expected:
            anomalies["another was there"].append(
                f"op {op.index} set {op.value['subject']} from {expected} to {sequence}, but"
                f" there were {between[:5]}"
            )
    anomalies["refused, and it was the last"] += [
        f"op {op.index}: {op.value['subject']} {op.value['expected']}"
        for op in mine
        if op.type == "refused" and op.value["expected"] == op.value.get("found")
    ]


def _explain(mine: Sequence[Op], made: Sequence[Op], wrong: list[str]) -> None:
    known = {op.value["sequence"] for op in made}
    strange = {version for op in mine if (version := _version(op))} - known
    ended = {op.invoke for op in mine if op.type in ("ok", "refused")}
    unknown = sum(op.f == "put" and op.type == "invoke" and op.index not in ended for op in mine)
    if len(strange) > unknown:
        wrong.append(f"{mine[0].value['subject']}: {sorted(strange)[:8]} by {unknown} puts")


def _order(mine: Sequence[Op], wrong: list[str]) -> None:
    """Who begins after another has ended comes after it."""
    latest = 0  # twice the version, and one more for who only saw it
    known: dict[int, int] = {}  # what was known when each began
    for op in mine:
        if op.type == "invoke":
            known[op.index] = latest
            continue
        version = _version(op)
        if version is None or op.invoke is None:
            continue
        place = 2 * version + (op.f == "read" or op.type == "refused")
        if place < known[op.invoke]:
            wrong.append(
                f"op {op.index} ({op.f} {op.type}) of {op.value['subject']} is at version"
                f" {version}; before it began, {known[op.invoke] // 2} was there"
            )
        latest = max(latest, place)


# --- streams that follow others ------------------------------------------------------------------


def stream_copies(ops: Sequence[Op]) -> Verdict:
    """What they had when they waited for nothing more."""
    contents = {op.value["stream"]: op.value["rows"] for op in ops if op.f == "content"}
    anomalies: dict[str, list[str]] = {"mirrored otherwise": [], "sourced otherwise": []}
    unread: list[str] = []
    taken = 0
    for op in ops:
        if op.f != "copy":
            continue
        value = op.value
        name, rows = value["stream"], value["rows"]
        taken += len(rows)
        if value["of"] not in contents:
            unread.append(f"{name}: {value['of']}")
            continue
        theirs = contents[value["of"]]
        if not value["filters"]:
            anomalies["mirrored otherwise"] += _otherwise(name, theirs, rows)
        for each in value["filters"]:
            wanted, found = (
                [row[1:] for row in some if matches(each, row[1])] for some in (theirs, rows)
            )
            anomalies["sourced otherwise"] += _otherwise(f"{name} {each}", wanted, found)
    return judge(
        "copies",
        anomalies,
        undecided={"not read in the end": unread},
        reported={"taken": taken},
    )


def _otherwise(name: str, wanted: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """The first place where they differ."""
    for place, (one, other) in enumerate(zip_longest(wanted, found)):
        if one != other:
            return [f"{name}: {other} in the place of {one}, number {place} of {len(wanted)}"]
    return []


def _handed(seen: _Seen) -> set[tuple[str, str, int]]:
    return {
        (stream, name, row["sequence"])
        for (stream, name), rows in seen.handed.items()
        for row in rows
    }
