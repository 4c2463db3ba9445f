"""Every case of helm/quorate/ci through every check, and every check on a release with a flaw."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.ops.chart import assertions, linting, tools
from tests.acceptance.ops.chart.checks import CHECKS
from tests.acceptance.ops.chart.rendering import (
    Case,
    Object,
    cases,
    container,
    objects,
    of_kind,
    render,
    settings_files,
    stateful_set,
)

pytestmark = [pytest.mark.ops, pytest.mark.timeout(1200), pytest.mark.usefixtures("helm")]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
@pytest.mark.parametrize("check", list(CHECKS))
def test_a_case_passes_a_check(case: Case, check: str):
    try:
        wrong = CHECKS[check](case)
    except tools.ToolMissing as missing:
        pytest.skip(f"{check}: {missing}")

    assert wrong == []


def test_no_case_breaks_a_policy_that_it_does_not_name():
    try:
        found = linting.against_policies(
            {each.name: render(values=each.values) for each in cases()}
        )
    except tools.ToolMissing as missing:
        pytest.skip(f"policies: {missing}")

    assert {name: each.broken for name, each in found.items() if each.broken} == {}
    assert all(each.held > 50 for each in found.values()), "checkov looked at nothing"


def test_the_cases_cover_what_the_chart_can_make():
    kinds = {each["kind"] for case in cases() for each in objects(case.name)}

    assert kinds == {
        "Certificate",
        "ConfigMap",
        "CronJob",
        "Ingress",
        "Issuer",
        "Job",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "Pod",
        "PodDisruptionBudget",
        "PodMonitor",
        "PrometheusRule",
        "Secret",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
        "StatefulSet",
    }


Flaw = Callable[[list[Object]], Any]


def _pod(found: list[Object]) -> Object:
    return stateful_set(found)["spec"]["template"]


def _service(found: list[Object], number: int) -> Object:
    return of_kind(found, "Service")[number]["spec"]


def _settings(found: list[Object], old: str, new: str) -> None:
    files = settings_files(found)
    assert old in files["quorate.toml"]
    files["quorate.toml"] = files["quorate.toml"].replace(old, new)


FLAWS: list[tuple[str, Callable[[list[Object]], list[str]], Flaw]] = [
    ("no liveness", assertions.probes, lambda o: container(o).pop("livenessProbe")),
    (
        "readiness asks for quorum",
        assertions.probes,
        lambda o: container(o)["readinessProbe"]["httpGet"].update(path="/health/quorum-critical"),
    ),
    (
        "a start may take a minute",
        assertions.probes,
        lambda o: container(o)["startupProbe"].update(failureThreshold=6),
    ),
    (
        "short grace",
        assertions.stop,
        lambda o: _pod(o)["spec"].update(terminationGracePeriodSeconds=80),
    ),
    (
        "a label that no volume has",
        assertions.stop,
        lambda o: container(o)["lifecycle"]["preStop"]["exec"]["command"].__setitem__(
            -1, "/etc/quorate/skip"
        ),
    ),
    (
        "a service of nobody",
        assertions.selectors,
        lambda o: _service(o, 1)["selector"].update({"app.kubernetes.io/component": "x"}),
    ),
    (
        "a service of tests too",
        assertions.selectors,
        lambda o: _service(o, 1)["selector"].pop("app.kubernetes.io/component"),
    ),
    (
        "a token",
        assertions.security,
        lambda o: _pod(o)["spec"].update(automountServiceAccountToken=True),
    ),
    (
        "a capability",
        assertions.security,
        lambda o: container(o)["securityContext"]["capabilities"].update(add=["NET_ADMIN"]),
    ),
    ("a key that is none", assertions.settings, lambda o: _settings(o, "cluster =", "clutser =")),
    (
        "a secret that is not mounted",
        assertions.settings,
        lambda o: _settings(o, "secrets/cluster-secret", "secrets/secret"),
    ),
    ("another port", assertions.settings, lambda o: _settings(o, "0.0.0.0:5672", "0.0.0.0:5673")),
    (
        "one pod after the other",
        assertions.identity,
        lambda o: stateful_set(o)["spec"].update(podManagementPolicy="OrderedReady"),
    ),
    (
        "only ready nodes are found",
        assertions.identity,
        lambda o: _service(o, 0).update(publishNotReadyAddresses=False),
    ),
]


@pytest.mark.parametrize(("name", "check", "flaw"), FLAWS, ids=[name for name, _, _ in FLAWS])
def test_a_check_sees_a_flaw(name: str, check: Callable[[list[Object]], list[str]], flaw: Flaw):
    found = copy.deepcopy(objects("default"))
    assert check(found) == []

    flaw(found)

    assert check(found) != [], name


def test_schemas_and_models_see_a_flaw():
    text = render()
    assert linting.against_schemas(text.replace("podManagementPolicy", "podManagment"), "1.32")
    assert linting.against_schemas(text + "\n---\napiVersion: a/v1\nkind: Other\n", "1.32")
    found = copy.deepcopy(objects("monitoring"))
    del of_kind(found, "PodMonitor")[0]["spec"]["selector"]
    try:
        wrong, count = linting.against_models(found)
    except tools.ToolMissing as missing:
        pytest.skip(f"models: {missing}")
    assert (len(wrong), count) == (1, 3)
