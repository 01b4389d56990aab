"""What ``peagle deploy`` prints before, after, and when it ends early."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.aws.s3 import Upload
from peagle.cli.account import Account
from peagle.cli.context import add_to_error_document, command_text, in_context
from peagle.cli.output.answer import speed_of_plan
from peagle.cli.output.console import print_facts, print_line, print_status, show_findings
from peagle.cli.output.plan_facts import (
    licences_text,
    observability_facts,
    pinned_text,
    proof_text,
    scaling_text,
    speculation_text,
)
from peagle.deploy.diff import SettingChange
from peagle.deploy.preflight import Preflight
from peagle.deploy.state import Deployment, Resource, utc_text
from peagle.errors import NotProved, PeagleError, command_line
from peagle.planning import Plan
from peagle.planning.limit import limit_text
from peagle.planning.rollout import cost_text
from peagle.text import format_duration, format_price

_CONTINUES = "continues with endpoint {name}, configuration {config}, model {model}"
_CHANGES = {
    "nothing": "none: this plan is in service and proved",
    "scale": "only the scaling; the endpoint serves on",
    "prove": "creates nothing; repeats the proof",
    "create": "creates endpoint {name}, configuration {config}, model {model}",
    "update": "updates endpoint {name} to configuration {config}, model {model}",
}


def show_plan(found: Preflight, account: Account, keep_unproved: bool = False) -> None:
    """Resources, location, price and change: on stderr, before the confirmation."""
    plan = found.desired.plan
    here = api.engine_version() if account.sandbox else None
    lines = {
        "pair": plan.pair,
        "where": f"{plan.instance_count} x {plan.instance_type} ({plan.fit.gpu_count} x "
        f"{plan.fit.gpu}), {account.where(plan.region)}",
        "engine": f"{engine_text(plan.runtime.vllm, here)}, {plan.runtime.image}",
        "speculation": speculation_text(plan.speculation),
        "proof": proof_text(plan),
        "licences": licences_text(plan),
        **pinned_text(plan),
        "price": format_price(plan.price_per_hour_usd, account.sandbox),
        **scaling_text(plan),
        **_limit(found),
        **observability_facts(plan),
        **_speed(plan),
        "role": f"{found.role.arn}{f' ({found.role.because})' if found.role.because else ''}",
    }
    uploads = _new_uploads(found) if found.change in ("create", "update") else []
    if uploads:
        megabytes = sum(upload.size for upload in uploads) / 1e6
        unchanged = "; unchanged files are copied in S3" if found.change == "update" else ""
        lines["uploads"] = f"{megabytes:.1f} MB to s3://{uploads[0].bucket}{unchanged}"
    if plan.target.weights.kind == "image":
        lines["weights"] = "in the image: nothing is uploaded or mounted"
    resumes = found.change == "create" and found.record and found.record.resources
    lines["change"] = _change_text(found, resumes=bool(resumes))
    if found.broken:
        lines["change"] += f"; first deletes the endpoint, which is {found.broken}"
    if found.scaling is not None:
        lines["scaling"] = f"{lines.get('scaling', '')} ({found.scaling.text})".strip()
    if found.change == "update":
        lines["switch"] = (
            "proves after the switch; without a proof, the update stays in service"
            if keep_unproved
            else "proves after the switch; without a proof, what serves now serves again"
        )
    if found.rollout:
        lines["rollout"] = cost_text(found.rollout)
    print_status(click.style(plan.name, bold=True))
    print_facts(lines.items())
    show_changes(found.changes)


def _change_text(found: Preflight, resumes: bool) -> str:
    """What deploying changes, with the names of what it makes."""
    desired = found.desired
    revision, copies = desired.revision, found.desired.plan.engines
    if found.change == "update" and desired.component:
        return f"updates the {copies} copies on {desired.plan.name} to model {revision.model}"
    if found.change == "nothing" and found.changes:
        return "only settings outside of the endpoint, which keeps serving"
    text = (_CONTINUES if resumes else _CHANGES[found.change]).format(
        name=desired.plan.name, config=revision.endpoint_config, model=revision.model
    )
    if desired.component and found.change == "create":
        text += f", inference component {desired.plan.name} with {copies} copies"
    return text


def _limit(found: Preflight) -> dict[str, str]:
    """When the deployment ends, if the plan says so."""
    limit, record = found.desired.plan.limit, found.record
    if limit is None:
        if record is None or record.ends_at is None or found.change == "create":
            return {}
        return {"ends": f"{end_text(record.ends_at)}; --ttl or --no-limit changes it"}
    if limit.removes:
        return {"limit": "none: an earlier end time is removed"}
    return {"limit": f"deleted after {limit_text(limit, found.most_usd_per_hour)}"}


def end_text(ends_at: float) -> str:
    """The end time of a deployment, and how long until then."""
    left = ends_at - time.time()
    until = f"in {format_duration(left)}" if left > 0 else "which has passed"
    return f"{utc_text(ends_at)}, {until}"


def _speed(plan: Plan) -> dict[str, str]:
    """The speed and the cost of a million tokens, if known."""
    if plan.speed is None or plan.speed.tokens_per_second is None:
        return {}
    return {"speed": speed_of_plan(plan, plan.speed)}


def show_changes(changes: Iterable[SettingChange]) -> None:
    """The settings that an update or a rollback changes, one on each line."""
    print_facts(("" if number else "changes", one.text) for number, one in enumerate(changes))


def _new_uploads(found: Preflight) -> list[Upload]:
    """The folders that are not in S3 yet."""
    known = found.record.of_type("S3Objects") if found.record else ()
    there = {(one.name, one.contents) for one in known if one.made}
    return [one for one in found.desired.uploads if (one.uri, one.contents) not in there]


def print_calls(document: dict[str, Any], found: Preflight, account: Account) -> None:
    """How to call the endpoint, on stdout."""
    name = document["name"]
    where = account.where(document["region"])
    print_line(f"{name} is {document['state']} ({where}){measured(document)}", bold=True)
    if second := (document["proof"] or {}).get("second_turn"):
        turn = api.SecondTurn(**second)
        print_line(f"In the {api.second_turn_text(turn)}.")
        show_findings(api.proof_findings(turn))
    if document["stand_in"]:
        print_line(
            f"Served by {document['stand_in']}: this machine cannot run the pair itself, so the "
            "acceptance length is the stand-in's. Everything else is as planned."
        )
    if document["vllm_here"]:
        print_line(f"Engine: {engine_text(document['vllm'], document['vllm_here'])}.")
    click.echo(f"\n  {command_text(('peagle', 'invoke', name, 'Hello'))}\n")
    if account.sandbox:
        environment = command_text(("peagle", "sandbox", "env"))
        click.echo(f'  eval "$({environment})"   # points boto3 at the sandbox')
    for line in boto3_lines(document, chat=found.desired.plan.proof.chat):
        click.echo(f"  {line}")
    price = format_price(document["price_per_hour_usd"], account.sandbox)
    click.echo(f"\n  OpenAI base URL  {document['openai_base_url']}")
    click.echo(f"  OpenAI API key   $({command_text(('peagle', 'token', name))})")
    print_line(f"\n  Price            {price}")
    click.echo(f"  Remove it        {command_text(('peagle', 'destroy', name))}")


def boto3_lines(document: dict[str, Any], chat: bool) -> list[str]:
    """A call with boto3, as Python. Values are written by ``repr``, so any name is safe."""
    body = api.request_body("Hello", chat=chat, max_tokens=64)
    component = f"InferenceComponentName={document['name']!r}, " if "copies" in document else ""
    return [
        "import boto3, json",
        f"runtime = boto3.client('sagemaker-runtime', region_name={document['region']!r})",
        f"body = json.dumps({body!r})",
        f"answer = runtime.invoke_endpoint(EndpointName={document['name']!r}, {component}"
        "ContentType='application/json', Body=body)",
        "print(json.load(answer['Body']))",
    ]


def measured(document: dict[str, Any]) -> str:
    """The acceptance length of a proved deployment; empty without one."""
    if document["acceptance_length"] is None:
        return ""
    floor = None if document["stand_in"] else document["acceptance_floor"]
    least = api.floor_text(floor, document["acceptance_floor_source"])
    return (
        f": acceptance length {document['acceptance_length']:.2f} over {document['drafts']} "
        f"drafts{least}"
    )


def engine_text(planned: str, here: str | None) -> str:
    """The version of vLLM, and that of the sandbox's engine where it differs."""
    if here in (None, planned):
        return f"vLLM {planned}"
    return f"vLLM {here} (sandbox); the plan has {planned}"


