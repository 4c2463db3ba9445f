"""Streams: published to by NATS clients, read and acknowledged by durable consumers, compared and
set as registers. What is acknowledged is never lost, and what a consumer acknowledged never comes
again.

Ops of its history, by `f`, and what their `value` holds (a message is named by `body`):
- stream: stream, retention, each (messages a subject may have; 0: any number)
- consumer: stream, consumer, filter, policy, ack_wait_s (null: it waits for none)
- put: stream, subject, body, id (whether it has a Nats-Msg-Id), expected (the last sequence of its
  subject; null: any); ok adds sequence, duplicate; refused adds code and, of one that expected
  something else, found. One with an id is tried until it is answered.
- read: stream, subject; ok adds sequence (0: none) and, of one that is there, body
- pull: stream, consumer: a request for more
- handed: stream, consumer, pull (the index of its invocation), sequence, place (the consumer's own
  sequence), count (of deliveries), subject, body
- ack: stream, consumer, sequence, word, all (those before it are meant, too); ok: it was answered
- content: stream, first, last, rows ([sequence, subject, body]): all that it holds in the end
- copy: the same of a stream that follows another one (of), and filters, of each of its sources;
  none: it is a mirror
- drained: stream, consumer: it has nothing more to hand out, and waits for nothing
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import deque
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from chaos.checker.streams import (
    stream_acks,
    stream_contents,
    stream_copies,
    stream_deliveries,
    stream_registers,
)
from chaos.checker.verdict import Checker
from chaos.history import Op
from chaos.load.client import wait
from chaos.load.driver import id_of
from chaos.load.nats_client import Message, StreamClient
from chaos.load.workload import Scene

NAME: Final = "streams-nats"
LOG, WORK, REGISTERS = f"{NAME}-log", f"{NAME}-work", f"{NAME}-registers"
S: Final = 1_000_000_000
PUBLISHES_PER_S: Final = 3.0
BATCH_MAX: Final = 8
PULL_MAX: Final = 10
PULL_S: Final = 1.0
PAUSE_S: Final = 0.1
ACK_WAIT_S: Final = 2.0
CRASH_SHARE: Final = 0.01
AGAIN_SHARE: Final = 0.1  # of publishes that are known to be stored are published again,
AGAIN_OF: Final = 500  # of the last ones: well within the streams' window, however long a run is
#: Of the answers of JetStream.
UNAVAILABLE, NO_RESOURCES, WRONG_LAST, NO_MESSAGE = 10008, 10023, 10071, 10037


class Made(NamedTuple):
    """A consumer."""

    stream: str
    name: str
    filter: str
    policy: str = "explicit"
    clients: int = 2


CONSUMERS: Final = (
    Made(LOG, "every", ">"),
    Made(LOG, "some", f"{LOG}.*.a", clients=1),
    Made(LOG, "up-to", ">", "all", clients=1),
    Made(LOG, "seen", ">", "none", clients=1),
    Made(WORK, "takers-a", f"{WORK}.*.a"),
    Made(WORK, "takers-b", f"{WORK}.*.b"),
)
STREAMS: Final[Mapping[str, dict[str, Any]]] = {
    LOG: {"max_msgs": 1_000_000, "duplicate_window": 600 * S},
    WORK: {"retention": "workqueue", "duplicate_window": 600 * S},
    REGISTERS: {"max_msgs_per_subject": 1, "duplicate_window": 600 * S},
}
KEYS: Final = ("x", "y")


class Copy(NamedTuple):
    """A stream that follows LOG."""

    name: str
    filters: tuple[str, ...] = ()  # of its sources; none: a mirror

    @property
    def config(self) -> dict[str, Any]:
        sources = [{"name": LOG, "filter_subject": each} for each in self.filters]
        followed = {"sources": sources} if sources else {"mirror": {"name": LOG}}
        return {"name": self.name, "num_replicas": 3, **followed}


COPIES: Final = (
    Copy(f"{NAME}-mirror"),
    Copy(f"{NAME}-sourced", (f"{LOG}.*.a", f"{LOG}.*.b")),
)


@dataclass(eq=False)
class _Process:
    """A client, and its part of the history."""

    client: StreamClient
    dice: random.Random
    published: int = 0

    @property
    def name(self) -> str:
        return self.client.name

    def body(self) -> str:
        self.published += 1
        return f"{self.name}:{self.published}"


class Streams:
    """Implements `Workload`."""

    name = NAME

    def __init__(self, scene: Scene, *, true_clocks: bool = True) -> None:
        #: False: nobody can tell for how long ids are remembered.
        self.true_clocks = true_clocks
        #: False: nor for how long an acknowledgement is waited for.
        self.steady_clocks = true_clocks
        self._scene = scene
        self._recorder = scene.recorder
        self._ending = scene.ending
        self._drained = asyncio.Event()
        self._processes: list[_Process] = []
        self._made = False
        self._admin = self._process("admin")
        self._copier = self._process("copier")
        self._copies: list[Copy] = []  # that were made
        self._publishers = [
            (self._process(f"p{number}"), stream)
            for number, stream in enumerate((LOG, LOG, WORK, WORK))
        ]
        self._writers = [self._process(f"w{number}") for number in range(3)]
        self._takers = [
            (self._process(f"c-{made.name}-{number}"), made)
            for made in CONSUMERS
            for number in range(made.clients)
        ]
        self._taking: list[asyncio.Task[None]] = []

    def _process(self, name: str) -> _Process:
        name = f"{NAME}/{name}"
        assert self._scene.open_nats is not None, "nodes without NATS"
        process = _Process(self._scene.open_nats(name), self._scene.dice(name))
        self._processes.append(process)
        return process

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "contents": stream_contents(true_clocks=self.true_clocks),
            "deliveries": stream_deliveries(steady_clocks=self.steady_clocks),
            "acks": stream_acks,
            "registers": stream_registers(true_clocks=self.true_clocks),
            "copies": stream_copies,
        }

    async def prepare(self) -> None:
        """Streams come under load: nodes of an older release have none."""

    async def run(self) -> None:
        try:
            await self._run()
        except BaseException:
            self._close()
            raise

    async def _run(self) -> None:
        self._made = await self._make()
        if not self._made:
            await self._ending.wait()
            return
        self._taking = [
            asyncio.ensure_future(self._take(process, made)) for process, made in self._takers
        ]
        await asyncio.gather(
            *(self._publish_all(process, stream) for process, stream in self._publishers),
            *(self._write_all(process) for process in self._writers),
            self._make_copies(),
        )

    async def drain(self) -> None:
        try:
            if self._made:
                await self._drain()
        finally:
            self._close()

    def _close(self) -> None:
        """Whatever it was about to do: clients that stay would ask for ever."""
        for task in self._taking:
            task.cancel()
        for process in self._processes:
            process.client.drop()

    async def _drain(self) -> None:
        for made in CONSUMERS:
            while not await self._is_drained(made):
                await asyncio.sleep(PAUSE_S)
            value = {"stream": made.stream, "consumer": made.name}
            self._recorder.saw(self._admin.name, "drained", value)
        for stream in STREAMS:
            number = 0
            while not await self._read_all(stream, f"reader-{number}"):
                number += 1
                await asyncio.sleep(PAUSE_S)
        for copy in self._copies:
            number = 0
            while not await self._is_whole(copy) or not await self._read_all(
                copy.name, f"reader-{number}", of=copy
            ):
                number += 1
                await asyncio.sleep(PAUSE_S)
        self._drained.set()
        await asyncio.gather(*self._taking)

    # --- making -----------------------------------------------------------------------------------

    async def _make(self) -> bool:
        """False: the nodes are too old, to the end."""
        client = self._admin.client
        for stream, more in STREAMS.items():
            config = {"name": stream, "subjects": [f"{stream}.>"], "num_replicas": 3, **more}
            if not await self._asked(f"STREAM.CREATE.{stream}", config):
                return False
            value = {
                "stream": stream,
                "retention": more.get("retention", "limits"),
                "each": more.get("max_msgs_per_subject", 0),
            }
            self._recorder.saw(client.name, "stream", value)
        for made in CONSUMERS:
            if not await self._make_consumer(made):
                return False
        return True

    async def _make_copies(self) -> None:
        """Beside the load: nodes of an older release have none, perhaps to the end."""
        waiting = [*COPIES]
        while waiting and not self._ending.is_set():
            verb = f"STREAM.CREATE.{waiting[0].name}"
            answer = await _ask(self._copier, verb, waiting[0].config)
            if answer is not None and "error" not in answer:
                self._copies.append(waiting.pop(0))
            else:
                await wait(self._ending, PAUSE_S)

    async def _make_consumer(self, made: Made) -> bool:
        config: dict[str, Any] = {
            "durable_name": made.name,
            "name": made.name,
            "ack_policy": made.policy,
            "deliver_policy": "all",
        }
        if made.filter != ">":
            config["filter_subject"] = made.filter
        if made.policy != "none":
            config["ack_wait"] = round(ACK_WAIT_S * S)
        verb = f"CONSUMER.DURABLE.CREATE.{made.stream}.{made.name}"
        if not await self._asked(verb, {"stream_name": made.stream, "config": config}):
            return False
        value = {
            "stream": made.stream,
            "consumer": made.name,
            "filter": made.filter,
            "policy": made.policy,
            "ack_wait_s": None if made.policy == "none" else ACK_WAIT_S,
        }
        self._recorder.saw(self._admin.name, "consumer", value)
        return True

    async def _asked(self, verb: str, body: Any) -> bool:
        """Until it is done, or refused when all is well."""
        while True:
            ending = self._ending.is_set()
            answer = await _ask(self._admin, verb, body)
            if answer is not None and "error" not in answer:
                return True
            if ending and answer is not None and answer["error"]["err_code"] != UNAVAILABLE:
                return False
            await asyncio.sleep(PAUSE_S)

    # --- publishing -------------------------------------------------------------------------------

    async def _publish_all(self, process: _Process, stream: str) -> None:
        dice = process.dice
        pause_s = 1 / (PUBLISHES_PER_S * self._scene.pace)
        stored = deque[tuple[str, str]](maxlen=AGAIN_OF)
        while not self._ending.is_set():
            some = [self._subject(stream, dice) for _ in range(dice.randint(1, BATCH_MAX))]
            puts = [self._put(process, stream, each, dice.random() < 0.8) for each in some]
            if stored and dice.random() < AGAIN_SHARE:
                subject, body = dice.choice(stored)
                puts.append(self._put(process, stream, subject, True, body=body))
            stored.extend(
                (op.value["subject"], op.value["body"])
                for op in await asyncio.gather(*puts)
                if op.type == "ok" and op.value["id"]
            )
            if dice.random() < CRASH_SHARE:
                process.client.drop()
            await wait(self._ending, dice.uniform(0.0, 2 * pause_s))

    def _subject(self, stream: str, dice: random.Random) -> str:
        return f"{stream}.{dice.randint(1, 4)}.{dice.choice('ab')}"

    async def _put(
        self,
        process: _Process,
        stream: str,
        subject: str,
        with_id: bool,
        *,
        body: str | None = None,
        expected: int | None = None,
    ) -> Op:
        again = body is not None
        body = body or process.body()
        value = {"stream": stream, "subject": subject, "body": body, "id": with_id}
        value |= {"expected": expected, "again": again}
        invoked = self._recorder.invoke(process.name, "put", value)
        header: dict[str, str] = {}
        if with_id:
            header["Nats-Msg-Id"] = body
        if expected is not None:
            header["Nats-Expected-Last-Subject-Sequence"] = str(expected)
        padding = "+" * process.dice.choice((0, 0, 10, 300))
        payload = f"{body}|{padding}".encode()
        while True:
            answer = await process.client.request(subject, payload, header)
            node = process.client.node
            if answer is not None and not answer.status:
                found = answer.json
                error = found.get("error")
                if error is None:
                    more = {"sequence": found["seq"], "duplicate": found.get("duplicate", False)}
                    return self._recorder.end(invoked, "ok", more, node=node)
                code = error["err_code"]
                if code not in (UNAVAILABLE, NO_RESOURCES):
                    more = {"code": code}
                    if code == WRONG_LAST:
                        more["found"] = int(error["description"].rpartition(" ")[2])
                    return self._recorder.end(invoked, "refused", more, node=node)
            if not with_id:
                return self._recorder.end(invoked, "unknown", node=node)
            await asyncio.sleep(PAUSE_S)

    # --- registers --------------------------------------------------------------------------------

    async def _write_all(self, process: _Process) -> None:
        dice = process.dice
        pause_s = 1 / (PUBLISHES_PER_S * self._scene.pace)
        known = dict.fromkeys(KEYS, 0)
        while not self._ending.is_set():
            key = dice.choice(KEYS)
            subject = f"{REGISTERS}.{key}"
            if dice.random() < 0.3:
                op = await self._read(process, subject)
                if op.type == "ok":
                    known[key] = op.value["sequence"]
            else:
                with_id = dice.random() < 0.5
                op = await self._put(process, REGISTERS, subject, with_id, expected=known[key])
                known[key] = op.value.get("sequence", op.value.get("found", known[key]))
            await wait(self._ending, dice.uniform(0.0, 2 * pause_s))

    async def _read(self, process: _Process, subject: str) -> Op:
        value = {"stream": REGISTERS, "subject": subject}
        invoked = self._recorder.invoke(process.name, "read", value)
        answer = await _ask(process, f"STREAM.MSG.GET.{REGISTERS}", {"last_by_subj": subject})
        node = process.client.node
        if answer is not None and "error" not in answer:
            found = answer["message"]
            more = {"sequence": found["seq"], "body": id_of(base64.b64decode(found["data"]))}
            return self._recorder.end(invoked, "ok", more, node=node)
        if answer is not None and answer["error"]["err_code"] == NO_MESSAGE:
            return self._recorder.end(invoked, "ok", {"sequence": 0}, node=node)
        return self._recorder.end(invoked, "unknown", node=node)

    # --- taking -----------------------------------------------------------------------------------

    async def _take(self, process: _Process, made: Made) -> None:
        dice = process.dice
        about = {"stream": made.stream, "consumer": made.name}
        while not self._drained.is_set():
            pull = self._recorder.invoke(process.name, "pull", about)
            batch, last = dice.randint(1, PULL_MAX), None
            crashes = dice.random() < CRASH_SHARE
            came = process.client.pull(made.stream, made.name, batch, PULL_S)
            async with aclosing(came) as messages:
                async for message in messages:
                    last = self._handed(process, pull, about, message), message
                    if made.policy == "explicit" and not crashes:
                        await self._settle(process, *last)
            if last is not None and made.policy == "all" and not crashes:
                await self._ack(process, *last, "+ACK", double=dice.random() < 0.8)
            if crashes:
                process.client.drop()
            if last is None:
                await asyncio.sleep(PAUSE_S)

    def _handed(
        self, process: _Process, pull: Op, about: dict[str, Any], message: Message
    ) -> dict[str, Any]:
        count, sequence, place = map(int, message.reply.split(".")[4:7])
        value = {
            **about,
            "pull": pull.index,
            "sequence": sequence,
            "place": place,
            "count": count,
            "subject": message.subject,
            "body": id_of(message.body),
        }
        self._recorder.saw(process.name, "handed", value, node=process.client.node)
        return value

    async def _settle(self, process: _Process, value: dict[str, Any], message: Message) -> None:
        kind = process.dice.random()
        if kind < 0.08:
            delay = process.dice.choice((b"", b' {"delay": 300000000}'))
            await self._ack(process, value, message, "-NAK", rest=delay, double=False)
        elif kind < 0.11:
            await self._ack(process, value, message, "+WPI", double=False)
            await asyncio.sleep(process.dice.uniform(0.0, 0.5))
            await self._ack(process, value, message, "+ACK", double=True)
        elif kind < 0.14:
            await self._ack(process, value, message, "+TERM", double=True)
        elif kind < 0.16:
            pass  # it comes again
        else:
            await self._ack(process, value, message, "+ACK", double=kind < 0.8)

    async def _ack(
        self,
        process: _Process,
        value: dict[str, Any],
        message: Message,
        word: str,
        *,
        rest: bytes = b"",
        double: bool,
    ) -> None:
        """`double`: it waits for the answer."""
        said = {name: value[name] for name in ("stream", "consumer", "sequence")}
        said |= {"word": word, "all": value["consumer"] == "up-to"}
        invoked = self._recorder.invoke(process.name, "ack", said)
        if not double:
            await process.client.tell(message.reply, word.encode() + rest)
            self._recorder.end(invoked, "unknown")
            return
        answer = await process.client.request(message.reply, word.encode() + rest)
        safe = answer is not None and not answer.status
        self._recorder.end(invoked, "ok" if safe else "unknown", node=process.client.node)

    # --- the end ----------------------------------------------------------------------------------

    async def _is_drained(self, made: Made) -> bool:
        info = await _ask(self._admin, f"CONSUMER.INFO.{made.stream}.{made.name}")
        if info is None or "error" in info:
            return False
        return not info["num_pending"] and not info["num_ack_pending"]

    async def _is_whole(self, copy: Copy) -> bool:
        """It waits for nothing more, as far as it says."""
        info = await _ask(self._admin, f"STREAM.INFO.{copy.name}")
        followed = [] if info is None else info.get("sources") or [info.get("mirror")]
        return all(each and each["active"] >= 0 and not each["lag"] for each in followed or [None])

    async def _read_all(self, stream: str, reader: str, of: Copy | None = None) -> bool:
        """By a consumer of its own. False: something of it was lost on its way."""
        client = self._admin.client
        info = await _ask(self._admin, f"STREAM.INFO.{stream}")
        if info is None or "error" in info:
            return False
        state = info["state"]
        rows: list[list[Any]] = []
        if stream != WORK:  # there it would have to take from others
            made = Made(stream, reader, ">", "none")
            if not await self._make_consumer(made):
                return False
            while len(rows) < state["messages"]:
                before = len(rows)
                async with aclosing(client.pull(stream, reader, 500, PULL_S)) as messages:
                    async for message in messages:
                        _, sequence, place = map(int, message.reply.split(".")[4:7])
                        rows.append([sequence, message.subject, id_of(message.body)])
                        if place != len(rows):
                            return False
                if len(rows) == before:
                    return False
        elif state["messages"]:
            return False
        value = {
            "stream": stream,
            "first": state["first_seq"],
            "last": state["last_seq"],
            "rows": rows,
        }
        if of is not None:
            value |= {"of": LOG, "filters": list(of.filters)}
        self._recorder.saw(self._admin.name, "content" if of is None else "copy", value)
        return True


async def _ask(process: _Process, verb: str, body: Any = None) -> dict[str, Any] | None:
    """Of JetStream's API. None: unknown, or nobody can say it now."""
    data = b"" if body is None else json.dumps(body).encode()
    answer = await process.client.request(f"$JS.API.{verb}", data)
    return None if answer is None or answer.status else answer.json
