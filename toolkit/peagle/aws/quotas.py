"""How many instances the account may use for endpoints.

Quotas are looked up by name: the code that the catalogue knows is tried first, because a listing
is long, and counts only when the quota behind it has the right name.

How many instances the account's endpoints use: what a quota counts.

What a quota means for a plan or a deploy: too small, used up, unknown, or enough.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing, quota_fix
from peagle.aws.prices import for_account
from peagle.catalog import load_catalog
from peagle.catalog.tables import Instance
from peagle.errors import PeagleError
from peagle.findings import Finding, error, note, warning

_SERVICE = "sagemaker"
_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")


@dataclass(frozen=True)
class Quota:
    """How many instances all endpoints of the account may have together, in one region.

    ``code`` is what a request for more names; ``None`` when it is not known.
    """

    name: str
    value: float
    code: str | None = None


def quota_name(instance_type: str) -> str:
    """The name under which Service Quotas knows endpoints on that instance type."""
    return f"{instance_type} for endpoint usage"


def endpoint_quota(aws: Aws, instance_type: str) -> Quota | None:
    """The quota of endpoints on that type, asked now: what applies to the account, else AWS's
    default; ``None`` when Service Quotas knows no such name.

    Raises CloudError and UserError when it cannot be asked.
    """
    name = quota_name(instance_type)
    found = _by_code(aws, name, code_of(instance_type)) or _by_name(aws, name)
    if found is not None:
        for_account(aws, "service-quotas").put(_cached(instance_type), asdict(found))
    return found


def default_quotas(aws: Aws) -> dict[str, Quota]:
    """AWS's default quotas of endpoints, by instance type. Raises CloudError and UserError."""
    ending = quota_name("")
    listed = aws.items("service-quotas", _LISTINGS[1], "Quotas", ServiceCode=_SERVICE)
    quotas = (_read(entry) for entry in listed)
    return {q.name.removesuffix(ending): q for q in quotas if q and q.name.endswith(ending)}


def quota_of_today(aws: Aws, instance_type: str, enough: float) -> Quota | None:
    """As ``endpoint_quota``, but what was heard today counts when it is ``enough``: a quota that
    is too small may have been raised since."""
    kept = for_account(aws, "service-quotas").get(_cached(instance_type))
    try:
        quota = Quota(**kept[0]) if kept else None
        if quota is not None and float(quota.value) >= enough:
            return quota
    except (TypeError, ValueError):
        pass  # another version of the toolkit kept something else
    return endpoint_quota(aws, instance_type)


def code_of(instance_type: str) -> str | None:
    """The code that the bundled catalogue knows for the quota: a hint."""
    known = known_instance(instance_type)
    return known.quota_code if known else None


def known_instance(instance_type: str) -> Instance | None:
    """What the bundled catalogue says of the type."""
    return _instances().get(instance_type)


@functools.cache
def _instances() -> dict[str, Instance]:
    return {instance.type: instance for instance in load_catalog().instances.instances}


def _by_code(aws: Aws, name: str, code: str | None) -> Quota | None:
    if code is None:
        return None
    try:
        answer = aws.call(
            "service-quotas", "get_service_quota", ServiceCode=_SERVICE, QuotaCode=code
        )
    except (Missing, AccessDenied):
        return None
    quota = _read(answer.get("Quota") or {})
    return quota if quota is not None and quota.name == name else None


def _by_name(aws: Aws, name: str) -> Quota | None:
    for listing in _LISTINGS:
        for entry in aws.items("service-quotas", listing, "Quotas", ServiceCode=_SERVICE):
            if entry.get("QuotaName") == name:
                return _read(entry)
    return None


def _read(entry: dict[str, Any]) -> Quota | None:
    """``None`` for a quota without a value, which AWS answers while it works it out."""
    value = entry.get("Value")
    if value is None:
        return None
    return Quota(str(entry.get("QuotaName", "")), float(value), entry.get("QuotaCode"))


def _cached(instance_type: str) -> str:
    return f"quota-{instance_type}"


MOST_ENDPOINTS = 200
"""So many endpoints are looked at to count instances; with more the count is left open."""

_IDLE = frozenset({"Failed", "Deleting"})


def instances_in_use(aws: Aws, instance_type: str, but: str | None = None) -> dict[str, int] | None:
    """How many instances of that type each endpoint (``but`` for one) has or is getting; ``None``
    when there are too many endpoints to look at.

    Raises CloudError when it may not be looked at.
    """
    listed = list(aws.items("sagemaker", "list_endpoints", "Endpoints"))
    if len(listed) > MOST_ENDPOINTS:
        return None
    used: Counter[str] = Counter()
    for entry in listed:
        name = entry["EndpointName"]
        if name != but and entry.get("EndpointStatus") not in _IDLE:
            used[name] = _instances_of(aws, name, instance_type)
    return {name: count for name, count in used.items() if count}


def _instances_of(aws: Aws, endpoint: str, instance_type: str) -> int:
    """Of one endpoint: those that run, or those that are asked for, whichever are more."""
    try:
        found = aws.call("sagemaker", "describe_endpoint", EndpointName=endpoint)
        config = found.get("EndpointConfigName", "")
        types = aws.call("sagemaker", "describe_endpoint_config", EndpointConfigName=config)
    except Missing:
        return 0
    running = {v.get("VariantName"): v for v in found.get("ProductionVariants") or ()}
    return sum(
        _count(variant, running.get(variant.get("VariantName"), {}))
        for variant in types.get("ProductionVariants") or ()
        if variant.get("InstanceType") == instance_type
    )


def _count(variant: dict[str, Any], running: dict[str, Any]) -> int:
    counts = (running.get("CurrentInstanceCount"), running.get("DesiredInstanceCount"))
    known = [int(count) for count in counts if count]
    return max(known, default=int(variant.get("InitialInstanceCount") or 1))


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
        used = instances_in_use(aws, need.instance_type, need.own)
    except PeagleError as failed:
        used, why = None, failed.message
    else:
        why = f"there are more than {MOST_ENDPOINTS} endpoints"
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
