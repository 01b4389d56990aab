"""``peagle plan A --compare B``: the second plan, from a plan file or from a pair with options."""

from __future__ import annotations

import shlex
from typing import Any

import click
from click.core import ParameterSource

from peagle.cli.context import TYPED
from peagle.cli.plan_options import PLAN_FIELDS, is_plan_file, planned
from peagle.errors import UserError
from peagle.planning import Plan


def compared_plan(ctx: click.Context, text: str) -> Plan:
    """The plan of ``text``: a plan file, or a pair with planning options of its own, in quotes.

    For a pair, options that it does not have are those of the command. Raises what planning raises,
    and UserError for text that is no command line.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--compare {text!r}: {error}", "quote it as for a shell") from error
    if not words:
        raise UserError("--compare has no PAIR|PLAN", "write --compare PAIR")
    typed = ctx.meta.get(TYPED)
    other = ctx.command.make_context("plan", words, parent=ctx.parent)
    ctx.meta[TYPED] = typed
    own = {
        name: other.params[name]
        for name in other.params
        if other.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    pair = own.pop("pair")
    if unusable := own.keys() - PLAN_FIELDS:
        flags = (one.opts[-1] for one in ctx.command.params if one.name in unusable)
        message = f"{next(flags)} cannot be used within --compare"
        raise UserError(message, "use planning options only")
    shared: dict[str, Any] = {}
    if not is_plan_file(pair):
        shared = {
            name: ctx.params[name] for name in PLAN_FIELDS - {"pair", "verdict"} & ctx.params.keys()
        }
    return planned(ctx, pair, {**shared, **own})
