"""What a careless change would be: a name, where, which text, what it becomes, who should see it.

Each replaces one text that stands exactly once in its file, so that the list cannot rot: a test
looks. `catchers` are tried in their order, the cheapest first.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Catcher:
    """A command that fails when it sees what is broken."""

    kind: str  # a column of the table
    arguments: tuple[str, ...]  # of python -m


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    catchers: tuple[Catcher, ...]
    #: The broken build of `chaos selftest` that breaks the same on live nodes.
    build: str = ""


def by_tests(*paths: str, words: str = "") -> Catcher:
    """These tests, or those of them whose names have these words."""
    chosen = ("-k", words) if words else ()
    quiet = ("-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:randomly")
    return Catcher("tests", ("pytest", *quiet, *paths, *chosen))


def fuzz(seeds: int = 4_000) -> Catcher:
    return Catcher("raft fuzz", ("tests.raft.fuzz", "--seeds", str(seeds), "--first", "0"))


def simulator(seeds: int = 40, first: int = 100_000) -> Catcher:
    how = ("--seeds", str(seeds), "--first", str(first), "--jobs", "1", "--until-failure")
    return Catcher("simulator", ("chaos.simulator", *how))


RAFT = by_tests("tests/raft")
LOG = by_tests("tests/log")
#: The scripts first: they take a second, the models a minute.
MACHINE = by_tests("tests/machine/test_scripts.py", "tests/machine")
STREAM = by_tests("tests/machine/stream")
LARGE = by_tests("tests/machine/test_large_bodies.py")
RECOVERY = by_tests("tests/cluster/test_lost_majority.py")
FUZZ = fuzz()
SIMULATOR = simulator()

_RAFT = "cluster/raft/"
_LOG = "cluster/log/"
_MACHINE = "cluster/machine/"
_STREAM = "cluster/machine/stream/"

CONSENSUS = (
    Mutant(
        "a vote leaves before it is synced",
        _RAFT + "messages.py",
        "    {APPEND, DIGEST, ",
        "    {VOTED, APPEND, DIGEST, ",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a request for votes leaves before the own vote is synced",
        _RAFT + "messages.py",
        "    {APPEND, DIGEST, ",
        "    {VOTE, APPEND, DIGEST, ",
        (FUZZ, RAFT),
    ),
    Mutant(
        "an entry is acknowledged before it is synced",
        _RAFT + "messages.py",
        "    {APPEND, DIGEST, ",
        "    {APPENDED, APPEND, DIGEST, ",
        (FUZZ, RAFT),
        build="ack-before-fsync",
    ),
    Mutant(
        "entries of old terms are committed by count",
        _RAFT + "replication.py",
        "if index > member.commit_index and noop is not None and index >= noop:",
        "if index > member.commit_index and noop is not None:",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a leader counts what is not on its own disk",
        _RAFT + "replication.py",
        "indexes.append(member.journal.synced_index)",
        "indexes.append(member.journal.last_index)",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a minority commits",
        _RAFT + "replication.py",
        "index = reached(indexes, member.quorum)",
        "index = reached(indexes, member.quorum - 1)",
        (FUZZ, RAFT),
        build="commit-by-one",
    ),
    Mutant(
        "learners count towards a commit",
        _RAFT + "replication.py",
        "indexes = [followers[peer].counted for peer in member.voters]",
        "indexes = [followers[peer].counted for peer in member.peers]",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a disk that forgot counts towards a commit",
        _RAFT + "progress.py",
        "return self.match if self.counts else 0",
        "return self.match",
        (RAFT, FUZZ),
    ),
    Mutant(
        "a disk that forgot is trusted before the proof is committed",
        _RAFT + "replication.py",
        "elif min(member.commit_index, progress.match) >= progress.barrier:",
        "elif progress.match >= progress.barrier:",
        (RAFT, FUZZ),
    ),
    Mutant(
        "a leader that is cut off leads on",
        _RAFT + "replication.py",
        "if not heard or member.journal.votes_suspended:",
        "if member.journal.votes_suspended:",
        (RAFT,),
        build="stale-reads",
    ),
    Mutant(
        "a follower that comes back is believed to have what it had",
        _RAFT + "progress.py",
        "self.match = self.barrier = 0",
        "self.barrier = 0",
        (RAFT, FUZZ),
    ),
    Mutant(
        "equal entries are truncated",
        _RAFT + "following.py",
        "if index <= last and (index <= base or journal.term_at(index) == term):",
        "if index <= base:",
        (RAFT, FUZZ),
        build="truncate-without-conflict",
    ),
    Mutant(
        "a follower commits beyond what it matched",
        _RAFT + "following.py",
        "member.commit(min(commit, match))",
        "member.commit(min(commit, journal.last_index))",
        (FUZZ, RAFT),
    ),
    Mutant(
        "the term before an append is not compared",
        _RAFT + "following.py",
        "if prev > last or (prev >= base and journal.term_at(prev) != prev_term):",
        "if prev > last:",
        (FUZZ, RAFT),
    ),
    Mutant(
        "committed entries may be truncated",
        _RAFT + "following.py",
        "if index <= member.commit_index:",
        "if index <= 0:",
        (RAFT,),
    ),
    Mutant(
        "members that were truncated stay members",
        _RAFT + "following.py",
        "                configurations.truncate(index)\n",
        "",
        (RAFT, FUZZ),
    ),
    Mutant(
        "votes are given without a look at the log",
        _RAFT + "elections.py",
        "and member.voted_for in (None, peer.id)\n"
        "            and self._up_to_date(last_index, last_term)",
        "and member.voted_for in (None, peer.id)",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a member votes twice",
        _RAFT + "elections.py",
        "and member.voted_for in (None, peer.id)\n",
        "\n",
        (FUZZ, RAFT),
    ),
    Mutant(
        "logs are compared by their length alone",
        _RAFT + "elections.py",
        "return (last_term, last_index) >= (member.last_term, member.last_index)",
        "return last_index >= member.last_index",
        (FUZZ, RAFT),
    ),
    Mutant(
        "the pre-vote is skipped",
        _RAFT + "elections.py",
        "        if member.elects(self._pre_votes):\n",
        "        if True:\n",
        (RAFT,),
    ),
    Mutant(
        "a pre-vote is given while the leader lives",
        _RAFT + "elections.py",
        "term > member.term and not leader_lives and",
        "term > member.term and",
        (RAFT,),
    ),
    Mutant(
        "a disk that forgot votes",
        _RAFT + "elections.py",
        "return None if granted and self._member.votes_suspended else granted",
        "return granted",
        (RAFT, FUZZ),
        build="wiped-disk-votes",
    ),
    Mutant(
        "a refused vote counts",
        _RAFT + "elections.py",
        """        if granted is False or not member.campaigning or peer not in member.voters:
            return
        if not member.may_lead:
            return  # not any more
        (self._votes if granted else""",
        """        if not member.campaigning or peer not in member.voters:
            return
        if not member.may_lead:
            return  # not any more
        (self._votes if granted is not None else""",
        (FUZZ, RAFT),
    ),
    Mutant(
        "a refused vote counts as one that is suspended",
        _RAFT + "elections.py",
        "if granted is False or not member.campaigning or peer not in member.voters:",
        "if not member.campaigning or peer not in member.voters:",
        (by_tests("tests/raft/test_elections.py"),),
    ),
    Mutant(
        "a candidate does not vote for itself on disk",
        _RAFT + "member_state.py",
        "self.core.set_term(self.term + 1, self.me.id)",
        "self.core.set_term(self.term + 1, None)",
        (FUZZ, RAFT),
    ),
    Mutant(
        "what PySyncObj writes of term and vote does not reach the journal",
        _RAFT + "pysyncobj_core.py",
        "        self._journal.set_term(term, votedForNodeId)\n",
        "        del term, votedForNodeId\n",
        (FUZZ, RAFT),
    ),
    Mutant(
        "members change at any time",
        _RAFT + "member.py",
        "return noop is not None and max(noop, self.configurations.index) <= committed",
        "return noop is not None",
        (FUZZ, RAFT),
    ),
    Mutant(
        "members change before anything of this term is committed",
        _RAFT + "member.py",
        "return noop is not None and max(noop, self.configurations.index) <= committed",
        "return noop is not None and self.configurations.index <= committed",
        (FUZZ, RAFT),
    ),
    Mutant(
        "two voters come or go at once",
        _RAFT + "configuration.py",
        "return len(set(self.voters) ^ set(other.voters)) <= 1",
        "return len(set(self.voters) ^ set(other.voters)) <= 2",
        (RAFT,),
    ),
    Mutant(
        "a majority of the survivors of a lost majority elects their first leader",
        _RAFT + "member_state.py",
        "forced = self.configurations.forced is not None",
        "forced = False",
        (RECOVERY,),
    ),
    Mutant(
        "a vote of a disk that forgot elects any leader",
        _RAFT + "member_state.py",
        "answers = {*votes, *suspended} if forced else votes",
        "answers = {*votes, *suspended}",
        (FUZZ,),
    ),
    Mutant(
        "who withheld its vote from the first leader after a lost majority is a voter at once",
        _RAFT + "configuration.py",
        "voters = tuple(voter for voter in self.voters if voter in nodes)",
        "voters = self.voters",
        (RECOVERY,),
    ),
    Mutant(
        "after a lost majority votes that are withheld are enough",
        _RAFT + "member_state.py",
        "return not forced or _among(votes, before) >= majority(len(before))",
        "return True",
        (RAFT,),
    ),
    Mutant(
        "an answer that waited is given though its copy has lost what it had",
        _RAFT + "member.py",
        "return equal and not (self.leads or self.stopped or journal.votes_suspended)",
        "return True",
        (by_tests("tests/raft/test_drive_loop.py", words="waits"),),
    ),
    Mutant(
        "nodes that were given up are listened to",
        _RAFT + "member.py",
        "if sender in self.configuration.lost and not self.host.let_in(sender):",
        "if False:",
        (FUZZ, RECOVERY),
    ),
    Mutant(
        "nodes that were let in again are not listened to",
        _RAFT + "member.py",
        "if sender in self.configuration.lost and not self.host.let_in(sender):",
        "if sender in self.configuration.lost:",
        (RECOVERY,),
    ),
    Mutant(
        "what overrides the members is kept though an entry took its place",
        _RAFT + "configuration.py",
        "if any(at <= index and each.era >= era for at, each in self._known):",
        "if False:",
        (RECOVERY,),
    ),
    Mutant(
        "survivors go on in the era of the lost ones",
        "cluster/recovery/lost_majority.py",
        "era = era_of(journal.current_term) + 1",
        "era = era_of(journal.current_term)",
        (RECOVERY,),
    ),
    Mutant(
        "answers of an older term count for this one",
        _RAFT + "member.py",
        "elif term < self.term and kind != PRE_VOTED:",
        "elif term < self.term and kind not in (PRE_VOTED, APPENDED, VOTED):",
        (FUZZ, RAFT),
    ),
    Mutant(
        "half of the voters are a majority",
        _RAFT + "quorum.py",
        "return voters // 2 + 1",
        "return (voters + 1) // 2",
        (RAFT, FUZZ),
    ),
    Mutant(
        "a snapshot says nothing of the members",
        _RAFT + "configuration.py",
        "        return _joined(*self._known[0], data)",
        "        return data",
        (RAFT, FUZZ),
    ),
    Mutant(
        "an installed snapshot leaves out live entries",
        _RAFT + "snapshot_transfer.py",
        "        if batch:\n            yield [LIVE, batch], size\n",
        "",
        (RAFT, LOG),
    ),
    Mutant(
        "acknowledgements leave while the disk syncs",
        _RAFT + "drive_loop.py",
        "            await self._log.sync()\n",
        "            pass\n",
        (RAFT, SIMULATOR),
    ),
    Mutant(
        "a leader whose links were reset vouches for its copy by what it heard before",
        _RAFT + "progress.py",
        "        self.answered = -math.inf\n",
        "",
        (RAFT,),
    ),
    Mutant(
        "a leader without a majority keeps its followers believing in it",
        _RAFT + "replication.py",
        "            if speaks and progress.peer in",
        "            if progress.peer in",
        (RAFT,),
    ),
    Mutant(
        "a change does not wait for a node whose link was just lost",
        "cluster/catalog/catalog_read_index.py",
        "max(recent, default=-math.inf) + self.trust_s",
        "-math.inf",
        (by_tests("tests/cluster/test_changes.py"),),
    ),
    Mutant(
        "a change does not wait for those who follow the leader of before",
        "cluster/catalog/catalog_read_index.py",
        "max(each.since, self._led_at) for",
        "each.since for",
        (by_tests("tests/cluster/test_changes.py"),),
    ),
    Mutant(
        "a repeated start is believed though the folder is older",
        "cluster/members/registration.py",
        "if incarnation <= self.disk_identity.registered or self.stale:",
        "if incarnation >= 0:",
        (by_tests("tests/cluster"), simulator(80)),
    ),
    Mutant(
        "a start is recorded before the votes that it withholds are on disk",
        "cluster/members/registration.py",
        "        await self._cluster.log.sync()\n",
        "",
        (by_tests("tests/cluster"),),
    ),
)

LOGS = (
    Mutant(
        "term and vote are not written",
        _LOG + "journal.py",
        "            self.current_term, self.voted_for = term, voted_for\n"
        "            self._write_hard_state()\n",
        "            self.current_term, self.voted_for = term, voted_for\n",
        (LOG,),
        build="forget-the-vote",
    ),
    Mutant(
        "a withheld vote is forgotten by a restart",
        _LOG + "journal.py",
        "            self.votes_suspended = votes_suspended\n"
        "            self._write_hard_state()\n",
        "            self.votes_suspended = votes_suspended\n",
        (LOG, by_tests("tests/cluster")),
    ),
    Mutant(
        "what was written during a sync counts as synced",
        _LOG + "wal.py",
        "            journal.synced_index = journal.syncing_index\n",
        "            journal.synced_index = journal.written_index\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "a sync does nothing",
        _LOG + "wal.py",
        "            await active.file.sync()\n        except OSError as error:\n"
        '            raise self.fail("sync"',
        '            pass\n        except OSError as error:\n            raise self.fail("sync"',
        (LOG, SIMULATOR),
        build="ack-before-fsync",
    ),
    Mutant(
        "the name of a new segment is not synced",
        _LOG + "wal.py",
        "            await self._fresh.file.sync()\n"
        "            await self.disk.sync_dir(self.directory)\n",
        "            await self._fresh.file.sync()\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "a disk that failed goes on being used",
        _LOG + "wal.py",
        'self.failure = f"{what} of {path} failed: {error}"',
        'self.failure, reason = None, f"{what} of {path} failed: {error}"',
        (LOG,),
    ),
    Mutant(
        "the log speaks of a snapshot before it is synced",
        _LOG + "snapshots.py",
        "                    raise no_room from error\n                await file.sync()\n",
        "                    raise no_room from error\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "the name of a snapshot is not synced",
        _LOG + "snapshots.py",
        "            await disk.sync_dir(self.directory)\n        except OSError",
        "        except OSError",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "the base moves before the mark is synced",
        _LOG + "journal.py",
        "            self._wal.write()\n            await self._wal.sync()\n"
        "            if not self.removed and self.mark.index == index:\n",
        "            self._wal.write()\n"
        "            if not self.removed and self.mark.index == index:\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "an install is acknowledged before it is synced",
        _LOG + "journal.py",
        "        self._replace(install)\n        self._wal.write()\n"
        "        await self._wal.sync()\n",
        "        self._replace(install)\n        self._wal.write()\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "segments are dropped before their state is repeated",
        _LOG + "cleaner.py",
        "        wal.write()\n        await wal.sync()\n"
        "        try:\n            for segment in dead:\n",
        "        try:\n            for segment in dead:\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "entries point to copies in a file that was never synced",
        _LOG + "rewriting.py",
        "        await segment.file.sync()\n",
        "",
        (LOG,),
    ),
    Mutant(
        "an entry that was replaced while it was copied points to its copy",
        _LOG + "rewriting.py",
        "if found is not None and found[0].place(found[1]) == old:",
        "if found is not None:",
        (LOG,),
    ),
    Mutant(
        "copies come after records that void them",
        _LOG + "cleaner.py",
        "            number = await self._wal.spare_number()\n",
        "            number = self._wal.active.number + 50\n",
        (LOG,),
    ),
    Mutant(
        "segments go that still hold something",
        _LOG + "cleaner.py",
        "if s.sealed and s.live_bytes == 0]",
        "if s.sealed and s.live_bytes <= 256]",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "checksums are not compared",
        _LOG + "recovery.py",
        " or extend(extend(salt, first), data[at + 8 : stop]) != crc",
        "",
        (LOG,),
    ),
    Mutant(
        "a log that lost its synced end is accepted",
        _LOG + "recovery.py",
        "if segment is not None and segment.size < offset:",
        "if segment is not None and segment.size < 0:",
        (LOG,),
    ),
    Mutant(
        "a torn tail stays in the file",
        _LOG + "recovery.py",
        "            segment.file.truncate(segment.size)\n",
        "            pass\n",
        (LOG, SIMULATOR),
    ),
    Mutant(
        "the log of another node is accepted",
        _LOG + "recovery.py",
        "if header.identity != identity:",
        "if not header.identity:",
        (LOG,),
    ),
)

QUEUES = (
    Mutant(
        "a settle settles a later delivery",
        _MACHINE + "checkout.py",
        "            if hold.token > token:\n",
        "            if token < 0:\n",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "anybody may settle",
        _MACHINE + "checkout.py",
        "            if unknown is not None:\n",
        "            if unknown is not None and unknown < 0:\n",
        (MACHINE,),
    ),
    Mutant(
        "a return goes to the tail",
        _MACHINE + "checkout.py",
        "if wait_ms:\n                messages.delay(start, end, context.now_ms + wait_ms",
        "if 1:\n                messages.delay(start, end, context.now_ms + wait_ms + 1",
        (MACHINE,),
    ),
    Mutant(
        "one failure more than the limit is allowed",
        _MACHINE + "checkout.py",
        "if limit is not None and mark.failed > limit:",
        "if limit is not None and mark.failed > limit + 1:",
        (MACHINE,),
    ),
    Mutant(
        "a redelivery is not flagged",
        _MACHINE + "checkout.py",
        "acquired=mark.acquired + 1, failed=mark.failed + failed, wish_ms=wish_ms",
        "failed=mark.failed + failed, wish_ms=wish_ms",
        (MACHINE,),
        build="unflagged-redelivery",
    ),
    Mutant(
        "delayed messages are missing in a snapshot",
        _MACHINE + "messages.py",
        "self.delayed = [(ready_at_ms, first, last) for ready_at_ms, first, last in delayed]",
        "self.delayed = []",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "publishers are missing in a snapshot",
        _MACHINE + "queue.py",
        "        self.admission.publishers.load(publishers)\n",
        "",
        (MACHINE, SIMULATOR),
        build="dedup-not-replicated",
    ),
    Mutant(
        "ids for de-duplication are missing in a snapshot",
        _MACHINE + "queue.py",
        "        self.admission.dedup_ids.load(dedup_ids)\n",
        "",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "fencing tokens start anew after a snapshot",
        _MACHINE + "queue.py",
        "            checkout.last_token,\n            unused_since_ms,\n",
        "            _,\n            unused_since_ms,\n",
        (MACHINE,),
    ),
    Mutant(
        "messages expire by a local clock",
        _MACHINE + "expiry.py",
        "        now_ms = context.now_ms if inclusive else context.now_ms - 1\n",
        "        import time\n        now_ms = int(time.time() * 1000)\n",
        (MACHINE, SIMULATOR),
        build="own-clock",
    ),
    Mutant(
        "messages expire before their time",
        _MACHINE + "expiry.py",
        "expired = store.time_of(position) + ttl_ms <= now_ms",
        "expired = store.time_of(position) + ttl_ms // 2 <= now_ms",
        (MACHINE,),
    ),
    Mutant(
        "delayed messages come early",
        _MACHINE + "messages.py",
        "while self.delayed and self.delayed[0][0] <= now_ms:",
        "while self.delayed and self.delayed[0][0] <= now_ms + 500:",
        (MACHINE,),
    ),
    Mutant(
        "a full queue holds one more",
        _MACHINE + "limits.py",
        "over = 0 if count_max is None else messages.waiting_count - count_max",
        "over = 0 if count_max is None else messages.waiting_count - count_max - 1",
        (MACHINE,),
    ),
    Mutant(
        "dead letters vanish",
        _MACHINE + "disposal.py",
        "        self.outbox.add(number, first, last, deaths, to, mark.priority)\n",
        "        self.messages.release(first, last)\n",
        (MACHINE,),
    ),
    Mutant(
        "what dies passes the dead letters that wait",
        _MACHINE + "deadletters.py",
        "(self.put_off or self.batches).append(batch)",
        "self.batches.append(batch)",
        (MACHINE,),
    ),
    Mutant(
        "a purge takes what consumers hold",
        _MACHINE + "queue.py",
        "                return self.disposal.purge(context)\n",
        "                for consumer in self.consumers.by_key.values():\n"
        "                    consumer.held.clear()\n"
        "                return self.disposal.purge(context)\n",
        (MACHINE,),
    ),
    Mutant(
        "a consumer gets more than its credit",
        _MACHINE + "consumers.py",
        "        room = self.held_max - self.held.count\n",
        "        room = self.held_max - self.held.count + 1\n",
        (MACHINE,),
    ),
    Mutant(
        "a new active consumer is served beside the old one",
        _MACHINE + "consumers.py",
        "self.quiescing = active.held.count > 0",
        "self.quiescing = False",
        (MACHINE,),
    ),
    Mutant(
        "tokens do not grow",
        _MACHINE + "checkout.py",
        "        token = self.last_token + 1\n",
        "        token = self.last_token or 1\n",
        (MACHINE,),
    ),
    Mutant(
        "a repeated publish is stored again",
        _MACHINE + "admission.py",
        "            if last > publisher.last:\n                publisher.last = last\n",
        "            pass\n",
        (MACHINE,),
    ),
    Mutant(
        "parts of a large body do not stay in the log",
        _MACHINE + "store.py",
        "        for indexes in self._parts.values():\n            ranges += indexes\n",
        "",
        (LARGE,),
    ),
    Mutant(
        "an upload that nobody goes on with stays",
        _MACHINE + "queue.py",
        "            self.admission.uploads.forget_idle(now_ms)\n",
        "",
        (LARGE,),
    ),
    Mutant(
        "a message is made of any parts",
        _MACHINE + "uploads.py",
        "return upload is not None and upload.parts == parts",
        "return upload is not None",
        (LARGE,),
    ),
    Mutant(
        "parts do not follow a message to its dead-letter queue",
        _MACHINE + "queue.py",
        "        for place, indexes in parts.items():\n"
        "            self.messages.store.add_parts(first + place, indexes)\n",
        "",
        (LARGE,),
    ),
    Mutant(
        "what is behind a large body on a channel overtakes it",
        "node/protocols/amqp/publishes.py",
        "        if behind is not None:\n            behind.append(batch)\n        elif",
        "        if",
        (by_tests("tests/node/amqp/test_large_bodies.py", words="stays_behind"),),
    ),
    Mutant(
        "a window of ids is forgotten at once",
        _MACHINE + "admission.py",
        "if window_ms is not None and ids[dedup_id] + window_ms > now_ms:",
        "if window_ms is not None and ids[dedup_id] > now_ms:",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "numbers of transfers do not carry the term",
        _MACHINE + "context.py",
        "return last + 1 if self.version < 2 else number_after(last, self.stamp.term)",
        "return last + 1",
        (by_tests("tests/machine/test_founding.py", "tests/node/test_numbers_after_recovery.py"),),
    ),
    Mutant(
        "a part of a transaction is done twice",
        _MACHINE + "transactions.py",
        "if number >= source.done_below and number not in source.done:",
        "if number >= source.done_below:",
        (MACHINE, by_tests("tests/simulation/test_canaries.py")),
    ),
    Mutant(
        "a transaction is done though a step is refused",
        _MACHINE + "transactions.py",
        "        if refusal is not None:\n            return refusal\n        number = 0\n",
        "        number = 0\n",
        (MACHINE,),
    ),
    Mutant(
        "what a transaction owes others is let go from the log",
        _MACHINE + "transactions.py",
        "return [(each.index, each.index) for each in self._open.values()]",
        "return []",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "messages in the hands of consumers are let go from the log",
        _MACHINE + "store.py",
        "        for live, index in zip(self._lives[self._head :], ",
        "        for live, index in zip(self._lives[self._head + 1 :], ",
        (MACHINE,),
    ),
    Mutant(
        "an older process of a node keeps its sessions",
        _MACHINE + "sessions.py",
        "            if session.incarnation < incarnation:\n",
        "            if session.incarnation < 0:\n",
        (MACHINE,),
    ),
    Mutant(
        "a new leader forgets what is owed",
        _MACHINE + "checkout.py",
        "            if chunks:\n                queue, session = ",
        "            if chunks and not effects:\n                queue, session = ",
        (MACHINE, SIMULATOR),
    ),
    Mutant(
        "what never left counts as a failed delivery",
        _MACHINE + "checkout.py",
        "            fresh = max(first, self._seen_up_to() + 1)\n",
        "            fresh, sent = last + 1, True\n",
        (MACHINE,),
    ),
    Mutant(
        "a deleted queue's counts are forgotten",
        _MACHINE + "machine.py",
        "        _add(self._removed, queue.removed)\n",
        "",
        (MACHINE,),
    ),
    Mutant(
        "unlimited credit has no bound",
        _MACHINE + "consumers.py",
        "            self.held_max = UNLIMITED_CREDIT\n",
        "            self.held_max = UNSETTLED_MAX\n",
        (MACHINE,),
    ),
    Mutant(
        "room that is kept for a transaction is given to others",
        _MACHINE + "limits.py",
        "taken = messages.waiting_count + self.reserved_count",
        "taken = messages.waiting_count",
        (by_tests("tests/machine/test_transactions.py"),),
    ),
    Mutant(
        "room that nobody gives back is kept for ever",
        _MACHINE + "transactions.py",
        "            if self.reserved[key].until_ms > context.now_ms:\n",
        "            if True:\n",
        (by_tests("tests/machine/test_transactions.py"),),
    ),
    Mutant(
        "room that is in doubt is given back in time",
        _MACHINE + "transactions.py",
        "            if self.reserved[key].source == CATALOG_GROUP:\n",
        "            if True:\n",
        (by_tests("tests/machine/test_transactions.py", words="doubt"),),
    ),
    Mutant(
        "what was not decided when its group was asked is decided afterwards",
        _MACHINE + "transactions.py",
        "        self._answer(command, 0, lambda: Refused(LIMIT_REACHED, reason))\n",
        "",
        (by_tests("tests/machine/test_transactions.py", words="doubt"),),
    ),
    Mutant(
        "what a consumer holds is told by position, whatever its priority",
        _MACHINE + "checkout.py",
        "    ordered.sort(key=lambda each: each[:2])\n",
        "    ordered.sort(key=lambda each: each[2].first)\n",
        (by_tests("tests/machine/test_spec_queues.py"),),
    ),
)

NODES = (
    Mutant(
        "a large body that is sent to its end after a close was never delivered",
        "node/protocols/amqp/writer.py",
        "        if not lost:\n            self._count_begun()\n",
        "",
        (by_tests("tests/node/amqp/test_large_bodies.py", words="sent_to_its_end"),),
    ),
    Mutant(
        "a leader serves before its own entry is applied",
        "cluster/groups/group.py",
        "if not self.ready and noop is not None and self.applied_index >= noop:",
        "if not self.ready and noop is not None:",
        (RAFT, by_tests("tests/cluster"), SIMULATOR),
    ),
    Mutant(
        "log time follows a clock that steps back",
        "cluster/agreed_time.py",
        "return max(agreed_ms, slow_ms)",
        "return agreed_ms",
        (RAFT, by_tests("tests/cluster"), SIMULATOR),
    ),
    Mutant(
        "a minority of the clocks says what time it is",
        "cluster/agreed_time.py",
        "    return middle if 2 * near > nodes else None\n",
        "    return ordered[-1]\n",
        (by_tests("tests/cluster/test_agreed_time.py", "tests/cluster/test_clocks.py"), SIMULATOR),
    ),
    Mutant(
        "clocks that jump together are believed at once",
        "cluster/agreed_time.py",
        "                return now_ns - at_ns >= self._confirm_ns\n",
        "                return True\n",
        (by_tests("tests/cluster/test_agreed_time.py", "tests/cluster/test_clocks.py"),),
    ),
    Mutant(
        "entries are stamped while it is in doubt what time it is",
        "cluster/agreed_time.py",
        "        if self._agreed is not None and self._agreed.in_doubt:\n",
        "        if False:\n",
        (by_tests("tests/cluster/test_clocks.py"),),
    ),
    Mutant(
        "what was made of a queue is kept though it changed",
        "cluster/machine/machine.py",
        "            self._unchanged.pop(queue_id, None)\n",
        "            self._unchanged.get(queue_id)\n",
        (by_tests("tests/machine/test_replay.py"),),
    ),
    Mutant(
        "log time that is ahead stays ahead",
        "cluster/agreed_time.py",
        "SLOWER = 2\n",
        "SLOWER = 1\n",
        (by_tests("tests/cluster/test_log_time.py"),),
    ),
    Mutant(
        "a node with a wrong clock keeps its leaderships",
        "cluster/members/maintenance.py",
        "if not cluster.time.out_of_bounds or cluster.time.in_doubt or cluster.stopping:",
        "if True:",
        (by_tests("tests/cluster/test_clocks.py"),),
    ),
    Mutant(
        "a proposal that another entry replaced is confirmed",
        "cluster/groups/proposals.py",
        "        if entry.term == term:\n",
        "        if entry.term:\n",
        (by_tests("tests/raft/test_group.py"), SIMULATOR),
    ),
    Mutant(
        "what was lost with a leader is published under new numbers",
        "node/broker/publishing.py",
        "        pipeline.stalled = True\n        pipeline.attempt += 1\n",
        "        pipeline.stalled = True\n        pipeline.attempt += 1\n"
        "        pipeline.renumber(self._name())\n",
        (by_tests("tests/node/test_publishing.py"), SIMULATOR),
    ),
    Mutant(
        "publishers are read on, however much of theirs has no outcome",
        "node/dispatch/in_flight.py",
        "        if self.bytes > self._bytes_max and not self.full:\n",
        "        if self.bytes > 1 << 60 and not self.full:\n",
        (by_tests("tests/dispatch/test_dispatcher.py", words="reading"),),
    ),
    Mutant(
        "channels have in flight what a connection may",
        "node/protocols/amqp/publishes.py",
        "        self._in_flight = channel.host.in_flight\n",
        "        self._in_flight = type(channel.host.in_flight)(1 << 25, list, list)\n",
        (by_tests("tests/node/test_listeners.py", words="in_flight"),),
    ),
    Mutant(
        "anybody publishes in anybody's name",
        "node/broker/ingress.py",
        "    if user_id != access.user and not access.impersonates:\n",
        "    if False:\n",
        (by_tests("tests/node/test_listeners.py", words="name_of"),),
    ),
    Mutant(
        "blind copies are shown",
        "node/broker/ingress.py",
        'return props.with_headers(properties, {}, drop=("BCC",))',
        "return properties",
        (by_tests("tests/node/test_listeners.py", words="carbon"),),
    ),
    Mutant(
        "a message goes to one queue drawn for each of its copies",
        "node/routing/router.py",
        "if not copies or exchange.routes_as not in BY_KEYS:\n",
        "if not copies:\n",
        (by_tests("tests/node/routing/test_router.py", words="chooses"),),
    ),
    Mutant(
        "what a full queue of one node refuses is published again",
        "cluster/groups/outcome.py",
        '"transient_full", ',
        "",
        (by_tests("tests/node/test_transactions.py", words="no_repetition"),),
    ),
    Mutant(
        "a settle is told to one leader only",
        "cluster/peers/forwarding.py",
        "        if self._stopped or self._is_ended(proposal):\n",
        "        if proposal is not None:\n",
        (by_tests("tests/node/test_publishing.py"), SIMULATOR),
    ),
    Mutant(
        "a publish by HTTP waits for no other one",
        "node/dispatch/in_flight.py",
        "                while not self._free.is_set():",
        "                while self._in_flight.bytes < 0:",
        (by_tests("tests/node/test_listeners.py", words="counts_together"),),
    ),
    Mutant(
        "what waits for a leader is overtaken by what comes later",
        "cluster/peers/forwarding.py",
        "sorted(queue.proposals, key=lambda each: each.number)",
        "reversed(queue.proposals)",
        (by_tests("tests/node/test_publishing.py", words="keeps_its_order"),),
    ),
    Mutant(
        "what is over when the next leader is found is proposed to it",
        "cluster/peers/forwarding.py",
        "                if proposal.unwanted is not None and proposal.unwanted():\n",
        "                if proposal is None:\n",
        (by_tests("tests/cluster/test_retries.py"),),
    ),
    Mutant(
        "a proposal whose first try was lost is said to have been refused",
        "cluster/peers/forwarding.py",
        "            doubt = proposal.doubt = outcome\n",
        "            pass\n",
        (by_tests("tests/cluster/test_forwarding.py"),),
    ),
    Mutant(
        "acks that nobody waits for are forgotten with their channel",
        "node/protocols/amqp/channel.py",
        "        self.deliveries.settles.flush()\n        self.closed = True\n",
        "        self.closed = True\n",
        (by_tests("tests/node/amqp/test_late_acks.py", words="does_not_come_back"),),
    ),
    Mutant(
        "an ack waits though its consumer has no room for another message",
        "node/protocols/amqp/deliveries.py",
        "open_max > (consumer.credit or LATE_CREDIT)",
        "open_max > LATE_CREDIT",
        (by_tests("tests/node/amqp/test_late_acks.py", words="without_room"),),
    ),
    Mutant(
        "a credit is repeated though a later one was decided",
        "node/broker/settle_retry.py",
        "self._is_lost(group) or not self._is_latest(group, command)",
        "self._is_lost(group)",
        (by_tests("tests/node/test_publishing.py", words="credit_whose"),),
    ),
    Mutant(
        "a settle without a token is repeated though it may have been done",
        "node/broker/settle_retry.py",
        '(unguarded and outcome.kind == "unknown")',
        "False",
        (by_tests("tests/node/test_settle_listeners.py", words="without_a_token"),),
    ),
    Mutant(
        "a settle that may have been done is said to be refused",
        "node/broker/settle_retry.py",
        "            if outcome.in_doubt:\n",
        "            if outcome.reply is None:\n",
        (by_tests("tests/node/test_settle_listeners.py", words="may_have_been_done"),),
    ),
    Mutant(
        "copies are never compared",
        _RAFT + "digests.py",
        "        if self.on_compared is not None:\n",
        "        if self.on_compared is None:\n",
        (by_tests("tests/node/metrics/test_own_raft.py"),),
    ),
    Mutant(
        "questions to leaders are numbered from 0 in every process",
        "cluster/peers/peer_rpc.py",
        "return count(incarnation * NUMBERS_OF_A_PROCESS)",
        "return count(0)",
        (by_tests("tests/cluster/test_forwarding.py"), SIMULATOR),
    ),
    Mutant(
        "who leads the catalog is waited for when it leaves",
        "cluster/members/moving.py",
        "0 if node == cluster.node else cluster.catalog.lacks(node)",
        "cluster.catalog.lacks(node)",
        (by_tests("tests/cluster/test_membership.py", words="within_seconds"),),
    ),
    Mutant(
        "who is about to leave is given the lead",
        "cluster/members/maintenance.py",
        "sorted({*voters} - leaving) or voters",
        "voters",
        (by_tests("tests/cluster/test_membership.py", words="within_seconds"),),
    ),
    Mutant(
        "a guest does not say which start of this node it knows",
        "cluster/cluster_node.py",
        '[-1, "leads", _, int(known), *_]',
        '[-9, "leads", _, int(known), *_]',
        (by_tests("tests/cluster/test_membership.py", words="empty_folder"),),
    ),
    Mutant(
        "of starts that are not applied yet nothing is said",
        "cluster/members/known_incarnations.py",
        "                if isinstance(each, RegisterNode):\n",
        "                if isinstance(each, str):\n",
        (by_tests("tests/cluster/test_wiped.py"),),
    ),
    Mutant(
        "a guest does not hear which start of it is known",
        "cluster/cluster_node.py",
        "            self.liveness.announce([peer])  # it",
        "            # it",
        (by_tests("tests/cluster/test_wiped.py"),),
    ),
    Mutant(
        "the empty folder of a node that joins votes at once",
        "cluster/cluster_node.py",
        "if config.join and catalog.term == 0:",
        "if config.join and catalog.term < 0:",
        (by_tests("tests/cluster/test_wiped.py"),),
    ),
    Mutant(
        "groups do not hear that a guest is connected",
        "cluster/cluster_node.py",
        "        if self.unknown_peers.on_up(peer, incarnation):\n",
        "        if self.unknown_peers.on_up(peer, incarnation):\n            return\n",
        (by_tests("tests/cluster/test_membership.py", words="guest_votes"),),
    ),
    Mutant(
        "a guest that only asks for votes stays",
        "cluster/members/unknown_peers.py",
        "if kind not in (PRE_VOTE, VOTE):",
        "if kind:",
        (by_tests("tests/cluster/test_membership.py", words="empty_folder"),),
    ),
    Mutant(
        "strangers may stay without the cluster's secret",
        "cluster/raft/links.py",
        "self.on_unknown_peer(peer.node, peer.incarnation) and self._secret is not None",
        "self.on_unknown_peer(peer.node, peer.incarnation)",
        (by_tests("tests/raft/test_links.py", words="stranger"),),
    ),
    Mutant(
        "what was asked over a link that is lost stays open",
        "cluster/peers/peer_rpc.py",
        "            self._tell(peer, done, LinkLost())\n",
        "            pass\n",
        (by_tests("tests/cluster/test_peer_rpc.py"), SIMULATOR),
    ),
    Mutant(
        "who loses leadership keeps confirms that wait for consumers",
        "cluster/groups/group.py",
        "        self._applying.keep(False)\n        self._pacing.release_all()\n",
        "        self._applying.keep(False)\n",
        (by_tests("tests/raft/test_pacing.py"),),
    ),
    Mutant(
        "a confirm waits for consumers as long as they take",
        "cluster/groups/pacing.py",
        "<= first_free or held[0].until_s <= now_s)",
        "<= first_free)",
        (by_tests("tests/raft/test_pacing.py"),),
    ),
    Mutant(
        "an answer whose link is full is dropped",
        "cluster/peers/peer_rpc.py",
        "            waiting.append(_Waiting(answer, until_s, dropped))\n",
        "            pass\n",
        (by_tests("tests/cluster/test_forwarding.py"), by_tests("tests/cluster/test_peer_rpc.py")),
    ),
    Mutant(
        "an answer that waited too long is dropped without a word",
        "cluster/peers/peer_rpc.py",
        "                    each = _Waiting(each.dropped)\n",
        "                    continue\n",
        (by_tests("tests/cluster/test_forwarding.py"), by_tests("tests/cluster/test_peer_rpc.py")),
    ),
    Mutant(
        "what was served over a link that is lost stays",
        "node/clients/relay.py",
        "                self.stop_serving(served)\n        self._to_detach = {",
        "                pass\n        self._to_detach = {",
        (by_tests("tests/node/test_relay.py"),),
    ),
    Mutant(
        "a node goes on without work that failed",
        "node/tasks.py",
        "            self.on_failure(error)\n",
        "            pass\n",
        (by_tests("tests/node/test_start.py", words="work_broke"),),
    ),
    Mutant(
        "no group is asked for room before another one decides",
        "node/broker/transactions.py",
        "            await self._keep_room(source, number, others, kept, moves=_moves(steps))\n",
        "",
        (by_tests("tests/node/test_transactions.py"),),
    ),
    Mutant(
        "consumers see the delay of a message as it was published",
        "node/messages/attributes.py",
        "{DELAY: -_number(DELAY, delay_ms)}",
        "{DELAY: _number(DELAY, delay_ms)}",
        (by_tests("tests/protocols/amqp/test_attributes.py"),),
    ),
    Mutant(
        "a change of the catalog is not tried before it is made",
        "cluster/machine/catalog.py",
        "            reply = trial.apply_step(step).reply",
        "            reply = self.apply_step(step).reply",
        (by_tests("tests/machine/test_catalog_change.py"),),
    ),
    Mutant(
        "a copy of the catalog shares its bindings",
        "cluster/machine/catalog_tables.py",
        "self._to = {end: dict(bound) for end, bound in other._to.items()}",
        "self._to = dict(other._to)",
        (by_tests("tests/machine/test_catalog_change.py"),),
    ),
    Mutant(
        "a protected vhost is dropped all the same",
        "cluster/machine/catalog_admin.py",
        'entry.get(PROTECTED) is True and table == "vhosts"',
        'entry.get(PROTECTED) is None and table == "vhosts"',
        (by_tests("tests/machine/test_catalog_admin.py"),),
    ),
    Mutant(
        "what comes to a consumer without acks after its end is settled unseen",
        "node/protocols/amqp/deliveries.py",
        "moved.auto_settle = False",
        "moved.auto_settle = consumer.no_ack",
        (by_tests("tests/node/amqp/test_cancel_on_failover.py"),),
    ),
    Mutant(
        "a commit that is given up keeps its room",
        "node/broker/transactions.py",
        "if not decides or isinstance(error,",
        "if isinstance(error,",
        (by_tests("tests/node/test_transactions.py", words="given_up"),),
    ),
)

STREAMS = (
    Mutant(
        "a batch that comes again is stored again",
        _STREAM + "appending.py",
        "            skip = max(0, min(count, last + 1 - seqno))\n",
        "            skip = 0\n",
        (STREAM,),
    ),
    Mutant(
        "what a publisher was refused is forgotten",
        _STREAM + "publishers.py",
        "        for place, answer in answers:\n",
        "        for place, answer in answers[:0]:\n",
        (STREAM,),
    ),
    Mutant(
        "ids of messages are not known",
        _STREAM + "publishers.py",
        "        return 0 if found is None else found[0]\n",
        "        return 0\n",
        (STREAM,),
        build="forgotten-ids",
    ),
    Mutant(
        "of another stream the last message that was taken is taken again",
        _STREAM + "following.py",
        "        self.taken[origin.key] = Taken(origin.queue, last)\n",
        "        self.taken[origin.key] = Taken(origin.queue, last - 1)\n",
        (STREAM,),
        build="taken-twice",
    ),
    Mutant(
        "a mirror counts by itself",
        _STREAM + "following.py",
        "                    retained.skip(sequence - retained.next)\n",
        "                    retained.skip(0)\n",
        (STREAM,),
        build="passed-over",
    ),
    Mutant(
        "sequences of what was lost with a majority are given again",
        "cluster/machine/machine.py",
        "            queue.skip_lost(context, context.stamp.term)\n"
        "            context.touch(queue.id)\n",
        "            pass\n",
        (STREAM,),
    ),
    Mutant(
        "which message of a subject is to be the last is not compared",
        _STREAM + "appending.py",
        "            if found != asked[ASKED_LAST_SUBJECT]:\n",
        "            if found < 0:\n",
        (STREAM,),
        build="compare-nothing",
    ),
    Mutant(
        "what was handed out is due again at once",
        _STREAM + "consumers.py",
        "        return now_ms + _wait_ms(self.settings, deliveries)\n",
        "        return now_ms + 1\n",
        (STREAM,),
        build="handed-to-two",
    ),
    Mutant(
        "acknowledgements are counted and forgotten",
        _STREAM + "table.py",
        "        for first, last in ranges:\n            if first <= last:\n",
        "        for first, last in ranges:\n            if first > last:\n",
        (STREAM,),
        build="forgotten-acks",
    ),
    Mutant(
        "ids are known for ever",
        _STREAM + "publishers.py",
        "            if ids[message_id][1] + window_ms > now_ms:\n",
        "            if window_ms:\n",
        (STREAM,),
    ),
    Mutant(
        "new messages come before those that come again",
        _STREAM + "consumers.py",
        "                if self.again:\n                    self._give_again",
        "                if self.again and not (self.pending and self.room):\n"
        "                    self._give_again",
        (STREAM,),
    ),
    Mutant(
        "what is delivered again gets another number for the floor",
        _STREAM + "consumers.py",
        "            ahead = self.delivered - sequence if anew else held.ahead\n",
        "            ahead = self.delivered - sequence\n",
        (STREAM,),
    ),
    Mutant(
        "a removed message is still to come",
        _STREAM + "consumers.py",
        "            self.pending -= last - max(first, self.cursor) + 1\n",
        "            pass\n",
        (STREAM,),
    ),
    Mutant(
        "what another consumer has yet to get is gone by interest",
        _STREAM + "consumers.py",
        "            found.append((max(first, self.cursor), last))\n",
        "            pass\n",
        (STREAM,),
    ),
    Mutant(
        "a message that never expires does when it is too old",
        _STREAM + "leaving.py",
        "            if self.ttls.get(sequence) != 0:\n",
        "            if sequence:\n",
        (STREAM,),
    ),
    Mutant(
        "of an atomic batch what can be stored is stored",
        _STREAM + "appending.py",
        "                elif not (repeats and answer[0] == errors.DUPLICATE_IN_A_BATCH):\n",
        "                elif False:\n",
        (STREAM,),
    ),
    Mutant(
        "a stream refuses dead letters for good",
        _STREAM + "appending.py",
        "        carried &= context.version >= CARRIED_SINCE\n",
        "        carried = False\n",
        (STREAM,),
    ),
    Mutant(
        "a stream refuses what a transaction has decided",
        _STREAM + "appending.py",
        "        return context.decided and context.version >= ASKS_ALL_SINCE\n",
        "        return False\n",
        (STREAM,),
    ),
    Mutant(
        "what is moved to a queue that is gone is gone",
        "node/broker/transactions.py",
        "needed = every if moves else ",
        "needed = ",
        (by_tests("tests/node/test_transactions.py", words="moved_to"),),
    ),
    Mutant(
        "a restored stream forgets which ids are free",
        _STREAM + "subjects.py",
        '        self._free = unpack("I", free)\n',
        "",
        (STREAM,),
    ),
)

MUTANTS = CONSENSUS + LOGS + QUEUES + STREAMS + NODES
