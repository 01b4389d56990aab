"""Requests are valid before they are sent.

    problems(...)         everything that AWS would refuse, of one request
    require_valid(...)    the same as one error
    problems_of(plan)     of all requests that a plan makes

Two sources: botocore's service model (``validity_model``), and what stands in AWS's documentation
only (``validity_documented``). What a request meets in the account (names that are taken, quotas,
what a role may do) is preflight's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from peagle.errors import Refused
from peagle.findings import Finding, error
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.requests import Request, requests
from peagle.request_validation.documented import against_documentation
from peagle.request_validation.model import Invalid, against_model, api_name, copy_source

_WRITING = ("add_", "associate_", "attach_", "copy_", "create_", "put_", "register_", "request_",
            "start_", "tag_", "update_")  # fmt: skip
"""How operations begin that bring something into an account or change it."""

_STAND_INS = {
    EXECUTION_ROLE: "arn:aws:iam::123456789012:role/peagle",
    MODEL_BUCKET: "b" * 63,
}
"""What a plan leaves open, filled in to look at the rest: the bucket with the longest name."""


class InvalidRequest(Refused):
    """A request that AWS would refuse; nothing was sent."""


def is_write(operation: str) -> bool:
    """Whether the operation (``create_model``) creates or changes something."""
    return operation.startswith(_WRITING)


def problems(
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    region: str,
    instance_types: Collection[str] | None = None,
) -> tuple[Invalid, ...]:
    """Everything that AWS would refuse of this call, as boto3 names it; empty: nothing known.

    botocore may be older than an instance type: ``instance_types`` are allowed as well, by default
    every name with the form of one.
    """
    source, sent = copy_source(service, parameters)
    return (
        *source,
        *against_model(service, operation, sent, instance_types),
        *against_documentation(service, operation, sent, region),
    )


def require_valid(service: str, operation: str, parameters: Mapping[str, Any], region: str) -> None:
    """Raise InvalidRequest, naming operation, key, what is wrong and what is allowed."""
    found = problems(service, operation, parameters, region)
    if found:
        first, *others = found
        more = f"; and {len(others)} more: {', '.join(o.path for o in others)}" if others else ""
        message = f"{api_name(service, operation)}: {first.text}{more}"
        raise InvalidRequest(message, first.fix or "nothing was sent to AWS")


def problems_of(plan: Plan) -> tuple[Finding, ...]:
    """What AWS would refuse of the requests that the plan makes, whatever role and bucket."""
    made = requests(plan)
    filled = [Request(one.service, one.operation, _filled(one.parameters)) for one in made]
    return findings(filled, plan.region)


def findings(made: Iterable[Request], region: str) -> tuple[Finding, ...]:
    """What AWS would refuse of those requests, as findings."""
    return tuple(
        error(
            "request-invalid",
            f"{api_name(request.service, request.operation)} {invalid.path}".rstrip(),
            invalid.message,
            invalid.fix or "AWS would refuse the request",
        )
        for request in made
        for invalid in problems(request.service, request.operation, request.parameters, region)
    )


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled(item) for item in value]
    if isinstance(value, str):
        for mark, example in _STAND_INS.items():
            value = value.replace(mark, example)
    return value
