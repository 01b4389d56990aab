"""``peagle plan --changes-from``: what a plan changes of an earlier one, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.cli.context import is_plan_file
from peagle.cli.options import raise_first_error
from peagle.cli.output.compare import plan_facts
from peagle.cli.output.console import print_json, print_status, print_table, where_text
from peagle.cli.planned import plan_in_project
from peagle.cli.project import CHOICE, load_project
from peagle.deploy.diff import PlanComparison
from peagle.errors import Refused, UserError
from peagle.findings import Finding, errors
from peagle.planning import Plan
from peagle.project.choosing import EndpointChoice
from peagle.text import format_usd, sanitize

_SHOWN = ("error", "warning")
"""Levels of the findings in a comment."""


def show_changes(
    ctx: click.Context,
    plan: Plan,
    file: Path,
    markdown: bool,
    max_increase: float | None,
    as_json: bool,
) -> None:
    """Print what ``plan`` changes of the plan in ``file``.

    Raises Refused if the plan has an error, or its price rises by more than ``max_increase``
    percent.
    """
    before = _earlier(ctx, file)
    comparison = api.compare_plans(before or plan, plan)
    if as_json:
        print_json(_document(comparison, before))
    elif markdown:
        click.echo("\n".join(_markdown(ctx, comparison, before)))
    else:
        print_table(("", "BEFORE", "AFTER"), _rows(comparison, before))
    raise_first_error(errors(plan.findings))
    increase = comparison.price_increase
    if max_increase is not None and increase is not None and increase * 100 > max_increase:
        raise Refused(
            f"the price rises by {increase:.0%}, and the gate allows {max_increase:g} %",
            "choose a plan that costs less, or raise max_price_increase",
            code="price-increase",
        )


def _earlier(ctx: click.Context, file: Path) -> Plan | None:
    """The earlier plan; ``None`` where the endpoint is new."""
    if is_plan_file(str(file)):
        return api.read_plan(file)
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    if choice is None:
        raise UserError(f"--changes-from {file} is a project file", "add --environment")
    if not file.is_file():
        # A checkout of a commit before the project file: its folder is there, under the same name.
        if not file.parent.is_dir() or file.name != choice.project.path.name:
            message = f"--changes-from {file} does not exist"
            fix = f"name an earlier plan, or {choice.project.path.name} in a checkout of the base"
            raise UserError(message, fix, "no-such-file")
        print_status(f"{file} does not exist: the endpoint is new")
        return None
    try:
        project = load_project(ctx, file)
        if choice.endpoint not in api.endpoints_of(project):
            return None
        if choice.environment not in (None, *api.environments_of(project)):
            return None
        return plan_in_project(ctx, "plan", file)
    except UserError as error:  # what the change may repair
        print_status(f"the earlier plan cannot be made: {error.message}")
        return None


def _document(comparison: PlanComparison, before: Plan | None) -> dict[str, Any]:
    document = comparison.document()
    return {
        "before": document["plans"][0] if before else None,
        "after": document["plans"][1],
        "changes": document["changes"],
        "price_increase": comparison.price_increase if before else None,
    }


def _rows(comparison: PlanComparison, before: Plan | None) -> Iterator[tuple[str, str, str]]:
    """Label, before and after: what differs, or all of a new endpoint."""
    sides = [
        dict(plan_facts(answer, plan.speculation))
        for answer, plan in zip(comparison.answers, comparison.plans, strict=True)
    ]
    for label, after in sides[1].items():
        if before is None or sides[0][label] != after:
            yield label, sides[0][label] if before else "-", after
    if before is not None:
        yield from (change.cells for change in comparison.other_changes)


def _markdown(ctx: click.Context, comparison: PlanComparison, before: Plan | None) -> Iterator[str]:
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    plan = comparison.plans[1]
    parts = (choice.endpoint, choice.environment) if choice else (plan.name,)
    yield f"### Plan of {' in '.join(_cell(part) for part in parts if part)}"
    yield ""
    rows = list(_rows(comparison, before))
    if not rows:
        yield "The plan does not change."
    else:
        yield "| | before | after |"
        yield "|---|---|---|"
        yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)
    yield ""
    yield f"**Cost**: {_cost(comparison, before)}"
    shown = [one for one in plan.findings if one.level in _SHOWN]
    if shown:
        yield ""
        yield from _findings(shown)


def _cost(comparison: PlanComparison, before: Plan | None) -> str:
    old, new = (plan.price_per_hour_usd for plan in comparison.plans)
    if new is None:
        return "unknown"
    text = f"{format_usd(new)} per hour, {format_usd(new * 24 * 30)} per 30 days"
    if before is None or old is None:
        return text
    if (increase := comparison.price_increase) is None or old == new:
        return f"{text}, as before"
    return f"{text}; before {format_usd(old)} per hour ({increase:+.0%})"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        yield f"- **{one.level}** `{one.code}` {_cell(where_text(one.where))}: {_cell(one.message)}"


def _cell(text: str) -> str:
    """A text that cannot end its cell, or be markup."""
    plain = sanitize(text, 300)
    for mark in "\\`*_|<>[]@#":
        plain = plain.replace(mark, f"\\{mark}")
    return plain
