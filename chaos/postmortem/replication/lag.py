"""The table `lag`: by second, how far each follower's log is behind what is committed."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.life.times import Clock, clock, second
from chaos.postmortem.replication.behind import SECOND_NS, Life, behind
from chaos.postmortem.replication.logorder import LogOrder, log_order, mark_flags
from chaos.postmortem.schemas import TABLES
from chaos.postmortem.tables import Tables
from cluster.log.format import MARK_INSTALLED

_WRITTEN = ("node", "created_ns", "segment", "group", "mono_ns")


def lag(tables: Tables) -> DataFrame:
    """Only of seconds in which the group did anything, on whatever node. These are few enough for
    one group to be told at once.
    """
    order = log_order(tables)
    common = clock(tables, order)
    told = common.timed(_told(tables))
    seconds = told.groupBy("group", "node", second(F.col("t")).alias("sec")).agg(
        *(F.max(name).alias(name) for name in ("index", "committed", "term", "left", "back"))
    )
    lives = _lives(common, order)
    return seconds.groupBy("group").applyInArrow(lambda own: behind(own, lives), TABLES["lag"])


def _told(tables: Tables) -> DataFrame:
    """What logs got, and what they say is committed."""
    got = tables["entries"].where("kind = 'entry'")
    commits = tables["records"].where("kind = 'commit'")
    kinds = ("role", "hard-state", "snapshot", "group-created", "group-removed")
    notes = tables["notes"].where(F.col("kind").isin(*kinds))
    leads = (F.col("kind") == "role") & (F.get_json_object("detail", "$[0]") == "leader")
    # A snapshot that came stands for entries.
    came = F.col("kind") == "snapshot"
    came &= mark_flags().bitwiseAND(F.lit(MARK_INSTALLED)) != 0
    return (
        _rows(got, index=F.when(F.col("outcome") != "voided", F.col("index")))
        .unionByName(_rows(commits, committed=F.col("index")))
        .unionByName(
            _rows(
                notes,
                index=F.when(came, F.col("index")),
                term=F.when(leads, F.col("term")),
                left=F.col("kind") == "group-removed",
                back=F.col("kind") == "group-created",
            )
        )
    )


def _rows(
    frame: DataFrame,
    *,
    index: Column | None = None,
    committed: Column | None = None,
    term: Column | None = None,
    left: Column | None = None,
    back: Column | None = None,
) -> DataFrame:
    numbers = {"index": index, "committed": committed, "term": term}
    marks = {"left": left, "back": back}
    return frame.select(
        *_WRITTEN,
        *(
            (F.lit(None) if value is None else value).cast("bigint").alias(name)
            for name, value in numbers.items()
        ),
        *((F.lit(False) if value is None else value).alias(name) for name, value in marks.items()),
    )


def _lives(common: Clock, order: LogOrder) -> dict[str, list[Life]]:
    disks = {(each.given.node, each.boot_number): each.disk for each in order.segments}
    found: dict[str, list[Life]] = {}
    for boot, process in common.processes.items():
        shift = common.shift[boot]
        began, ended = process.first_ns + shift, process.last_ns + shift
        found.setdefault(boot[0], []).append(
            Life(began // SECOND_NS, ended // SECOND_NS, disks[boot])
        )
    return found
