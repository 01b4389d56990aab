"""What ``peagle deploy``, ``compare``, ``promote`` and ``drop`` print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.aws.s3 import Upload
from peagle.bench.result import Interval
from peagle.bench.variants import VariantComparison
from peagle.cli.context import add_to_error_document, command_text, in_context
from peagle.cli.view.console import (
    Fact,
    plain_text,
    print_facts,
    print_findings,
    print_line,
    print_status,
    print_table,
)
from peagle.cli.view.plan import company_facts, operation_facts, proof_facts, speed_of_plan
from peagle.cli.view.proof import floor_text, second_turn_text
from peagle.deploy.alarms import mixes_drafts
from peagle.deploy.diff import Change
from peagle.deploy.preflight import Preflight
from peagle.deploy.records import load_record
from peagle.deploy.state import Deployment, Resource, RunningComparison, utc_text
from peagle.deploy.status import cost_of_remaining, deployment_status
from peagle.errors import NotProved, PeagleError, command_line
from peagle.planning.operation import limit_text
from peagle.planning.rollout import cost_text
from peagle.proof import SecondTurn, proof_findings
from peagle.protocol import request_body
from peagle.sandbox.client import sandbox_status
from peagle.sandbox.state import engine_version
from peagle.session import Account
from peagle.text import format_duration, format_price, format_usd, k_text

_CONTINUES = "continues with endpoint {name}, configuration {config}, model {model}"
_CHANGES = {
    "nothing": "none: this plan is in service and proved",
    "scale": "only the scaling; the endpoint serves on",
    "prove": "creates nothing; repeats the proof",
    "create": "creates endpoint {name}, configuration {config}, model {model}",
    "update": "updates endpoint {name} to configuration {config}, model {model}",
}


def show_plan(preflight: Preflight, account: Account, keep_unproved: bool = False) -> None:
    """Resources, location, price and change: on stderr, before the confirmation."""
    print_status(preflight.desired.plan.name, bold=True)
    print_facts(_deployment(preflight, account, keep_unproved))
    show_changes(preflight.changes)


def _deployment(preflight: Preflight, account: Account, keep_unproved: bool) -> Iterator[Fact]:
    plan, change, role = preflight.desired.plan, preflight.change, preflight.role
    here = engine_version() if account.sandbox else None
    yield "pair", plan.pair
    gpus = f"{plan.fit.gpu_count} x {plan.fit.gpu}"
    instances = f"{plan.instance_count} x {plan.instance_type} ({gpus})"
    yield "where", f"{instances}, {account.where(plan.region)}"
    yield "engine", f"{engine_text(plan.runtime.vllm, here)}, {plan.runtime.image}"
    yield from proof_facts(plan)
    yield "price", format_price(plan.price_per_hour_usd, account.sandbox)
    operation = dict(operation_facts(plan))
    if preflight.scaling is not None:
        operation["scaling"] = f"{operation['scaling']} ({preflight.scaling.text})".strip()
    if preflight.rollout:
        operation["rollout"] = cost_text(preflight.rollout)
    yield from operation.items()
    yield _limit(preflight)
    yield from company_facts(plan.company)
    if plan.speed is not None and plan.speed.tokens_per_second is not None:
        yield "speed", speed_of_plan(plan, plan.speed)
    yield "role", f"{role.arn}{f' ({role.because})' if role.because else ''}"
    uploads = _new_uploads(preflight) if change in ("create", "update") else []
    if uploads:
        megabytes = sum(upload.size for upload in uploads) / 1e6
        unchanged = "; unchanged files are copied in S3" if change == "update" else ""
        yield "uploads", f"{megabytes:.1f} MB to s3://{uploads[0].bucket}{unchanged}"
    if plan.target.weights.kind == "image":
        yield "weights", "in the image: nothing is uploaded or mounted"
    broken = f"; first deletes the endpoint, which is {preflight.broken}"
    yield "change", f"{_change_text(preflight)}{broken if preflight.broken else ''}"
    if change == "update":
        then = "the update stays in service" if keep_unproved else "what serves now serves again"
        yield "switch", f"proves after the switch; without a proof, {then}"


def _change_text(preflight: Preflight) -> str:
    """What deploying changes, with the names of what it makes."""
    desired, change = preflight.desired, preflight.change
    name, revision, copies = desired.plan.name, desired.revision, desired.plan.engines
    if change == "update" and desired.component:
        return f"updates the {copies} copies on {name} to model {revision.model}"
    if change == "nothing" and preflight.changes:
        return "only settings outside of the endpoint, which keeps serving"
    resumes = change == "create" and preflight.record and preflight.record.resources
    text = (_CONTINUES if resumes else _CHANGES[change]).format(
        name=name, config=revision.endpoint_config, model=revision.model
    )
    if desired.component and change == "create":
        text += f", inference component {name} with {copies} copies"
    return text


def _limit(preflight: Preflight) -> Fact:
    """When the deployment ends, if the plan or its record says so."""
    limit, record = preflight.desired.plan.limit, preflight.record
    if limit is None:
        if record is None or record.ends_at is None or preflight.change == "create":
            return "limit", ""
        return "ends", f"{_end_text(record.ends_at)}; --ttl or --no-limit changes it"
    if limit.removes:
        return "limit", "none: an earlier end time is removed"
    return "limit", f"deleted after {limit_text(limit, preflight.most_usd_per_hour)}"


def _end_text(ends_at: float) -> str:
    left = ends_at - time.time()
    until = f"in {format_duration(left)}" if left > 0 else "which has passed"
    return f"{utc_text(ends_at)}, {until}"


def show_changes(changes: Iterable[Change]) -> None:
    """The settings that an update or a rollback changes, one on each line."""
    print_facts(("" if number else "changes", change.text) for number, change in enumerate(changes))


def _new_uploads(preflight: Preflight) -> list[Upload]:
    """The folders that are not in S3 yet."""
    folders = preflight.record.of_type("S3Objects") if preflight.record else ()
    present = {(upload.name, upload.contents) for upload in folders if upload.made}
    return [
        upload
        for upload in preflight.desired.uploads
        if (upload.uri, upload.contents) not in present
    ]


def print_calls(document: dict[str, Any], preflight: Preflight, account: Account) -> None:
    """How to call the endpoint, on stdout."""
    name = document["name"]
    where = account.where(document["region"])
    print_line(f"{name} is {document['state']} ({where}){measured(document)}", bold=True)
    if second := (document["proof"] or {}).get("second_turn"):
        turn = SecondTurn(**second)
        print_line(f"In the second turn: {second_turn_text(turn)}.")
        print_findings(proof_findings(turn), err=True)
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
    for line in boto3_lines(document, chat=preflight.desired.plan.proof.chat):
        click.echo(f"  {line}")
    click.echo()
    facts = (
        ("OpenAI base URL", ("", str(document["openai_base_url"]))),
        ("OpenAI API key", ("", f"$({command_text(('peagle', 'token', name))})")),
        ("Price", format_price(document["price_per_hour_usd"], account.sandbox)),
        ("Remove it", ("", command_text(("peagle", "destroy", name)))),
    )
    print_facts(facts, label=17, err=False)


def boto3_lines(document: dict[str, Any], chat: bool) -> list[str]:
    """A call with boto3, as Python. Values are written by ``repr``, so any name is safe."""
    body = request_body("Hello", chat=chat, max_tokens=64)
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
    least = floor_text(floor, document["acceptance_floor_source"])
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
    usd_per_hour = _show_cost(aws, record, account)
    _add_remaining(
        record.resources, usd_per_hour, remove=in_context(("peagle", "destroy", record.name))
    )


def show_remaining_resources(
    aws: Aws, record: Deployment, account: Account, again: Sequence[str]
) -> None:
    """Show on stderr which resources remain after a failure, what they cost, and how to continue
    with the argv ``again``; with ``--json`` the error's document has all of it as ``remaining``."""
    destroy = in_context(("peagle", "destroy", record.name))
    rollback = in_context(("peagle", "rollback", record.name))
    has_undo = bool(record.serving and record.pending) and tuple(again) != rollback
    print_status("These resources exist:")
    for resource in record.resources:
        print_status(f"  {resource.text}{'' if resource.made else ' (may exist)'}")
    usd_per_hour = _show_cost(aws, record, account)
    undo = rollback if has_undo else ()
    remove = destroy if tuple(again) != destroy else ()
    commands = (("Continue", again), ("Undo", undo), ("Remove", remove))
    print_facts(((label, ("", command_line(argv))) for label, argv in commands), label=9, indent=0)
    _add_remaining(record.resources, usd_per_hour, again, undo, destroy)


