"""``peagle check``: check a pair for errors before you pay for a GPU."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from typing import Any

import click

from peagle import api
from peagle.checkpoints.models import Checkpoint
from peagle.checks.report import HUB, NOT_IN_SANDBOX, CheckRequest
from peagle.cli.context import findings_in_context, typed_command
from peagle.cli.options import (
    LONGEST_CONTEXT,
    catalog_of,
    command_catalog,
    complete_pair,
    settings_option,
    variables_option,
)
from peagle.cli.output.console import json_option, print_json
from peagle.cli.parameter_types import REQUESTS, TOKENS, WholeNumber
from peagle.cli.project import CHOICE, ProjectCommand, project_options
from peagle.errors import Fix, OptionMissing, OptionsConflict, Refused, UserError
from peagle.planning.runtime import DEFAULT_REGION
from peagle.project.choosing import EndpointChoice
from peagle.vllm.environment import Value, settings_in
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

_SET_BY = {
    "num_speculative_tokens": "--k",
    "method": "PAIR, such as tiny+eagle3",
    "parallel_drafting": "PAIR, such as tiny+eagle3",
    "model": "--drafter",
}
"""Keys of ``--speculative-config`` that other options decide."""


def _typed(settings: dict[str, str]) -> dict[str, Value]:
    """vLLM's arguments, each as JSON or as text."""
    parsed = {name: _parsed(text) for name, text in settings.items()}
    return {
        name: value if isinstance(value, Value) else json.dumps(value)
        for name, value in parsed.items()
    }


