"""While a disk of the cluster is nearly full no node confirms a publish, and settles go on: they
are what makes room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chaos.checker.verdict import Verdict, judge
from chaos.history import PUBLISHING, Op

_ENDS = ("settle", "discard", "ack")
#: Of so many settles within one alarm, by clients that are ever told of one, one must be confirmed.
SETTLES_MIN = 5


@dataclass
class _Alarm:
    """From when all nodes knew of it until there was room again."""

    begin: int
    end: int
    asked: set[int] = field(default_factory=set[int])  # invocations of publishes
    settling: set[int] = field(default_factory=set[int])
    settled: int = 0
    refused: int = 0


def low_disk(ops: Sequence[Op]) -> Verdict:
    """Of whole runs, by their `alarm` ops. What was asked for before an alarm may be confirmed in
    it, and what was asked for in it may be confirmed after it.
    """
    alarms: list[_Alarm] = []
    open_alarm: _Alarm | None = None
    answered = {op.process for op in ops if op.f in _ENDS and op.type == "ok"}
    confirmed: list[str] = []
    for op in ops:
        if op.f == "alarm":
            if op.value["on"]:
                open_alarm = _Alarm(op.index, op.index)
                alarms.append(open_alarm)
            elif open_alarm is not None:
                open_alarm.end, open_alarm = op.index, None
        elif open_alarm is None:
            continue
        elif op.type == "invoke":
            if _puts(op):
                open_alarm.asked.add(op.index)
            elif op.f in _ENDS and op.process in answered:
                open_alarm.settling.add(op.index)
        elif op.invoke in open_alarm.asked:
            if op.type == "ok":
                confirmed.append(f"op {op.index}: {op.f} of {op.process}")
            open_alarm.refused += op.type == "refused"
        elif op.type == "ok" and op.invoke in open_alarm.settling:
            open_alarm.settled += 1
    stuck = [
        f"ops {alarm.begin} to {alarm.end}: {len(alarm.settling)} settles, none confirmed"
        for alarm in alarms
        if not alarm.settled and len(alarm.settling) >= SETTLES_MIN
    ]
    return judge(
        "low-disk",
        {"confirmed without room": confirmed, "settles stuck": stuck},
        reported={
            "alarms": len(alarms),
            "publishes refused": sum(alarm.refused for alarm in alarms),
            "settled": sum(alarm.settled for alarm in alarms),
        },
    )


def _puts(op: Op) -> bool:
    return op.f in PUBLISHING and (op.f != "transaction" or bool(op.value["publishes"]))
