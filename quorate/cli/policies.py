"""`quorate policy ...`"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, cast

import typer

from quorate.cli.api import AnyVhost, Commands, InVhost, no_vhost
from quorate.cli.output import CommandError
from quorate.cli.queues import arguments_of
from quorate.cli.tables import pairs, show_rows

policy_app = Commands()

Name = Annotated[str, typer.Argument(metavar="POLICY", help="Name of the policy.")]
Operator = Annotated[
    bool, typer.Option("--operator", help="Operator policies, which cap what others set.")
]
Target = Literal["all", "queues", "exchanges", "quorum_queues", "classic_queues", "streams"]


def _table(operator: bool) -> str:
    return "operator-policies" if operator else "policies"


def definition_of(words: list[str], example: str = "max-length=1000") -> dict[str, Any]:
    """One JSON object, or pairs of names and values. Raises CommandError."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return cast("dict[str, Any]", json.loads(words[0]))
        except ValueError as error:
            raise CommandError(f"the definition is no JSON: {error}", 2) from error
    return arguments_of(words, example)


@policy_app.command("list")
def policy_list(cluster: AnyVhost, operator: Operator = False) -> None:
    """Policies; of those that match a name, the one with the highest priority holds."""
    path = (_table(operator),) if cluster.vhost is None else (_table(operator), cluster.vhost)
    rows = cluster.api(lambda api: api.all(*path), missing=no_vhost(cluster.vhost))
    show_rows(
        rows,
        {
            "policy": lambda row: row["name"],
            "vhost": lambda row: row["vhost"],
            "pattern": lambda row: row["pattern"],
            "applies to": lambda row: row["apply-to"],
            "priority": lambda row: row["priority"],
            "definition": lambda row: row["definition"],
        },
        as_json=cluster.as_json,
        none=f"there are no {'operator ' if operator else ''}policies:"
        " `quorate policy set` makes one",
    )


@policy_app.command("set")
def policy_set(
    cluster: InVhost,
    policy: Name,
    pattern: Annotated[
        str, typer.Argument(help="Regular expression for the names that it is about.")
    ],
    definition: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE...|JSON", help="What it sets, such as message-ttl=60000."
        ),
    ],
    apply_to: Annotated[
        Target | None, typer.Option("--apply-to", help="Default: all; of operators: queues.")
    ] = None,
    priority: Annotated[int, typer.Option("--priority", help="The highest one holds.")] = 0,
    operator: Operator = False,
) -> int:
    """Make a policy, or replace it: `quorate policy set short '^tmp\\.' max-length=1000
    message-ttl=60000`.
    """
    values = definition_of(definition)
    body: dict[str, Any] = {"pattern": pattern, "definition": values, "priority": priority}
    if apply_to is not None:
        body["apply-to"] = apply_to
    created = cluster.api(
        lambda api: api.put(_table(operator), cluster.vhost, policy, body=body),
        missing=no_vhost(cluster.vhost),
    )
    words = f"policy {policy}: {'made' if created else 'replaced'}: '{pattern}' {pairs(values)}"
    return cluster.done(words, policy=policy, vhost=cluster.vhost, created=created)


@policy_app.command("delete")
def policy_delete(cluster: InVhost, policy: Name, operator: Operator = False) -> int:
    """Delete a policy: at once, what it set does not hold any more."""
    option = " --operator" if operator else ""
    cluster.api(
        lambda api: api.delete(_table(operator), cluster.vhost, policy),
        missing=f"there is no policy {policy!r} in vhost {cluster.vhost!r}"
        f"\n  next: `quorate policy list{option}`",
    )
    return cluster.done(
        f"policy {policy}: deleted", policy=policy, vhost=cluster.vhost, deleted=True
    )
