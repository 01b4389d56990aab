"""What a quota means for a plan or a deploy: too small, used up, unknown, or enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.aws import quota_use
from toolkit.aws.errors import quota_fix
from toolkit.aws.quotas import Quota, endpoint_quota, known_instance, quota_name, quota_of_today
from toolkit.aws.session import Aws
from toolkit.errors import PeagleError
from toolkit.findings import Finding, error, note, warning

QUOTA_CODES = frozenset(
    {"quota-enough", "quota-zero", "quota-too-small", "quota-in-use", "quota-tight",
     "quota-unknown", "quota-usage-unknown"}
)  # fmt: skip
"""Findings about a quota; each look at the account settles them anew."""

_WHERE = "instance_type"
_NAMED = 3


@dataclass(frozen=True)
class Need:
    """What a deploy asks of the quota: ``count`` instances when it is done, and ``more`` of them
    beside those that run while it is under way. Those of the endpoint ``own`` are not counted."""

    instance_type: str
    count: int
    more: int
    is_update: bool = False
    own: str | None = None


def quota_findings(aws: Aws, need: Need, *, today: bool = False) -> tuple[Finding, ...]:
    """What the account's quota says of ``need``. With ``today`` a quota that was heard today and
    suffices is not asked for again, and told in a note; use is always counted now."""
    try:
        quota = (
            quota_of_today(aws, need.instance_type, need.count)
            if today
            else endpoint_quota(aws, need.instance_type)
        )
    except PeagleError as failed:
        return (_unread(need.instance_type, failed),)
    if quota is None:
        return (_unlisted(need.instance_type, aws.region),)
    if quota.value < need.count:
        return tuple(judged(quota, {}, need, aws.region))
    try:
        used = quota_use.instances_in_use(aws, need.instance_type, need.own)
    except PeagleError as failed:
        used, why = None, failed.message
    else:
        why = f"there are more than {quota_use.MOST_ENDPOINTS} endpoints"
    if used is None:
        return (_uncounted(quota, why), *judged(quota, {}, need, aws.region))
    found = tuple(judged(quota, used, need, aws.region))
    return found or ((_enough(quota, used),) if today else ())


def quotas_at_plan(aws: Aws, instance_type: str, count: int) -> tuple[Finding, ...]:
    """What the quota says of a plan for ``count`` new instances. What is in use today may be free
    when the plan is deployed, so that is a warning here."""
    found = quota_findings(aws, Need(instance_type, count, count), today=True)
    return tuple(
        finding.model_copy(update={"level": "warning"})
        if finding.code == "quota-in-use"
        else finding
        for finding in found
    )


def judged(quota: Quota, used: dict[str, int], need: Need, region: str) -> Iterator[Finding]:
    """What a quota means for ``need`` while endpoints use so many instances of it."""
    busy, free = sum(used.values()), int(quota.value) - sum(used.values())
    value = f"the quota '{quota.name}' is {quota.value:g}"
    fix = _raise_fix(quota, max(need.count, busy + need.more), region)
    if quota.value <= 0:
        yield error("quota-zero", _WHERE, f"{value}: no endpoint may use {need.instance_type}", fix)
    elif quota.value < need.count:
        yield error("quota-too-small", _WHERE, f"{value}, and {need.count} would be needed", fix)
    elif need.is_update and max(free, 0) < need.more:
        message = f"an update needs {need.more} more for a while; {value}, and {_busy(used)}"
        yield warning("quota-tight", _WHERE, message, fix)
    elif free < need.more:
        message = f"{value} and {_busy(used)}, so {max(free, 0)} of {need.more} are left"
        fix = f"remove an endpoint that is not needed, or {fix}"
        yield error("quota-in-use", _WHERE, message, fix)


def _busy(used: dict[str, int]) -> str:
    total = sum(used.values())
    if not total:
        return "none is in use"
    names = sorted(used)
    others = f" and {len(names) - _NAMED} others" if len(names) > _NAMED else ""
    return f"{total} {'is' if total == 1 else 'are'} in use by {', '.join(names[:_NAMED])}{others}"


def _raise_fix(quota: Quota, wanted: int, region: str) -> str:
    return quota_fix(quota.name, region, quota.code, wanted)


def _enough(quota: Quota, used: dict[str, int]) -> Finding:
    message = f"the quota '{quota.name}' is {quota.value:g}, and {_busy(used)}"
    return note("quota-enough", _WHERE, message, "enough for this plan")


def _unread(instance_type: str, failed: PeagleError) -> Finding:
    message = f"the quota '{quota_name(instance_type)}' could not be read: {failed.message}"
    known = known_instance(instance_type)
    usual = known.quota_default if known else None
    hint = "if it is 0, SageMaker will refuse" if usual is None else (
        f"a new account has {usual:g}, and with 0 SageMaker will refuse"
    )  # fmt: skip
    return warning("quota-unknown", _WHERE, message, f"{failed.fix or 'repeat it later'}; {hint}")


def _unlisted(instance_type: str, region: str) -> Finding:
    message = f"Service Quotas lists no '{quota_name(instance_type)}' in {region}"
    fix = f"if it is 0, SageMaker will refuse; look it up in {console(region)}"
    return warning("quota-unknown", _WHERE, message, fix)


def _uncounted(quota: Quota, why: str) -> Finding:
    message = (
        f"the quota '{quota.name}' is {quota.value:g}; how many are in use is not known: {why}"
    )
    fix = "see `aws sagemaker list-endpoints`"
    return note("quota-usage-unknown", _WHERE, message, fix)


def console(region: str) -> str:
    """The address of SageMaker's quotas in the console."""
    return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/sagemaker/quotas"
