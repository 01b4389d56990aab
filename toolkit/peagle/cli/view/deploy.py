"""What ``peagle deploy``, ``compare``, ``promote``, ``drop`` and ``top`` print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click

from peagle.account import Account
from peagle.aws.client import Aws
from peagle.bench.result import Interval
from peagle.bench.variants import VariantComparison
from peagle.cli.context import add_to_error_document, command_text, in_context
from peagle.cli.view.console import (
    LABEL,
    Fact,
    bar,
    can_print,
    fact_lines,
    folded,
    plain_text,
    print_facts,
    print_findings,
    print_line,
    print_status,
    print_table,
)
from peagle.cli.view.plan import company_facts, format_plan_speed, operation_facts, proof_facts
from peagle.deploy.comparison import mixes_drafts
from peagle.deploy.diff import Change
from peagle.deploy.preflight import Preflight
from peagle.deploy.records import load_record
from peagle.deploy.state import Deployment, ListedResource, utc_text
from peagle.deploy.status import (
    ComparedPlan,
    DeploymentStatus,
    deployment_status,
    price_remaining,
)
from peagle.engine.usage import Usage
from peagle.engine_log import WarmStart
from peagle.errors import NotProved, PeagleError, command_line
from peagle.planning.operation import cost_text, limit_text
from peagle.planning.plan import FloorSource
from peagle.proof import SecondTurn
from peagle.protocol import request_body
from peagle.sandbox.client import sandbox_status
from peagle.sandbox.state import engine_version
from peagle.text import format_duration, format_price, format_usd, k_text

_CHANGES = {
    "nothing": "none: this plan is in service and proved",
    "scale": "only the scaling; the endpoint serves on",
    "prove": "creates nothing; repeats the proof",
    "create": "creates endpoint {name}, configuration {config}, model {model}",
    "continue": "continues with endpoint {name}, configuration {config}, model {model}",
    "update": "updates endpoint {name} to configuration {config}, model {model}",
}


def show_plan(preflight: Preflight, account: Account, keep_unproved: bool = False) -> None:
    """Resources, location, price and change: on stderr, before the confirmation."""
    print_status(preflight.desired.plan.name, bold=True)
    print_facts(_plan_facts(preflight, account, keep_unproved))
    show_changes(preflight.changes)


def _plan_facts(preflight: Preflight, account: Account, keep_unproved: bool) -> Iterator[Fact]:
    plan, change, role = preflight.desired.plan, preflight.change, preflight.role
    count, usd = preflight.instances, plan.price_per_hour_usd
    if count != plan.instance_count:
        usd = preflight.desired.revision.served.with_instances(count).usd_per_hour
    here = engine_version() if account.sandbox else None
    yield "pair", plan.pair
    gpus = f"{plan.fit.gpu_count} x {plan.fit.gpu}"
    yield "where", f"{count} x {plan.instance_type} ({gpus}), {account.where(plan.region)}"
    yield "engine", f"{_engine_text(plan.runtime.vllm, here)}, {plan.runtime.image}"
    yield from proof_facts(plan)
    yield "price", format_price(usd, account.sandbox)
    operation = dict(operation_facts(plan))
    if preflight.scaling is not None:
        operation["scaling"] = f"{operation['scaling']} ({preflight.scaling.text})".strip()
    if preflight.rollout:
        operation["rollout"] = cost_text(preflight.rollout)
    yield from operation.items()
    if plan.limit is not None and plan.limit.removes:
        yield "limit", "none: an earlier end time is removed"
    elif plan.limit is not None:
        yield "limit", f"deleted after {limit_text(plan.limit, preflight.most_usd_per_hour)}"
    elif preflight.record and preflight.record.ends_at is not None and change != "create":
        yield "ends", f"{utc_text(preflight.record.ends_at)}; --ttl or --no-limit changes it"
    yield from company_facts(plan.company)
    if plan.speed is not None and plan.speed.tokens_per_second is not None:
        yield "speed", format_plan_speed(plan, plan.speed)
    yield "role", f"{role.arn}{f' ({role.because})' if role.because else ''}"
    folders = preflight.record.of_type("S3Objects") if preflight.record else ()
    in_s3 = {(folder.name, folder.contents) for folder in folders if folder.made}
    uploads = [
        upload for upload in preflight.desired.uploads if (upload.uri, upload.contents) not in in_s3
    ]
    if uploads and change in ("create", "update"):
        megabytes = sum(upload.size for upload in uploads) / 1e6
        yield "uploads", f"{megabytes:.1f} MB to s3://{uploads[0].bucket}"
    if plan.target.weights.kind == "image":
        yield "weights", "in the image: nothing is uploaded or mounted"
    broken = f"; first deletes the endpoint, which is {preflight.broken}"
    yield "change", f"{_change_text(preflight)}{broken if preflight.broken else ''}"
    if change == "update":
        then = "the update stays in service" if keep_unproved else "what serves now serves again"
        yield "switch", f"proves after the switch; without a proof, {then}"


def _change_text(preflight: Preflight) -> str:
    desired, change = preflight.desired, str(preflight.change)
    name, revision, copies = desired.plan.name, desired.revision, desired.plan.engines
    if change == "update" and desired.component:
        return f"updates the {copies} copies on {name} to model {revision.model}"
    if change == "nothing" and preflight.changes:
        return "only settings outside of the endpoint, which keeps serving"
    if change == "create" and preflight.record and preflight.record.resources:
        change = "continue"
    text = _CHANGES[change].format(name=name, config=revision.endpoint_config, model=revision.model)
    if desired.component and preflight.change == "create":
        text += f", inference component {name} with {copies} copies"
    return text


def show_changes(changes: Iterable[Change]) -> None:
    """The settings that an update or a rollback changes, one on each line."""
    print_facts(("" if number else "changes", change.text) for number, change in enumerate(changes))


def print_calls(status: DeploymentStatus, preflight: Preflight, account: Account) -> None:
    """How to call the endpoint, on stdout."""
    name, region, proof = status.name, status.region, status.proof
    text = f"{name} is {status.state} ({account.where(region)}){measured(status)}"
    print_line(text, bold=True)
    if proof and proof.second_turn:
        print_line(f"In the second turn: {second_turn_text(proof.second_turn)}.")
        print_findings(proof.findings, err=True)
    if status.stand_in:
        print_line(f"Served by {status.stand_in}, a stand-in: its acceptance length counts.")
    click.echo(f"\n  {command_text(('peagle', 'invoke', name, 'Hello'))}\n")
    if account.sandbox:
        environment = command_text(("peagle", "sandbox", "env"))
        click.echo(f'  eval "$({environment})"   # points boto3 at the sandbox')
    # Values are written by repr, so any name is safe.
    body = request_body("Hello", chat=preflight.desired.plan.proof.chat, max_tokens=64)
    component = f"InferenceComponentName={name!r}, " if status.copies is not None else ""
    click.echo(f"""  import boto3, json
  runtime = boto3.client('sagemaker-runtime', region_name={region!r})
  body = json.dumps({body!r})
  answer = runtime.invoke_endpoint(EndpointName={name!r}, {component}\
ContentType='application/json', Body=body)
  print(json.load(answer['Body']))
