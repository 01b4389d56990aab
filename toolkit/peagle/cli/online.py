"""``--online``: a plan with today's prices and quotas from AWS.

Imported only for ``--online``, since it imports boto3.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.aws.prices import NOT_LISTED, FreshPrices, fresh_prices, unlisted_findings
from peagle.aws.quotas import quotas_at_plan
from peagle.catalog.schema import Catalog
from peagle.cli.account import DEFAULT_REGION, Account, chosen_account
from peagle.cli.locations import AwsOf
from peagle.cli.options import command_catalog, is_plan_file, resolve_plan
from peagle.findings import Finding
from peagle.planning import Plan, errors
from peagle.planning.drafter import NOT_READ
from peagle.s3uri import is_s3_uri
from peagle.weights.mounted import mounted_at_plan

_LEVELS = ("error", "warning", "note")


def online_plan(ctx: click.Context, pair: str, chosen: dict[str, Any]) -> Plan:
    """The plan for PAIR|PLAN and the chosen options, ranked by today's prices, with findings about
    the account's quota and the weights in S3.

    Without access to AWS: the catalogue's prices, and a warning. Of a plan file only the price
    changes. Raises what planning raises, and UserError for a wrong profile.
    """
    account = account_of(ctx)
    account.start()
    if is_plan_file(pair):
        plan = resolve_plan(pair, chosen, command_catalog(ctx))
        return _plan_of_file(account, plan, command_catalog(ctx))
    aws = account.connect(chosen.get("region") or DEFAULT_REGION)
    limited = _time_limited(account, aws)
    fresh = fresh_prices(limited, command_catalog(ctx).instances)
    catalog = command_catalog(ctx).model_copy(update={"instances": fresh.table})

    def planned(aws_of: AwsOf | None) -> Plan:
        return resolve_plan(pair, chosen, catalog, aws_of)

    if is_s3_uri(chosen.get("drafter") or ""):
        plan, stored = _manifest_first(limited, planned, lambda: aws)
    else:
        plan = planned(lambda: aws)
        stored = mounted_at_plan(limited, plan)
    return _with_findings(plan, _online_findings(limited, plan, fresh, stored))


def _manifest_first(
    aws: Aws, planned: Callable[[AwsOf | None], Plan], aws_of: AwsOf
) -> tuple[Plan, tuple[Finding, ...]]:
    """The plan with a head in S3, and findings about the weights there.

    The head is read only if the stored weights have no errors: an incomplete copy may lack the
    head, and a head of another pair must not be planned with.
    """
    unread = planned(None)
    stored = mounted_at_plan(aws, unread)
    if not errors(stored):
        return planned(aws_of), stored
    kept = tuple(finding for finding in unread.findings if finding.code != NOT_READ)
    return unread.model_copy(update={"findings": kept}), stored


def account_of(ctx: click.Context) -> Account:
    """The account that ``--profile``, ``--sandbox`` or AWS_ENDPOINT_URL select."""
    return chosen_account(ctx.params["profile"], ctx.params["sandbox"], os.environ)


def _time_limited(account: Account, aws: Aws) -> Aws:
    """The connection for prices and quotas, which are optional. Queries to the sandbox have no
    time limit: it may still be loading the service."""
    return aws if account.sandbox else aws.best_effort()


def _plan_of_file(account: Account, plan: Plan, catalog: Catalog) -> Plan:
    aws = _time_limited(account, account.connect(plan.region))
    fresh = fresh_prices(aws, catalog.instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    if price is not None:
        total = round(price.usd_per_hour * plan.instance_count, 4)
        changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
        plan = plan.model_copy(update=changed)
    stored = mounted_at_plan(aws, plan)
    return _with_findings(plan, _online_findings(aws, plan, fresh, stored))


def _online_findings(
    aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Findings about the price, the quota, and the weights (``stored``)."""
    price = (*fresh.findings, *unlisted_findings(fresh.listed, plan.instance_type))
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count, fresh.table)
    return (*price, *(_not_again(price, finding) for finding in (*quota, *stored)))


def _not_again(told: tuple[Finding, ...], finding: Finding) -> Finding:
    """``finding``, without the advice that was given before: what keeps AWS from telling prices
    mostly keeps it from telling quotas."""
    fix = finding.fix
    for earlier in told:
        fix = fix.replace(earlier.fix, "as for the price")
    return finding.model_copy(update={"fix": fix})


def _with_findings(plan: Plan, found: tuple[Finding, ...]) -> Plan:
    """The plan with further findings; ``price-unknown`` goes where AWS lists no price either."""
    unlisted = any(finding.code == NOT_LISTED for finding in found)
    own = [one for one in plan.findings if not (unlisted and one.code == "price-unknown")]
    together = sorted((*own, *found), key=lambda finding: _LEVELS.index(finding.level))
    return plan.model_copy(update={"findings": tuple(together)})