def _show_cost(aws: Aws, record: Deployment, account: Account) -> float | None:
    usd_per_hour = cost_of_remaining(aws, record)
    print_status(f"Costs    {format_price(usd_per_hour, account.sandbox)}")
    return usd_per_hour


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
            "resources": [
                resource.document() | {"confirmed": resource.made} for resource in resources
            ],
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
        report_serving(aws, load_record(*record.key) or record, account)
        raise
    except (PeagleError, KeyboardInterrupt):
        left = load_record(*record.key) or record
        show_remaining_resources(aws, left, account, again)
        raise


def show_nothing_remains() -> None:
    """Show on stderr that a command that failed left nothing."""
    print_status("Nothing was created.")
    add_nothing_remaining()


def add_nothing_remaining() -> None:
    """Add to the error's document that no resources remain."""
    _add_remaining((), 0.0)


def show_not_applied(name: str, region: str) -> list[str]:
    """Show on stderr the engine arguments that the sandbox's engine did not get; return them."""
    endpoints = sandbox_status().endpoints
    named = [
        endpoint for endpoint in endpoints if (endpoint.name, endpoint.region) == (name, region)
    ]
    missing = [text for endpoint in named for text in endpoint.not_applied]
    if missing:
        print_status("The sandbox's engine did not get these arguments, so nothing tested them:")
    for text in missing:
        print_status(f"  {text}")
    return missing