""")
    print_facts(
        (
            ("OpenAI base URL", ("", str(status.openai_base_url))),
            ("OpenAI API key", ("", f"$({command_text(('peagle', 'token', name))})")),
            ("Price", format_price(status.price_per_hour_usd, account.sandbox)),
            ("Remove it", ("", command_text(("peagle", "destroy", name)))),
        ),
        label=17,
        err=False,
    )


def measured(status: DeploymentStatus) -> str:
    """The acceptance length of a proved deployment; empty without one."""
    length, floor = status.acceptance_length, status.acceptance_floor
    if length is None:
        return ""
    least = floor_text(None if status.stand_in else floor, status.acceptance_floor_source)
    return f": acceptance length {length:.2f} over {status.drafts} drafts{least}"


def _engine_text(planned: str, here: str | None) -> str:
    if here in (None, planned):
        return f"vLLM {planned}"
    return f"vLLM {here} (sandbox); the plan has {planned}"


def show_remaining_resources(
    aws: Aws, record: Deployment, account: Account, again: Sequence[str]
) -> None:
    """Show what remains after a failure, its cost, and how to continue with the argv ``again``;
    without it the deployment serves, and only its cost is shown."""
    destroy = in_context(("peagle", "destroy", record.name))
    rollback = in_context(("peagle", "rollback", record.name))
    has_undo = again and record.serving and record.pending and tuple(again) != rollback
    undo = rollback if has_undo else ()
    if again:
        print_status("These resources exist:")
        for resource in record.resources:
            print_status(f"  {resource.text}{'' if resource.made else ' (may exist)'}")
    usd_per_hour = price_remaining(aws, record)
    print_status(f"Costs    {format_price(usd_per_hour, account.sandbox)}")
    if again:
        remove = destroy if tuple(again) != destroy else ()
        commands = (("Continue", again), ("Undo", undo), ("Remove", remove))
        facts = ((label, ("", command_line(argv))) for label, argv in commands)
        print_facts(facts, label=9, indent=0)
    add_remaining(record.listed_resources, usd_per_hour, again, undo, destroy)


def add_remaining(
    resources: Sequence[ListedResource] = (),
    usd_per_hour: float | None = 0.0,
    again: Sequence[str] = (),
    undo: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> None:
    """Add ``remaining`` to the document of the error. Programs run its commands, which ask
    nothing."""

    def unattended(command: Sequence[str]) -> tuple[str, ...] | None:
        is_asked = bool(command) and not {"--yes", "-y"} & {*command}
        return (*command, *(("--yes",) if is_asked else ())) or None

    add_to_error_document(
        "remaining",
        {
            "resources": resources,
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
    """If an error ends the block, show what remains; after a failed proof, what serves."""
    try:
        yield
    except (PeagleError, KeyboardInterrupt) as error:
        left = load_record(*record.key) or record
        is_serving = isinstance(error, NotProved)
        show_remaining_resources(aws, left, account, () if is_serving else again)
        raise


def show_not_applied(name: str, region: str) -> tuple[str, ...]:
    """Show on stderr the engine arguments that the sandbox's engine did not get; return them."""
    missing = tuple(
        text
        for endpoint in sandbox_status().endpoints
        if (endpoint.name, endpoint.region) == (name, region)
        for text in endpoint.not_applied
    )
    if missing:
        print_status("The sandbox's engine did not get these arguments:")
        print_status("\n".join(f"  {text}" for text in missing))
    return missing


