"""All checks of the chart by name, for the table and for pytest."""

from __future__ import annotations

from collections.abc import Callable

from tests.acceptance.ops.chart import assertions, linting
from tests.acceptance.ops.chart.rendering import Case, objects, render


def _schemas(case: Case, version: str) -> list[str]:
    text = render(values=case.values, kubernetes=version)
    return linting.against_schemas(text, version)


def _models(case: Case) -> list[str]:
    return linting.against_models(objects(case.name))[0]


Check = Callable[[Case], list[str]]

# The checks that take one case.
CHECKS: dict[str, Check] = {
    "lint": lambda case: linting.lint(case.values),
    **{
        f"k8s {version}": lambda case, version=version: _schemas(case, version)
        for version in linting.KUBERNETES
    },
    "CRDs": _models,
    "probes": lambda case: assertions.probes(objects(case.name)),
    "stop": lambda case: assertions.stop(objects(case.name)),
    "selectors": lambda case: assertions.selectors(objects(case.name)),
    "security": lambda case: assertions.security(objects(case.name)),
    "settings": lambda case: assertions.settings(objects(case.name)),
    "identity": lambda case: assertions.identity(objects(case.name)),
}