def report_serving(aws: Aws, record: Deployment, account: Account) -> None:
    """Show on stderr what a deployment costs that serves although the command failed; with
    ``--json`` the error's document has its resources as ``remaining``."""
    usd_per_hour = api.cost_of_remaining(aws, record)
    print_status(f"Costs    {format_price(usd_per_hour, account.sandbox)}")
    destroy = in_context(("peagle", "destroy", record.name))
    _add_remaining(record.resources, usd_per_hour, remove=destroy)


def show_remaining_resources(
    aws: Aws, record: Deployment, account: Account, again: Sequence[str]
) -> None:
    """Show on stderr which resources remain after a failure, what they cost, and how to continue;
    with ``--json`` the error's document has all of it as ``remaining``.

    ``again`` is the argv that continues.
    """
    destroy = in_context(("peagle", "destroy", record.name))
    rollback = in_context(("peagle", "rollback", record.name))
    has_undo = bool(record.serving and record.pending) and tuple(again) != rollback
    print_status("These resources exist:")
    for resource in record.resources:
        uncertain = "" if resource.made else " (may exist)"
        print_status(f"  {resource.text}{uncertain}")
    usd_per_hour = api.cost_of_remaining(aws, record)
    print_status(f"Costs    {format_price(usd_per_hour, account.sandbox)}")
    _show_command("Continue", again)
    if has_undo:
        _show_command("Undo", rollback)
    if tuple(again) != destroy:
        _show_command("Remove", destroy)
    undo = rollback if has_undo else ()
    _add_remaining(record.resources, usd_per_hour, again, undo, destroy)