AT_PROMOTION = "scaling, alarms, dashboard, log retention, end time, captured data and KMS key"


def show_candidate(
    aws: Aws, preflight: Preflight, record: Deployment, share: float, account: Account
) -> None:
    """What is served next to the plan in service, and what it costs: on stderr, before asking."""
    plan = preflight.desired.plan
    status = deployment_status(aws, record)
    running = status.instances_running or status.instance_count
    started = Counter({status.instance_type: running})
    started[plan.instance_type] += plan.instance_count
    more = " and ".join(f"{count} x {instance_type}" for instance_type, count in started.items())
    added, now = plan.price_per_hour_usd, status.price_per_hour_usd
    price = f"{format_price(added, account.sandbox)} more"
    if status.comparison and status.comparison.state == "running":
        price = f"{format_price(now, account.sandbox)}, as now"
    elif added is not None and now is not None:
        price = f"{format_usd(added)} per hour more: {format_price(now + added, account.sandbox)}"
    where = f"{plan.instance_count} x {plan.instance_type} more, {account.where(plan.region)}"
    suspended = "none on acceptance meanwhile: it would count the drafts of both plans"
    print_status(f"{record.name}, a second plan", bold=True)
    print_facts(
        (
            ("pair", plan.pair),
            ("where", where),
            *proof_facts(plan),
            ("share", f"{share:.1%} of the requests"),
            ("price", price),
            ("change", f"two variants; while they start, SageMaker runs {more} more"),
            ("alarm", suspended if mixes_drafts(record, preflight.desired.revision.served) else ""),
            ("promote", f"only then this plan's {AT_PROMOTION} apply"),
        )
    )
    show_changes(change for change in preflight.changes if change.setting != "usd_per_hour")


