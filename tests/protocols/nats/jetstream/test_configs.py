"""Configurations: what comes in, what stands in the catalog, what is refused and why."""

from __future__ import annotations

from typing import Any

import pytest

from node.protocols.nats.jetstream import consumer_config, origins, stream_config
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.times import NS_PER_S

MS = 1_000_000


def stream(**given: Any) -> stream_config.Config:
    return stream_config.stream_config({"name": "S", **given})


def consumer(stream_: dict[str, Any] | None = None, **given: Any) -> consumer_config.Config:
    return consumer_config.consumer_config(given, stream_ or stream(subjects=["s.>"]))


def number_of(make: Any, *args: Any, **given: Any) -> int:
    with pytest.raises(ApiError) as refused:
        make(*args, **given)
    return refused.value.number


class TestStreams:
    def test_what_is_not_said_is_as_nats_server_shows_it(self):
        assert stream_config.shown(stream()) == {
            "name": "S",
            "subjects": ["S"],
            "retention": "limits",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "discard": "old",
            "storage": "file",
            "num_replicas": 1,
            "duplicate_window": 120 * NS_PER_S,
            "compression": "none",
            "allow_direct": False,
            "mirror_direct": False,
            "sealed": False,
            "deny_delete": False,
            "deny_purge": False,
            "allow_rollup_hdrs": False,
            "consumer_limits": {},
            "allow_msg_ttl": False,
        }

    def test_what_means_the_same_is_equal(self):
        assert stream(max_msgs=0, unknown=1, subjects=None) == stream(max_msgs=-7)
        assert stream(max_age=60 * NS_PER_S) == stream(
            max_age=60 * NS_PER_S, duplicate_window=60 * NS_PER_S
        )

    @pytest.mark.parametrize(
        "given",
        [
            {"name": "a.b"},
            {"name": ""},
            {"name": "a b"},
            {"name": "x" * 256},
            {"subjects": ["a..b"]},
            {"subjects": ["a b"]},
            {"subjects": ["a.*", "a.b"]},
            {"subjects": ["$JS.API.>"]},
            {"subjects": ["$JSC.x"]},
            {"subjects": ["$NRG.>"]},
            {"subjects": ["$SYS.REQ.>"]},
            {"subjects": ["$SYS.*.>"]},
            {"subjects": ["*.API.>"]},
            {"subjects": [">"]},
            {"max_age": 99 * MS},
            {"max_age": -1},
            {"duplicate_window": 99 * MS},
            {"max_age": NS_PER_S, "duplicate_window": 2 * NS_PER_S},
            {"num_replicas": 6},
            {"deny_purge": True, "allow_rollup_hdrs": True},
            {"discard_new_per_subject": True},
            {"discard_new_per_subject": True, "discard": "new"},
            {"subject_delete_marker_ttl": MS},
            {"mirror": {"name": "T"}, "subject_delete_marker_ttl": NS_PER_S},
            {"mirror": {"name": "T", "external": {"api": "$JS.hub.API"}}},
            {"mirror_direct": True},
            {"sources": [{"name": "T"}], "allow_msg_counter": True},
        ],
    )
    def test_what_cannot_be_is_refused(self, given: dict[str, Any]):
        assert number_of(stream, **given) == 10052

    @pytest.mark.parametrize(
        "given",
        [
            *({"subjects": [each], "no_ack": True} for each in (">", "*.>", "$JS.>", "$SYS.>")),
            {"subjects": ["$JS.EVENT.>", "$SYS.ACCOUNT.*.CONNECT", "*"]},
        ],
    )
    def test_what_the_server_answers_is_only_kept_without_an_answer(self, given: dict[str, Any]):
        assert stream(**given)["subjects"] == given["subjects"]

    @pytest.mark.parametrize(
        "given",
        [
            {"retention": "forever"},
            {"name": 1},
            {"subjects": "s"},
            {"max_msgs": "1"},
            {"sealed": 1},
            {"metadata": {"a": 1}},
        ],
    )
    def test_of_the_wrong_type_it_is_no_json_of_a_stream(self, given: dict[str, Any]):
        assert number_of(stream, **given) == 10025

    @pytest.mark.parametrize(
        ("mirror", "source", "given"),
        [
            (10142, 10141, {"name": "a.b"}),
            (10142, 10141, {}),
            (10025, 10025, {"name": 1}),
            (10025, 10025, {"name": "T", "opt_start_time": "noon"}),
            (10025, 10025, {"name": "T", "opt_start_seq": -2}),
            (10049, 10049, {"name": "T", "filter_subject": "a..b"}),
            (10049, 10049, {"name": "T", "filter_subject": "a\r\nb"}),
            (
                10150,
                10144,
                {
                    "name": "T",
                    "filter_subject": "a",
                    "subject_transforms": [{"src": "a", "dest": "b"}],
                },
            ),
            (10151, 10145, {"name": "T", "subject_transforms": [{"src": "a..", "dest": "b"}]}),
            (10154, 10146, {"name": "T", "subject_transforms": [{"src": "a.*", "dest": "b.$2"}]}),
            (10154, 10146, {"name": "T", "subject_transforms": [{"src": "a", "dest": "b c"}]}),
            (
                10152,
                10147,
                {
                    "name": "T",
                    "subject_transforms": [{"src": "a.*", "dest": ""}, {"src": "a.b", "dest": "c"}],
                },
            ),
        ],
    )
    def test_what_is_followed_is_checked(self, mirror: int, source: int, given: dict[str, Any]):
        assert number_of(stream, mirror=given) == mirror
        assert number_of(stream, sources=[given]) == source

    def test_a_mirror_has_nothing_of_its_own(self):
        mirror = {"name": "T"}
        for number, given in {
            10034: {"subjects": ["a"]},
            10031: {"sources": [mirror]},
            10143: {"first_seq": 5},
            10198: {"allow_atomic": True},
            10209: {"allow_batched": True},
            10173: {"allow_msg_counter": True},
            10186: {"allow_msg_schedules": True},
        }.items():
            assert number_of(stream, mirror=mirror, **given) == number
        found = stream_config.shown(stream(mirror=mirror, mirror_direct=True))
        assert found["mirror"] == mirror
        assert not found.keys() & {"subjects", "duplicate_window"}

    def test_no_source_is_there_twice(self):
        one = {"name": "T", "filter_subject": "a"}
        assert number_of(stream, sources=[one, dict(one)]) == 10140
        assert number_of(stream, sources=[one], allow_msg_schedules=True) == 10187
        assert stream(sources=[one, {**one, "filter_subject": "b"}])["subjects"] == []

    def test_streams_do_not_follow_each_other(self):
        known = {"A": stream(name="A", sources=[{"name": "B"}]), "B": stream(mirror={"name": "C"})}

        def check(name: str, **given: Any) -> None:
            origins.check_others(stream(name=name, **given), known.get)

        check("D", mirror={"name": "A"})
        assert number_of(check, "C", mirror={"name": "C"}) == 10052
        assert number_of(check, "C", sources=[{"name": "A"}, {"name": "X"}]) == 10052

    def test_what_is_followed_has_no_larger_messages(self):
        known = {"A": stream(name="A", max_msg_size=10)}
        for number, given in {
            10030: {"mirror": {"name": "A"}},
            10046: {"sources": [{"name": "A"}]},
        }.items():
            config = stream(max_msg_size=9, **given)
            assert number_of(origins.check_others, config, known.get) == number

    def test_a_mirror_stays_one_of_the_same_stream_or_is_none_any_more(self):
        one, other = stream(mirror={"name": "T"}), stream(mirror={"name": "U"})
        assert number_of(stream_config.changed, one, other) == 10055
        assert number_of(stream_config.changed, stream(), one) == 10055
        assert stream_config.changed(one, stream())["subjects"] == ["S"]

    def test_a_name_is_no_path(self):
        assert number_of(stream, name="a/b") == 10128
        assert number_of(stream, name="a\\b") == 10128

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ({"storage": "file"}, {"storage": "memory"}),
            ({"retention": "limits"}, {"retention": "workqueue"}),
            ({"sealed": True}, {}),
            ({"deny_delete": True}, {}),
            ({"deny_purge": True}, {}),
            ({"allow_msg_ttl": True}, {}),
        ],
    )
    def test_what_is_fixed_is_not_updated(self, old: dict[str, Any], new: dict[str, Any]):
        assert number_of(stream_config.changed, stream(**old), stream(**new)) == 10052

    def test_an_update_keeps_since_when_there_is_the_stream_and_where_it_began(self):
        old = stream(first_seq=7) | {stream_config.CREATED: 12}

        new = stream_config.changed(old, stream(max_msgs=5, first_seq=9))

        assert (new["first_seq"], new[stream_config.CREATED], new["max_msgs"]) == (7, 12, 5)
        assert stream_config.CREATED not in stream_config.shown(new)


