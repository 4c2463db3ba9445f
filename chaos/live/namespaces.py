"""A network of hosts on one machine: every node in a network namespace of its own, on one switch.

The switch is a bridge in a namespace of its own too, with a port for each node and one for the
clients, who are in the namespace of the caller. What is cut is cut there, so one transaction
changes the whole network at one instant. Names carry the id of this process: what a run that died
has left is taken away by the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

from chaos.faults import FAIR, Grudge, Weather
from chaos.live.packets import QUEUE, Request
from chaos.live.seams import Place, Ports
from cluster.types import NodeId

PORTS = Ports(http=8080, peer=7070, amqp=5672, nats=4222)
NODES_MAX = 120
COMMAND_S_MAX = 20.0
#: How long the helper may take to load and to answer.
HELPER_S_MAX = 20.0
TABLE = "quorate_chaos"
CLIENTS = "clients"  # the port of the switch behind which they are
_OURS = re.compile(r"qc(\d+)-[0-9a-f]{4}(-.+)?")

#: A direction between two ports of the switch: from, to.
Pair = tuple[str, str]


class CommandFailed(Exception):
    """A tool of the system refused; the text is its own."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine that a node believes it is alone on."""

    namespace: str
    port: str  # of the switch
    address: str


def switch_rules(silent: Iterable[Pair], reset: Iterable[Pair], loss: float = 0.0) -> str:
    """The whole table of the switch, for one transaction. Over `reset` pairs the ends may still
    tell each other that a connection is gone.
    """
    # Who does not get an answer to ARP says that there is no route: a cut is silent.
    rules = ["ether type arp accept"]
    if among := _set(reset):
        rules += [f"iifname . oifname {among} tcp flags & rst == rst accept"]
        rules += [f"iifname . oifname {among} drop"]
    if among := _set(silent):
        rules += [f"iifname . oifname {among} drop"]
    if loss > 0:
        between = f'iifname != "{CLIENTS}" oifname != "{CLIENTS}"'
        of = round(loss * 10_000)
        # All of them cannot be said as a part: nft takes no number beyond what it draws.
        drawn = f" numgen random mod 10000 < {of}" if of < 10_000 else ""
        rules += [f"{between}{drawn} drop"]
    return _table("bridge", "forward", rules)


def host_rules(unreachable: Iterable[str]) -> str:
    """The whole table of a host that is told at once that it does not reach these addresses."""
    among = ", ".join(sorted(unreachable))
    rule = f"ip daddr {{ {among} }} tcp flags & rst == 0 reject with tcp reset"
    return _table("ip", "output", [rule] if among else [])


def _set(pairs: Iterable[Pair]) -> str:
    elements = ", ".join(f'"{source}" . "{target}"' for source, target in sorted(pairs))
    return f"{{ {elements} }}" if elements else ""


def _table(family: str, hook: str, rules: Sequence[str]) -> str:
    head = f"table {family} {TABLE}"
    chain = "".join(f"    {rule}\n" for rule in rules)
    # It must exist to be deleted.
    return (
        f"{head}\ndelete {head}\n{head} {{\n  chain {hook} {{\n"
        f"    type filter hook {hook} priority 0;\n{chain}  }}\n}}\n"
    )


def queue_rules(addresses: str) -> str:
    """What comes from these is handed to the helper; if it is gone, it passes."""
    rule = f"-A INPUT ! -i lo -s {addresses} -j NFQUEUE --queue-num {QUEUE} --queue-bypass\n"
    return f"*filter\n:INPUT ACCEPT [0:0]\n{rule if addresses else ''}COMMIT\n"