def comparison_text(comparison: ComparedPlan | None) -> str:
    """The second variant in the state of a deployment, in one line; empty without one."""
    if comparison is None:
        return ""
    where = f"{comparison.instances_running} x {comparison.instance_type} running"
    if comparison.state != "running":
        where = comparison.state.replace("-", " ")
    return (
        f"{comparison.share:.1%} of the requests to {comparison.variant}: "
        f"{comparison.pair}, {k_text(comparison.k)}, {where}"
    )


_COMPARED = {
    "pair": "pair", "k": "K", "instances": "instances", "instance_type": "instance type",
    "requests": "requests", "share": "share of requests", "errors": "errors",
    "in_progress": "in progress", "ttft_p50_seconds": "TTFT in ms, median",
    "ttft_p90_seconds": "TTFT in ms, p90", "ttft_seconds": "TTFT in ms, mean",
    "itl_seconds": "ITL in ms", "seconds_per_token": "ms per token",
    "latency_seconds": "ms per request", "acceptance_length": "acceptance length",
    "usd_per_million_tokens": "USD per 1M tokens",
}  # fmt: skip


def print_comparison_report(report: VariantComparison) -> None:
    """A line per number with both variants and the difference, the verdict and the notes."""

    def number(key: str, value: Interval | float | str | None) -> str:
        if isinstance(value, int | float):
            return plain_text(value * 1000.0 if "seconds" in key else value)
        if not isinstance(value, Interval):
            return plain_text(value)
        text = number(key, value.value)
        if value.low == value.high:  # of one minute
            return text
        return f"{text} ({number(key, max(value.low, 0))} to {number(key, value.high)})"

    def difference(key: str) -> str:
        change = report.changes.get(key)
        return f"{change.value:+.1%} ({change.low:+.1%} to {change.high:+.1%})" if change else ""

    span = format_duration(max(report.until - report.since, 0))
    print_line(f"{report.name}: two plans under the same requests, {span}", bold=True)
    rows = [
        (
            label,
            *(number(key, getattr(variant, key)) for variant in report.variants),
            difference(key),
        )
        for key, label in _COMPARED.items()
    ]
    print_table(("", *(variant.variant for variant in report.variants), "difference"), rows)
    slower = difference("seconds_per_token")
    failing = [variant.variant for variant in report.variants if variant.only_errors]
    if failing:
        print_line(f"{' and '.join(failing)} answered no request.")
    elif not slower:
        print_line("Which one is faster is unknown.")
    elif report.faster is None:
        print_line(f"No difference is shown yet: time per token {slower}.")
    else:
        print_line(f"{report.faster} is faster: time per token of the second {slower}.")
    for variant in report.variants:
        if variant.errors:
            cause = variant.cause or "the container failed"
            command = command_text(("peagle", "logs", report.name))
            print_status(f"errors of {variant.variant}: {cause}; to read the engine's log", command)
    for note in report.notes:
        print_status(f"note: {note}")


_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_BARS = ".:-=+*#@"
_GAUGE = 20
_UNKNOWN = "-"
_BELOW = ", below the floor"


def usage_screen(usage: Usage, width: int) -> list[str]:
    """The lines of one screen; of several variants each fact stands side by side."""
    instances = f"{usage.instances} x {usage.instance_type}" if usage.instance_type else ""
    instances = f"{len(usage.variants)} variants" if usage.variants else instances
    place = {"local": "this machine", "sandbox": "sandbox"}.get(usage.where, "")
    over = f"last {format_duration(usage.window_seconds)}"
    state = ", ".join(filter(None, (usage.state, instances, place, over)))
    lines = [click.style(line, bold=True) for line in folded(f"{usage.name}: {state}", width)]
    lines.append("")
    facts = dict(_usage_facts(usage, 0 if usage.variants else width - LABEL - 2))
    if usage.variants:
        together = "; ".join(facts[label] for label in ("requests", "in progress", "cost"))
        facts = {}
        for variant in usage.variants:
            running = f"{variant.instances} x {variant.instance_type}"
            for label, text in (("instances", running), *_usage_facts(variant, 0)):
                before = f"{facts[label]}; " if label in facts else ""
                facts[label] = f"{before}{variant.variant} {text}"
        facts["together"] = together
    for label, text in facts.items():
        is_low = label == "acceptance" and _BELOW in text
        shown = fact_lines([(label, text)], width)
        lines += (click.style(line, fg="red") if is_low else line for line in shown)
    for note in usage.notes:
        lines += folded(f"  {note}", width, "")
    return lines


