"""`python -m tests.acceptance.ops.chart`: every case of the chart through every check; prints
tables.

Fails when any check does. What could not run is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.acceptance.ops.chart import linting, tools
from tests.acceptance.ops.chart.checks import CHECKS
from tests.acceptance.ops.chart.nonsense import NONSENSE, not_refused
from tests.acceptance.ops.chart.readme import stale
from tests.acceptance.ops.chart.rendering import RenderFailed, cases, render
from tests.acceptance.ops.chart.results import Outcome, Result, closing, console, judged, matrix


def _result(case: str, check: str, work: Callable[[], list[str]]) -> Result:
    try:
        return judged(case, check, work())
    except RenderFailed as failed:
        return Result(case, check, Outcome.FAILED, str(failed))
    except tools.ToolMissing as missing:
        return Result(case, check, Outcome.NOT_RUN, str(missing))


def _policies() -> list[Result]:
    texts = {each.name: render(values=each.values) for each in cases()}
    try:
        found = linting.against_policies(texts)
    except tools.ToolMissing as missing:
        return [Result(name, "policies", Outcome.NOT_RUN, str(missing)) for name in texts]
    return [judged(name, "policies", each.broken) for name, each in found.items()]


def main() -> int:
    out = console()
    try:
        helm = tools.helm()
    except tools.ToolMissing as missing:
        out.print(f"not run: helm is not there: {missing}", highlight=False)
        return 1
    out.print(f"helm {helm}", highlight=False)
    results = [
        _result(case.name, name, lambda case=case, check=check: check(case))
        for case in cases()
        for name, check in CHECKS.items()
    ]
    results += _policies()
    out.print(matrix(results, f"{len(cases())} cases"))
    refused = [
        _result(each.name, "refused", lambda each=each: not_refused(each)) for each in NONSENSE
    ]
    out.print(matrix(refused, f"{len(refused)} sets of values that make no sense"))
    files = [
        _result("files", "yamllint", linting.yaml_style),
        _result("files", "README.md", stale),
    ]
    out.print(matrix(files, "files"))
    return closing(out, [*results, *refused, *files])


if __name__ == "__main__":
    sys.exit(main())
