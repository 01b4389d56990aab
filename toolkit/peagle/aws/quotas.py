"""SageMaker quotas for endpoints: what applies, what is in use, and what that means for a plan.

Quotas are found by name. The code in the catalogue is tried first, because a listing is long; it
counts only when the quota of that code has the right name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import QUOTA_SUFFIX, AccessDenied, Missing, quota_fix
from peagle.aws.prices import answer_cache
from peagle.catalog.tables import InstanceTable
from peagle.errors import Fix, PeagleError
from peagle.findings import Finding, error, note, warning
from peagle.planning.rollout import rolling_step

QUOTA_CODES = frozenset(
    {"quota-enough", "quota-zero", "quota-too-small", "quota-in-use", "quota-tight",
     "quota-unknown", "quota-usage-unknown"}
)  # fmt: skip
"""Findings about a quota; each check of the account replaces them."""

MAX_ENDPOINTS = 200
"""Instances in use are counted for at most this many endpoints."""

_SERVICE = "sagemaker"
_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
_IDLE = frozenset({"Failed", "Deleting"})
_WHERE = "instance_type"
_MAX_NAMES = 3


@dataclass(frozen=True)
class Quota:
    """How many instances of a type all endpoints of the account may have together, in one region.

    ``code`` identifies the quota in a request for an increase; ``None`` when unknown.
    """

    name: str
    value: float
    code: str | None = None


@dataclass(frozen=True)
class QuotaNeed:
    """What a deployment needs: ``count`` instances in the end, and ``more`` than the running ones
    in the meantime. Instances of the endpoint ``own`` are not counted as in use. ``may_roll``: the
    update of ``count`` instances may have another rollout."""

    instance_type: str
    count: int
    more: int
    is_update: bool = False
    may_roll: bool = False
    own: str | None = None


def endpoint_quota(aws: Aws, instance_type: str, code: str | None = None) -> Quota | None:
    """The quota for endpoints on that type: the account's, else AWS's default; ``None`` when
    Service Quotas lists no such name. ``code`` is tried first.

    Raises CloudError and UserError when Service Quotas cannot be read.
    """
    name = _quota_name(instance_type)
    found = _by_code(aws, name, code) or _by_name(aws, name)
    if found is not None:
        answer_cache(aws, "service-quotas").put(f"quota-{instance_type}", asdict(found))
    return found


def _quota_name(instance_type: str) -> str:
    return instance_type + QUOTA_SUFFIX


def _cached_quota(aws: Aws, instance_type: str, enough: float) -> Quota | None:
    """The quota read in the last 24 hours, if it is at least ``enough``: a smaller one may have
    been raised since."""
    kept = answer_cache(aws, "service-quotas").get(f"quota-{instance_type}")
    try:
        quota = Quota(**kept[0]) if kept else None
        return quota if quota is not None and float(quota.value) >= enough else None
    except (TypeError, ValueError):  # written by another version
        return None


def _by_code(aws: Aws, name: str, code: str | None) -> Quota | None:
    if code is None:
        return None
    try:
        response = aws.call(
            "service-quotas", "get_service_quota", ServiceCode=_SERVICE, QuotaCode=code
        )
    except (Missing, AccessDenied):
        return None
    quota = _read(response.get("Quota") or {})
    return quota if quota is not None and quota.name == name else None


def _by_name(aws: Aws, name: str) -> Quota | None:
    for listing in _LISTINGS:
        for entry in aws.items("service-quotas", listing, "Quotas", ServiceCode=_SERVICE):
            if entry.get("QuotaName") == name:
                return _read(entry)
    return None


def _read(entry: dict[str, Any]) -> Quota | None:
    """``None`` for a quota without a value, which AWS returns while it computes it."""
    value = entry.get("Value")
    if value is None:
        return None
    return Quota(str(entry.get("QuotaName", "")), float(value), entry.get("QuotaCode"))


def instances_in_use(aws: Aws, instance_type: str, but: str | None = None) -> dict[str, int] | None:
    """Instances of that type by endpoint (without the endpoint ``but``), running or requested;
    ``None`` with more than ``MAX_ENDPOINTS`` endpoints. Raises CloudError."""
    listed = list(aws.items("sagemaker", "list_endpoints", "Endpoints"))
    if len(listed) > MAX_ENDPOINTS:
        return None
    used: Counter[str] = Counter()
    for entry in listed:
        name = entry["EndpointName"]
        if name != but and entry.get("EndpointStatus") not in _IDLE:
            used[name] = _instances_of(aws, name, instance_type)
    return {name: count for name, count in used.items() if count}


def _instances_of(aws: Aws, endpoint: str, instance_type: str) -> int:
    """Instances of one endpoint: running or requested, whichever are more."""
    try:
        found = aws.call("sagemaker", "describe_endpoint", EndpointName=endpoint)
        config = found.get("EndpointConfigName", "")
        types = aws.call("sagemaker", "describe_endpoint_config", EndpointConfigName=config)
    except Missing:
        return 0
    variants = {v.get("VariantName"): v for v in found.get("ProductionVariants") or ()}
    total = 0
    for variant in types.get("ProductionVariants") or ():
        if variant.get("InstanceType") == instance_type:
            running = variants.get(variant.get("VariantName"), {})
            counts = [running.get(f"{which}InstanceCount") for which in ("Current", "Desired")]
            initial = variant.get("InitialInstanceCount") or 1
            total += max((int(count) for count in counts if count), default=int(initial))
    return total


def quota_findings(
    aws: Aws, need: QuotaNeed, instances: InstanceTable, *, cached: bool = False
) -> tuple[Finding, ...]:
    """What the account's quota means for ``need``.

    With ``cached`` a sufficient quota read in the last 24 hours is not read again, and a
    sufficient quota is a note. The instances in use are always counted.
    """
    known = next((one for one in instances.instances if one.type == need.instance_type), None)
    try:
        quota = _cached_quota(aws, need.instance_type, need.count) if cached else None
        code = known.quota_code if known else None
        quota = quota or endpoint_quota(aws, need.instance_type, code)
    except PeagleError as failed:
        usual = known.quota_default if known else None
        default = "" if usual is None else f"; new accounts have {usual:g}"
        message = (
            f"cannot read the quota '{_quota_name(need.instance_type)}'{default}: {failed.message}"
        )
        retry = Fix(failed.fix or "try again later", tuple(failed.command))
        return (warning("quota-unknown", _WHERE, message, retry),)
    if quota is None:
        message = f"Service Quotas lists no '{_quota_name(need.instance_type)}' in {aws.region}"
        console = f"https://{aws.region}.console.aws.amazon.com/servicequotas/home/services"
        fix = (
            f"look it up in {console}/sagemaker/quotas; with a quota of 0 SageMaker rejects the "
            "endpoint"
        )
        return (warning("quota-unknown", _WHERE, message, fix),)
    if quota.value < need.count:
        return tuple(compare_quota(quota, {}, need, aws.region, aws.in_sandbox))
    try:
        used = instances_in_use(aws, need.instance_type, need.own)
        why = f"there are more than {MAX_ENDPOINTS} endpoints"
    except PeagleError as failed:
        used, why = None, failed.message
    if used is None:
        message = f"the quota '{quota.name}' is {quota.value:g}; its current use is unknown: {why}"
        listing = Fix("list the endpoints", ("aws", "sagemaker", "list-endpoints"))
        unknown = note("quota-usage-unknown", _WHERE, message, listing)
        return (unknown, *compare_quota(quota, {}, need, aws.region, aws.in_sandbox))
    found = tuple(compare_quota(quota, used, need, aws.region, aws.in_sandbox))
    if found or not cached:
        return found
    message = f"the quota '{quota.name}' is {quota.value:g}, and {_in_use(used)}"
    return (note("quota-enough", _WHERE, message, "enough for this plan"),)


def quotas_at_plan(
    aws: Aws, instance_type: str, count: int, instances: InstanceTable
) -> tuple[Finding, ...]:
    """What the quota means for a plan of ``count`` new instances. Instances in use now may be free
    when the plan is deployed, so they are a warning here."""
    found = quota_findings(aws, QuotaNeed(instance_type, count, count), instances, cached=True)
    warned = {"level": "warning"}
    return tuple(f.model_copy(update=warned) if f.code == "quota-in-use" else f for f in found)


def compare_quota(
    quota: Quota, used: dict[str, int], need: QuotaNeed, region: str, in_sandbox: bool = False
) -> Iterator[Finding]:
    """What ``quota`` means for ``need`` while endpoints use so many instances of it."""
    busy = sum(used.values())
    free = max(int(quota.value) - busy, 0)
    value = f"the quota '{quota.name}' is {quota.value:g}"
    needed = max(need.count, busy + need.more)
    fix = quota_fix(quota.name, region, quota.code, needed, in_sandbox)
    if quota.value <= 0:
        yield error("quota-zero", _WHERE, f"{value}: no endpoint may use {need.instance_type}", fix)
    elif quota.value < need.count:
        yield error("quota-too-small", _WHERE, f"{value}; the plan needs {need.count}", fix)
    elif need.is_update and free < need.more:
        message = f"the update needs {need.more} more meanwhile; {value}, and {_in_use(used)}"
        yield error("quota-tight", _WHERE, message, _smaller_update(need, free, fix))
    elif free < need.more:
        message = f"{value} and {_in_use(used)}, so {free} of the {need.more} needed are available"
        fix = Fix(f"remove an endpoint that is not needed, or {fix.sentence}", fix.command)
        yield error("quota-in-use", _WHERE, message, fix)


def _smaller_update(need: QuotaNeed, free: int, fix: Fix) -> Fix:
    """The rollout that fits into the ``free`` instances, or a larger quota."""
    step = rolling_step(need.count, free) if need.may_roll else None
    if step is None:
        return fix
    options = f"--rollout rolling --rollout-step {step.argument}"
    return Fix(f"use {options}, which needs {step.text} more, or {fix.sentence}", fix.command)


def _in_use(used: dict[str, int]) -> str:
    total = sum(used.values())
    if not total:
        return "none is in use"
    names = sorted(used)
    others = f" and {len(names) - _MAX_NAMES} others" if len(names) > _MAX_NAMES else ""
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{total} {'is' if total == 1 else 'are'} in use by {shown}{others}"
