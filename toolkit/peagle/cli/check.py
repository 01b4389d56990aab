"""``peagle check``: what is known to be wrong with a pair, before a GPU is paid for."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from peagle.checks import rules_found
from peagle.cli.check_report import document, report_of, setting_options
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json
from peagle.errors import Refused, UserError

EXAMPLES = """\b
Examples:
  peagle check gpt-oss-20b --target hf --drafter hf
  peagle check gpt-oss-20b --drafter ./my/head
  peagle check tiny --engine enable-lora --speculative draft_tensor_parallel_size=1
"""


@click.command(cls=PeagleCommand, epilog=EXAMPLES)
@click.argument("pair", required=False)
@click.option("--target", help="Where the target lies: folder, s3://..., hub id, or hf.")
@click.option("--drafter", help="Where the head lies: folder, s3://..., hub id, or hf.")
@click.option("--k", type=click.IntRange(1), help="Tokens drafted per step.")
@click.option("--max-model-len", type=click.IntRange(1), help="Longest context, in tokens.")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at the same time.")
@click.option("--vllm", help="vLLM version.  [default: the catalogue's]")
@click.option("--instance-type", help="SageMaker instance type.")
@click.option("--tp", "--tensor-parallel-size", type=click.IntRange(1), help="GPUs per model.")
@click.option(
    "--ami",
    help="Host AMI (the GPU driver), or `default`: SageMaker's.  [default: what the image needs]",
)
@click.option("--image", help="Container image.")
@click.option("--region", envvar=["AWS_REGION", "AWS_DEFAULT_REGION"], help="AWS region.")
@setting_options
@click.option("--rules", "list_rules", is_flag=True, help="List the rules and what they guard.")
@click.option("--profile", help="AWS profile for s3:// places.")
@click.option("--sandbox", is_flag=True, help="s3:// places of this machine's AWS.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, /, pair: str | None, list_rules: bool, as_json: bool, **given: Any
) -> None:
    """Check PAIR: config.json and the headers of the weights, versions, image and instance.

    Reads what lies on this machine. Of other places it knows the catalogue's numbers; name a place
    to have it read, or `hf` for the pair's own on the hub: config.json and the headers, never the
    weights. PAIR also says how the drafter is started. What would be given to vLLM beside a plan's
    arguments is checked with --engine, --speculative and --env. The exit code is 3 when something
    is wrong.
    """
    if list_rules:
        return _list(as_json)
    if pair is None:
        raise UserError("name a pair", "for example: peagle check tiny; `--rules` lists the rules")
    report = report_of(ctx, pair, given)
    if as_json:
        print_json(document(report))
    else:
        from peagle.cli.output.check import print_report

        print_report(report)
    if any(finding.level == "error" for finding in report.findings):
        ctx.exit(Refused.exit_code)
    return None


def _list(as_json: bool) -> None:
    """All rules: code, what each looks at, whether vLLM notices, what it guards against."""
    if as_json:
        rules = [{k: v for k, v in asdict(rule).items() if k != "check"} for rule in rules_found()]
        return print_json({"rules": rules})
    from peagle.cli.output.check import print_rules

    return print_rules(rules_found())
