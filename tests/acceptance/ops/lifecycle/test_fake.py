"""The pretending server refuses what Kubernetes refuses, and helm's whole life cycle runs on it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.acceptance.ops.chart import tools
from tests.acceptance.ops.chart.results import Outcome
from tests.acceptance.ops.lifecycle import protobuf
from tests.acceptance.ops.lifecycle.__main__ import fake_cluster, lived
from tests.acceptance.ops.lifecycle.patches import MERGE, STRATEGIC, patched
from tests.acceptance.ops.lifecycle.steps import STEPS
from tests.acceptance.ops.lifecycle.store import Object, Refused, Store


def _whole(replicas: int = 3, size: str = "1Gi", when_scaled: str = "Retain") -> Object:
    claim = {"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": size}}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "mq"},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": {"app": "mq"}}, "spec": {"containers": []}},
            "volumeClaimTemplates": [claim],
            "persistentVolumeClaimRetentionPolicy": {"whenScaled": when_scaled},
        },
    }


KEY = ("shop", "mq")


def _store(whole: Object) -> Store:
    store = Store()
    store.create("apps/v1", "statefulsets", KEY, whole)
    return store


def _names(store: Store, plural: str) -> list[str]:
    return sorted(name for _, name in store.all("v1", plural))


def test_a_stateful_set_has_pods_and_claims():
    store = _store(_whole())

    assert _names(store, "pods") == ["mq-0", "mq-1", "mq-2"]
    assert _names(store, "persistentvolumeclaims") == ["data-mq-0", "data-mq-1", "data-mq-2"]


def test_claims_outlive_pods_that_are_scaled_away_unless_the_policy_says_otherwise():
    for policy, left in (("Retain", 3), ("Delete", 1)):
        store = _store(_whole(when_scaled=policy))

        store.change("apps/v1", "statefulsets", KEY, _whole(replicas=1, when_scaled=policy))

        assert _names(store, "pods") == ["mq-0"]
        assert len(_names(store, "persistentvolumeclaims")) == left, policy


def test_a_claim_template_does_not_change():
    store = _store(_whole())

    with pytest.raises(Refused, match=r"Forbidden: updates to statefulset spec.*volumeClaimTempl"):
        store.change("apps/v1", "statefulsets", KEY, _whole(size="2Gi"))

    store.change("apps/v1", "statefulsets", KEY, _whole(replicas=5))
    assert len(_names(store, "pods")) == 5


def test_a_strategic_patch_merges_lists_by_their_keys():
    old = {
        "containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}],
        "args": ["1", "2"],
    }
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [
            {"name": "a", "env": [{"name": "Y", "value": "2"}]},
            {"name": "c"},
            {"name": "b", "$patch": "delete"},
        ],
        "args": ["3"],
    }

    assert patched(old, patch, STRATEGIC) == {
        "containers": [
            {"name": "c"},
            {"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
        ],
        "args": ["3"],
    }


def test_a_merge_patch_replaces_lists_and_deletes_by_null():
    old = {"a": [1, 2], "b": {"c": 1, "d": 2}}

    assert patched(old, {"a": [3], "b": {"c": None}}, MERGE) == {"a": [3], "b": {"d": 2}}


def test_a_patch_that_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="not known"):
        patched({}, {}, "application/json-patch+json")
    with pytest.raises(ValueError, match="directives"):
        patched({}, {"$deleteFromPrimitiveList/x": ["y"]}, STRATEGIC)


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def test_a_secret_in_protobuf_is_read():
    metadata = _field(1, b"release") + _field(11, _field(1, b"owner") + _field(2, b"helm"))
    secret = _field(1, metadata) + _field(2, _field(1, b"key") + _field(2, b"value"))
    secret += _field(3, b"helm.sh/release.v1")
    about = _field(1, b"v1") + _field(2, b"Secret")

    read = protobuf.decode(protobuf.MAGIC + _field(1, about) + _field(2, secret))

    assert read == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "release", "labels": {"owner": "helm"}},
        "data": {"key": base64.b64encode(b"value").decode()},
        "type": "helm.sh/release.v1",
    }


@pytest.mark.ops
@pytest.mark.timeout(1200)
async def test_a_release_lives_its_whole_life(tmp_path: Path):
    try:
        tools.helm()
    except tools.ToolMissing as missing:
        pytest.skip(f"helm is not there: {missing}")

    async with fake_cluster(tmp_path) as cluster:
        results = await lived(cluster)

    wrong = [each for each in results if each.outcome is Outcome.FAILED]
    assert wrong == []
    missing = [each for each in results if each.outcome is Outcome.NOT_RUN]
    if missing:
        pytest.skip(f"{missing[0].check}: {missing[0].detail}")
    assert len(results) == len(STEPS)
