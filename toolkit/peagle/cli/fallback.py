"""``--fallback-instance-types`` and ``--retry-for``: what deploy tries when AWS has no instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from peagle.aws.errors import InsufficientCapacity
from peagle.cli.context import is_plan_file
from peagle.cli.options import complete_instance_type, raise_first_error
from peagle.cli.output.console import confirmed, print_status
from peagle.cli.parameter_types import duration
from peagle.cli.planned import plan_on_type
from peagle.deploy.fallback import Attempt, Fallback
from peagle.deploy.preflight import Preflight
from peagle.errors import Fix, OptionsConflict, UserError
from peagle.planning import Plan
from peagle.text import format_duration, format_usd

_OUTCOMES = {
    "deployed": "deployed",
    "no-capacity": "no capacity",
    "refused": "refused",
    "failed": "failed",
}


def _complete_types(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The last of the types: ``ml.g5.xlarge,ml.g6`` continues with types of g6."""
    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in complete_instance_type(ctx, parameter, last)]


def fallback_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--fallback-instance-types`` and ``--retry-for``."""
    retry = click.option(
        "--retry-for",
        metavar="DURATION",
        callback=duration,
        help="Keep trying for this time when AWS has no free instance, such as 2h.",
    )
    types = click.option(
        "--fallback-instance-types",
        "fallback_types",
        metavar="TYPE,...",
        help="Instance types to try, in this order, when AWS has no free instance.  "
        "[default: the next of the plan's ranking, after asking]",
        shell_complete=_complete_types,
    )
    return types(retry(command))


def planned_fallbacks(ctx: click.Context, plan: Plan) -> tuple[Plan, ...] | None:
    """The plans on the types of ``--fallback-instance-types``; ``None`` without the option.

    Raises NotFound for an unknown type, UserError with a plan file, and Refused when the checks
    of a plan find an error.
    """
    given = ctx.params["fallback_types"]
    if given is None:
        return None
    if is_plan_file(ctx.params["pair"]):
        raise OptionsConflict(
            "--fallback-instance-types cannot be combined with a plan file",
            "use PAIR and its options, so that a plan can be made for each type",
        )
    names = dict.fromkeys(name.strip() for name in given.split(",") if name.strip())
    if not names:
        raise UserError("--fallback-instance-types names no instance type", "write TYPE,TYPE")
    plans = tuple(plan_on_type(ctx, name) for name in names if name != plan.instance_type)
    for each in plans:
        raise_first_error(each.findings)
    return plans


def show_fallbacks(plans: Sequence[Plan] | None) -> None:
    """Below the plan: what is tried when AWS has no instance of the planned type."""
    if plans:
        types = [_priced(one.instance_type, one.price_per_hour_usd) for one in plans]
        print_status(f"  {'fallback':<12}{', '.join(types)}")


def fallback_of(
    ctx: click.Context,
    plan: Plan,
    given: Sequence[Plan] | None,
    prepare: Callable[[Plan], Preflight],
) -> Fallback:
    """What deploy does without capacity: the types of the option, else those of the plan's ranking
    if the user agrees. ``prepare`` checks a plan against the account, and shows it."""

    def choose(error: InsufficientCapacity) -> list[str]:
        if given is not None:
            return [one.instance_type for one in given]
        others = [one for one in plan.alternatives if one.instance_type != plan.instance_type]
        if not others or is_plan_file(ctx.params["pair"]):
            return []
        names = ",".join(one.instance_type for one in others)
        if not error.command:
            error.fix += "; to try the next types of the ranking, add "
            error.fix += f"--fallback-instance-types {names}"
        if ctx.params["yes"]:
            return []
        types = ", ".join(_priced(one.instance_type, one.price_per_hour_usd) for one in others)
        print_status(f"AWS has no free {plan.instance_type} now.")
        try:
            agreed = confirmed(f"Try {types} instead?", Fix(""))
        except UserError:  # no terminal: nobody to ask
            return []
        return [one.instance_type for one in others] if agreed else []

    def planned(instance_type: str) -> Preflight:
        if instance_type == plan.instance_type:
            return prepare(plan)
        return prepare(plan_on_type(ctx, instance_type))

    return Fallback(choose, planned, ctx.params["retry_for"] or 0.0)


def show_attempts(attempts: Sequence[Attempt]) -> None:
    """What was tried, for how long, and what each costs; nothing after a single attempt that
    needed no other."""
    if len(attempts) < 2:
        return
    print_status("Tried:")
    width = max(len(one.instance_type) for one in attempts)
    for one in attempts:
        price = _price(one.price_per_hour_usd)
        outcome = f"{_OUTCOMES[one.outcome]} after {format_duration(one.seconds)}"
        print_status(f"  {one.instance_type:<{width}}  {price:<18}{outcome}")


def _priced(instance_type: str, usd_per_hour: float | None) -> str:
    return f"{instance_type} ({_price(usd_per_hour)})"


def _price(usd_per_hour: float | None) -> str:
    return "price unknown" if usd_per_hour is None else f"{format_usd(usd_per_hour)} an hour"