class TestNumbers:
    """Clients in Go cannot read a list with a number that is too large for its field."""

    @pytest.mark.parametrize("most", [2**63 - 1, -(2**63) + 1])
    def test_what_is_signed_has_63_bits(self, most: int):
        beyond = most + (1 if most > 0 else -1)
        for field in ("max_msgs", "max_bytes", "max_msg_size"):
            stream(**{field: most})
            assert number_of(stream, **{field: beyond}) == 10025
        assert number_of(consumer, backoff=[beyond]) == 10025
        assert number_of(consumer, backoff=[10**400]) == 10025

    def test_sequences_have_64(self):
        assert stream(first_seq=2**64 - 2)["first_seq"] == 2**64 - 2
        assert number_of(stream, first_seq=2**64) == 10025


class TestConsumers:
    def test_what_is_not_said_is_as_nats_server_shows_it(self):
        assert consumer(durable_name="c", ack_policy="explicit") == {
            "durable_name": "c",
            "name": "c",
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": 30 * NS_PER_S,
            "max_deliver": -1,
            "replay_policy": "instant",
            "max_waiting": 512,
            "max_ack_pending": 1000,
            "num_replicas": 0,
        }
        assert consumer(deliver_subject="d") == {
            "deliver_policy": "all",
            "ack_policy": "none",
            "max_deliver": -1,
            "replay_policy": "instant",
            "deliver_subject": "d",
            "inactive_threshold": 5 * NS_PER_S,
            "num_replicas": 0,
        }

    @pytest.mark.parametrize(
        ("number", "given"),
        [
            (10126, {"num_replicas": 3}),
            (10133, {"num_replicas": -1}),
            (10127, {"name": "a/b"}),
            (10052, {"name": "a.b"}),
            (10102, {"name": "x" * 256}),
            (10132, {"name": "a", "durable_name": "b"}),
            (10025, {"ack_policy": "sometimes"}),
            (10025, {"replay_policy": "never"}),
            (10183, {"ack_policy": "explicit", "ack_wait": -1}),
            (10184, {"backoff": [1, -1]}),
            (10116, {"ack_policy": "explicit", "backoff": [1, 2, 3], "max_deliver": 2}),
            (10079, {"deliver_subject": "a.*"}),
            (10112, {"deliver_subject": "a..b"}),
            (10081, {"deliver_subject": "s.a"}),
            (10080, {"deliver_subject": "d", "max_waiting": 3}),
            (10082, {"deliver_subject": "d", "max_ack_pending": 3}),
            (10083, {"deliver_subject": "d", "idle_heartbeat": 99 * MS}),
            (10108, {"deliver_subject": "d", "flow_control": True}),
            (10086, {"rate_limit_bps": 1}),
            (10088, {"idle_heartbeat": NS_PER_S}),
            (10089, {"flow_control": True}),
            (10115, {"max_expires": 1}),
            (10136, {"filter_subject": "s.a", "filter_subjects": ["s.b"]}),
            (10138, {"filter_subjects": ["s.*", "s.b"]}),
            (10139, {"filter_subjects": ["s.a", ""]}),
            (10094, {"opt_start_seq": 3}),
            (10094, {"deliver_policy": "by_start_sequence"}),
            (10094, {"deliver_policy": "by_start_time"}),
            (10094, {"deliver_policy": "last_per_subject"}),
            (10095, {"sample_freq": "often"}),
            (10025, {"deliver_policy": "some"}),
            (10025, {"deliver_policy": "by_start_time", "opt_start_time": "noon"}),
            (
                10178,
                {"deliver_subject": "d", "priority_groups": ["g"], "priority_policy": "overflow"},
            ),
            (10159, {"priority_policy": "overflow"}),
            (10161, {"priority_policy": "overflow", "priority_groups": [""]}),
            (10162, {"priority_policy": "overflow", "priority_groups": ["a b"]}),
            (10196, {"priority_groups": ["g"]}),
            (10197, {"priority_timeout": 1}),
        ],
    )
    def test_what_cannot_be_is_refused_by_its_number(self, number: int, given: dict[str, Any]):
        assert number_of(consumer, **given) == number

    @pytest.mark.parametrize(
        ("number", "given"),
        [
            (10084, {}),
            (10098, {"deliver_subject": "d"}),
            (10101, {"ack_policy": "explicit", "deliver_policy": "new"}),
        ],
    )
    def test_a_work_queue_wants_explicit_acks_of_all(self, number: int, given: dict[str, Any]):
        assert number_of(consumer, stream(retention="workqueue"), **given) == number

    def test_no_message_of_a_work_queue_is_for_two_consumers(self):
        def named(name: str, **filters: Any) -> consumer_config.Config:
            return consumer(durable_name=name, ack_policy="explicit", **filters)

        others = {"a": named("a", filter_subject="s.*")}
        check = consumer_config.check_workqueue

        assert number_of(check, named("b"), others) == 10099
        assert number_of(check, named("b", filter_subjects=["s.b", "t"]), others) == 10100
        check(named("b", filter_subject="s.a.b"), others)
        check(named("a"), others)

    def test_points_in_time_come_for_the_machine_too_and_are_not_shown_twice(self):
        config = consumer(
            deliver_policy="by_start_time",
            opt_start_time="1970-01-01T00:00:01.5Z",
            pause_until="1970-01-01T01:00:00.000000001+01:00",
        )

        assert config["opt_start_ms"] == 1500
        assert "pause_until" not in config
        assert "opt_start_ms" not in consumer_config.shown(config)

    def test_an_update_changes_only_what_may_change(self):
        old = consumer(durable_name="c", ack_policy="explicit")
        changed = consumer_config.changed

        new = consumer(durable_name="c", ack_policy="explicit", ack_wait=5 * NS_PER_S)
        assert changed(old, new) is new
        other = consumer(durable_name="c", ack_policy="all")
        assert number_of(changed, old, other) == 10012
        starts = [
            consumer(deliver_policy="by_start_time", opt_start_time=f"2026-01-01T{rest}")
            for rest in ("10:00:00Z", "11:00:00+01:00", "11:00:00Z")
        ]
        assert changed(starts[0], starts[1]) is starts[1], "the same point"
        assert number_of(changed, starts[0], starts[2]) == 10012
        pushed = consumer(durable_name="c", ack_policy="explicit", deliver_subject="d")
        assert number_of(changed, old, pushed) == 10012
