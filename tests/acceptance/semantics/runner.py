"""Finds the checks, visits a broker with each, and keeps what came of it."""

from __future__ import annotations

import ast
import fnmatch
import inspect
import pkgutil
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from _pytest.assertion.rewrite import rewrite_asserts

from tests.acceptance import semantics
from tests.acceptance.semantics.brokers import NEEDS, Broker
from tests.acceptance.semantics.differences import DESIGN_DIFFERENCES, NOT_VISIBLE
from tests.acceptance.semantics.visit import Visit

ROW = re.compile(r"([abc]\d\d)_")
OK, DIFFERS, FAILED, NOT_RUN = "ok", "differs", "failed", "not run"
NOTE_LENGTH_MAX = 300

Check = Callable[[Visit], None]


@dataclass(frozen=True)
class Result:
    """What one check found at one broker."""

    id: str
    name: str
    shows: str
    result: str
    note: str = ""
    seconds: float = 0.0


def needs(*what: str) -> Callable[[Check], Check]:
    """Marks a check that runs only where the broker offers all of these."""
    assert set(what) <= set(NEEDS)

    def marked(check: Check) -> Check:
        check.needs = what  # type: ignore[attr-defined]
        return check

    return marked


def checks() -> list[Check]:
    """All checks, in the order of their rows."""
    found: dict[str, Check] = {}
    for module in pkgutil.iter_modules(semantics.__path__):
        if not module.name.endswith("_checks"):
            continue
        for name, value in _load(module.name).items():
            if ROW.match(name) and inspect.isfunction(value):
                assert name not in found, f"two checks are named {name}"
                assert value.__doc__, f"{name} does not say what it shows"
                found[name] = value
    return [found[name] for name in sorted(found)]


def row_of(check: Check) -> str:
    match = ROW.match(check.__name__)
    assert match is not None
    return match[1].upper()


def lacks(check: Check, broker: Broker) -> list[str]:
    """What the check needs and the broker does not offer."""
    return [need for need in getattr(check, "needs", ()) if need not in broker.offers]


def chosen(everything: Iterable[Check], only: str | None) -> list[Check]:
    """Those whose row or name matches one of the patterns: "A27,B0*"."""
    patterns = [part.strip().lower() for part in only.split(",")] if only else ["*"]
    return [
        check
        for check in everything
        if any(
            fnmatch.fnmatch(word, pattern)
            for word in (row_of(check).lower(), check.__name__)
            for pattern in patterns
        )
    ]


def visit(check: Check, broker: Broker) -> None:
    """Run one check and clean up after it. Raises what the check raises."""
    stay = Visit(broker, row_of(check))
    try:
        check(stay)
    finally:
        stay.leave()


def run(check: Check, broker: Broker) -> Result:
    row, shows = row_of(check), inspect.getdoc(check) or ""

    def result(kind: str, note: str = "") -> Result:
        seconds = round(time.monotonic() - begin_s, 3)
        return Result(row, check.__name__, shows, kind, note[:NOTE_LENGTH_MAX], seconds)

    begin_s = time.monotonic()
    if missing := lacks(check, broker):
        return result(NOT_RUN, "needs " + " and ".join(NEEDS[need] for need in missing))
    try:
        visit(check, broker)
    except AssertionError as error:
        # Below the first line pytest tells where each value came from.
        found = str(error).split("\n")[0] or _where(error)
    except Exception as error:  # noqa: BLE001 - the other checks go on, and the table says so
        found = f"{type(error).__name__}: {error}; {_where(error)}"
    else:
        return result(OK)
    if row in DESIGN_DIFFERENCES and not broker.is_quorate:
        return result(DIFFERS, found)
    return result(FAILED, found)


def run_all(only: str | None, broker: Broker) -> Iterator[Result]:
    for check in chosen(checks(), only):
        yield run(check, broker)


def not_visible(only: str | None) -> list[Result]:
    """The rows for which there is nothing to check from outside, with the reason."""
    found: list[Result] = []
    for row, (shows, reason) in NOT_VISIBLE.items():
        patterns = only.upper().split(",") if only else ["*"]
        if any(fnmatch.fnmatch(row, pattern.strip()) for pattern in patterns):
            found.append(Result(row, row.lower(), shows, NOT_RUN, f"not client-visible: {reason}"))
    return found


def as_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    return [asdict(each) for each in results]


def _load(name: str) -> dict[str, Any]:
    """What a module of checks defines; its asserts tell what they compared, as in a test."""
    path = Path(semantics.__path__[0]) / f"{name}.py"
    source = path.read_bytes()
    tree = ast.parse(source)
    rewrite_asserts(tree, source)
    module = ModuleType(f"tests.acceptance.semantics.{name}")
    exec(compile(tree, path, "exec"), vars(module))
    return vars(module)


def _where(error: BaseException) -> str:
    """The line of the check that raised."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith("_checks.py")
    ]
    return f"at `{frames[-1].line}`" if frames else ""
