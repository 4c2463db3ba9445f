"""Logs in which a promise was broken, and those that only look like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.codec.cbor import pack
from tests.checker.logs import GROUP, Replica, Replicas, judged


async def test_replicas_that_agree_are_valid(tmp_path: Path) -> None:
    verdict = await (await Replicas.agreeing(tmp_path)).judged()

    assert verdict.valid is True, verdict.describe()
    assert (verdict.counts["entries committed"], verdict.counts["elections"]) == (10, 1)


async def test_two_entries_committed_at_one_index_are_found(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    for node, term in (("a", 1), ("b", 2)):
        logs[node].entries(1, term=term)
        logs[node].journal.set_commit(12)

    verdict = await logs.judged()

    assert verdict.counts["different entries committed"] == 1
    assert "index 12" in verdict.examples["different entries committed"][0]
    assert verdict.valid is False


async def test_what_was_not_committed_may_differ(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].entries(3)
    logs["b"].entries(1, term=2)
    logs["b"].journal.set_commit(12)

    assert (await logs.judged()).valid is True


async def test_what_was_truncated_before_it_was_committed_does_not_count(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].entries(3)
    logs["a"].journal.truncate_from(12)
    for node in "ab":
        logs[node].entries(1, term=2)
        logs[node].journal.set_commit(12)

    assert (await logs.judged()).valid is True


async def test_an_entry_that_is_cut_and_put_again_was_in_no_conflict(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].entries(3)
    logs["a"].journal.truncate_from(13)
    logs["a"].entries(1)

    assert (await logs.judged()).counts["truncated without a conflict"] == 1


async def test_a_later_leader_may_send_again_what_another_one_had_cut(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].entries(3)
    logs["a"].journal.truncate_from(13)
    logs["a"].vote(9, None)
    logs["a"].entries(1)

    assert (await logs.judged()).valid is True


async def test_a_committed_entry_must_not_be_truncated(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].journal.truncate_from(11)

    assert (await logs.judged()).counts["committed entries truncated"] == 1


async def test_two_leaders_in_one_term_are_found(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].lead(1)

    assert (await logs.judged()).counts["two leaders in a term"] == 1


async def test_a_leader_needs_the_recorded_votes_of_a_majority(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].vote(2, "b")
    logs["b"].lead(2)

    verdict = await logs.judged()

    assert verdict.counts["leader without a majority's votes"] == 1
    assert "term 2: b leads with the votes of ['b']" in str(verdict.examples)


async def test_a_vote_that_a_wiped_disk_may_have_held_is_not_missed(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].vote(2, "b")
    logs["b"].lead(2)

    assert (await logs.judged(forgetful=("c",))).valid is True


async def test_a_vote_that_the_cleaner_dropped_is_not_missed(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].vote(2, "b")
    logs["b"].lead(2)
    logs["c"].vote(2, "b")
    await logs["c"].close()  # its vote is in segment 2, which is gone later
    logs["c"] = await Replica.open(tmp_path, "c")
    logs["c"].vote(3, None)
    await logs["c"].close()
    logs["c"] = await Replica.open(tmp_path, "c")
    (first,) = (tmp_path / "c").glob("*1.log")
    first.unlink()

    verdict = await logs.judged(voters={GROUP: ["a", "b", "c"]})

    assert verdict.counts["leader without a majority's votes"] == 0
    assert verdict.counts["elections"] == 1
    assert verdict.counts["elections not judged"] == 1


async def _elected_by_two_of_four(folder: Path) -> Replicas:
    logs = await Replicas.agreeing(folder)
    for node in "abc":
        logs[node].members("a", "b", "c", "d")
        logs[node].vote(2, "b" if node != "a" else None)
    logs["b"].lead(2)
    return logs


async def test_voters_that_the_log_tells_of_count(tmp_path: Path) -> None:
    logs = await _elected_by_two_of_four(tmp_path)
    logs["d"] = await Replica.open(tmp_path, "d")
    logs["d"].vote(3, "d")

    verdict = await logs.judged()

    assert verdict.counts["leader without a majority's votes"] == 1
    # Before that entry nobody says who the voters were.
    assert (verdict.counts["elections"], verdict.counts["elections not judged"]) == (1, 1)


async def test_a_voter_of_which_nothing_is_left_may_have_voted(tmp_path: Path) -> None:
    verdict = await (await _elected_by_two_of_four(tmp_path)).judged()

    assert verdict.valid is True


@pytest.mark.parametrize("votes", [2, 3])
async def test_after_a_lost_majority_the_first_leader_has_the_votes_of_all_survivors(
    tmp_path: Path, votes: int
) -> None:
    logs = await Replicas.agreeing(tmp_path)
    for number, node in enumerate("bac"):
        logs[node].journal.force(pack([["a", "b", "c"], [], ["d", "e", "f", "g"], 1]))
        logs[node].vote(1 << 20, "b" if number < votes else None)
    logs["b"].lead(1 << 20)
    logs["b"].members("a", "b", "c", term=1 << 20)
    for node in "bc":  # from then on a majority is enough
        logs[node].vote((1 << 20) + 1, "b")
    logs["b"].lead((1 << 20) + 1)

    verdict = await logs.judged()

    assert verdict.counts.get("leader without a majority's votes", 0) == (votes < 3)


async def test_one_vote_a_term(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["b"].vote(1, "b")

    assert (await logs.judged()).counts["voted twice"] == 1


async def test_terms_and_commits_only_grow(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].journal.set_commit(9)
    logs["b"].vote(0, None)

    verdict = await logs.judged()

    assert (verdict.counts["commit went back"], verdict.counts["term went back"]) == (1, 1)


async def test_different_states_after_the_same_entry_are_found(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    logs["a"].digest(11, b"one")
    logs["c"].digest(11, b"other")

    assert (await logs.judged()).counts["different states"] == 1


async def test_a_torn_end_is_no_error(tmp_path: Path) -> None:
    await (await Replicas.agreeing(tmp_path)).close()
    (segment,) = (tmp_path / "c").glob("*.log")
    segment.write_bytes(segment.read_bytes() + bytes(700))

    verdict = judged([tmp_path / node for node in "abc"])

    assert verdict.valid is True, verdict.describe()


async def test_damage_is_unknown_unless_it_was_done_on_purpose(tmp_path: Path) -> None:
    await (await Replicas.agreeing(tmp_path)).close()
    (segment,) = (tmp_path / "c").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)

    folders = [tmp_path / node for node in "abc"]

    assert judged(folders).valid == "unknown"
    assert judged(folders, damaged=["c"]).valid is True
    assert judged(folders, damaged=["c"]).counts["damaged on purpose"] == 1


def test_no_log_at_all_proves_nothing(tmp_path: Path) -> None:
    assert judged([tmp_path / "a"]).valid == "unknown"


async def test_snapshots_and_entries_that_came_with_them_must_agree(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    await logs["a"].journal.save_snapshot(8, 1, b"state", [(3, 4)])
    digest = logs["a"].journal.hash_at(8)
    assert digest is not None
    for node, told in (("d", digest), ("e", bytes(range(16)))):
        replica = logs[node] = await Replica.open(tmp_path, node)
        replica.journal.begin_install(8, 1, told, b"state", [])
        await replica.journal.finish_install()

    verdict = await logs.judged()

    assert verdict.counts["different entries committed"] == 1
    assert "e has" in verdict.examples["different entries committed"][0]


async def test_a_node_that_starts_again_tells_the_same(tmp_path: Path) -> None:
    logs = await Replicas.agreeing(tmp_path)
    for _ in range(3):
        await logs["b"].close()
        logs["b"] = await Replica.open(tmp_path, "b")
        logs["b"].entries(2)
        logs["b"].journal.set_commit(logs["b"].journal.last_index)

    assert (await logs.judged()).valid is True
