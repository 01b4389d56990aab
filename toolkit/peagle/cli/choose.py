"""``peagle check``, ``fit`` and ``verdict``: is the pair right, does it fit, does it pay."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from peagle.catalog import find_pair
from peagle.checks import registry
from peagle.checks.report import HUB, NOT_IN_SANDBOX, CheckOptions
from peagle.cli.context import findings_in_context
from peagle.cli.options import (
    FILE,
    command,
    command_catalog,
    complete_pair,
    here_option,
    is_here,
    option,
    output_option,
    raise_first_error,
)
from peagle.cli.plan_options import choose_here, engine_options, given_options
from peagle.cli.project import CHOICE, ProjectCommand, project_options
from peagle.cli.session import Session, new_session
from peagle.cli.view.console import print_json, print_status, print_table, print_written, wants_json
from peagle.errors import Fix, OptionMissing, OptionsConflict, Refused
from peagle.findings import errors
from peagle.fit.report import FitOptions, mildest
from peagle.planning.overrides import check_settings
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.project import EndpointChoice
from peagle.render.verdict_file import verdict_bytes
from peagle.store import write_output
from peagle.vllm.environment import settings_in
from peagle.weights.own_target import is_on_hub, is_own_target, target_not_read


@command(
    "peagle check gpt-oss-20b --target hf --drafter hf",
    "peagle check gpt-oss-20b --drafter ./my/head",
    "peagle check tiny --set enable-lora --speculative draft_tensor_parallel_size=1",
    "peagle check -e production --online",
    cls=ProjectCommand,
)
@click.argument("pair", required=False, shell_complete=complete_pair)
@project_options(instead=("list_rules",))
@engine_options(CheckOptions)
@option("--online", "Read target and drafter where the pair has them, on the Hub.", bool)
@option("--rules list_rules", "List the rules and what they prevent.", bool)
@option("--profile", "AWS profile for s3:// locations.")
@option("--sandbox", "Read s3:// locations from the sandbox.", bool)
@click.pass_context
def check(ctx: click.Context, /, pair: str | None, list_rules: bool, **options: Any) -> None:
    """Check PAIR: config.json and weight headers, versions, image and instance.

    Reads models that are on this machine. For other models, the catalogue's values are checked
    unless you give a location (or `hf`). `hf` is the pair's own repository on the Hub. Reads
    config.json and headers, never the weights. PAIR also determines the speculation method.
    --set, --speculative and --env are checked as if they were added to a plan. Exits with 3 if
    there is an error.
    """
    if list_rules:
        rules = registry.list_rules()
        if wants_json():
            return print_json({"rules": rules})
        rows = [(rule.code, rule.about, rule.vllm_notices, rule.guards) for rule in rules]
        return print_table(("rule", "about", "rejected by vLLM", "what it prevents"), rows)
    if pair is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    in_sandbox = options.pop("sandbox")
    session = new_session(options["region"], options.pop("profile"), in_sandbox)
    if options.pop("online"):
        options |= _on_hub(ctx, pair, options["target"], options["drafter"])
    start = time.monotonic()
    for name in (*options["settings"], *settings_in(options["environment"])):
        if name.startswith("spec"):  # the spellings of vLLM's speculative configuration
            fix = "use PAIR, --drafter, --k and --speculative KEY=VALUE"
            raise OptionsConflict(f"--{name}: PAIR decides the speculation", fix, "decided-by-plan")
    if options["target"] is None:
        _refuse_unread(session, pair, ("peagle", "check", pair, "--target", HUB))
    report = session.check(pair, **options)
    if in_sandbox:
        kept = tuple(finding for finding in report.findings if finding.code not in NOT_IN_SANDBOX)
        report = report.model_copy(update={"findings": kept})
    if wants_json():
        findings = findings_in_context(report.findings)
        print_json(report.model_copy(update={"findings": findings}))
    else:
        from peagle.cli.view.choose import print_check

        print_check(report, time.monotonic() - start)
    if errors(report.findings):
        ctx.exit(Refused.exit_code)
    return None


def _on_hub(
    ctx: click.Context, pair: str, target: str | None, drafter: str | None
) -> dict[str, str | None]:
    """Where ``--online`` reads the pair: where the user or ``model_source`` says, else the Hub."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    source = choice.values.get("model_source") if choice else None
    catalog = command_catalog(ctx)
    if drafter is None and not is_own_target(catalog, pair):
        head = find_pair(catalog, pair).drafter
        drafter = HUB if head is not None and head.weights is not None else None
    return {"target": target or (str(source.value) if source else HUB), "drafter": drafter}


