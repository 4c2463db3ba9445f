"""Which faults a run draws from, how often each, and what each needs of the machine."""

from __future__ import annotations

from collections.abc import Mapping

#: Kinds of faults, and their weights.
Mix = tuple[tuple[str, float], ...]

PROCESSES: Mix = (("kill", 4), ("terminate", 2), ("pause", 3), ("storm", 1), ("drain", 1))
NETWORK: Mix = (("partition", 5), ("degrade", 2), ("cut_clients", 1))
DISKS: Mix = (
    ("slow_disk", 2),
    ("fail_fsync", 2),
    ("lie_fsync", 1),
    ("low_disk", 1),
    ("fill_disk", 1),
)
POWER: Mix = (("power_loss", 2), ("power_loss_all", 1))
DATA: Mix = (
    ("damage_log_bit", 1),
    ("damage_snapshot_bit", 1),
    ("damage_log_end", 1),
    ("wipe", 1),
    ("old_copy", 1),
)
CLOCKS: Mix = (("skew_clock", 1), ("wrong_clock", 1))

MIXES: Mapping[str, Mix] = {
    "calm": (),
    "processes": PROCESSES,
    "network": NETWORK,
    "disks": DISKS,
    "power": POWER,
    "data": DATA,
    "clocks": CLOCKS,
    "everything": (*PROCESSES, *NETWORK, *DISKS, *POWER, *DATA, *CLOCKS),
}

#: What a kind may be: whom it strikes, or how. Which of them comes next is not left to chance, so
#: that all of them come.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "kill": ("leader", "owner", "minority", "majority", "all"),
    "terminate": ("leader", "owner", "minority", "majority", "all"),
    "pause": ("leader", "owner", "minority", "majority", "all"),
    "storm": ("one", "all"),
    "partition": (
        "isolate",
        "isolate_leader",
        "isolate_owner",
        "deafen",
        "silence",
        "halves",
        "ring",
        "bridge",
    ),
    "degrade": ("delay", "loss", "bandwidth"),
}

#: What a kind needs, by the names in `LiveCluster.missing`, where that is not its own.
NEEDS: Mapping[str, str] = {"low_disk": "fill_disk", "power_loss_all": "power_loss"}

#: Those that change how fast or how late things are: they may happen beside others.
MILD = frozenset({"degrade", "skew_clock"})
#: Those that may have company.
BOLD = frozenset({"kill", "terminate", "pause", "storm", "partition", "power_loss", "fail_fsync"})


def title_of(mix: str) -> str:
    """Of the name of a mix: short, and fit for the name of a folder."""
    return "named" if "," in mix else mix.replace(":", "-")


def names_of(mix: Mix) -> list[str]:
    """`kind`, or `kind:variant` for each of its variants. What the mix names so stays as it is."""
    return [
        f"{kind}:{variant}" if variant else kind
        for kind, _ in mix
        for variant in VARIANTS.get(kind, ("",))
    ]


def possible(mix: Mix, missing: Mapping[str, str]) -> tuple[Mix, dict[str, str]]:
    """What can be had of the mix, and what of it cannot: by kind or `kind:variant`, and why."""
    not_tried: dict[str, str] = {}
    for name, _ in mix:
        kind = name.partition(":")[0]
        reason = missing.get(NEEDS.get(kind, kind)) or missing.get(name)
        if reason is not None:
            not_tried[name] = reason
    kinds = {name for name, _ in mix}
    variants = {name: why for name, why in missing.items() if name.partition(":")[0] in kinds}
    left = tuple((name, weight) for name, weight in mix if name not in not_tried)
    return left, {**not_tried, **variants}
