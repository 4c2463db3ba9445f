"""The life of a release, step by step. A step returns what it saw, or asserts what was wrong."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import yaml

from tests.acceptance.ops.chart.rendering import CHART, EARLIER, cases
from tests.acceptance.ops.lifecycle.cluster import Cluster, CommandFailed, Object

RELEASE = "mq"
NAME = "mq-quorate"
IMAGE = "--set=image.repository=registry.example.org/quorate"
WAIT = ("--wait", "--timeout", "240s")


@dataclass
class Life:
    """One release in one namespace. What earlier steps saw is here for later ones."""

    cluster: Cluster
    namespace: str = "shop"
    secret: Object = field(default_factory=dict[str, str])

    async def helm(self, command: str, *arguments: str) -> str:
        return await self.cluster.helm(
            command, RELEASE, *arguments, f"--namespace={self.namespace}"
        )

    async def apply(self, command: str, *arguments: str, chart: str = str(CHART)) -> str:
        """Install or upgrade, and wait."""
        return await self.helm(command, chart, IMAGE, *arguments, *self.cluster.flags, *WAIT)

    async def refused(self, *arguments: str) -> str:
        return await self.cluster.refused(
            *("upgrade", RELEASE, str(CHART), f"--namespace={self.namespace}"),
            *(IMAGE, *arguments, *self.cluster.flags),
        )

    async def stateful_set(self) -> Object:
        return await self.cluster.item("statefulsets", self.namespace, NAME)

    async def names(self, kind: str) -> list[str]:
        return await self.cluster.names(kind, self.namespace)

    async def live_secret(self) -> Object:
        return (await self.cluster.item("secrets", self.namespace, NAME))["data"]

    async def release(self) -> tuple[int, str]:
        """Newest revision and its state."""
        newest = (await self.history())[-1]
        return newest["revision"], newest["status"]

    async def history(self) -> list[Object]:
        return json.loads(await self.helm("history", "--output=json"))


def _checksum(whole: Object) -> str:
    return whole["spec"]["template"]["metadata"]["annotations"]["checksum/config"]


async def refuse_no_image(life: Life) -> str:
    said = await life.cluster.refused("install", RELEASE, str(CHART), *life.cluster.flags)
    assert "give image.repository=REGISTRY/quorate" in said, said
    return "an install without values is refused: it says how to come by an image"


async def install(life: Life) -> str:
    await life.apply("install", "--create-namespace")
    whole = await life.stateful_set()
    assert whole["status"]["readyReplicas"] == 3, whole["status"]
    assert await life.release() == (1, "deployed")
    claims = await life.names("persistentvolumeclaims")
    assert claims == [f"data-{NAME}-{ordinal}" for ordinal in range(3)], claims
    life.secret = await life.live_secret()
    return "3 pods ready, 3 volumes, revision 1"


async def notes(life: Life) -> str:
    told = await life.cluster.helm("get", "notes", RELEASE, f"--namespace={life.namespace}")
    for part in ("The administrator is admin", "rollout status", f"{NAME}.{life.namespace}.svc"):
        assert part in told, f"NOTES do not say {part!r}: {told}"
    return f"{len(told.splitlines())} lines"


async def upgrade(life: Life) -> str:
    before = await life.stateful_set()
    await life.apply("upgrade", "--set=config.logLevel=debug")
    after = await life.stateful_set()
    assert _checksum(after) != _checksum(before), "the settings changed and the checksum did not"
    assert await life.release() == (2, "deployed")
    assert await life.live_secret() == life.secret, "the upgrade made new secrets"
    return "another checksum, so pods restart; secrets as before"


async def upgrade_of_nothing(life: Life) -> str:
    before = await life.stateful_set()
    await life.apply("upgrade", "--set=config.logLevel=debug")
    after = await life.stateful_set()
    assert after["spec"] == before["spec"], "nothing changed, and pods restart"
    return "the StatefulSet is as before: nothing restarts"


async def rotate(life: Life) -> str:
    """Both secrets hold while nodes change over; then those of before are void."""
    before = await life.live_secret()
    await life.apply("upgrade", "--set=config.logLevel=debug", "--set-string=secrets.rotation=1")
    during = await life.live_secret()
    for name in ("cluster-secret", "admin-password"):
        assert during[name] != before[name], f"{name} is as before"
        assert during[f"previous-{name}"] == before[name], f"nodes that have the old {name} are out"
    settings = (await life.cluster.item("configmaps", life.namespace, NAME))["data"]["quorate.toml"]
    assert "previous_secret_file" in settings, settings
    await life.apply("upgrade", "--set=config.logLevel=debug", "--set-string=secrets.rotation=1")
    assert await life.live_secret() == during, "the same rotation made new secrets again"
    await life.apply("upgrade", "--set=config.logLevel=debug")
    after = await life.live_secret()
    assert after == {name: during[name] for name in before}, "those of before are still good"
    await life.apply("upgrade", "--set=config.logLevel=debug")
    life.secret = after
    assert await life.live_secret() == life.secret
    return "new secrets beside those of before, and then alone; an upgrade after that keeps them"


async def template_with_lookup(life: Life) -> str:
    rendered = await life.helm("template", str(CHART), IMAGE, "--dry-run=server")
    secrets = [each for each in yaml.safe_load_all(rendered) if each and each["kind"] == "Secret"]
    assert [each["data"] for each in secrets] == [life.secret]
    blind = await life.helm("template", str(CHART), IMAGE)
    secrets = [each for each in yaml.safe_load_all(blind) if each and each["kind"] == "Secret"]
    assert [set(each["data"]) for each in secrets] == [set(life.secret)]
    assert secrets[0]["data"] != life.secret, "helm template saw a cluster"
    return "--dry-run=server gives the live secrets; without it, new ones, as the README says"


async def grow(life: Life) -> str:
    await life.apply("upgrade", "--set=replicas=5")
    whole = await life.stateful_set()
    assert whole["status"]["readyReplicas"] == 5, whole["status"]
    config = await life.cluster.item("configmaps", life.namespace, NAME)
    joining = [name for name, text in config["data"].items() if "join = true" in text]
    assert sorted(joining) == [f"{NAME}-3.toml", f"{NAME}-4.toml"], joining
    return "5 pods; the two new ones join"


async def refuse_other_beginning(life: Life) -> str:
    said = await life.refused("--set=replicas=5,initialNodes=5")
    assert "this cluster began with 3 nodes" in said, said
    return "initialNodes=5 is refused: the cluster began with 3"


async def refuse_immutable(life: Life) -> str:
    before = await life.stateful_set()
    said = await life.refused("--set=replicas=5,persistence.size=30Gi")
    assert "Forbidden: updates to statefulset spec" in said, said
    revision, state = await life.release()
    assert state == "failed", state
    after = await life.stateful_set()
    assert after["spec"] == before["spec"]
    return f"persistence.size is immutable; revision {revision} is failed, the nodes are as before"


async def rollback(life: Life) -> str:
    await life.helm("rollback", "2", *WAIT)
    whole = await life.stateful_set()
    assert whole["status"]["readyReplicas"] == 3, whole["status"]
    revision, state = await life.release()
    assert state == "deployed"
    assert await life.live_secret() == life.secret
    claims = await life.names("persistentvolumeclaims")
    assert len(claims) == 5, f"volumes of nodes that were scaled away went: {claims}"
    return f"to revision 2, as revision {revision}: 3 pods; the volumes of the other 2 stay"


async def helm_test(life: Life) -> str:
    flags = ["--logs"] if life.cluster.logs else []
    out = await life.helm("test", *flags)
    assert out.count("Phase:          Succeeded") == 2, out
    pods = [name for name in await life.names("pods") if "-test-" in name]
    assert len(pods) == 2, pods
    told = "with logs" if flags else "without logs: there is no kubelet to ask for them"
    return f"2 pods were made and waited for, {told}; no container ran in them"


async def history(life: Life) -> str:
    found = [(each["revision"], each["status"]) for each in await life.history()]
    states = [state for _, state in found]
    assert states[-1] == "deployed"
    assert states.count("failed") == 1
    assert states.count("deployed") == 1, states
    return ", ".join(f"{revision} {state}" for revision, state in found)


async def uninstall(life: Life) -> str:
    await life.helm("uninstall", *WAIT)
    left: list[str] = []
    for kind in ("statefulsets", "services", "configmaps", "poddisruptionbudgets"):
        left += [name for name in await life.names(kind) if name.startswith(NAME)]
    assert left == [], left
    claims = await life.names("persistentvolumeclaims")
    assert len(claims) == 5, claims
    assert await life.live_secret() == life.secret
    return "all gone but 5 volumes and the secret"


async def install_again(life: Life) -> str:
    await life.apply("install")
    assert await life.live_secret() == life.secret, "the volumes have the old password"
    assert len(await life.names("persistentvolumeclaims")) == 5
    await life.helm("uninstall", *WAIT)
    return "took its volumes and its secret again"


async def from_earlier_versions(life: Life) -> str:
    charts = sorted(EARLIER.glob("*.tgz"))
    assert charts, f"no earlier version in {EARLIER}"
    for chart in charts:
        then = Life(life.cluster, f"from-{chart.stem.rpartition('-')[2].replace('.', '-')}")
        await then.apply("install", "--create-namespace", chart=str(chart))
        secret = await then.live_secret()
        await then.apply("upgrade")
        assert await then.release() == (2, "deployed")
        assert await then.live_secret() == secret, f"{chart.name}: new secrets"
        await then.helm("rollback", "1", *WAIT)
        await then.apply("upgrade", "--set=replicas=5")
        assert (await then.stateful_set())["status"]["readyReplicas"] == 5
        await then.helm("uninstall", *WAIT)
    return f"{', '.join(chart.stem for chart in charts)}: there, back, and there with 5 nodes"


async def every_case(life: Life) -> str:
    """Not waited for: a claim of an archive may stay unbound."""
    for case in cases():
        other = Life(life.cluster, f"case-{case.name}")
        values = f"--values={case.values}"
        await other.helm("install", str(CHART), "--create-namespace", values)
        await other.helm("upgrade", str(CHART), values, "--set=podLabels.changed=yes")
        await other.helm("uninstall")
    return f"{len(cases())} cases installed, upgraded and uninstalled"


Step = Callable[[Life], Awaitable[str]]
STEPS: dict[str, Step] = {
    "install without an image": refuse_no_image,
    "install --wait": install,
    "get notes": notes,
    "upgrade, other settings": upgrade,
    "upgrade, nothing new": upgrade_of_nothing,
    "template, with and without lookup": template_with_lookup,
    "upgrade, 3 to 5 nodes": grow,
    "upgrade, another beginning": refuse_other_beginning,
    "upgrade, immutable field": refuse_immutable,
    "rollback": rollback,
    "test": helm_test,
    "history": history,
    "rotation of secrets": rotate,
    "uninstall": uninstall,
    "install again": install_again,
    "upgrade from earlier versions": from_earlier_versions,
    "every case of ci/": every_case,
}
__all__ = ["STEPS", "CommandFailed", "Life"]
