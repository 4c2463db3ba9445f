"""What JetStream's API answers when it does not do what is asked: NATS's own numbers and words."""

from __future__ import annotations

from typing import Any, Final


class ApiError(Exception):
    def __init__(self, code: int, number: int, text: str) -> None:
        super().__init__(text)
        self.code = code  # as HTTP has them
        self.number = number  # `err_code`: which clients go by
        self.text = text

    @property
    def map(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.number, "description": self.text}


#: Those that need no more words, by number.
_KNOWN: Final = {
    10003: (400, "bad request"),
    10008: (503, "JetStream system temporarily unavailable"),
    10013: (400, "consumer name already in use"),
    10014: (404, "consumer not found"),
    10016: (400, "consumer expected to be durable but no durable name set in subject"),
    10017: (400, "consumer name in subject does not match durable name in request"),
    10018: (400, "consumer expected to be durable but a durable name was not set"),
    10019: (400, "consumer expected to be ephemeral but detected a durable name set in subject"),
    10020: (400, "consumer expected to be ephemeral but a durable name was set in request"),
    10026: (400, "maximum consumers limit reached"),
    10030: (400, "stream mirror must have max message size >= source"),
    10031: (400, "stream mirrors can not also contain other sources"),
    10034: (400, "stream mirrors can not contain subjects"),
    10036: (503, "not currently supported in clustered mode"),
    10037: (404, "no message found"),
    10038: (400, "expected an empty request payload"),
    10039: (503, "JetStream not enabled for account"),
    10040: (400, "peer not a member"),
    10046: (400, "stream source must have max message size >= target"),
    10054: (400, "message size exceeds maximum allowed"),
    10055: (400, "stream mirror configuration can not be updated"),
    10056: (400, "stream name in subject does not match request"),
    10058: (400, "stream name already in use with a different configuration"),
    10059: (404, "stream not found"),
    10060: (400, "expected stream does not match"),
    10065: (400, "subjects overlap with an existing stream"),
    10075: (503, "peer remap failed"),
    10076: (503, "JetStream not enabled"),
    10078: (400, "consumer config required"),
    10079: (400, "consumer deliver subject has wildcards"),
    10080: (400, "consumer in push mode can not set max waiting"),
    10081: (400, "consumer deliver subject forms a cycle"),
    10082: (400, "consumer requires ack policy for max ack pending"),
    10083: (400, "consumer idle heartbeat needs to be >= 100ms"),
    10084: (400, "consumer in pull mode requires explicit ack policy on workqueue stream"),
    10086: (400, "consumer in pull mode can not have rate limit set"),
    10087: (400, "consumer max waiting needs to be positive"),
    10088: (400, "consumer idle heartbeat requires a push based consumer"),
    10089: (400, "consumer flow control requires a push based consumer"),
    10097: (400, "header size exceeds maximum allowed of 64k"),
    10098: (400, "workqueue stream requires explicit ack"),
    10099: (400, "multiple non-filtered consumers not allowed on workqueue stream"),
    10100: (400, "filtered consumer not unique on workqueue stream"),
    10101: (400, "consumer must be deliver all on workqueue stream"),
    10108: (400, "consumer with flow control also needs heartbeats"),
    10109: (400, "invalid operation on sealed stream"),
    10112: (400, "invalid push consumer deliver subject"),
    10114: (400, "consumer max request batch needs to be > 0"),
    10115: (400, "consumer max request expires needs to be >= 1ms"),
    10116: (400, "max deliver is required to be > length of backoff values"),
    10118: (500, "stream is offline"),
    10126: (400, "consumer config replica count exceeds parent stream"),
    10127: (400, "Consumer name can not contain path separators"),
    10128: (400, "Stream name can not contain path separators"),
    10131: (
        400,
        "Consumer create request did not match filtered subject from create subject",
    ),
    10132: (400, "Consumer Durable and Name have to be equal if both are provided"),
    10133: (400, "replicas count cannot be negative"),
    10134: (400, "consumer config replicas must match interest retention stream's replicas"),
    10136: (400, "consumer cannot have both FilterSubject and FilterSubjects specified"),
    10137: (400, "consumer with multiple subject filters cannot use subject based API"),
    10138: (400, "consumer subject filters cannot overlap"),
    10139: (400, "consumer filter in FilterSubjects cannot be empty"),
    10140: (400, "duplicate source configuration detected"),
    10141: (400, "sourced stream name is invalid"),
    10142: (400, "mirrored stream name is invalid"),
    10143: (400, "stream mirrors can not have first sequence configured"),
    10144: (
        400,
        "source with multiple subject transforms cannot also have a single subject filter",
    ),
    10147: (400, "source filters can not overlap"),
    10148: (400, "consumer already exists"),
    10149: (400, "consumer does not exist"),
    10150: (
        400,
        "mirror with multiple subject transforms cannot also have a single subject filter",
    ),
    10152: (400, "mirror subject filters can not overlap"),
    10159: (400, "Setting PriorityPolicy requires at least one PriorityGroup to be set"),
    10160: (400, "Provided priority group does not exist for this consumer"),
    10161: (400, "Group name cannot be an empty string"),
    10162: (400, "a priority group is named by 1 to 16 of A-Z, a-z, 0-9, - _ / ="),
    10164: (400, "wrong last sequence"),
    10165: (400, "invalid per-message TTL"),
    10166: (400, "per-message TTL is disabled"),
    10168: (400, "message counters is disabled"),
    10169: (400, "message counter increment is missing"),
    10170: (400, "message counter has payload"),
    10171: (400, "message counter increment is invalid"),
    10172: (400, "message counter is broken"),
    10173: (400, "stream mirrors can not also calculate counters"),
    10174: (400, "atomic publish is disabled"),
    10175: (400, "atomic publish sequence is missing"),
    10176: (400, "atomic publish batch is incomplete"),
    10178: (400, "priority groups can not be used with push consumers"),
    10179: (400, "atomic publish batch ID is invalid"),
    10181: (400, "consumer ack policy invalid"),
    10182: (400, "consumer replay policy invalid"),
    10183: (400, "consumer ack wait needs to be positive"),
    10184: (400, "consumer backoff needs to be positive"),
    10186: (400, "stream mirrors can not also schedule messages"),
    10187: (400, "stream source can not also schedule messages"),
    10188: (400, "message schedules is disabled"),
    10189: (400, "message schedules pattern is invalid"),
    10190: (400, "message schedules target is invalid"),
    10191: (400, "message schedules invalid per-message TTL"),
    10192: (400, "message schedules invalid rollup"),
    10193: (400, "missing sequence for expected last sequence per subject"),
    10196: (400, "consumer can not have priority groups when policy is none"),
    10197: (400, "PinnedTTL cannot be set when PriorityPolicy is none"),
    10198: (400, "stream mirrors can not also use atomic publishing"),
    10200: (400, "atomic publish batch commit is invalid"),
    10201: (400, "atomic publish batch contains duplicate message id"),
    10203: (400, "message schedules source is invalid"),
    10205: (400, "batch publish is disabled"),
    10209: (400, "stream mirrors can not also use batch publishing"),
    10210: (429, "atomic publish too many inflight"),
    10212: (400, "message schedules invalid scheduler"),
    10223: (400, "message schedules time zone is invalid"),
    10227: (400, "message stream source header is not allowed"),
}

#: Of a message that is to be deleted: its number is that of any other reason, too.
NO_MESSAGE: Final = "no message found"
#: Unless it is among those that a stream has; where that is in memory, of any that is not there.
NO_SUCH_SEQUENCE: Final = 10043


def known(number: int) -> ApiError:
    """By its number alone; of one that nobody described: a bad request."""
    code, text = _KNOWN.get(number, (400, "bad request"))
    return ApiError(code, number, text)


def invalid_json(why: object) -> ApiError:
    return ApiError(400, 10025, f"invalid JSON: {why}")


def invalid_stream(why: str) -> ApiError:
    return ApiError(500, 10052, why)


def not_supported(what: str) -> ApiError:
    """Part of NATS, and not there here yet: whoever asks for it must not believe to have it."""
    return ApiError(500, 10052, f"{what}: not supported yet")