_AT_PROMOTION = "scaling, alarms, dashboard, log retention, end time, captured data and KMS key"


def show_candidate(
    aws: Aws, preflight: Preflight, record: Deployment, share: float, account: Account
) -> None:
    """What is served next to the plan in service, and what it costs: on stderr, before asking."""
    print_status(f"{record.name}, a second plan", bold=True)
    status = deployment_status(aws, record)
    print_facts(_candidate(preflight, record, share, account, status))
    show_changes(change for change in preflight.changes if change.path != "usd_per_hour")


def _candidate(
    preflight: Preflight,
    record: Deployment,
    share: float,
    account: Account,
    status: dict[str, Any],
) -> Iterator[Fact]:
    plan = preflight.desired.plan
    running = status["instances_running"] or status["instance_count"]
    started = {status["instance_type"]: running}
    started[plan.instance_type] = started.get(plan.instance_type, 0) + plan.instance_count
    more = " and ".join(f"{count} x {instance_type}" for instance_type, count in started.items())
    yield "pair", plan.pair
    where = account.where(plan.region)
    yield "where", f"{plan.instance_count} x {plan.instance_type} more, {where}"
    yield from proof_facts(plan)
    yield "share", f"{share:.1%} of the requests"
    yield "price", _price_together(plan.price_per_hour_usd, status, account)
    change = f"updates endpoint {plan.name} to two variants"
    yield "change", f"{change}; while they start, SageMaker runs {more} more"
    if mixes_drafts(record, preflight.desired.revision.served):
        yield (
            "alarm",
            "the one on acceptance is suspended meanwhile: it counts the drafts of both plans "
            "together, and the report has those of each",
        )
    yield "promote", f"only then this plan's {_AT_PROMOTION} apply"


def _price_together(more: float | None, status: dict[str, Any], account: Account) -> str:
    now = status["price_per_hour_usd"]
    if status["comparison"] and status["comparison"]["state"] == "running":
        return f"{format_price(now, account.sandbox)}, as now"
    if more is None or now is None:
        return f"{format_price(more, account.sandbox)} more"
    return f"{format_usd(more)} per hour more: {format_price(now + more, account.sandbox)}"


