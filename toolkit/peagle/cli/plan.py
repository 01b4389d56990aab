"""``peagle plan``: what would run, where, at what price, and why; and what that changes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from peagle.cli import view
from peagle.cli.context import command_text, in_context, is_plan_file, is_typed, typed_command
from peagle.cli.options import (
    PLAN_FIELDS,
    command,
    complete_pair,
    here_option,
    option,
    output_option,
)
from peagle.cli.plan_options import plan_in_project, plan_options, planned
from peagle.cli.project import CHOICE, ProjectCommand, load_project
from peagle.cli.view.plan import comparison_rows, print_answer, print_comparison, print_details
from peagle.errors import OptionsConflict, Refused, UserError, command_line
from peagle.findings import errors, refuse_errors
from peagle.planning import Plan
from peagle.planning.company import Company
from peagle.project import EndpointChoice, list_environments, list_project_endpoints
from peagle.render import plan_bytes, plan_document, read_plan
from peagle.store import write_output
from peagle.text import format_usd, sanitize


def _show_changes(
    ctx: click.Context, plan: Plan, file: Path, markdown: bool, max_increase: float | None
) -> None:
    """Print what ``plan`` changes of the plan in ``file``. Raises Refused if the plan has an error,
    or its price rises by more than ``max_increase`` percent."""
    from peagle.deploy.diff import compare_plans

    before = _earlier(ctx, file)
    comparison = compare_plans(before or plan, plan)
    increase = comparison.price_increase if before else None
    rows = [
        (label, earlier if before else "-", later)
        for differs, label, earlier, later in comparison_rows(comparison)
        if (differs if before else later != "-")
    ]
    earlier, later = comparison.plans
    document = {
        "before": earlier if before else None,
        "after": later,
        "changes": comparison.changes,
        "price_increase": increase,
    }
    view.print_json(document)
    if markdown:
        view.print_text("\n".join(_markdown(ctx, plan, before, rows, increase)))
    else:
        view.print_table(("", "BEFORE", "AFTER"), rows)
    refuse_errors(plan.findings)
    if max_increase is not None and increase is not None and increase * 100 > max_increase:
        message = f"the price rises by {increase:.0%}, and the gate allows {max_increase:g} %"
        fix = "choose a plan that costs less, or raise max_price_increase"
        raise Refused(message, fix, "price-increase")


def _earlier(ctx: click.Context, file: Path) -> Plan | None:
    """The earlier plan; ``None`` where the endpoint or the project file is new."""
    if is_plan_file(str(file)):
        return read_plan(file)
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    if choice is None:
        raise UserError(f"--changes-from {file} is a project file", "add --environment")
    if not file.is_file():
        view.print_status(f"{file} does not exist: the endpoint is new")
        return None
    try:
        project = load_project(ctx, file)
        is_there = choice.endpoint in list_project_endpoints(project)
        if not is_there or choice.environment not in (None, *list_environments(project)):
            return None
        return plan_in_project(ctx, "plan", file)
    except UserError as error:  # what the change may repair
        view.print_status(f"the earlier plan cannot be made: {error.message}")
        return None


def _markdown(
    ctx: click.Context,
    plan: Plan,
    before: Plan | None,
    rows: list[tuple[str, str, str]],
    increase: float | None,
) -> Iterator[str]:
    """A comment: the changes as a table, the cost, and the errors and warnings."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    parts = (choice.endpoint, choice.environment) if choice else (plan.name,)
    yield f"### Plan of {' in '.join(_cell(part) for part in parts if part)}\n"
    yield "| | before | after |\n|---|---|---|" if rows else "The plan does not change."
    yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
    cost, old = "unknown", before.price_per_hour_usd if before else None
    if (new := plan.price_per_hour_usd) is not None:
        cost = f"{format_usd(new)} per hour, {format_usd(new * 24 * 30)} per 30 days"
        if old is not None:
            change = f"; before {format_usd(old)} per hour ({increase or 0:+.0%})"
            cost += ", as before" if old == new else change
    yield f"\n**Cost**: {cost}\n"
    for finding in plan.findings:
        if finding.level != "note":
            where, message = _cell(finding.where), _cell(finding.message)
            yield f"- **{finding.level}** `{finding.code}` {where}: {message}"


def _cell(text: str) -> str:
    """A text that cannot end its cell, or be markup."""
    return re.sub(r"([\\`*_|<>\[\]@#])", r"\\\1", sanitize(text, 300))


@command(
    "peagle plan gpt-oss-20b --region eu-west-1 -o plan.json",
    "peagle plan gpt-oss-20b --max-model-len 8k --compare 'gpt-oss-20b --no-speculation'",
    "peagle plan -e staging --changes-from main/peagle.yaml --markdown",
    cls=ProjectCommand,
)
@plan_options
@output_option("Write the plan to this file, for deploy and render.")
@here_option
@option("--online", "Query AWS for prices, quotas and weights in S3, and the Hub for models.", bool)
@option("--profile", "AWS profile for --online.  [default: boto3's credential chain]",
        needs="--online")  # fmt: skip
