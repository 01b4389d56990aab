"""How many instances the account may use for endpoints.

Quotas are looked up by name: the code that the catalogue knows is tried first, because a listing
is long, and counts only when the quota behind it has the right name.
"""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.aws.day_cache import for_account
from toolkit.aws.errors import AccessDenied, Missing
from toolkit.aws.session import Aws
from toolkit.catalog import load_catalog
from toolkit.catalog.tables import Instance

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
