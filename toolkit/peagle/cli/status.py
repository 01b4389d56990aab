"""``peagle status``: the state of one deployment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, deployment_options
from peagle.cli.context import command_text, deployment_in_context
from peagle.cli.output.comparison import comparison_text
from peagle.cli.output.console import (
    fix_lines,
    json_option,
    print_json,
    print_line,
    terminal_width,
    wrapped,
)
from peagle.cli.output.deploy import engine_text
from peagle.cli.project import ProjectCommand
from peagle.deploy.state import Deployment
from peagle.deploy.status import ENDED, GONE
from peagle.text import bounds_text, format_duration, format_price, format_usd, k_text

_INDENT = 16

_NEAR_SECONDS = 2 * 3600
"""An end that is nearer belongs into the first line."""


@click.command(cls=ProjectCommand, epilog="Example: peagle status peagle-tiny --sandbox --json")
@partial(deployment_options, complete=True)
@json_option
def status(aws: Aws, record: Deployment, account: Account, as_json: bool) -> None:
    """Show the deployment NAME: state, measured acceptance, URL, price and resources.

    States are SageMaker's, and four more: Unproved (in service, acceptance not proved),
    Incomplete (deploy was interrupted), Missing (the endpoint was deleted elsewhere), Ended (it was
    deleted at its end time).
    """
    document = api.deployment_status(aws, record)
    if as_json:
        return print_json(deployment_in_context(document))
    left = document["seconds_left"]
    near = f", ends in {format_duration(left)}" if left and left < _NEAR_SECONDS else ""
    print_line(f"{document['name']}: {document['state']}{near}", bold=True)
    width = terminal_width() - _INDENT
    for label, text in _facts(document, account).items():
        _print_fact(label, wrapped(text, width))
    if document["failure_fix"] or document["failure_command"]:
        _print_fact("fix", fix_lines(document["failure_fix"], document["failure_command"], width))
    elif command := _next_command(document, record):
        _print_fact("to continue", [command_text(command)])
    for one in document["resources"]:
        _print_fact("resource", wrapped(f"{one['type']} {one['name']}", width))
    return None


def _next_command(document: dict[str, Any], record: Deployment) -> tuple[str, ...]:
    """The command that waits for and proves what a deploy has requested, as after Ctrl-C or
    --no-wait; empty where there is nothing to continue."""
    if record.owner or document["state"] not in ("Creating", "Unproved"):
        return ()
    plan = record.current.plan
    return api.deploy_command(plan) if plan else ("peagle", "prove", record.name)


def _print_fact(label: str, lines: Sequence[str]) -> None:
    """A label and its text, if there is any, in lines below each other."""
    if lines:
        click.echo(f"  {label:<14}" + f"\n{' ' * _INDENT}".join(lines))


def _price(document: dict[str, Any], account: Account) -> str:
    """Nothing runs of an endpoint that is gone, and what it cost last says nothing."""
    if document["state"] in GONE:
        return ""
    return format_price(document["price_per_hour_usd"], account.sandbox)


def _so_far(document: dict[str, Any], account: Account) -> str:
    """The cost since the endpoint was requested."""
    usd = document["cost_so_far_usd"]
    return f"about {format_usd(usd)}{' on AWS' if account.sandbox else ''}" if usd else ""


def _ends(document: dict[str, Any]) -> str:
    """When the endpoint is deleted, or was."""
    if document["ends_at"] is None:
        return ""
    if document["state"] == ENDED:
        reap = command_text(("peagle", "reap"))
        return f"{document['ends_at']}, which has passed; to remove what remains: {reap}"
    left = document["seconds_left"]
    return f"{document['ends_at']}, {f'in {format_duration(left)}' if left else 'which has passed'}"


def _facts(document: dict[str, Any], account: Account) -> dict[str, str]:
    drafts, length = document["drafts"], document["acceptance_length"]
    second = (document["proof"] or {}).get("second_turn")
    turn = api.SecondTurn(**second) if second else None
    where = f"{document['instance_count']} x {document['instance_type']}, {document['region']}"
    if "copies" in document:
        where += f", {document['copies']} copies"
    if document["state"] in ("InService", "Unproved"):
        where += _running_copies(document)
        running = document["instances_running"]
        where += f", {running} running" if running != document["instance_count"] else ""
    return {
        "pair": document["pair"],
        "stand-in": document["stand_in"] or "",
        "where": where + (", sandbox" if account.sandbox else ""),
        "scaling": _scaling(document["scaling"]),
        "engine": engine_text(document["vllm"], document["vllm_here"]) if document["vllm"] else "",
        "acceptance": f"{length:.2f} over {drafts} drafts" if length is not None else "",
        "second turn": api.second_turn_text(turn).removeprefix("second turn: "),
        "owner": document["owner"] if document["owner"] != "peagle" else "",
        "comparison": comparison_text(document["comparison"]),
        "previous": _previous(document["previous"]),
        "price": _price(document, account),
        "so far": _so_far(document, account),
        "ends": _ends(document),
        "OpenAI URL": document["openai_base_url"] or "",
        "failure": document["failure_reason"] or "",
    }


def _running_copies(document: dict[str, Any]) -> str:
    """How many copies run, where that is not the planned number; empty without copies."""
    running = document.get("copies_running")
    if running is None or running == document["copies"]:
        return ""
    if running == 0:
        return " (asleep: the first request wakes one)"
    return f" ({running} running)"


def _scaling(scaling: dict[str, Any] | None) -> str:
    """The bounds, and the load that each instance should have; empty for a fixed number."""
    if not scaling:
        return ""
    low, high, target = scaling.values()
    return bounds_text(low, high, target, "min_copies" in scaling)


def _previous(previous: dict[str, Any] | None) -> str:
    """What ``peagle rollback`` returns to."""
    if previous is None:
        return ""
    speculation = k_text(previous["k"])
    return f"configuration {previous['endpoint_config']}, {speculation}"
