"""What ``peagle deploy``, ``compare``, ``promote`` and ``drop`` print before and after a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from peagle.account import Account, DeploymentChange
from peagle.cli import view
from peagle.cli.context import add_to_error_document, command_text, in_context
from peagle.cli.view.plan import company_facts, format_plan_speed, operation_facts, proof_facts
from peagle.cli.view.watch import measured, second_turn_text
from peagle.deploy.diff import Change
from peagle.deploy.preflight import Preflight
from peagle.deploy.state import Deployment, utc_text
from peagle.deploy.status import DeploymentStatus, price_remaining
from peagle.errors import command_line
from peagle.planning.operation import cost_text, limit_text
from peagle.protocol import request_body
from peagle.sandbox.client import sandbox_status
from peagle.text import format_price, format_size

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
    facts = _plan_facts(preflight, account, keep_unproved)
    view.print_facts(facts, title=preflight.desired.plan.name)
    show_changes(preflight.changes)


def _plan_facts(preflight: Preflight, account: Account, keep_unproved: bool) -> Iterator[view.Fact]:
    plan, change, role = preflight.desired.plan, preflight.change, preflight.role
    count, usd = preflight.instances, plan.price_per_hour_usd
    if count != plan.instance_count:
        usd = preflight.desired.revision.served.with_instances(count).usd_per_hour
    yield "pair", plan.pair
    gpus = f"{plan.fit.gpu_count} x {plan.fit.gpu}"
    yield "where", f"{count} x {plan.instance_type} ({gpus}), {account.where(plan.region)}"
    yield "engine", f"vLLM {plan.runtime.vllm}, {plan.runtime.image}"
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
    uploads = preflight.desired.uploads
    if uploads and change in ("create", "update"):
        size = format_size(sum(upload.size for upload in uploads))
        yield "uploads", f"{size} to s3://{uploads[0].bucket}, unless there already"
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
    """The settings and resources that an update or a rollback changes, one on each line."""
    texts = [change.text for change in changes]
    view.print_facts(("" if number else "changes", text) for number, text in enumerate(texts))


def print_calls(status: DeploymentStatus, preflight: Preflight, account: Account) -> None:
    """How to call the endpoint, on stdout."""
    name, region, proof = status.name, status.region, status.proof
    text = f"{name} is {status.state} ({account.where(region)}){measured(status)}"
    view.print_line(text, bold=True)
    if proof and proof.second_turn:
        view.print_line(f"In the second turn: {second_turn_text(proof.second_turn)}.")
        view.print_findings(proof.findings, err=True)
    if status.stand_in:
        view.print_line(f"Served by {status.stand_in}, a stand-in: its acceptance length counts.")
    view.print_text(f"\n  {command_text(('peagle', 'invoke', name, 'Hello'))}\n")
    if account.sandbox:
        environment = command_text(("peagle", "sandbox", "env"))
        view.print_text(f'  eval "$({environment})"   # points boto3 at the sandbox')
    # Values are written by repr, so any name is safe.
    body = request_body("Hello", chat=preflight.desired.plan.proof.chat, max_tokens=64)
    component = f"InferenceComponentName={name!r}, " if status.copies is not None else ""
    view.print_text(f"""  import boto3, json
  runtime = boto3.client('sagemaker-runtime', region_name={region!r})
  body = json.dumps({body!r})
  answer = runtime.invoke_endpoint(EndpointName={name!r}, {component}\
ContentType='application/json', Body=body)
  print(json.load(answer['Body']))
""")
    facts = (
        ("OpenAI base URL", ("", str(status.openai_base_url))),
        ("OpenAI API key", ("", f"$({command_text(('peagle', 'token', name))})")),
        ("Price", format_price(status.price_per_hour_usd, account.sandbox)),
        ("Remove it", ("", command_text(("peagle", "destroy", name)))),
    )
    view.print_facts(facts, err=False)


def show_remaining_resources(change: DeploymentChange, again: Sequence[str]) -> None:
    """Show what remains after a failure, its cost, and how to continue with the argv ``again``;
    without it the deployment serves, and only its cost is shown. ``--json`` has it in
    ``remaining``, next to the error; programs run its commands, which ask nothing."""
    record, commands = change.record, dict[str, Sequence[str]]()
    usd_per_hour = price_remaining(change.aws, record)
    if record.resources:
        has_undo = again and record.serving and record.pending and "rollback" not in again
        commands = {
            "continue": again,
            "undo": in_context(("peagle", "rollback", record.name)) if has_undo else (),
            "remove": in_context(("peagle", "destroy", record.name)),
        }
        if again:
            view.print_status("These resources exist:")
            for resource in record.resources:
                view.print_status(f"  {resource.text}{'' if resource.made else ' (may exist)'}")
        price = format_price(usd_per_hour, change.account.sandbox)
        facts: list[view.Fact] = [("Costs", price)]
        for name, argv in commands.items():
            if name != "remove" or (again and "destroy" not in again):
                facts.append((name.capitalize(), ("", command_line(argv))))
        view.print_facts(facts, indent=0)
    else:
        view.print_status("Nothing remains.")
    document: dict[str, Any] = {
        "resources": record.listed_resources,
        "price_per_hour_usd": usd_per_hour,
    }
    for name in ("continue", "undo", "remove"):
        command = commands.get(name)
        document[f"{name}_command"] = (*command, "--yes") if command else None
    add_to_error_document("remaining", document)


def show_not_applied(name: str, region: str) -> tuple[str, ...]:
    """Show on stderr the engine arguments that the sandbox's engine did not get; return them."""
    missing = tuple(
        text
        for endpoint in sandbox_status().endpoints
        if (endpoint.name, endpoint.region) == (name, region)
        for text in endpoint.not_applied
    )
    if missing:
        view.print_status("The sandbox's engine did not get these arguments:")
        view.print_status("\n".join(f"  {text}" for text in missing))
    return missing


AT_PROMOTION = "scaling, alarms, dashboard, log retention, end time, captured data and KMS key"


def show_candidate(
    preflight: Preflight, record: Deployment, share: float, account: Account
) -> None:
    """What is served next to the plan in service, and what it costs: on stderr, before asking."""
    plan = preflight.desired.plan
    where = f"{plan.instance_count} x {plan.instance_type} more, {account.where(plan.region)}"
    facts = (
        ("pair", plan.pair),
        ("where", where),
        *proof_facts(plan),
        ("share", f"{share:.1%} of the requests"),
        ("price", f"another {format_price(plan.price_per_hour_usd, account.sandbox)}"),
        ("change", "two variants; SageMaker starts new instances for both plans"),
        ("promote", f"only then this plan's {AT_PROMOTION} apply"),
    )
    view.print_facts(facts, title=f"{record.name}, a second plan")
    show_changes(change for change in preflight.changes if change.setting != "usd_per_hour")
