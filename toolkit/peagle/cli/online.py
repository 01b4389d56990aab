"""``--online``: a plan with today's prices and quotas from AWS.

Imported only for ``--online``, since it imports boto3.
"""

from __future__ import annotations

import os
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.catalog.schema import Catalog
from peagle.cli.account import DEFAULT_REGION, Account, chosen_account
from peagle.cli.options import command_catalog, is_plan_file, resolve_plan
from peagle.planning import Plan
from peagle.s3uri import is_s3_uri


def online_plan(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, with today's price and findings about quota
    and weights. Of a plan file only the price changes.

    Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    account.start()
    catalog = command_catalog(ctx)
    if is_plan_file(pair):
        plan = resolve_plan(pair, chosen, catalog)
        aws = _time_limited(account, account.connect(plan.region))
        return api.live_price_of_plan(aws, catalog, plan)
    aws = account.connect(chosen.get("region") or DEFAULT_REGION)

    def planned(catalog: Catalog, reads_head: bool) -> Plan:
        return resolve_plan(pair, chosen, catalog, (lambda: aws) if reads_head else None)

    head_in_s3 = is_s3_uri(chosen.get("drafter") or "")
    return api.plan_with_live_prices(_time_limited(account, aws), catalog, planned, head_in_s3)


def account_of(ctx: click.Context) -> Account:
    """The account that ``--profile``, ``--sandbox`` or AWS_ENDPOINT_URL select."""
    return chosen_account(ctx.params["profile"], ctx.params["sandbox"], os.environ)


def _time_limited(account: Account, aws: Aws) -> Aws:
    """The connection for prices and quotas, which are optional. Queries to the sandbox have no
    time limit: it may still be loading the service."""
    return aws if account.sandbox else aws.best_effort()