def _refuse_unread(session: Session, pair: str, command: tuple[str, ...]) -> None:
    """Raise NotFound, with the command that reads it, for a target that is only on the Hub."""
    if is_on_hub(pair) and is_own_target(session.catalog, pair):
        raise target_not_read(pair, command, session.catalog)


@command("peagle fit gpt-oss-20b --gpu-memory-gib 80 --max-model-len 32768")
@click.argument("pair", required=False, shell_complete=complete_pair)
@engine_options(FitOptions)
def fit(pair: str | None, **options: Any) -> None:
    """Estimate GPU memory and concurrent capacity: weights, working memory, KV cache.

    The memory model is that of plan and follows vLLM's own accounting: the KV cache has as many
    tokens as vLLM reports at startup. PAIR is optional if --target names a folder with a
    config.json. Options that are not given have the defaults of `vllm serve`; those of plan are
    --gpu-memory-utilization 0.9 and 8 requests. Exits with 3 if the pair does not fit, or if
    `peagle check` would reject it.
    """
    session = new_session()
    check_settings(options["settings"])
    if pair is not None and options["target"] is None:
        _refuse_unread(session, pair, ("peagle", "fit", "--target", pair))
    report = session.fit(pair, **given_options(options))
    if wants_json():
        findings = findings_in_context(report.findings)
        print_json(report.model_copy(update={"findings": findings}))
    else:
        from peagle.cli.view.choose import print_fit

        print_fit(report)
    if report.refusal:
        fix = Fix("no single change helps")
        if best := mildest(report.advice):
            fix = Fix(f"use {best.option}", options=best.options)
        raise Refused(report.refusal, fix, code="does-not-fit")
    raise_first_error(report.findings)


@command(
    "peagle verdict gpt-oss-20b --gpu H200",
    "peagle verdict gpt-oss-20b --gpu H100 --prompt-tokens 8k --output-tokens 500 -o verdict.json",
    "peagle plan gpt-oss-20b --concurrency 64 --verdict verdict.json",
)
@click.argument("pair", shell_complete=complete_pair)
@engine_options(VerdictOptions)
@here_option
@option(
    "--acceptance FILE",
    "Result written by `peagle bench NAME --acceptance FILE --save-acceptance OUT`.",
    FILE,
)
@option("--domain", "With --acceptance: of this domain only.")
@output_option("Write the verdict to this file, for --verdict of plan, deploy and render.")
def verdict(
    pair: str,
    acceptance: Path | None,
    domain: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Compare speculation by load: the fastest drafter and K, and where speculation stops paying.

    Compares the public drafters of PAIR, or the one that PAIR names, with every K and with no
    speculation, from measurements and the performance model; estimates of a drafter count only
    where none of its K is measured. Measured settings within 3 % tie, estimates within 2 %, and the
    simpler one wins. Speculation
    stops, or starts, paying where the best drafter and K passes the speed without speculation.
    Speeds are of one engine; the price is that of a whole instance.
    """
    from peagle.bench.acceptance import with_text_acceptance

    if is_here(click.get_current_context()):
        options |= choose_here(options)
    if options["gpu"] is None and options["instance_type"] is None:
        raise OptionMissing("a verdict needs a GPU", "add --gpu such as H200, or --instance-type")
    asked = VerdictOptions(pair=pair, **given_options(options))
    if domain and not acceptance:
        raise OptionMissing("--domain requires --acceptance", "add --acceptance FILE")
    catalog = command_catalog()
    if acceptance:
        catalog = with_text_acceptance(catalog, pair, acceptance, domain)
        if "+" not in pair:
            print_status(
                "The file covers one drafter; the others keep their known acceptance, so measure "
                "them on the same prompts."
            )
    made = make_verdict(asked, catalog)
    if output is not None:
        write_output(output, verdict_bytes(made))
        print_written(output)
    if wants_json():
        print_json(made)
    else:
        from peagle.cli.view.choose import print_verdict

        print_verdict(made, output)
