"""What an operator may set: every key, its default, its meaning, and where values come from.

A value is taken from the first of: a flag (`--log.retain-hours 24`), the environment
(`QUORATE_LOG__RETAIN_HOURS=24`), the TOML file (`[log] retain_hours = 24`), the default.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, ByteSize, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from node.settings.sections import (
    KIB,
    WORDS,
    Address,
    AmqpSettings,
    AuthSettings,
    DrainSettings,
    HealthSettings,
    LimitSettings,
    Listen,
    LogSettings,
    Node,
    Peers,
    RaftSettings,
    Section,
    TlsSettings,
)

SECRET_CHARACTERS_MIN = 8
#: A token of subjects, but none that means something there already.
DOMAIN = re.compile(r"(?!(?:ACK|API|EVENT|FC|SNAPSHOT)$)[A-Za-z0-9_-]+")
#: Whose values no error may repeat.
SECRETS = frozenset({"secret", "default_password"})


class SettingsError(Exception):
    """A setting cannot be used. Each line of the text names a key and what it may be."""

    exit_code = 2


class Settings(BaseSettings):
    """One node."""

    model_config = SettingsConfigDict(
        env_prefix="QUORATE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
        nested_model_default_partial_update=True,
    )

    node: Node = Field(default="node-1", description="Name of this node, unique and for ever.")
    cluster: Node = Field(
        default="quorate", description="Name of the cluster; equal on all its nodes."
    )
    data_dir: str = Field(
        default="var/node-1", min_length=1, description="Folder for all that must stay."
    )
    http: Listen = Field(
        default="127.0.0.1:8080", description="Where clients connect; port 0: any free."
    )
    http_advertise: Address | None = Field(
        default=None, description="Address that clients are redirected to, if `http` is not it."
    )
    https: Listen = Field(
        default=None,
        description="Where they connect by TLS, for all that `http` serves; needs "
        "`tls.client_cert` and its key.",
    )
    https_advertise: Address | None = Field(
        default=None, description="Address that clients are redirected to, if `https` is not it."
    )
    amqp: Listen = Field(
        default="127.0.0.1:5672", description="Where AMQP clients connect; port 0: any free."
    )
    amqps: Listen = Field(
        default=None, description="Where they connect by TLS; needs `tls.client_cert` and its key."
    )
    amqp_advertise: Address | None = Field(
        default=None, description="Address that AMQP clients are told, if `amqp` is not it."
    )
    nats: Listen = Field(
        default=None, description="Where NATS clients connect, usually port 4222; port 0: any free."
    )
    nats_tls: Listen = Field(
        default=None,
        description="Where they connect and go over to TLS, certificates as for `amqps`; needs "
        "`tls.client_cert` and its key.",
    )
    nats_tls_first: bool = Field(
        default=False,
        description="At `nats_tls`, TLS begins before INFO: clients need their `handshake_first`.",
    )
    nats_advertise: Address | None = Field(
        default=None, description="Address that NATS clients are told, if `nats` is not it."
    )
    nats_domain: str | None = Field(
        default=None,
        description="JetStream's domain: clients with this one as an option ask under "
        "`$JS.DOMAIN.API`, others as ever. The same on all nodes.",
    )
    nats_monitor: Listen = Field(
        default=None,
        description="Where tools that watch NATS ask by HTTP, usually port 8222, without a "
        "password; port 0: any free.",
    )
    peer: Address = Field(default="127.0.0.1:7070", description="Where the other nodes connect.")
    peers: Annotated[Peers, Field(json_schema_extra={"kind": "node=host:port, ..."})] = Field(
        default_factory=dict[str, str],
        description="The nodes of the cluster, this one included; empty: a cluster of one.",
    )
    join: bool = Field(
        default=False,
        description="This node joins a cluster that exists: `quorate node add` lets it in.",
    )
    secret: str | None = Field(
        default=None,
        min_length=SECRET_CHARACTERS_MIN,
        description="Secret that all nodes share, by which they know each other.",
    )
    secret_file: str | None = Field(default=None, description="File that holds the secret instead.")
    previous_secret_file: str | None = Field(
        default=None,
        description="File with the secret that this one replaces: nodes that still have that are"
        " taken, too.",
    )
    default_user: str | None = Field(
        default=None,
        min_length=1,
        description="Administrator that a new cluster has instead of guest; needs a password.",
    )
    default_password: str | None = Field(
        default=None, min_length=1, description="That user's password."
    )
    default_password_file: str | None = Field(
        default=None, description="File that holds that password instead."
    )
    previous_default_password_file: str | None = Field(
        default=None,
        description="File with the password that this one replaces: as long as the user has that,"
        " a node that starts gives it the new one.",
    )
    audit_file: str | None = Field(
        default=None,
        description="File to which lines of the audit log go too, besides the log: one JSON "
        "object a line.",
    )
    default_groups: int = Field(
        default=8, ge=1, le=1024, description="Raft groups among which queues are spread."
    )
    replication: int = Field(default=3, ge=1, le=9, description="Replicas of a group.")
    stop_ms_max: int = Field(
        default=10_000,
        ge=0,
        description="Longest time that a graceful stop waits for work in hand.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe log line that is written."
    )
    log_format: Literal["auto", "human", "json"] = Field(
        default="auto", description="Shape of log lines; auto: human on a terminal, JSON otherwise."
    )
    raft: RaftSettings = RaftSettings()
    log: LogSettings = LogSettings()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    amqp_options: AmqpSettings = AmqpSettings()
    health: HealthSettings = HealthSettings()
    drain: DrainSettings = DrainSettings()
    tls: TlsSettings = TlsSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load` has merged file, environment and flags already

    def cluster_secret(self) -> str | None:
        """The secret, read from its file when it is in one."""
        secret = self.secret if self.secret_file is None else _read("secret_file", self.secret_file)
        if secret is not None and len(secret) < SECRET_CHARACTERS_MIN:
            raise SettingsError(
                f"secret_file: {self.secret_file} holds {len(secret)} characters; "
                f"allowed: at least {SECRET_CHARACTERS_MIN}"
            )
        return secret

    def previous_secret(self) -> str | None:
        """The one that `cluster_secret` replaces, while nodes change over."""
        if self.previous_secret_file is None:
            return None
        return _read("previous_secret_file", self.previous_secret_file)

    def previous_password(self) -> str | None:
        """The one that the first user's password replaces."""
        if self.previous_default_password_file is None:
            return None
        return _read("previous_default_password_file", self.previous_default_password_file)

    def first_user(self) -> tuple[str, str] | None:
        """Name and password of who is there in a new cluster instead of guest."""
        password = self.default_password
        if self.default_password_file is not None:
            password = _read("default_password_file", self.default_password_file)
            if not password:
                raise SettingsError(
                    f"default_password_file: {self.default_password_file} is empty; "
                    "allowed: a file that holds a password"
                )
        if self.default_user is None or password is None:
            return None
        return self.default_user, password


