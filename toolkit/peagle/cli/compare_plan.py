"""The plan of ``peagle compare --with``."""

from __future__ import annotations

import shlex

import click

from peagle import api
from peagle.cli.options import command_catalog, is_plan_file
from peagle.cli.output.console import print_status
from peagle.cli.plan import options_in
from peagle.cli.planned import planned
from peagle.deploy.state import Deployment
from peagle.errors import UserError
from peagle.planning import Plan

_FLAG = "--with"


def candidate_plan(ctx: click.Context, record: Deployment, text: str) -> Plan:
    """The plan in ``text``, the value of ``--with``, for the endpoint. Raises UserError for another
    name or region, and what planning raises."""
    pair, own = options_in(ctx, text, _FLAG)
    for option, value in (("name", record.name), ("region", record.region)):
        if own.get(option, value) != value:
            raise UserError(
                f"--{option} {own[option]} cannot be used within --with: the plan is for "
                f"{record.name} in {record.region}",
                f"omit --{option}",
            )
    if is_plan_file(pair):
        plan = planned(ctx, pair, own)
        if (plan.name, plan.region) != (record.name, record.region):
            raise UserError(
                f"{pair} is for {plan.name} in {plan.region}, not for {record.name} in "
                f"{record.region}",
                f"plan it with --name {record.name} --region {record.region}",
            )
        return plan
    revision = record.serving or record.current
    catalog = command_catalog(ctx)
    if revision.plan is None:
        print_status(
            "This machine does not have the plan that serves: its --set, --env, tags, pins, "
            "scaling and rollout are not copied to the second variant."
        )
        return planned(ctx, pair, {**api.options_of_served(revision.served, catalog), **own})
    words = shlex.join(api.deployed_words(revision.plan))
    deployed = options_in(ctx, words, _FLAG)
    return planned(ctx, *api.options_beside(revision.plan, deployed, (pair, own), catalog))