@option("--sandbox", "Query the local AWS sandbox; for --online.", bool, needs="--online")
@option("--compare PAIR|PLAN", "Show this plan next to the first: a plan file, or a pair, "
        "with options of its own in quotes, such as 'gpt-oss-20b --no-speculation'.",
        shell_complete=complete_pair)  # fmt: skip
@option("--changes-from FILE", "Show what this plan changes of an earlier one: a plan file, "
        "or with --environment an earlier project file, which may lack the endpoint.",
        "file")  # fmt: skip
@option("--markdown", "With --changes-from: as Markdown, for a comment.", bool,
        needs="--changes-from FILE")  # fmt: skip
@option("--max-price-increase PERCENT", "With --changes-from: exit with 3 if the price per hour "
        "rises by more.", click.FloatRange(min=0), in_file=True)  # fmt: skip
@option("--verbose", "Show memory, findings, arguments and reasons.", bool)
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    plan: Plan,
    output: Path | None,
    online: bool,
    compare: str | None,
    changes_from: Path | None,
    markdown: bool,
    max_price_increase: float | None,
    verbose: bool,
    **_: Any,
) -> None:
    """Plan PAIR and show the answer. Creates nothing, and queries AWS only with --online.

    Selects drafter, K and instances with the lowest cost per output token for the load, within
    --slo, --min-tokens-per-second and --max-price-per-hour. --verbose also shows the memory, the
    best instances, all findings, the engine's arguments, and the reasons.

    PAIR|PLAN is a pair such as gpt-oss-20b or gpt-oss-20b+eagle3, a model that the catalogue does
    not have (its folder, or with --online its id on the Hub), or a plan file. Exits with 3 if
    a check finds an error; such a plan is shown, but not written to a file.
    """
    if output is not None and not is_plan_file(str(output)):
        message = f"{output} does not end in .json, by which commands recognize a plan file"
        raise UserError(message, f"use --output {shlex.quote(f'{output}.json')}")
    if compare is not None:
        if output is not None:
            raise OptionsConflict("--compare cannot be combined with --output", "omit one of them")
        return _compare(ctx, plan, compare)
    refused = errors(plan.findings)
    if output is not None and not refused:
        write_output(output, plan_bytes(plan))
        view.print_written(output)
    if changes_from is not None:
        return _show_changes(ctx, plan, changes_from, markdown, max_price_increase)
    if view.wants_json():
        # A plan file too, with its digest, which does not depend on other options that are typed.
        findings = tuple(
            finding.model_copy(update={"command": in_context(finding.command or ()) or None})
            for finding in plan.findings
        )
        view.print_json(plan_document(plan.model_copy(update={"findings": findings})))
    else:
        verb = ("local", "up") if plan.is_here else ("deploy",)
        apply = command_line(typed_command(("--online", "--verbose"), verb))
        if output:
            apply = command_text(("peagle", *verb, str(output)))
        print_answer(plan, None if refused else apply, verbose)
        if verbose:
            print_details(plan)
    return refuse_errors(refused)


def _compare(ctx: click.Context, first: Plan, text: str) -> None:
    """Print the two plans side by side; planning options that the second does not have are those
    of the command. Raises Refused if one has an error."""
    from peagle.deploy.diff import compare_plans

    pair, typed = options_in(ctx, text, "--compare")
    if not is_plan_file(pair):
        shared = (PLAN_FIELDS & ctx.params.keys()) - {"pair", "verdict"}
        typed = {name: ctx.params[name] for name in shared} | typed
    comparison = compare_plans(first, second := planned(ctx, pair, typed))
    view.print_result(comparison, print_comparison)
    refuse_errors((*first.findings, *second.findings))


def options_in(ctx: click.Context, text: str, flag: str) -> tuple[str, dict[str, Any]]:
    """The pair or plan file and the planning options in ``text``, the value of ``flag``, with the
    settings of a company's account also from their variables. Raises UserError."""
    try:
        other = plan.make_context("plan", shlex.split(text), parent=ctx.parent)
    except (ValueError, click.MissingParameter) as error:
        fix = "begin with a pair, and quote it as for a shell"
        raise UserError(f"{flag} {text!r}: {error}", fix) from error
    values = {
        name: value
        for name, value in other.params.items()
        if is_typed(other, name) or (name in Company.model_fields and value)
    }
    for parameter in plan.params:
        if parameter.name in values.keys() - PLAN_FIELDS:
            message = f"{max(parameter.opts, key=len)} cannot be used within {flag}"
            raise UserError(message, "use planning options only")
    return values.pop("pair"), values
