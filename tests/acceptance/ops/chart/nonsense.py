"""Values that cannot be meant, and what must be said of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.acceptance.ops.chart.rendering import RenderFailed, render


@dataclass(frozen=True, slots=True)
class Nonsense:
    """`said`: parts of the message, all of which must be there."""

    name: str
    flags: Sequence[str]
    said: Sequence[str]


def _set(*values: str) -> list[str]:
    return [f"--set={value}" for value in values]


NONSENSE = [
    # --- what the validation template refuses ---
    Nonsense(
        "two nodes", _set("replicas=2", "initialNodes=2"), ["replicas: 2 nodes", "allowUnsafe"]
    ),
    Nonsense("four nodes", _set("replicas=4"), ["replicas: 4 nodes", "odd number"]),
    Nonsense(
        "began with more nodes than it has",
        _set("initialNodes=5"),
        ["initialNodes: the cluster began with 5", "node remove"],
    ),
    Nonsense(
        "more copies than nodes",
        _set("config.replication=5"),
        ["config.replication: 5", "replicas is 3"],
    ),
    Nonsense("one copy", _set("config.replication=1"), ["config.replication: 1", "loss of one"]),
    Nonsense(
        "no volumes", _set("persistence.enabled=false"), ["persistence.enabled", "loses everything"]
    ),
    Nonsense(
        "a majority may be evicted",
        _set("podDisruptionBudget.maxUnavailable=2"),
        ["podDisruptionBudget.maxUnavailable: 2 of 3", "at most 1"],
    ),
    Nonsense(
        "grace shorter than the drain",
        _set("terminationGracePeriodSeconds=60"),
        ["terminationGracePeriodSeconds: 60 s is too short", "more than 80"],
    ),
    Nonsense(
        "a stop that is longer than the grace",
        _set("config.stopSeconds=30"),
        ["config.stopSeconds: twice 30 s", "terminationGracePeriodSeconds=120"],
    ),
    Nonsense(
        "less memory asked for than the limit",
        _set("resources.requests.memory=1Gi"),
        ["resources.requests.memory: 1Gi is not the limit, 2Gi"],
    ),
    Nonsense(
        "TLS without a secret",
        _set("tls.mode=existingSecret"),
        ["tls.existingSecret: name the Secret"],
    ),
    Nonsense(
        "a TLS secret without TLS",
        _set("tls.existingSecret=x"),
        ["tls.existingSecret: is not used"],
    ),
    Nonsense("peers' TLS without TLS", _set("tls.peers=true"), ["tls.mode: is off"]),
    Nonsense(
        "certificates of clients verified by nobody",
        _set("tls.mode=existingSecret", "tls.existingSecret=x", "tls.amqpsVerify=optional"),
        ["tls.amqpsVerify: optional needs tls.clientCertificates=true"],
    ),
    Nonsense(
        "no such verification", _set("tls.amqpsVerify=never"), ["tls.amqpsVerify", "required"]
    ),
    Nonsense(
        "cert-manager without an issuer",
        _set("tls.mode=certManager"),
        ["tls.certManager.issuer.name: name the issuer"],
    ),
    Nonsense(
        "two issuers",
        _set(
            "tls.mode=certManager",
            "tls.certManager.createIssuer=true",
            "tls.certManager.issuer.name=corporate",
        ),
        ["tls.certManager.issuer.name: is not used"],
    ),
    Nonsense("no door for AMQP", _set("listeners.amqp=false"), ["listeners.amqp: without it"]),
    Nonsense(
        "NATS by TLS without certificates",
        _set("listeners.natsTls=true"),
        ["listeners.natsTls: needs certificates"],
    ),
    Nonsense(
        "no NATS to watch",
        _set("listeners.natsMonitor=true"),
        ["listeners.natsMonitor: there is no NATS to watch"],
    ),
    Nonsense(
        "NATS behind the chart's back",
        _set("extraConfig.nats=0.0.0.0:4222"),
        ["extraConfig.nats: is the chart's own"],
    ),
    Nonsense(
        "an archive without a volume",
        _set("archive.enabled=true"),
        ["archive: 0 volumes are named"],
    ),
    Nonsense(
        "an archive with two volumes",
        _set("archive.enabled=true", "archive.size=1Gi", "archive.hostPath=/a"),
        ["archive: 2 volumes are named"],
    ),
    Nonsense(
        "a volume without an archive", _set("archive.size=1Gi"), ["archive.enabled: is false"]
    ),
    Nonsense(
        "a post-mortem of nothing",
        _set("postmortem.cronJob.enabled=true", "postmortem.image=x"),
        ["postmortem: reads the archive"],
    ),
    Nonsense(
        "a post-mortem without Spark",
        _set("postmortem.job.enabled=true", "archive.enabled=true", "archive.size=1Gi"),
        ["postmortem.image: name an image"],
    ),
    Nonsense(
        "settings that are the chart's",
        _set("extraConfig.peers=a"),
        ["extraConfig.peers: is the chart's"],
    ),
    Nonsense(
        "several at once: all are said",
        _set("replicas=4", "tls.mode=existingSecret", "terminationGracePeriodSeconds=1"),
        ["replicas: 4", "tls.existingSecret: name", "terminationGracePeriodSeconds: 1 s"],
    ),
    Nonsense(
        "both monitors",
        _set("monitoring.podMonitor.enabled=true", "monitoring.serviceMonitor.enabled=true"),
        ["monitoring: podMonitor and serviceMonitor", "enable one of the two"],
    ),
    Nonsense(
        "an ingress of no host", _set("ingress.enabled=true"), ["ingress.host: give the name"]
    ),
    Nonsense(
        "an image that no registry has",
        _set("image.repository="),
        ["image.repository: no registry has an image", "make image", "give image.repository"],
    ),
    Nonsense(
        "nodes without addresses",
        _set("nodeServices.enabled=true"),
        ["nodeServices.domain: give the domain"],
    ),
    Nonsense(
        "node ports of no machine",
        _set("nodeServices.enabled=true", "nodeServices.type=NodePort"),
        ["nodeServices.host: give the name or address of a machine", "nodeServices.domain"],
    ),
    Nonsense(
        "node ports with two addresses",
        _set(
            "nodeServices.enabled=true",
            "nodeServices.type=NodePort",
            "nodeServices.host=192.0.2.7",
            "nodeServices.domain=mq.example.org",
        ),
        ["nodeServices: give host or domain"],
    ),
    Nonsense(
        "one host, and no ports to tell nodes apart",
        _set("nodeServices.enabled=true", "nodeServices.host=192.0.2.7"),
        ["nodeServices.host: is for type=NodePort"],
    ),
    Nonsense(
        "node ports that two nodes would share",
        _set(
            "nodeServices.enabled=true",
            "nodeServices.type=NodePort",
            "nodeServices.host=192.0.2.7",
            "nodeServices.nodePorts.http=30102",
        ),
        ["nodeServices.nodePorts: 3 nodes take 30102 to 30104 for http", "30100 to 30102 for amqp"],
    ),
    Nonsense(
        "node ports beyond the last port there is",
        _set(
            "nodeServices.enabled=true",
            "nodeServices.type=NodePort",
            "nodeServices.host=192.0.2.7",
            "nodeServices.nodePorts.http=65534",
        ),
        ["nodeServices.nodePorts.http: 3 nodes take 65534 to 65536"],
    ),
    Nonsense(
        "clients from outside, whom the policy keeps out",
        _set(
            "nodeServices.enabled=true",
            "nodeServices.domain=mq.example.org",
            "networkPolicy.anyClient=false",
        ),
        ["nodeServices: networkPolicy.anyClient=false", "networkPolicy.extraIngress"],
    ),
    Nonsense(
        "definitions from two places",
        _set("definitions.existingSecret=a", "definitions.existingConfigMap=b"),
        ["definitions: give one of"],
    ),
    Nonsense(
        "definitions of nothing",
        _set("definitions.onUpgrade=true"),
        ["definitions.onUpgrade: there is nothing to import"],
    ),
    Nonsense(
        "a backup without a volume",
        _set("backup.enabled=true"),
        ["backup: give one of backup.existingClaim and backup.size"],
    ),
    Nonsense("a volume without a backup", _set("backup.size=1Gi"), ["backup.enabled: is false"]),
    Nonsense(
        "an upload of no command",
        _set("backup.enabled=true", "backup.size=1Gi", "backup.upload.image=rclone"),
        ["backup.upload: give image and command"],
    ),
    # --- what the schema refuses ---
    Nonsense("no backup is kept", _set("backup.keep=0"), ["backup.keep", "greater than or equal"]),
    Nonsense(
        "no address", _set("monitoring.rules.runbookUrl=wiki"), ["runbookUrl", "match pattern"]
    ),
    Nonsense("a key that is not there", _set("replica=3"), ["replica"]),
    Nonsense("a key that is not there, deeper", _set("image.tags=1"), ["image", "tags"]),
    Nonsense("deeper still", _set("tls.certManager.issuer.nam=x"), ["issuer", "nam"]),
    Nonsense("no number", _set("replicas=three"), ["replicas", "integer"]),
    Nonsense(
        "no nodes", _set("replicas=0", "initialNodes=0"), ["replicas", "greater than or equal to 1"]
    ),
    Nonsense("half a node", _set("replicas=3.5"), ["replicas", "integer"]),
    Nonsense("an unknown mode", _set("tls.mode=on"), ["tls.mode", "one of"]),
    Nonsense("an unknown affinity", _set("antiAffinity=maybe"), ["antiAffinity", "one of"]),
    Nonsense("no size", _set("persistence.size=much"), ["persistence.size", "match pattern"]),
    Nonsense("no digest", _set("image.digest=latest"), ["image.digest", "match pattern"]),
    Nonsense(
        "no schedule", _set("postmortem.cronJob.schedule=daily"), ["schedule", "match pattern"]
    ),
    Nonsense("no memory", _set("resources.limits=null"), ["resources", "limits"]),
    Nonsense(
        "a negative time",
        _set("minReadySeconds=-1"),
        ["minReadySeconds", "greater than or equal to 0"],
    ),
]


def not_refused(each: Nonsense) -> list[str]:
    """What is wrong with how the chart takes it: it rendered, or it did not say why not."""
    try:
        render(*each.flags)
    except RenderFailed as failed:
        message = str(failed)
        wrong = [f"does not say {part!r}: {message}" for part in each.said if part not in message]
        if "nil pointer" in message or "can't evaluate" in message:
            wrong.append(f"is no message for people: {message}")
        return wrong
    return ["was rendered"]
