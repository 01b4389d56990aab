"""``--online``: a plan with the prices and quotas that AWS tells today.

Loaded only when it is asked for: it brings boto3, and a plan without it asks nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.aws.prices import NOT_LISTED, FreshPrices, fresh_prices, unlisted_findings
from peagle.aws.quotas import quotas_at_plan
from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.cli.account import DEFAULT_REGION, Account, chosen_account
from peagle.cli.locations import AwsOf
from peagle.cli.options import catalog_of, is_plan_file, resolve_plan
from peagle.cli.output.weights import in_account
from peagle.findings import Finding
from peagle.planning import Plan, errors
from peagle.planning.drafter import NOT_READ
from peagle.s3uri import is_s3_uri
from peagle.weights.mounted import mounted_at_plan

_LEVELS = ("error", "warning", "note")


def online_plan(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, ranked by today's prices, with what the
    account's quota says of it, and whether its weights lie in S3 as they should.

    Where AWS cannot be asked, the catalogue's prices with a warning. A plan file keeps what it
    says but for the price. Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    account.start()
    if is_plan_file(pair):
        return _plan_of_file(account, resolve_plan(pair, chosen, catalog_of(ctx)), catalog_of(ctx))
    aws = account.connect(chosen.get("region") or DEFAULT_REGION)
    asked = _asked(account, aws)
    fresh: list[FreshPrices] = []

    def priced(catalog: Catalog) -> Catalog:
        if not fresh:
            fresh.append(fresh_prices(asked, catalog.instances))
        return catalog.model_copy(update={"instances": fresh[0].table})

    def planned(aws_of: AwsOf | None) -> Plan:
        return resolve_plan(pair, chosen, catalog_of(ctx), priced, aws_of)

    if is_s3_uri(chosen.get("drafter") or ""):
        plan, stored = _manifest_first(asked, planned, lambda: aws)
    else:
        plan = planned(lambda: aws)
        stored = mounted_at_plan(asked, plan)
    return _with_findings(plan, _looked(account, asked, plan, fresh[0], stored))


def _manifest_first(
    asked: Aws, planned: Callable[[AwsOf | None], Plan], aws_of: AwsOf
) -> tuple[Plan, tuple[Finding, ...]]:
    """The plan with a head in S3, and what is to be said of the weights there.

    The head is read only where the weights are as deploy, which reads no head, wants them: what a
    half-copied prefix lacks may be the head, and another pair's is not to be planned with.
    """
    unread = planned(None)
    stored = mounted_at_plan(asked, unread)
    if not errors(stored):
        return planned(aws_of), stored
    kept = tuple(finding for finding in unread.findings if finding.code != NOT_READ)
    return unread.model_copy(update={"findings": kept}), stored


def account_of(ctx: click.Context) -> Account:
    """The account that ``--profile``, ``--sandbox`` or AWS_ENDPOINT_URL mean."""
    return chosen_account(ctx.params["profile"], ctx.params["sandbox"], os.environ)


def _asked(account: Account, aws: Aws) -> Aws:
    """The connection for prices and quotas, which a plan can do without. The sandbox is waited
    for: it is here, and may still be loading the service that is asked."""
    return aws if account.sandbox else aws.hurried()


def _plan_of_file(account: Account, plan: Plan, own_catalog: Any) -> Plan:
    aws = _asked(account, account.connect(plan.region))
    fresh = fresh_prices(aws, load_catalog(own_catalog).instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    if price is not None:
        total = round(price.usd_per_hour * plan.instance_count, 4)
        changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
        plan = plan.model_copy(update=changed)
    stored = mounted_at_plan(aws, plan)
    return _with_findings(plan, _looked(account, aws, plan, fresh, stored))


def _looked(
    account: Account, aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Findings about the price, the quota, and the weights (``stored``)."""
    price = (*fresh.findings, *unlisted_findings(fresh.listed, plan.instance_type))
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count)
    weights = (in_account(finding, account) for finding in stored)
    return (*price, *(_not_again(price, finding) for finding in (*quota, *weights)))


def _not_again(told: tuple[Finding, ...], finding: Finding) -> Finding:
    """``finding``, without the advice that was given before: what keeps AWS from telling prices
    mostly keeps it from telling quotas."""
    fix = finding.fix
    for earlier in told:
        fix = fix.replace(earlier.fix, "as for the price")
    return finding.model_copy(update={"fix": fix})


def _with_findings(plan: Plan, found: tuple[Finding, ...]) -> Plan:
    """A price that AWS does not list is not called unknown to the catalogue as well."""
    unlisted = any(finding.code == NOT_LISTED for finding in found)
    own = [one for one in plan.findings if not (unlisted and one.code == "price-unknown")]
    together = sorted((*own, *found), key=lambda finding: _LEVELS.index(finding.level))
    return plan.model_copy(update={"findings": tuple(together)})
