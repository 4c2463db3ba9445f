"""What may have no data, and which names may displease promtool, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping

_NO_SNAPSHOT = "a group takes its first after 20,000 entries, more than this load has"
_KUBERNETES = "kube-state-metrics tells of pods and volumes; these nodes run without Kubernetes"
_KUBE = """
deployment_status_replicas_unavailable persistentvolumeclaim_labels
persistentvolumeclaim_status_phase pod_container_status_restarts_total statefulset_labels
statefulset_replicas statefulset_status_replicas_ready
"""
#: Panels and names, by dashboard and title.
PANELS: Mapping[tuple[str, str], str] = {
    ("Quorate", "Oldest snapshot"): _NO_SNAPSHOT,
    ("what our rules read", "quorate_raft_snapshot_age_seconds"): _NO_SNAPSHOT,
    (
        "RabbitMQ-Quorum-Queues-Raft",
        "Raft members with >5k entries in the log",
    ): "shows only what is over 5000 entries, and this load is small",
    **{("what RabbitMQ's rules read", f"kube_{name}"): _KUBERNETES for name in _KUBE.split()},
}

_LOAD = "the load does so on purpose"
_MACHINE = "a busy machine may do so for a while"
#: Alerts that may be pending or fire on these nodes; any other that stays is a failure.
ACTIVE: Mapping[str, str] = {
    "QuorateDeliveryLimit": _LOAD,
    "QuorateLoginsFail": _LOAD,
    "QuorateQueueWithoutConsumers": _LOAD,
    "QuorateUnroutable": _LOAD,
    "QueueHasNoConsumers": _LOAD,
    "UnroutableMessages": _LOAD,
    "QuorateCommitsSlow": _MACHINE,
    "QuorateEventLoopLags": _MACHINE,
    "QuorateFsyncSlow": _MACHINE,
}

#: Lines of `promtool check metrics`, by the beginning of the metric's name and the end of the line.
LINT: Mapping[tuple[str, str], str] = {
    (
        "rabbitmq_unreachable_cluster_peers_count",
        'should not have "_count" suffix',
    ): "RabbitMQ's own name for a gauge",
}
