"""Findings about what was given to read, and what all logs together say against one of them."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.limits import Limits
from chaos.postmortem.tables import Tables, as_findings

#: Codes of the table `breaches`.
BREACHES: Final = (
    "minority_commit",
    "vote_twice",
    "unelected_leader",
    "term_back",
    "commit_back",
    "needless_truncation",
    "folder_rolled_back",
)


def breaches(tables: Tables, _: Limits) -> DataFrame:
    """Each is a finding as it stands."""
    found = tables["breaches"].withColumn("from_ns", F.col("at_ns"))
    parts = [as_findings(found.where(F.col("code") == code), code) for code in BREACHES]
    return reduce(DataFrame.unionByName, parts)


def member_not_given(tables: Tables, _: Limits) -> DataFrame:
    """One per node of the cluster of which there is no segment at all."""
    groups = F.when(
        F.size("groups") > 0,
        F.concat(
            F.lit("a member of group "), F.array_join(F.col("groups").cast("array<string>"), ", ")
        ),
    ).otherwise("a node of the cluster")
    detail = F.concat(
        groups,
        F.lit("; "),
        F.when(
            F.size("said_by") > 0,
            F.concat(F.lit("the logs of "), F.array_join("said_by", ", "), F.lit(" name it")),
        ).otherwise("snapshots name it"),
        F.lit("; no segment of it was given"),
    )
    found = tables["members"].where("member and not given").select("node", detail.alias("detail"))
    return as_findings(found, "member_not_given")


def foreign_segment(tables: Tables, _: Limits) -> DataFrame:
    return as_findings(_unread(tables, foreign=True), "foreign_segment")


def unread_file(tables: Tables, _: Limits) -> DataFrame:
    return as_findings(_unread(tables, foreign=False), "unread_file")


def _unread(tables: Tables, *, foreign: bool) -> DataFrame:
    node = F.when(F.col("node") != "", F.col("node")).alias("node")
    rows = tables["unread"].where(F.col("foreign") == foreign)
    return rows.select(node, "file", F.col("reason").alias("detail"))
