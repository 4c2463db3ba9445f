"""What replicas have in common, what they lack, who lags: Spark against the plain checkers."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.checker.log_safety import log_safety
from chaos.checker.replica_log import NodeLog
from chaos.postmortem.limits import Limits
from cluster.log import Journal
from cluster.types import CATALOG_GROUP, NodeId
from tests.checker.logs import NODES, Replica
from tests.postmortem.builder import Built, flip
from tests.postmortem.shop import LEDGER, ORDERS, Shop

GROUPS = range(1, 41)
Said = set[tuple[str, int, int, int, bytes | None]]


def made(folders: list[str], out: Path, spark: Any, *names: str) -> Any:
    """Tables of these folders."""
    from chaos.postmortem.life import nodes
    from chaos.postmortem.reading import ingest, inputs
    from chaos.postmortem.replication import commits, copies, entries, lacks, lag
    from chaos.postmortem.tables import Tables

    steps: dict[str, Any] = {
        "notes": nodes.notes,
        "beats": nodes.beats,
        "entries": entries.entries,
        "merged": copies.merged,
        "divergence": copies.divergence,
        "lacks": lacks.lacks,
        "missing": lacks.missing,
        "commit_latency": commits.commit_latency,
        "snapshots": commits.snapshots,
        "lag": lag.lag,
        "links": nodes.links,
        "lives": nodes.lives,
    }
    tables = Tables(spark, out)
    ingest.ingest(tables, inputs.discover(folders))
    for name in names:
        tables.write(name, steps[name](tables))
    return tables


async def careless_replicas(folder: Path) -> dict[NodeId, Path]:
    """Of many groups; each node does with its log what it likes."""
    random = Random(6)
    replicas = [await Replica.open(folder, node) for node in NODES]
    for group in GROUPS:
        journals = [replica.log.journal(group) for replica in replicas]
        for _ in range(random.randint(5, 25)):
            _anything(random, random.sample(journals, random.choice((1, 3, 3))))
    for replica in replicas:
        await replica.close()
    return {NodeId(node): folder / node for node in NODES}


def _anything(random: Random, journals: list[Journal]) -> None:
    what = random.random()
    body, term = random.randbytes(9), random.randint(1, 2)
    for journal in journals:
        last, commit = journal.last_index, journal.commit_index
        if what < 0.6:
            journal.add(b"\0" + body, last + 1, max(term, journal.last_term))
        elif what < 0.9:
            journal.set_commit(min(max(commit, last - 1), last))
        elif last > 2:
            # Now and then of what is committed, too.
            journal.truncate_from(max(2, min(last, commit + (what < 0.98))))


def said_by_checker(folders: dict[NodeId, Path]) -> Said:
    said: Said = set()
    for node, folder in folders.items():
        NodeLog(folder, lambda *entry, own=node: said.add((own, *entry)))
    return said


@pytest.mark.spark
async def test_what_is_committed_differs_and_is_gone_is_what_the_plain_checker_says(
    tmp_path: Path, spark: Any
):
    folders = await careless_replicas(tmp_path / "logs")
    verdict = log_safety(folders)
    paths = [str(folder) for folder in folders.values()]
    names = ("notes", "entries", "merged", "divergence", "lacks", "missing")
    tables = made(paths, tmp_path / "out", spark, *names)

    rows = tables["entries"].where("outcome = 'committed'").collect()
    committed = {(r.node, r.group, r["index"], r.term, bytes(r.hash)) for r in rows}
    assert committed == said_by_checker(folders)
    differing = {
        (row.group, row["index"]) for row in tables["divergence"].where("committed").collect()
    }
    variants: dict[tuple[int, int], set[Any]] = {}
    for _, group, index, term, digest in committed:
        variants.setdefault((group, index), set()).add((term, digest))
    assert differing == {place for place, found in variants.items() if len(found) > 1}
    assert bool(differing) == (verdict.counts["different entries committed"] > 0)
    merged = {(r.group, r["index"]): (r.term, bytes(r.hash)) for r in tables["merged"].collect()}
    assert merged.keys() == variants.keys()
    assert all(merged[place] in found for place, found in variants.items())
    truncated = {
        (str(node), number)
        for node, folder in folders.items()
        for number, group in NodeLog(folder, lambda *_: None).groups.items()
        if any(rule == "committed entries truncated" for rule, _ in group.broken)
    }
    assert truncated
    assert differing
    assert {(row.node, row.group) for row in tables["missing"].collect()} == truncated
    _judge_findings(tables, differing)


def _judge_findings(tables: Any, differing: set[tuple[int, int]]) -> None:
    """Stretches of indexes are one finding each; each says where its entries lie."""
    from chaos.postmortem.findings.replication import divergence

    findings = divergence(tables, Limits()).collect()
    places = {(row.node, row.file, row.offset): row for row in tables["entries"].collect()}
    told = [
        (row.group, index) for row in findings for index in range(row["first"], row["last"] + 1)
    ]
    assert sorted(told) == sorted(differing)
    for row in findings:
        entry = places[row.node, row.file, row.offset]
        assert (entry.group, entry["index"], entry.term) == (row.group, row["first"], row.term)


@pytest.mark.spark
def test_what_differs_since_a_person_gave_a_majority_up_says_so(tmp_path: Path, spark: Any):
    from chaos.postmortem.findings.replication import divergence
    from chaos.postmortem.tables import Tables, conformed

    tables = Tables(spark, tmp_path)

    def write(name: str, columns: str, *rows: tuple[Any, ...]) -> None:
        tables.write(name, conformed(spark.createDataFrame(rows, columns), name))

    copy = "array<struct<node: string, term: bigint, hash: string, outcome: string, file: string,"
    columns = f"group int, index bigint, committed boolean, copies {copy} offset: bigint>>"
    said = [("n1", 9, "00", "committed", "f", 1), ("n2", 2, "01", "committed", "g", 1)]
    write("divergence", columns, *((group, 101, True, said) for group in (1, 2, 3)))
    write("merged", "group int, index bigint, hash binary", (1, 101, b"\1"))
    notes = "node string, kind string, group int, index bigint, detail string"
    lost = '[["n2", "n3"], "n1"]'
    write(
        *("notes", notes),
        *[("n1", "given-up", 1, 100, lost), ("n4", "given-up", 1, 90, '[["n2"], "n4"]')],
        *[("n1", "given-up", 2, 101, lost), ("n1", "role", 3, 100, '["leader"]')],
    )

    told = {row.group: row.detail for row in divergence(tables, Limits()).collect()}
    ordered = [detail.partition("; by order of a person")[2] for _, detail in sorted(told.items())]
    assert ordered == [
        " n1 went on without n2, n3 from 101 on, n4 went on without n2 from 91 on",
        "",
        "",
    ]


@pytest.mark.spark
def test_who_lags_is_found_whatever_clocks_do(tmp_path: Path, spark: Any):
    """n2's clock is 5 s ahead all the time; n3's jumps ahead by 40 s while it gets nothing."""
    from chaos.postmortem.findings.replication import lagging_replica

    with Built(tmp_path / "logs", groups=(CATALOG_GROUP, ORDERS, LEDGER), wrong_s={"n2": 5}) as c:
        shop = Shop(c)
        shop.trade(20)
        c.wait(60)  # in which there is nothing that it could lack
        begun = c.time.now_ns
        c.nodes["n3"].lagging = True
        before = {group: c.groups[group].commit for group in (ORDERS, LEDGER)}
        far_ns = 0  # when it first is 20 entries behind
        for part in range(60):
            if part == 30:
                c.jump_clock("n3", 40)
            shop.trade(1)
            if not far_ns and any(c.groups[g].commit - at >= 20 for g, at in before.items()):
                far_ns = c.time.now_ns
        traded = c.time.now_ns
        c.wait(2)  # so that it does not catch up in the second of the last entry
        c.nodes["n3"].lagging = False
        missed = {group: c.groups[group].commit for group in before}
        for group in before:
            c.catch_up("n3", group)
        caught_up = c.time.now_ns
        shop.trade(20)
    names = ("notes", "beats", "entries", "lag", "commit_latency")
    tables = made(c.paths, tmp_path / "out", spark, *names)

    (found,) = lagging_replica(tables, Limits(lag_entries=20)).collect()
    assert found.node == "n3"
    assert (found["first"], found.last) == (before[found.group] + 1, missed[found.group])
    assert found["count"] == missed[found.group] - before[found.group]
    assert abs(found.from_ns - far_ns) <= 1.1e9  # by second
    assert abs(found.to_ns - caught_up) <= 1.1e9
    assert begun < far_ns < caught_up
    lacked = tables["entries"].where(f"node = 'n3' and offset = {found.offset}").collect()
    assert [(row.group, row["index"]) for row in lacked] == [(found.group, found["first"])]
    worst = tables["lag"].where("node = 'n3'").agg({"lag_ms": "max"}).first()
    assert worst is not None
    assert abs(worst[0] - (traded - begun) / 1e6) < 2_000
    lag = tables["lag"].where("node <> 'n3'").agg({"lag_ms": "max"}).first()
    assert lag is not None
    assert lag[0] <= 1_000
    latency = tables["commit_latency"].where("leads").collect()
    assert all(0 < row.sync_p50 <= row.commit_p50 <= row.commit_max < 1_000 for row in latency)
    _judge_who_has_just_come(tables)


def _judge_who_has_just_come(tables: Any) -> None:
    """It lags from when it has had the time to catch up; how long that is says the flag."""
    from chaos.postmortem.findings.replication import lagging_replica
    from chaos.postmortem.schemas import TABLES

    rows = [
        ("n3", ORDERS, sec * 10**9, "n1", 900, 100, 800, sec * 1e3, sec < 10, (sec - 10) * 1e3)
        for sec in range(30)
    ]
    tables.write("lag", tables.spark.createDataFrame(rows, TABLES["lag"]))

    assert lagging_replica(tables, Limits()).count() == 0
    (found,) = lagging_replica(tables, Limits(catch_up_ms=5_000)).collect()
    assert (found.from_ns, found.to_ns) == (15 * 10**9, 29 * 10**9)


@pytest.mark.spark
def test_gaps_and_broken_chains_are_told_once(tmp_path: Path, spark: Any):
    """Archives, of which one lacks a segment, and a record written by another hand."""
    from chaos.postmortem.findings import replication as findings
    from chaos.postmortem.replication import chains, lacks

    with Built(tmp_path / "logs", archive=True) as cluster:
        cluster.elect(1, "n1")
        wrong = 0
        for part in range(5):
            for _ in range(5):
                cluster.propose(1)
            if part == 3:
                # The leader never sent that, and soon replaces it.
                cluster.nodes["n3"].journal(1).last_hash = bytes(range(16))
                wrong = cluster.append(1, None, nodes=["n3"])
                place = cluster.where("n3", 1, wrong)
            if part == 4:
                cluster.snapshot(1, "n1")
            cluster.roll()
            cluster.maintain()
    files = sorted((cluster.archive_folder / "n2").glob("*.log"))
    files[1].unlink()
    paths = [str(each) for each in sorted(cluster.archive_folder.iterdir())]
    tables = made(paths, tmp_path / "out", spark, "entries", "lacks", "missing", "snapshots")
    whole = lacks.missing_segments(tables).unionByName(
        lacks.missing_entries(tables), allowMissingColumns=True
    )
    broken = chains.broken_chains(tables)
    # To hash a log takes longest of all: once is enough.
    java: Any = broken._jdf
    assert java.queryExecution().optimizedPlan().toString().count("judged_runs") == 1
    whole = whole.unionByName(broken, allowMissingColumns=True)
    tables.write("corruption", whole)

    (gap,) = findings.archive_gap(tables, Limits()).collect()
    assert (gap.node, gap.file) == ("n2", str(files[2]))
    (chain,) = findings.corrupt_segment(tables, Limits()).collect()
    assert (chain.node, chain.group, chain["first"], chain.offset) == ("n3", 1, wrong, place.offset)
    assert Path(chain.file).name.startswith(Path(place.file).stem)
    assert tables["missing"].count() == 0
    (snapshot,) = tables["snapshots"].collect()
    assert (snapshot.node, snapshot.installed) == ("n1", False)


@pytest.mark.spark
def test_clocks_and_a_damaged_header_make_no_gaps(tmp_path: Path, spark: Any):
    """n3's clock is ahead, and is set right between its first two lives; long before the third. In
    the archive, of which the log folders have copies too, a header of n2 is damaged.
    """
    from chaos.postmortem.reading import ingest
    from chaos.postmortem.replication import chains, lacks

    with Built(tmp_path / "logs", archive=True, retain_bytes=1 << 30, wrong_s={"n3": 600}) as c:
        c.elect(1, "n1")
        for life in range(3):
            for _ in range(5):
                c.propose(1)
            c.roll()
            c.stop("n3")
            if life == 0:
                c.jump_clock("n3", -600)
            if life == 1:
                c.wait(700)
            c.start("n3")
        c.roll()
        c.maintain()
    archived = sorted((c.archive_folder / "n2").glob("*.log"))
    flip(archived[1], 0)
    archives = [str(each) for each in sorted(c.archive_folder.iterdir())]
    said = []
    for nth, paths in enumerate(([*archives, *c.paths], archives)):
        out = tmp_path / f"out{nth}"
        tables = made(paths, out, spark, "notes", "beats", "links", "lives", "entries", "lacks")
        assert lacks.missing_segments(tables).collect() == []
        assert tables["lacks"].collect() == []
        assert chains.broken_chains(tables).collect() == []
        (bad,) = ingest.damage(tables).collect()
        assert (bad.node, bad.file, bad.kind) == ("n2", str(archived[1]), "bad record")
        lives = tables["lives"].where("node = 'n3'").orderBy("life").collect()
        said.append([(life.ended, life.from_ns) for life in lives])
        entries = (
            tables["entries"].where("kind = 'entry'").groupBy("node", "outcome").count().collect()
        )
        said.append({(row.node, row.outcome): row["count"] for row in entries})
    whole, counts, of_archives, _ = said
    assert [ended for ended, _ in whole] == ["orderly"] * 3 + ["open"]
    assert [began for _, began in whole] != sorted(began for _, began in whole)
    assert of_archives == whole
    assert counts == {(node, "committed"): 16 for node in ("n1", "n2", "n3")}