def _read(key: str, path: str) -> str:
    """A secret, without the end of its line."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"{key}: cannot read {path}: {why}; allowed: the path of a readable file"
        ) from None


def fields() -> dict[str, FieldInfo]:
    """Every key, dotted, in the order of the documentation."""
    found: dict[str, FieldInfo] = {}
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            for inner, inner_field in kind.model_fields.items():
                found[f"{name}.{inner}"] = inner_field
        else:
            found[name] = field
    return found


def shown(settings: Settings) -> dict[str, str]:
    """Every key and its value as text, secrets left out."""
    found: dict[str, str] = {}
    for key in fields():
        if key not in SECRETS:
            value: Any = settings
            for part in key.split("."):
                value = getattr(value, part)
            found[key] = str(value)
    return found


def allowed(field: FieldInfo) -> str:
    """What may stand there, in words."""
    kind = field.annotation
    options = [a for a in get_args(kind) if a is not type(None)]
    optional = len(options) < len(get_args(kind))
    if kind is not None and options and all(isinstance(option, str) for option in options):
        return " | ".join(options)
    base = options[0] if optional and options else kind
    metadata: list[Any] = [*field.metadata, *getattr(base, "__metadata__", ())]
    base = getattr(base, "__origin__", base)
    read = [WORDS[m.func] for m in metadata if isinstance(m, BeforeValidator)]
    if read:
        word = read[0]
    elif base is ByteSize:
        word = "bytes, or such as 64MiB"
    elif base is bool:
        word = "true | false"
    elif base is int:
        word = "whole number"
    elif base is float:
        word = "number"
    else:
        word = "text"
    for bound in metadata:
        if (low := getattr(bound, "ge", None)) is not None:
            word += f", at least {low}"
        if (high := getattr(bound, "le", None)) is not None:
            word += f", at most {high}"
        if (length := getattr(bound, "min_length", None)) is not None and length > 1:
            word += f", at least {length} characters"
    return word


def load(
    *,
    file: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings from all sources, checked, or a SettingsError. Keys of `flags` are dotted."""
    values = _from_file(file) if file is not None else {}
    for source in (_from_environment(os.environ if environment is None else environment), flags):
        for key, value in (source or {}).items():
            _put(values, key, value)
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError("\n".join(_complaints(error))) from error
    _check_together(settings)
    return settings


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """`--log.retain-hours 24` or `--log.retain-hours=24` to dotted keys."""
    flags: dict[str, str] = {}
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            raise SettingsError(f"{word}: not a flag; allowed: --key value, such as --node node-1")
        key, found, value = word[2:].partition("=")
        if not found:
            if not waiting:
                raise SettingsError(f"{key}: has no value; allowed: --{key} VALUE")
            value = waiting.pop(0)
        flags[key.replace("-", "_")] = value
    return flags