def _add_remaining(
    resources: Sequence[Resource],
    usd_per_hour: float | None,
    again: Sequence[str] = (),
    undo: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> None:
    """Add ``remaining`` to the document of the error. Its commands, which are in context, ask no
    questions, since programs run them; a command that makes no sense is null."""

    def unattended(command: Sequence[str]) -> tuple[str, ...] | None:
        words = tuple(command)
        if not words or {"--yes", "-y"} & {*words}:
            return words or None
        end = words.index("--") if "--" in words else len(words)
        return (*words[:end], "--yes", *words[end:])

    add_to_error_document(
        "remaining",
        {
            "resources": [one.document() | {"confirmed": one.made} for one in resources],
            "price_per_hour_usd": usd_per_hour,
            "continue_command": unattended(again),
            "undo_command": unattended(undo),
            "remove_command": unattended(remove),
        },
    )


@contextmanager
def remaining_resources_shown(
    aws: Aws, record: Deployment, account: Account, again: Sequence[str]
) -> Iterator[None]:
    """If an error or Ctrl-C ends the block, show which resources remain. After a proof that failed,
    what served before serves: its price is shown."""
    try:
        yield
    except NotProved:
        report_serving(aws, api.load_record(*record.key) or record, account)
        raise
    except (PeagleError, KeyboardInterrupt):
        left = api.load_record(*record.key) or record
        show_remaining_resources(aws, left, account, again)
        raise


def _show_command(label: str, command: Sequence[str]) -> None:
    """A command on stderr, in one line however long."""
    click.echo(f"{label:<9}{command_line(command)}", err=True)


def show_nothing_remains() -> None:
    """Show on stderr that a command that failed left nothing."""
    print_status("Nothing was created.")
    add_nothing_remaining()


def add_nothing_remaining() -> None:
    """Add to the error's document that no resources remain."""
    _add_remaining((), 0.0)


def show_not_applied(name: str, region: str) -> list[str]:
    """Show on stderr the engine arguments that the sandbox's engine did not get; return them."""
    endpoints = api.sandbox_status().endpoints
    found = [one for one in endpoints if (one.name, one.region) == (name, region)]
    missing = [text for endpoint in found for text in endpoint.not_applied]
    if missing:
        print_status("The sandbox's engine did not get these arguments, so nothing tested them:")
    for text in missing:
        print_status(f"  {text}")
    return missing