def _speculative(
    _: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in (_assignment(parameter, text) for text in given):
        if name in _SET_BY:
            raise UserError(f"--speculative {name} has its own option", f"use {_SET_BY[name]}")
        found[name] = _parsed(value)
    return found


def _assignment(parameter: click.Parameter, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(f"{parameter.opts[0]} {text!r} has no value", "write NAME=VALUE")
    return name, value


def _parsed(text: str) -> object:
    """A value as JSON, else as text: ``2`` is a number, ``fp8`` is text."""
    try:
        return json_reader.read(text, "the value")
    except InvalidJson:
        return text


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle check gpt-oss-20b --target hf --drafter hf
  peagle check gpt-oss-20b --drafter ./my/head
  peagle check tiny --set enable-lora --speculative draft_tensor_parallel_size=1
  peagle check -e production --online
""",
)
@click.argument("pair", required=False, shell_complete=complete_pair)
@project_options(instead=("list_rules",))
@click.option("--target", help="Location of the target: folder, s3://..., Hub id, or hf.")
@click.option("--drafter", help="Location of the head: folder, s3://..., Hub id, or hf.")
@click.option("--k", type=WholeNumber(1), help="Tokens drafted per step.")
@click.option("--max-model-len", type=TOKENS, metavar="TOKENS", help=LONGEST_CONTEXT)
@click.option("--concurrency", type=REQUESTS, metavar="REQUESTS", help="Concurrent requests.")
@click.option("--vllm", help="vLLM version.  [default: the catalogue's]")
@click.option("--instance-type", help="SageMaker instance type.")
@click.option(
    "--tp",
    "--tensor-parallel-size",
    "tensor_parallel_size",
    type=WholeNumber(1),
    help="GPUs per model.",
)
@click.option(
    "--ami",
    help="Host AMI, which determines the GPU driver; `default` is SageMaker's own.  "
    "[default: the AMI that the image requires]",
)
@click.option("--image", help="Container image.")
@click.option("--region", envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="AWS region.")
@settings_option(
    "An argument of vLLM, such as enable-lora or gpu-memory-utilization=0.9.", "--engine"
)
@click.option(
    "--speculative",
    "speculative_settings",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_speculative,
    help="A key of vLLM's --speculative-config that the pair does not set; repeatable.",
)
@variables_option("A variable of the container; SM_VLLM_* become arguments of vLLM.")
@click.option(
    "--online",
    is_flag=True,
    help="Read target and drafter where the pair has them, on the Hub: `hf` for both.",
)
@click.option(
    "--cpu", "on_cpu", is_flag=True, help="Check for the CPU build of vLLM, as in the sandbox."
)
@click.option("--rules", "list_rules", is_flag=True, help="List the rules and what they prevent.")
@click.option("--profile", help="AWS profile for s3:// locations.")
@click.option("--sandbox", is_flag=True, help="Read s3:// locations from the sandbox.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, /, pair: str | None, list_rules: bool, as_json: bool, **options: Any
) -> None:
    """Check PAIR: config.json and weight headers, versions, image and instance.

    Reads models that are on this machine. For other models, the catalogue's values are checked
    unless you give a location (or `hf`). `hf` is the pair's own repository on the Hub. Reads
    config.json and headers, never the weights. PAIR also determines the speculation method.
    --set, --speculative and --env are checked as if they were added to a plan. Exits with 3 if
    there is an error.
    """
    if list_rules:
        return _list(as_json)
    if pair is None:
        raise OptionMissing("PAIR is required", Fix("for example", ("peagle", "check", "tiny")))
    in_sandbox = options.pop("sandbox")
    del options["profile"]
    if options.pop("online"):
        options |= _on_hub(ctx, pair, options["target"], options["drafter"])
    start = time.monotonic()
    options["settings"] = _typed(options["settings"])
    for name in (*options["settings"], *settings_in(options["environment"])):
        if name.startswith("spec"):  # the spellings of vLLM's speculative configuration
            fix = "use PAIR, --drafter and --k, and --speculative KEY=VALUE for another key"
            raise OptionsConflict(f"--{name}: PAIR decides the speculation", fix, "decided-by-plan")

    @cache
    def read(location: str) -> Checkpoint:
        return api.checkpoint_at(location, lambda: _aws(ctx))

    catalog = api.load_catalog(catalog_of(ctx))
    unread = options["target"] is None and api.is_on_hub(pair)
    if unread and api.is_own_target(catalog, pair):
        command = (*typed_command(ctx, "check"), "--target", HUB)
        raise api.target_not_read(pair, command, catalog)
    at = options["target"] if options["target"] not in (None, HUB) else None
    own = api.with_own_target(catalog, pair, lambda location: read(at or location))
    if own.checkpoint is not None and options["target"] in (None, HUB):
        options["target"] = own.checkpoint.location
    report = api.check(CheckRequest(pair=pair, **options), own.catalog, read)
    if in_sandbox:
        kept = tuple(one for one in report.findings if one.code not in NOT_IN_SANDBOX)
        report = replace(report, findings=kept)
    if as_json:
        findings = findings_in_context(report.findings)
        print_json(api.check_document(replace(report, findings=findings)))
    else:
        from peagle.cli.output.check import print_report

        print_report(report, time.monotonic() - start)
    if any(finding.level == "error" for finding in report.findings):
        ctx.exit(Refused.exit_code)
    return None


def _on_hub(
    ctx: click.Context, pair: str, target: str | None, drafter: str | None
) -> dict[str, str | None]:
    """Where ``--online`` reads the pair: on the Hub, unless the user, or a project file with
    ``model_source``, says where."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    source = choice.values.get("model_source") if choice else None
    target = target or (str(source.value) if source else HUB)
    catalog = command_catalog(ctx)
    if drafter is None and not api.is_own_target(catalog, pair):
        head = api.find_pair(catalog, pair).drafter
        drafter = HUB if head is not None and head.weights is not None else None
    return {"target": target, "drafter": drafter}


def _aws(ctx: click.Context) -> Any:
    """The AWS of ``--profile``, ``--sandbox`` or the environment; boto3 is loaded only here."""
    from peagle.cli.account import started_account

    return started_account(ctx).connect(ctx.params["region"] or DEFAULT_REGION)


def _list(as_json: bool) -> None:
    """All rules: code, subject, whether vLLM rejects it too, what the rule prevents."""
    if as_json:
        return print_json({"rules": [rule.document() for rule in api.rules_found()]})
    from peagle.cli.output.check import print_rules

    return print_rules(api.rules_found())
