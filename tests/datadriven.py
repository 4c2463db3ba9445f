"""Tests as scripts that a person can read: input lines, `----`, what came out of them.

    # a comment
    publish orders a b
    settle orders bob 1
    ----
    enqueued 1-2
    ok 1

A blank line ends a case. With `--rewrite` what came out is written into the script; read the diff.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "----"


@dataclass
class Case:
    """Some input lines and the output they should have; `above` is comments and blank lines."""

    line: int
    above: list[str] = field(default_factory=list)
    input: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def parse(text: str) -> Iterator[Case]:
    case, in_output = Case(1), False
    for number, line in enumerate(text.splitlines(), 1):
        if in_output:
            if line.strip():
                case.expected.append(line)
                continue
            yield case
            case, in_output = Case(number), False
            case.above.append(line)
        elif line == SEPARATOR:
            in_output = True
        elif not line.strip() or line.startswith("#"):
            case.above.append(line)
        else:
            case.line = case.line if case.input else number
            case.input.append(line)
    yield case


def words(line: str) -> tuple[str, list[str], dict[str, str]]:
    """The command, its words and its `key=value` options."""
    command, *rest = shlex.split(line, comments=True)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return command, [word for word in rest if "=" not in word], options


def run_script(path: Path, run: Callable[[str], str], *, rewrite: bool) -> None:
    """Run every line of every case; compare, or rewrite the script."""
    out: list[str] = []
    for case in parse(path.read_text()):
        got = [line for given in case.input for line in run(given).splitlines() if line.strip()]
        if not rewrite:
            where = f"{path.name}:{case.line}: " + " / ".join(case.input)
            assert got == case.expected, where
        out += [*case.above, *case.input, *([SEPARATOR, *got] if case.input else [])]
    if rewrite:
        path.write_text("\n".join(out).rstrip() + "\n")
