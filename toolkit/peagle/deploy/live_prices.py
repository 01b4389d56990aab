"""Plans with AWS's own prices, and with findings about quota and stored weights. Reads only.

plan_with_live_prices   a new plan, ranked by today's prices
live_price_of_plan      the plan of a file, at today's price
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.prices import (
    NOT_FROM_AWS,
    NOT_LISTED,
    PRICE_SNAPSHOT,
    FreshPrices,
    fresh_prices,
    hourly_price,
    unlisted_findings,
)
from peagle.aws.quotas import quotas_at_plan
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Price
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.findings import Finding, errors
from peagle.planning.drafter import NOT_READ
from peagle.planning.plan import Plan
from peagle.planning.prices import price_unknown
from peagle.weights.mounted import mounted_findings
from peagle.weights.pins import pin_plan

PRICE_CODES = frozenset(
    {"price-unknown", "price-of-another-region", PRICE_SNAPSHOT, NOT_LISTED, NOT_FROM_AWS}
)
"""Findings about the price that AWS's own price list resolves."""

LISTED_CODES = PRICE_CODES | {"instance-region-unknown"}
"""All findings of the plan that AWS's own price list resolves: a price shows that the region hosts
the type."""


def with_price(aws: Aws, plan: Plan) -> tuple[Plan, list[Finding]]:
    """The plan with AWS's own price where the catalogue has none for the region."""
    doubts = [finding for finding in plan.findings if finding.code in LISTED_CODES]
    if plan.price_per_hour_usd is not None and not doubts:
        return plan, []
    price = hourly_price(aws, plan.instance_type)
    if price is None and plan.price_per_hour_usd is not None:
        return plan, doubts
    if price is None:
        message = f"neither the catalogue nor AWS has a price for {plan.instance_type}"
        fix = "look up the price, then add --accept-unknown-price"
        others = [finding for finding in doubts if finding.code not in PRICE_CODES]
        return plan, [*others, price_unknown(message, fix)]
    return _priced(plan, price), []


def _priced(plan: Plan, price: Price) -> Plan:
    total = round(price.usd_per_hour * plan.instance_count, 4)
    changed: dict[str, Any] = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
    if plan.rollout:
        changed["rollout"] = plan.rollout.at_price(price.usd_per_hour)
    return plan.model_copy(update=changed)


def plan_with_live_prices(
    aws: Aws, catalog: Catalog, plan: Callable[[Catalog, bool], Plan], head_in_s3: bool
) -> Plan:
    """The plan, ranked by today's prices, with findings about the account's quota and the weights.

    ``plan`` makes a plan from a catalogue; its second argument is whether it reads a drafter from
    the Hub or S3. Without access to AWS: the catalogue's prices, and a warning.
    """
    fresh = fresh_prices(aws, catalog.instances)
    catalog = replace(catalog, instances=fresh.table)
    made = plan(catalog, not head_in_s3)
    stored = mounted_findings(aws, made)
    if head_in_s3 and not errors(stored):
        # An incomplete copy may lack the head, and another pair's head must not be planned with.
        made = plan(catalog, True)
    elif head_in_s3:
        kept = tuple(finding for finding in made.findings if finding.code != NOT_READ)
        made = made.model_copy(update={"findings": kept})
    pinned = pin_plan(aws, made)
    return _with_account_findings(aws, pinned.plan, fresh, (*stored, *pinned.findings))


def live_price_of_plan(aws: Aws, catalog: Catalog, plan: Plan) -> Plan:
    """The plan of a file with today's price and the same findings; nothing else changes."""
    fresh = fresh_prices(aws, catalog.instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    priced = _priced(plan, price) if price else plan
    pinned = pin_plan(aws, priced)
    stored = (*mounted_findings(aws, priced), *pinned.findings)
    return _with_account_findings(aws, pinned.plan, fresh, stored)


def _with_account_findings(
    aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> Plan:
    """The plan with findings about the price, the quota, and the weights (``stored``).

    ``price-not-listed`` replaces ``price-unknown``.
    """
    unlisted = unlisted_findings(fresh.listed, plan.instance_type)
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count, fresh.table)
    own = [one for one in plan.findings if not (unlisted and one.code == "price-unknown")]
    if aws.in_sandbox:
        own = [one for one in own if one.code not in NOT_IN_SANDBOX]
    found = (*own, *fresh.findings, *unlisted, *quota, *stored)
    levels = ("error", "warning", "note")
    by_level = sorted(found, key=lambda finding: levels.index(finding.level))
    return plan.model_copy(update={"findings": tuple(by_level)})
