"""The tree of commands: in which order help shows them, and the options that many of them share.

Groups are imported when one of their commands is asked for: help starts without them.
"""

from __future__ import annotations

import copy
import sys
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from quorate.cli.output import login, viewing

RUNNING = "Running a cluster"
USING = "Using it"
ADMINISTRATION = "Administration"
LOOKING = "Looking closer"
#: In the order of use.
ORDER = (
    *("up", "status", "top", "doctor", "node", "group", "upgrade", "context"),
    *("publish", "consume", "queue", "stream", "cursor", "exchange", "binding"),
    *("user", "permission", "vhost", "policy", "definitions", "shovel", "federation"),
    *("backup", "restore", "recover-messages"),
    *("message", "postmortem", "connection", "channel", "consumer", "log", "bench", "failover"),
    "completion",
)


class Group(NamedTuple):
    """Commands of a module, and what help says of them before it is imported."""

    panel: str
    place: str  # module:name
    help: str


GROUPS = {
    "node": Group(
        RUNNING,
        "node_commands:node_app",
        "Run one node; let nodes into the cluster, and remove them.",
    ),
    "queue": Group(USING, "queues:queue_app", "Declare, list, look into and delete queues."),
    "group": Group(
        RUNNING, "groups:group_app", "Raft groups, and which nodes have copies of them."
    ),
    "upgrade": Group(
        RUNNING,
        "upgrade:upgrade_app",
        "Which versions the nodes run, and when the cluster rises to them.",
    ),
    "context": Group(
        RUNNING, "contexts:context_app", "Clusters by name, and which one commands go to."
    ),
    "stream": Group(
        USING,
        "streams:stream_app",
        "Streams, which keep messages for any number of readers. Settings are those of JetStream.",
    ),
    "cursor": Group(
        USING,
        "streams:cursor_app",
        "Cursors of streams: named places in them that the cluster keeps. NATS calls them"
        " consumers.",
    ),
    "exchange": Group(
        USING,
        "exchanges:exchange_app",
        "Exchanges, to which clients publish; they route to queues.",
    ),
    "binding": Group(USING, "exchanges:binding_app", "What goes from an exchange to where."),
    "user": Group(ADMINISTRATION, "users:user_app", "Users, their passwords and tags."),
    "permission": Group(
        ADMINISTRATION,
        "users:permission_app",
        "What users may configure, write and read in a virtual host.",
    ),
    "vhost": Group(
        ADMINISTRATION,
        "vhosts:vhost_app",
        "Virtual hosts: each has queues, exchanges and users of its own.",
    ),
    "policy": Group(
        ADMINISTRATION,
        "policies:policy_app",
        "Settings for all queues and exchanges whose names match.",
    ),
    "definitions": Group(
        ADMINISTRATION,
        "definitions:definitions_app",
        "Users, virtual hosts, policies, queues, exchanges and bindings as one JSON document.",
    ),
    "shovel": Group(
        ADMINISTRATION,
        "shovels:shovel_app",
        "Move messages to and from other brokers, for as long as it takes.",
    ),
    "federation": Group(
        ADMINISTRATION,
        "federation:federation_app",
        "Links to clusters that exchanges and queues are federated with.",
    ),
    "connection": Group(LOOKING, "clients:connection_app", "Connections of clients."),
    "channel": Group(LOOKING, "clients:channel_app", "Channels of AMQP clients."),
    "consumer": Group(LOOKING, "clients:consumer_app", "Consumers of all queues."),
}

#: Begins the names of options that stand after a command.
_HERE = "here_"
#: Commands that show how things are, so that one may want to watch them.
_SHOWING = frozenset(("list", "show", "status", "info", "why", "peek", "doctor"))
_LISTING = ("filter", "sort")


class _LazyGroup(TyperGroup):
    commands: Any

    def __init__(self, name: str, group: Group, shared: list[Any]) -> None:
        super().__init__(
            name=name,
            help=group.help,
            rich_help_panel=group.panel,
            rich_markup_mode="rich",
            no_args_is_help=True,
        )
        self._place, self._shared = group.place, shared
        del self.commands

    def __getattr__(self, name: str) -> Any:
        if name != "commands":
            raise AttributeError(name)
        module, _, app = self._place.partition(":")
        found: Any = typer.main.get_group(getattr(import_module(f"quorate.cli.{module}"), app))
        self.commands = found.commands
        share(self.commands, self._shared)
        return self.commands


class Root(TyperGroup):
    """All commands, in the order of use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=ORDER.index)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _load_help()
        super().format_help(ctx, formatter)

    def grow(self) -> None:
        """Give commands the options that stand before them, and add the groups."""
        shared = [_after(each) for each in self.params if each.name in _OPTIONS]
        share(self.commands, shared)
        for name, group in GROUPS.items():
            self.add_command(_LazyGroup(name, group, shared))


def _load_help() -> None:
    """Typer's help without its imports for Markdown and for tracebacks of its own. We have neither,
    and they are a third of the start.
    """
    unused = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    for module, name in unused.items():
        if module not in sys.modules:
            sys.modules[module] = ModuleType(module)
            setattr(sys.modules[module], name, object)
    import_module("typer.rich_utils")
    for module in unused:
        if sys.modules[module].__spec__ is None:
            del sys.modules[module]


_OPTIONS = ("context", "user", "password_file", "ca", "cert", "watch", *_LISTING)


def _after(option: Any) -> Any:
    """The same option for a place after a command: what it says goes before."""
    here = copy.copy(option)
    here.name = _HERE + option.name  # commands have arguments of their own that are named so
    here.callback, here.expose_value, here.envvar = _remember, False, None
    here.hidden = False
    return here


def _remember(_context: Any, option: Any, value: Any) -> None:
    if value is None:
        return
    name = option.name.removeprefix(_HERE)
    setattr(viewing if hasattr(viewing, name) else login, name, value)


def share(commands: Any, shared: list[Any]) -> None:
    """Each command that takes --url takes those that fit it."""
    for name, command in commands.items():
        share(getattr(command, "commands", {}), shared)
        taken = {text for each in command.params for text in each.opts}
        if "--url" not in taken:
            continue
        command.params += [
            option
            for option in shared
            if taken.isdisjoint(option.opts) and _fits(option.name.removeprefix(_HERE), name)
        ]


def _fits(option: str, command: str) -> bool:
    if option == "watch":
        return command in _SHOWING
    return option not in _LISTING or command == "list"
