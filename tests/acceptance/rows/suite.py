"""Checks of what clients see, row by row: found, run at a server, and what came of each."""

from __future__ import annotations

import ast
import fnmatch
import inspect
import pkgutil
import re
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from _pytest.assertion.rewrite import rewrite_asserts

OK, DIFFERS, FAILED, NOT_RUN = "ok", "differs", "failed", "not run"
NOTE_LENGTH_MAX = 300


class ServerError(Exception):
    """A server cannot be used; the text says why."""


class Server(Protocol):
    """What checks visit."""

    offers: frozenset[str]

    @property
    def product(self) -> str: ...
    @property
    def is_quorate(self) -> bool: ...

    def start(self) -> None:
        """Or see that it is there. Raises ServerError."""
        ...

    def end(self) -> None:
        """Stop what we started."""
        ...


class Stay(Protocol):
    """What one check does at a server."""

    #: What the server answered and is worth telling.
    heard: list[str]

    def leave(self) -> None:
        """Leave all as it was."""
        ...


#: Gets a `Stay` of its suite's own kind.
Check = Callable[[Any], None]


@dataclass(frozen=True)
class Result:
    """What one check found at one server."""

    id: str
    name: str
    shows: str
    result: str
    note: str = ""
    seconds: float = 0.0


def needs(*what: str) -> Callable[[Check], Check]:
    """Marks a check that runs only where the server offers all of these."""

    def marked(check: Check) -> Check:
        check.needs = what  # type: ignore[attr-defined]
        return check

    return marked


@dataclass(frozen=True)
class Suite:
    """All rows that one package checks: functions of its `*_checks.py`, named after their row."""

    package: ModuleType
    row: re.Pattern[str]  # how the names of checks begin; its group is the row
    needs: Mapping[str, str]  # what checks may need of a server, as it is told to people
    #: Row, or name of a check -> why ours is otherwise on purpose. Such a check may fail at another
    #: server; at Quorate it may not.
    differences: Mapping[str, str]
    not_checked: Mapping[str, tuple[str, str]]  # row -> (what it says, why there is no check)
    stay: Callable[[Any, str], Stay]  # at a server, for a row

    def checks(self) -> list[Check]:
        """In the order of their rows."""
        found: dict[str, Check] = {}
        for module in pkgutil.iter_modules(self.package.__path__):
            if not module.name.endswith("_checks"):
                continue
            for name, value in _load(self.package, module.name).items():
                if self.row.match(name) and inspect.isfunction(value):
                    assert name not in found, f"two checks are named {name}"
                    assert value.__doc__, f"{name} does not say what it shows"
                    assert set(getattr(value, "needs", ())) <= set(self.needs), name
                    found[name] = value
        return [found[name] for name in sorted(found)]

    def row_of(self, check: Check) -> str:
        match = self.row.match(check.__name__)
        assert match is not None
        return match[1].upper()

    def chosen(self, only: str | None) -> list[Check]:
        """Those whose row or name matches one of the patterns: "A27,B0*"."""
        return [
            check
            for check in self.checks()
            if _matches(self.row_of(check), only) or _matches(check.__name__, only)
        ]

    def lacks(self, check: Check, server: Server) -> list[str]:
        """What the check needs and the server does not offer, as it is told to people."""
        wanted: tuple[str, ...] = getattr(check, "needs", ())
        return [self.needs[need] for need in wanted if need not in server.offers]

    def visit(self, check: Check, server: Server) -> list[str]:
        """Run one check and clean up after it. Answers what was heard; raises what it raises."""
        stay = self.stay(server, self.row_of(check))
        try:
            check(stay)
        finally:
            stay.leave()
        return stay.heard

    def run(self, check: Check, server: Server) -> Result:
        row, shows = self.row_of(check), inspect.getdoc(check) or ""

        def result(kind: str, note: str = "") -> Result:
            seconds = round(time.monotonic() - begin_s, 3)
            return Result(row, check.__name__, shows, kind, note[:NOTE_LENGTH_MAX], seconds)

        begin_s = time.monotonic()
        if missing := self.lacks(check, server):
            return result(NOT_RUN, "needs " + " and ".join(missing))
        try:
            heard = self.visit(check, server)
        except AssertionError as error:
            # Below the first line pytest tells where each value came from.
            found = str(error).split("\n")[0] or _where(error)
        except Exception as error:  # noqa: BLE001 - the other checks go on, and the table says so
            found = f"{type(error).__name__}: {error}; {_where(error)}"
        else:
            return result(OK, "; ".join(dict.fromkeys(heard)))
        if self.reason(row, check.__name__) and not server.is_quorate:
            return result(DIFFERS, found)
        return result(FAILED, found)

    def reason(self, row: str, name: str) -> str | None:
        """Why a check may come out otherwise elsewhere."""
        return self.differences.get(name) or self.differences.get(row)

    def skipped(self, only: str | None) -> list[Result]:
        """The rows for which there is no check, with the reason."""
        return [
            Result(row, row.lower(), shows, NOT_RUN, reason)
            for row, (shows, reason) in self.not_checked.items()
            if _matches(row, only)
        ]


def as_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    return [asdict(each) for each in results]


def _matches(word: str, only: str | None) -> bool:
    patterns = only.lower().split(",") if only else ["*"]
    return any(fnmatch.fnmatch(word.lower(), pattern.strip()) for pattern in patterns)


def _load(package: ModuleType, name: str) -> dict[str, Any]:
    """What a module of checks defines; its asserts tell what they compared, as in a test."""
    path = Path(package.__path__[0]) / f"{name}.py"
    source = path.read_bytes()
    tree = ast.parse(source)
    rewrite_asserts(tree, source)
    module = ModuleType(f"{package.__name__}.{name}")
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