def print_started(document: dict[str, Any], account: Account) -> None:
    """What serves, and what to do next, on stdout."""
    comparison, name = document["comparison"], document["name"]
    print_line(
        f"{name} serves two plans: {comparison['share']:.1%} of the requests go to "
        f"{comparison['variant']} ({_plan_text(comparison)})",
        bold=True,
    )
    facts: list[Fact] = [("Price", format_price(document["price_per_hour_usd"], account.sandbox))]
    for label in ("Report", "Promote", "Drop"):
        command = "compare" if label == "Report" else label.lower()
        facts.append((label, ("", command_text(("peagle", command, name)))))
    print_facts(facts, label=9, err=False)


def comparison_text(comparison: dict[str, Any] | None) -> str:
    """The second variant in the state of a deployment, in one line; empty without one."""
    if comparison is None:
        return ""
    where = f"{comparison['instances_running']} x {comparison['instance_type']} running"
    if comparison["state"] != "running":
        where = comparison["state"].replace("-", " ")
    share = f"{comparison['share']:.1%} of the requests to {comparison['variant']}"
    return f"{share}: {_plan_text(comparison)}, {where}"


def _plan_text(comparison: dict[str, Any]) -> str:
    return f"{comparison['pair']}, {k_text(comparison['k'])}"


def show_end(
    record: Deployment, comparison: RunningComparison, account: Account, is_promoted: bool
) -> None:
    """The compared plan, on stderr, before the comparison ends."""
    served = comparison.candidate.served
    print_status(record.name, bold=True)
    facts = (
        ("where", account.where(record.region)),
        ("compared", f"{served.pair}, {k_text(served.k)}, {comparison.share:.1%} of the requests"),
        ("change", "all instances are replaced, then the proof is repeated"),
        ("then", f"its plan's {_AT_PROMOTION} apply" if is_promoted else ""),
    )
    print_facts(facts)


def print_comparison_report(report: VariantComparison) -> None:
    """A line per number with both variants and the difference, the verdict and the notes."""
    first, second = report.variants
    span = format_duration(max(report.until - report.since, 0))
    print_line(f"{report.name}: two plans under the same requests, {span}", bold=True)
    headings = ("", first.variant, second.variant, "difference")
    print_table(headings, _rows(report))
    print_line(_verdict(report))
    for result in report.variants:
        if result.errors:
            cause = result.cause or "the container failed"
            command = command_text(("peagle", "logs", report.name))
            print_status(f"errors of {result.variant}: {cause}; to read the engine's log", command)
    for note in report.notes:
        print_status(f"note: {note}")


_SHOWN = (
    "pair", "k", "instances", "instance_type", "requests", "share", "errors", "in_progress",
    "ttft_p50_seconds", "ttft_p90_seconds", "ttft_seconds", "itl_seconds", "seconds_per_token",
    "latency_seconds", "acceptance_length", "usd_per_million_tokens",
)  # fmt: skip


def _rows(report: VariantComparison) -> Iterator[tuple[str, str, str, str]]:
    for key in _SHOWN:
        first, second = (_number(getattr(variant, key)) for variant in report.variants)
        yield key.replace("_", " "), first, second, _change(report.changes.get(key))


def _number(value: Interval | float | str | None) -> str:
    if not isinstance(value, Interval):
        return plain_text(value)
    text = plain_text(value.value)
    if value.low == value.high:  # of one minute
        return text
    return f"{text} ({plain_text(max(value.low, 0))} to {plain_text(value.high)})"


def _change(change: Interval | None) -> str:
    if change is None:
        return ""
    return f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})"


def _verdict(report: VariantComparison) -> str:
    failing = [result for result in report.variants if result.only_errors]
    if failing:
        names = " and ".join(result.variant for result in failing)
        causes = "; ".join(result.cause for result in failing if result.cause)
        return f"{names} answered no request{f': {causes}' if causes else ''}."
    change = report.changes.get("seconds_per_token")
    if change is None:
        return "Which one is faster is unknown."
    if report.faster is None:
        return f"No difference is shown yet: time per token {_change(change)}."
    return f"{report.faster} is faster: time per token of the second {_change(change)}."