def _usage_facts(usage: Usage, width: int) -> Iterator[tuple[str, str]]:
    def number(value: float | None, shown: str, scale: float = 1.0) -> str:
        return _UNKNOWN if value is None else shown.format(value * scale)

    if usage.share is not None:
        yield "share", f"{usage.share:.1%} of the requests"
    requests, by_minute = number(usage.requests_per_minute, "{:.1f} per minute"), ""
    if len(usage.requests_by_minute) > 1:  # the newest minute is the last bar
        bars = _BARS if can_print(_BARS) else _PLAIN_BARS
        most = max(usage.requests_by_minute) or 1.0
        by_minute = "".join(
            bars[round(value / most * (len(bars) - 1))] for value in usage.requests_by_minute
        )
    has_room = by_minute and len(requests) + len(by_minute) + 2 <= width
    yield "requests", f"{requests}  {by_minute}" if has_room else requests
    running = f"{usage.running or 0:.0f} running, {usage.waiting or 0:.0f} waiting"
    yield "in progress", _UNKNOWN if usage.running is None else running
    if usage.where != "local":
        yield "errors", number(usage.error_share, "{:.1%} with a 5xx status")
    median, p90 = (number(ms, "{:,.0f}", 1000) for ms in (usage.ttft_p50, usage.ttft_p90))
    yield "TTFT", f"{median} ms median, {p90} ms p90" if usage.ttft_p50 is not None else _UNKNOWN
    yield "ITL", number(usage.itl, "{:.1f} ms per token", 1000)
    yield "tokens", number(usage.tokens_per_second, "{:.1f} per second")
    share = usage.kv_cache_share
    gauge = _UNKNOWN if share is None else f"{bar([(share, '')], _GAUGE).plain} {share:.1%}"
    yield "KV cache", gauge
    acceptance = "no speculation"
    if usage.k is not None:
        floor = f", floor {usage.acceptance_floor:g}" if usage.acceptance_floor is not None else ""
        length = number(usage.acceptance_length, "{:.2f} tokens per step")
        acceptance = f"{length} (K={usage.k}{floor})"
        if (usage.acceptance_length or math.inf) < (usage.acceptance_floor or 0):
            acceptance += _BELOW
    yield "acceptance", acceptance
    cost = "this machine" if usage.where == "local" else "unknown price"
    if usage.where != "local" and usage.usd_per_hour is not None:
        cost = f"{format_usd(usage.usd_per_hour)} per hour"
        if usage.usd_per_million_tokens is not None:
            cost += f", {format_usd(usage.usd_per_million_tokens)} per million output tokens"
        cost += " on AWS" if usage.where == "sandbox" else ""
    yield "cost", cost


_BY: dict[FloorSource, str] = {
    "catalogue": "by the catalogue",
    "break-even": "to break even",
    "option": "by --floor",
}


def floor_text(floor: float | None, source: FloorSource | None) -> str:
    """``, at least 2.10 required by the catalogue``; empty where any accepted draft passes."""
    if floor is None or floor <= 1:
        return ""
    return f", at least {floor:.2f} required {_BY[source] if source else ''}".rstrip()


def warm_start_text(warm: WarmStart) -> str:
    """How an engine started, in one line."""
    return f"{'Warm' if warm.restored else 'No warm'} start: {warm.detail}"


def second_turn_text(second: SecondTurn) -> str:
    """The acceptance length, and how much of the prompts came from the cache."""
    share, length = second.cached_share, second.acceptance_length
    cached = "unknown" if share is None else f"{share:.0%}"
    if share is not None and second.source == "log":
        cached += " (the engine's own rate, first turns included)"
    accepted = "unknown" if length is None else f"{length:.2f} over {second.drafts} drafts"
    return f"acceptance length {accepted}, prompt tokens from the cache: {cached}"