class Namespaces:
    """A `Network` that needs root."""

    kind = "network namespaces on one switch"

    def __init__(self) -> None:
        sweep()
        self._prefix = f"qc{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{self._prefix}-switch"
        self._range = _free_range()
        self._hosts: dict[NodeId, Host] = {}
        self._cuts: set[Pair] = set()
        self._resetting = False
        self._client_cuts: set[Pair] = set()
        self._weather = FAIR
        self._helper: _Helper | None = None
        self._closed = False
        atexit.register(self.close)
        try:
            _ip(f"netns add {self._switch}")
            _ip(f"link add {CLIENTS} netns {self._switch} type veth peer name {self._prefix}")
            _ip(
                "link add bridge type bridge",
                "link set bridge up",
                f"link set {CLIENTS} master bridge up",
                namespace=self._switch,
            )
            _ip(f"address add {self._range}.1/24 dev {self._prefix}", f"link set {self._prefix} up")
            self.missing: Mapping[str, str] = self._try_queue()
        except BaseException:
            self.close()
            raise

    def add(self, node: NodeId) -> Place:
        assert node not in self._hosts, f"{node} is here already"
        number = len(self._hosts) + 1
        assert number <= NODES_MAX, f"at most {NODES_MAX} nodes"
        # The upper half of the range is the nodes'.
        host = Host(f"{self._prefix}-{node}", f"port{number}", f"{self._range}.{128 + number}")
        _ip(
            f"netns add {host.namespace}",
            f"link add {host.port} netns {self._switch} type veth"
            f" peer name eth0 netns {host.namespace}",
        )
        self._hosts[node] = host
        _ip(f"link set {host.port} master bridge up", namespace=self._switch)
        _ip(
            "link set lo up",
            f"address add {host.address}/24 dev eth0",
            "link set eth0 up",
            namespace=host.namespace,
        )
        if self._weather != FAIR:
            self.degrade(self._weather)
        return Place(host.address, PORTS, ("ip", "netns", "exec", host.namespace))

    def peer_address(self, node: NodeId, peer: NodeId) -> str:
        return f"{self._hosts[peer].address}:{PORTS.peer}"

    def partition(self, grudge: Grudge, *, reset: bool) -> None:
        was_resetting = self._resetting
        hosts = self._hosts
        cuts = [
            (hosts[source], hosts[target])
            for target, sources in grudge.items()
            for source in sources
            if source in hosts and target in hosts and source != target
        ]
        self._cuts = {(source.port, target.port) for source, target in cuts}
        self._resetting = reset
        self._set_switch()
        if reset or was_resetting:
            _each(hosts.values(), lambda host: self._set_host(host, cuts if reset else []))

    def degrade(self, weather: Weather) -> None:
        was, self._weather = self._weather, weather
        if self._helper is None:
            self._set_switch()
        elif (was, weather) != (FAIR, FAIR):
            self._helper.ask(Request([host.namespace for host in self._hosts.values()], weather))
            rules = queue_rules("" if weather == FAIR else f"{self._range}.128/25")
            _each(
                self._hosts.values(),
                lambda host: _run(_in(host.namespace, "iptables-restore"), rules),
            )

    def cut_clients(self, node: NodeId) -> None:
        port = self._hosts[node].port
        self._client_cuts |= {(CLIENTS, port), (port, CLIENTS)}
        self._set_switch()

    def heal(self) -> None:
        self._client_cuts = set()
        self.partition({}, reset=False)
        self.degrade(FAIR)

    def close(self) -> None:
        """End what still runs on the hosts and take all away."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if self._helper is not None:
            self._helper.close()
        _remove(name for name in _namespaces() if name.startswith(f"{self._prefix}-"))
        _remove_links(name for name in _links() if name == self._prefix)

    def _set_switch(self) -> None:
        reset = self._cuts if self._resetting else set[Pair]()
        silent = (self._cuts - reset) | self._client_cuts
        # Without the helper the switch does what it can of the weather.
        loss = 0.0 if self._helper is not None else self._weather.loss
        _run(_in(self._switch, "nft", "-f", "-"), switch_rules(silent, reset, loss))

    def _set_host(self, host: Host, cuts: Sequence[tuple[Host, Host]]) -> None:
        """It is refused what it does not reach, and loses its connections over a cut, whichever
        direction is cut: one needs both.
        """
        towards = {target.address for source, target in cuts if source == host}
        peers = towards | {source.address for source, target in cuts if target == host}
        _run(_in(host.namespace, "nft", "-f", "-"), host_rules(towards))
        for peer in sorted(peers):
            _run(_in(host.namespace, "ss", "--kill", "--tcp", "dst", peer))

    def _try_queue(self) -> dict[str, str]:
        helper = _Helper()
        try:
            helper.ask(Request([self._switch], FAIR))
            _run(_in(self._switch, "iptables-restore"), queue_rules(f"{self._range}.128/25"))
        except CommandFailed as error:
            helper.close()
            why = f"packets cannot be queued: {error}"
            return {"degrade:delay": why, "degrade:bandwidth": why}
        self._helper = helper
        return {}


class _Helper:
    """The process that holds packets back. It ends with this one, whose end closes its input."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.live.packets"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for us.
            start_new_session=True,
        )

    def ask(self, request: Request) -> None:
        """Raises CommandFailed."""
        requests, answers = self._pipes()
        try:
            requests.write(request.line())
            requests.flush()
        except OSError as error:
            raise CommandFailed(f"its process ended: {error}") from None
        answer = answers.readline()
        if answer != "\n":
            raise CommandFailed(answer.strip() or "its process ended")

    def close(self) -> None:
        requests, answers = self._pipes()
        with contextlib.suppress(OSError):
            requests.close()
        try:
            self._process.wait(HELPER_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        answers.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def sweep() -> None:
    """Take away what runs that are dead have left."""
    _remove(name for name in _namespaces() if _is_left(name))
    _remove_links(name for name in _links() if _is_left(name))


def _is_left(name: str) -> bool:
    ours = _OURS.fullmatch(name)
    return ours is not None and not os.path.exists(f"/proc/{ours.group(1)}")


def _remove(namespaces: Iterable[str]) -> None:
    for namespace in namespaces:
        # Another run may take away the same.
        with contextlib.suppress(CommandFailed):
            # Processes hold their namespace, name or not.
            for pid in _run(["ip", "netns", "pids", namespace]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip(f"netns delete {namespace}")


def _remove_links(links: Iterable[str]) -> None:
    for link in links:
        # With its other end it may go by itself, a moment after the namespace of that.
        with contextlib.suppress(CommandFailed):
            _ip(f"link delete {link}")


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run(["ip", "netns", "list"]).splitlines()]


def _links() -> list[str]:
    rows: list[dict[str, Any]] = json.loads(_run(["ip", "-json", "link"]))
    return [row["ifname"] for row in rows]


def _free_range() -> str:
    """The first three numbers of the addresses, which nobody else on this machine has."""
    taken = _run(["ip", "-4", "address"]) + _run(["ip", "-4", "route"])
    while True:
        first = f"10.{random.randrange(256)}.{random.randrange(256)}"
        if f" {first}." not in taken:
            return first


def _in(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def _ip(*lines: str, namespace: str | None = None) -> None:
    where = ["-n", namespace] if namespace is not None else []
    _run(["ip", *where, "-batch", "-"], "".join(f"{line}\n" for line in lines))


def _run(command: Sequence[str], text: str = "") -> str:
    """Raises CommandFailed."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=COMMAND_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def _each(hosts: Iterable[Host], change: Callable[[Host], object]) -> None:
    """On all hosts at nearly the same time."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        for outcome in [pool.submit(change, host) for host in hosts]:
            outcome.result()