def _from_file(file: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(
            f"{file}: cannot be read: {error.strerror}; allowed: a readable TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: is not TOML: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    known = {key.replace(".", "__").upper(): key for key in fields()}
    found: dict[str, str] = {}
    for name, value in environment.items():
        if name.upper().startswith("QUORATE_"):
            key = known.get(name[len("QUORATE_") :].upper())
            if key is not None:  # other tools of ours use this prefix too
                found[key] = value
    return found


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise SettingsError(f"{section}: is a section; allowed: [{section}] with keys in it")
        values = cast("dict[str, Any]", inner)
    values[last] = value


def _complaints(error: ValidationError) -> list[str]:
    known = fields()
    lines: list[str] = []
    for problem in error.errors():
        path = [str(part) for part in problem["loc"]]
        key = next((k for n in (2, 1) if (k := ".".join(path[:n])) in known), ".".join(path))
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, known, 3, 0.6) or sorted(known)
            lines.append(f"{key}: there is no such key; allowed: {', '.join(near)}")
            continue
        message = problem["msg"].removeprefix("Value error, ")
        shown = "the value" if key in SECRETS else f"{problem['input']!r}"[:80]
        may_be = f"; allowed: {allowed(known[key])}" if key in known else ""
        lines.append(f"{key}: {shown} will not do: {message}{may_be}")
    return lines


def _of_first_user(settings: Settings) -> list[str]:
    given = [settings.default_password is not None, settings.default_password_file is not None]
    if all(given):
        return [
            "default_password_file: allowed: only one of default_password and default_password_file"
        ]
    if any(given) is (settings.default_user is not None):
        return []
    return [
        "default_user: allowed: with default_password or default_password_file; neither without it"
    ]


def _check_together(settings: Settings) -> None:
    """Rules that concern two keys."""
    problems: list[str] = []
    if settings.peers and settings.node not in settings.peers:
        problems.append(
            f"peers: does not name this node, {settings.node!r}; "
            f"allowed: all nodes of the cluster, such as {settings.node}={settings.peer}"
        )
    if settings.join and len(settings.peers) < 2:
        problems.append(
            "join: needs a cluster that exists; allowed: with peers, which names its nodes"
            " and this one"
        )
    raft = settings.raft
    if raft.election_ms_max <= raft.election_ms_min:
        problems.append(
            f"raft.election_ms_max: allowed: more than {raft.election_ms_min}, the min, or members"
            " stand at the same time again and again"
        )
    if raft.heartbeat_ms * 3 >= raft.election_ms_min:
        problems.append(
            f"raft.heartbeat_ms: allowed: at most {(raft.election_ms_min - 1) // 3}, less than a "
            "third of raft.election_ms_min, or two late heartbeats start an election"
        )
    limits = settings.limits
    whole_bytes_max = min(limits.message_bytes_max, WHOLE_BODY_BYTES_MAX)
    if whole_bytes_max + 64 * KIB > limits.frame_bytes_max:
        problems.append(
            "limits.frame_bytes_max: a frame must have room for a message and 64 KiB of headers; "
            f"allowed: at least {whole_bytes_max + 64 * KIB}"
        )
    if settings.secret is not None and settings.secret_file is not None:
        problems.append("secret_file: allowed: only one of secret and secret_file")
    if settings.previous_secret_file is not None and settings.secret_file is None:
        problems.append("previous_secret_file: allowed: with secret_file")
    if settings.previous_default_password_file is not None and settings.default_user is None:
        problems.append("previous_default_password_file: allowed: with default_user")
    tls = [settings.tls.peer_cert, settings.tls.peer_key, settings.tls.peer_ca]
    if any(tls) and not all(tls):
        problems.append("tls.peer_cert, tls.peer_key, tls.peer_ca: allowed: all three, or none")
    if (settings.tls.client_cert is None) is not (settings.tls.client_key is None):
        problems.append("tls.client_cert, tls.client_key: allowed: both, or none")
    problems += [
        f"{key}: allowed: with tls.client_cert and tls.client_key"
        for key in ("amqps", "nats_tls", "https")
        if getattr(settings, key) is not None and settings.tls.client_cert is None
    ]
    if settings.nats_domain and not DOMAIN.fullmatch(settings.nats_domain):
        problems.append(
            "nats_domain: allowed: letters, digits, - and _, but not what follows `$JS.` already: "
            "ACK, API, EVENT, FC, SNAPSHOT"
        )
    if settings.nats_monitor is not None and settings.nats is None and settings.nats_tls is None:
        problems.append("nats_monitor: allowed: with nats or nats_tls")
    if settings.http is None and settings.https is None:
        problems.append("http: allowed: off only with https, or nothing could ask this node")
    if settings.tls.https_verify and settings.tls.client_ca is None:
        problems.append("tls.https_verify: allowed: with tls.client_ca")
    if settings.tls.amqps_verify == "optional" and settings.tls.client_ca is None:
        problems.append("tls.amqps_verify: optional is allowed with tls.client_ca")
    problems += _of_first_user(settings)
    several = len(settings.peers) > 1
    if several and not any(tls) and settings.secret is None and settings.secret_file is None:
        problems.append(
            "secret: a cluster of several nodes needs one, or anyone could join; "
            "allowed: at least 8 characters, equal on all nodes (or secret_file, or tls.peer_*)"
        )
    if problems:
        raise SettingsError("\n".join(problems))
