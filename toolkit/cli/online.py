"""``--online``: a plan with the prices and quotas that AWS tells today.

Loaded only when it is asked for: it brings boto3, and a plan without it asks nobody.
"""

from __future__ import annotations

import os
from typing import Any

import click

from toolkit.aws.prices import FreshPrices, fresh_prices, unlisted_findings
from toolkit.aws.quotas import quotas_at_plan
from toolkit.aws.session import Aws
from toolkit.catalog import load_catalog
from toolkit.catalog.models import Catalog
from toolkit.cli.cloud import DEFAULT_REGION, Account, chosen_account
from toolkit.cli.resolving import catalog_of, is_plan_file, resolve_plan
from toolkit.findings import Finding
from toolkit.planning import Plan

_LEVELS = ("error", "warning", "note")


def online_plan(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, ranked by today's prices, with what the
    account's quota says of it.

    Where AWS cannot be asked, the catalogue's prices with a warning. A plan file keeps what it
    says but for the price. Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    account.start()
    if is_plan_file(pair):
        return _plan_of_file(account, resolve_plan(pair, chosen, catalog_of(ctx)), catalog_of(ctx))
    aws = account.connect(chosen.get("region") or DEFAULT_REGION)
    fresh: list[FreshPrices] = []

    def priced(catalog: Catalog) -> Catalog:
        fresh.append(fresh_prices(aws, catalog.instances))
        return catalog.model_copy(update={"instances": fresh[0].table})

    plan = resolve_plan(pair, chosen, catalog_of(ctx), priced, aws_of=lambda: aws)
    return _with_findings(plan, _looked(aws, plan, fresh[0]))


def account_of(ctx: click.Context) -> Account:
    """The account that ``--profile``, ``--sandbox`` or AWS_ENDPOINT_URL mean."""
    return chosen_account(ctx.params["profile"], ctx.params["sandbox"], os.environ)


def _plan_of_file(account: Account, plan: Plan, own_catalog: Any) -> Plan:
    aws = account.connect(plan.region)
    fresh = fresh_prices(aws, load_catalog(own_catalog).instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    if price is not None:
        total = round(price.usd_per_hour * plan.instance_count, 4)
        changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
        plan = plan.model_copy(update=changed)
    return _with_findings(plan, _looked(aws, plan, fresh))


def _looked(aws: Aws, plan: Plan, fresh: FreshPrices) -> tuple[Finding, ...]:
    return (
        *fresh.findings,
        *unlisted_findings(fresh.listed, plan.instance_type),
        *quotas_at_plan(aws, plan.instance_type, plan.instance_count),
    )


def _with_findings(plan: Plan, found: tuple[Finding, ...]) -> Plan:
    together = sorted((*plan.findings, *found), key=lambda finding: _LEVELS.index(finding.level))
    return plan.model_copy(update={"findings": tuple(together)})
