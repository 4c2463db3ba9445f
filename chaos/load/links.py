"""Links of the cluster with itself: shovels between two of its queues, a federated queue, and an
exchange that is federated with one of another virtual host. Their URIs name all nodes, so either
end may be any node, and their owner is one that faults strike as they strike others.

Nobody else takes from a source or publishes to a destination. An operator looks at the links all
the time, so the history tells who runs them, and starts them anew at times. The source of one of
two shovels has a single active consumer: a new owner is handed nothing while the one before it may
settle, so order is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

from chaos.checker import publisher_order, vanished
from chaos.checker.links import RUNNING_AGAIN_S, arrivals, at_destination, running_again
from chaos.checker.verdict import Checker
from chaos.history import publish_value
from chaos.load.client import PAUSE_S, Client, Handle, close_all, publish_until, wait
from chaos.load.draining import Left, drain
from chaos.load.driver import Answer, Driver, Protocols, Publish
from chaos.load.http_calls import named
from chaos.load.workload import Scene, only

SHOVEL: Final = "shovel-native"
FEDERATION: Final = "federation-amqp"
PUBLISHES_PER_S: Final = 6.0  # over each link, of 1 to 10 messages
BATCH_MAX: Final = 10
CRASH_SHARE: Final = 0.01
RECONNECT_S: Final = 0.5
#: Between two links that an operator starts anew.
RESTART_S: Final = (3.0, 9.0)
#: Between two looks at who runs them.
LOOK_S: Final = 0.5
_VHOST: Final = "/"


class Seen(NamedTuple):
    """A link as the API shows it. `path`: what starts it anew."""

    state: str
    node: str | None
    path: str


@dataclass(eq=False)
class Route:
    """`exchange`: the source is one."""

    source: str
    destination: str
    publisher: Client
    consumer: Client
    exchange: bool = False


class _Linked:
    """Both kinds: load and drain."""

    def __init__(self, scene: Scene, name: str) -> None:
        if scene.nodes is None:
            raise ValueError(f"{name} needs to know the addresses of the nodes")
        self.name = name
        self._scene = scene
        self._nodes = scene.nodes
        self._api = scene.nodes.open_api(f"{name}/admin")
        self._dice = scene.dice(f"{name}/admin")
        self._left = Left()
        self._routes: list[Route] = []

    async def links(self) -> list[Seen]:
        raise NotImplementedError

    async def sources(self, route: Route) -> list[str]:
        """Paths of the queues in which messages wait before they cross the link."""
        return [f"{named(_VHOST)}/{named(route.source)}"]

    async def run(self) -> None:
        ending = self._scene.ending
        loads = [self._restart_links(ending), self._watch_links(ending)]
        for route in self._routes:
            publish = partial(self._publish, route)
            loads += [
                publish_until(ending, route.publisher, PUBLISHES_PER_S, publish),
                route.consumer.consume(route.destination, ending, self._taking(route, CRASH_SHARE)),
            ]
        await asyncio.gather(*loads)

    async def drain(self) -> None:
        """A federated queue only fetches for consumers that wait, so they go on."""
        await self._until_running_again()
        await close_all([route.publisher for route in self._routes])
        takers: dict[str, tuple[Client, Handle]] = {
            route.destination: (route.consumer, self._taking(route)) for route in self._routes
        }
        crossed = asyncio.Event()
        working = [
            asyncio.create_task(client.consume(queue, crossed, handle))
            for queue, (client, handle) in takers.items()
        ]
        await asyncio.gather(*(self._until_crossed(route) for route in self._routes))
        crossed.set()
        await asyncio.gather(*working)
        await drain(self.name, self._left, takers)
        await close_all([route.consumer for route in self._routes])
        await self._api.close()

    # --- over HTTP

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Before a run. Raises when it is refused, or nobody knows."""
        answer = await self._api.call(method, f"/api/{path}", body)
        if not answer.ok:
            raise RuntimeError(f"{method} {path}: {answer.type}, {answer.reason}")
        return answer.value

    async def until_running(self, count: int) -> None:
        while [link.state for link in await self.links()] != ["running"] * count:
            await asyncio.sleep(PAUSE_S)

    async def _until_running_again(self) -> None:
        invoked = self._scene.recorder.invoke(f"{self.name}/admin", "run-links", {})
        seen: list[Seen] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(RUNNING_AGAIN_S):
                while [link.state for link in seen] != ["running"] * len(self._routes):
                    await asyncio.sleep(PAUSE_S)
                    with suppress(RuntimeError):
                        seen = await self.links()
                self._scene.recorder.end(invoked, "ok")
                return
        states = {link.path: link.state for link in seen}
        self._scene.recorder.end(invoked, "refused", {"states": states})

    async def _watch_links(self, stop: asyncio.Event) -> None:
        before: list[str] = []
        while not stop.is_set():
            with suppress(RuntimeError):
                owners = sorted({link.node for link in await self.links() if link.node})
                if owners != before:
                    value = {"nodes": owners}
                    self._scene.recorder.saw(f"{self.name}/admin", "runs-links", value)
                    before = owners
            await wait(stop, LOOK_S)

    async def _restart_links(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await wait(stop, self._dice.uniform(*RESTART_S))
            try:
                links = await self.links()
            except RuntimeError:
                continue
            if links and not stop.is_set():
                await self._api.call("DELETE", f"/api/{self._dice.choice(links).path}/restart")

    async def _until_crossed(self, route: Route) -> None:
        recorder = self._scene.recorder
        invoked = recorder.invoke(f"{self.name}/admin", "drain", {"queue": route.source})
        while not await self._crossed(route):
            await asyncio.sleep(PAUSE_S)
        recorder.end(invoked, "ok")

    async def _crossed(self, route: Route) -> bool:
        try:
            paths = await self.sources(route)
        except RuntimeError:
            return False
        lengths = [await self._api.length_at(path) for path in paths]
        return all(length.ok and length.value == 0 for length in lengths)

    # --- messages

    async def _publish(self, route: Route) -> None:
        client = route.publisher
        if not route.exchange:
            await self._left.publish(client, route.source, BATCH_MAX)
        elif not self._left.too_many:
            count = client.dice.randint(1, BATCH_MAX)
            first, messages = client.take_numbers(count)
            value = publish_value(route.source, client.name, first, count)
            publish = Publish("", messages, exchange=route.source)
            answer = await client.record("publish", value, client.driver.publish(publish))
            if answer.ok:
                self._left.confirmed(route.source, client.name, first, count)

    def _taking(self, route: Route, crash_share: float = 0.0) -> Handle:
        return self._left.taking(route.consumer, route.source, crash_share)


class Shovels(_Linked):
    """Each message arrives, and is stored once."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, SHOVEL)
        for number, queue in enumerate(("orders", "log")):
            self._routes.append(
                Route(
                    f"{SHOVEL}.{queue}",
                    f"{SHOVEL}.{queue}.moved",
                    Client(scene, f"{SHOVEL}/p{number}", "native"),
                    Client(scene, f"{SHOVEL}/c{number}", "native"),
                )
            )
        self.plain, self.ordered = self._routes

    @property
    def checkers(self) -> Mapping[str, Checker]:
        ends = {each: (each.source, each.destination) for each in self._routes}
        return {
            **{
                f"arrivals {number}": arrivals(*ends[each], once=True)
                for number, each in enumerate(self._routes)
            },
            "publisher-order": at_destination(*ends[self.ordered], publisher_order),
            "running-again": running_again,
            **{
                f"vanished {number}": only(each.destination, vanished)
                for number, each in enumerate(self._routes)
            },
        }

    async def prepare(self) -> None:
        uris = self._nodes.uris(_VHOST)
        for each in self._routes:
            arguments = {"x-single-active-consumer": True} if each is self.ordered else {}
            await each.publisher.declare_all({each.source: arguments, each.destination: {}})
            value = {
                "src-uri": uris,
                "src-queue": each.source,
                "dest-uri": uris,
                "dest-queue": each.destination,
                "reconnect-delay": RECONNECT_S,
            }
            path = f"parameters/shovel/{named(_VHOST)}/{named(each.source)}"
            await self.ask("PUT", path, {"value": value})
        await self.until_running(len(self._routes))

    async def links(self) -> list[Seen]:
        found: Sequence[Mapping[str, Any]] = await self.ask("GET", f"shovels/{named(_VHOST)}")
        path = f"shovels/vhost/{named(_VHOST)}"
        return [
            Seen(each["state"], each["node"], f"{path}/{named(each['name'])}") for each in found
        ]


class Federation(_Linked):
    """Each message arrives. One that is under way when a link ends may arrive twice."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene, FEDERATION)
        self.vhost = f"{FEDERATION}.upstream"
        upstream = replace(scene, open_driver=self._open_upstream)
        self.queue = Route(
            f"{FEDERATION}.far",
            f"{FEDERATION}.near",
            Client(scene, f"{FEDERATION}/p0", "amqp"),
            Client(scene, f"{FEDERATION}/c0", "amqp"),
        )
        self.exchange = Route(
            f"{FEDERATION}.events",
            f"{FEDERATION}.events.mine",
            Client(upstream, f"{FEDERATION}/p1", "amqp"),
            Client(scene, f"{FEDERATION}/c1", "amqp"),
            exchange=True,
        )
        self._routes = [self.queue, self.exchange]

    @property
    def checkers(self) -> Mapping[str, Checker]:
        return {
            "arrivals from a queue": arrivals(
                self.queue.source, self.queue.destination, once=False
            ),
            "arrivals from an exchange": arrivals(
                self.exchange.source, self.exchange.destination, once=False
            ),
            "running-again": running_again,
        }

    async def prepare(self) -> None:
        vhost = named(self.vhost)
        await self.ask("PUT", f"vhosts/{vhost}")
        everything = dict.fromkeys(("configure", "write", "read"), ".*")
        user, _ = self._nodes.credentials
        await self.ask("PUT", f"permissions/{vhost}/{named(user)}", everything)
        client, exchange = self.queue.consumer, self.exchange.source
        await client.declare_all(
            {self.queue.source: {}, self.queue.destination: {}, self.exchange.destination: {}}
        )
        for answer in (
            await client.driver.declare_exchange(exchange, "fanout"),
            await client.driver.bind(self.exchange.destination, exchange, ""),
        ):
            _must(answer)
        await self._federate("queue", self.queue, self._nodes.uris(_VHOST))
        await self._federate("exchange", self.exchange, self._nodes.uris(self.vhost))
        await self.until_running(len(self._routes))

    def _open_upstream(self, name: str, _: Protocols) -> Driver:
        return self._nodes.open_amqp(name, self.vhost)

    async def _federate(self, what: str, route: Route, uris: Sequence[str]) -> None:
        name = f"{FEDERATION}.{what}"
        here = route.source if route.exchange else route.destination
        value = {"uri": uris, what: route.source, "reconnect-delay": RECONNECT_S}
        path = f"parameters/federation-upstream/{named(_VHOST)}/{named(name)}"
        await self.ask("PUT", path, {"value": value})
        policy = {
            "pattern": f"^{here.replace('.', '[.]')}$",
            "definition": {"federation-upstream": name},
            "apply-to": f"{what}s",
        }
        await self.ask("PUT", f"policies/{named(_VHOST)}/{named(name)}", policy)

    async def links(self) -> list[Seen]:
        path = f"federation-links/{named(_VHOST)}"
        found: Sequence[Mapping[str, Any]] = await self.ask("GET", path)
        path = f"federation-links/vhost/{named(_VHOST)}"
        return [
            Seen(each["status"], each["node"], f"{path}/{each['id']}/{named(each['node'] or '-')}")
            for each in found
        ]

    async def sources(self, route: Route) -> list[str]:
        if not route.exchange:
            return await super().sources(route)
        there: Sequence[Mapping[str, Any]] = await self.ask("GET", f"queues/{named(self.vhost)}")
        return [f"{named(self.vhost)}/{named(each['name'])}" for each in there]


def _must(answer: Answer) -> None:
    if not answer.ok:
        raise RuntimeError(f"{answer.type}, {answer.reason}")
