from __future__ import annotations

from tests.raft.nodes import Cluster, enqueue, run_virtual


def test_what_is_proposed_together_is_one_entry():
    async def scenario():
        cluster = await Cluster().start()
        group = await cluster.elect()
        before = group.last_index
        outcomes = []
        for n in range(10):
            group.propose(enqueue(b"%d" % n), outcomes.append)
        await cluster.until(lambda: len(outcomes) == 10)

        assert group.last_index == before + 1
        assert [o.kind for o in outcomes] == ["ok"] * 10
        assert [o.stamp.ordinal for o in outcomes] == list(range(10))
        assert [o.stamp.body_offset for o in outcomes] == list(range(10))
        await cluster.stop()

    run_virtual(scenario())
