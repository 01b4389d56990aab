"""A plan with today's prices and quotas from AWS, and findings about its weights in S3."""

from __future__ import annotations

from collections.abc import Callable

from peagle.aws.client import Aws
from peagle.aws.prices import NOT_LISTED, FreshPrices, fresh_prices, unlisted_findings
from peagle.aws.quotas import quotas_at_plan
from peagle.catalog.schema import Catalog
from peagle.findings import Finding, errors
from peagle.planning.drafter import NOT_READ
from peagle.planning.plan import Plan
from peagle.weights.mounted import mounted_at_plan

_LEVELS = ("error", "warning", "note")


def plan_with_live_prices(
    aws: Aws, catalog: Catalog, plan: Callable[[Catalog, bool], Plan], head_in_s3: bool
) -> Plan:
    """The plan, ranked by today's prices, with findings about the account's quota and the weights.

    ``plan`` makes a plan from a catalogue; its second argument is whether it reads a drafter from
    the hub or S3. Without access to AWS: the catalogue's prices, and a warning.
    """
    fresh = fresh_prices(aws, catalog.instances)
    catalog = catalog.model_copy(update={"instances": fresh.table})
    made = plan(catalog, not head_in_s3)
    stored = mounted_at_plan(aws, made)
    if head_in_s3 and not errors(stored):
        # An incomplete copy may lack the head, and another pair's head must not be planned with.
        made = plan(catalog, True)
    elif head_in_s3:
        kept = tuple(finding for finding in made.findings if finding.code != NOT_READ)
        made = made.model_copy(update={"findings": kept})
    return _with_findings(made, _findings(aws, made, fresh, stored))


def live_price_of_plan(aws: Aws, catalog: Catalog, plan: Plan) -> Plan:
    """The plan of a file with today's price and the same findings; nothing else changes."""
    fresh = fresh_prices(aws, catalog.instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    if price is not None:
        total = round(price.usd_per_hour * plan.instance_count, 4)
        changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
        plan = plan.model_copy(update=changed)
    return _with_findings(plan, _findings(aws, plan, fresh, mounted_at_plan(aws, plan)))


def _findings(
    aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Findings about the price, the quota, and the weights (``stored``)."""
    price = (*fresh.findings, *unlisted_findings(fresh.listed, plan.instance_type))
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count, fresh.table)
    return (*price, *quota, *stored)


def _with_findings(plan: Plan, found: tuple[Finding, ...]) -> Plan:
    """The plan with further findings; ``price-unknown`` goes where AWS lists no price either."""
    unlisted = any(finding.code == NOT_LISTED for finding in found)
    own = [one for one in plan.findings if not (unlisted and one.code == "price-unknown")]
    together = sorted((*own, *found), key=lambda finding: _LEVELS.index(finding.level))
    return plan.model_copy(update={"findings": tuple(together)})
