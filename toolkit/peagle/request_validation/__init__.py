"""Validate AWS requests before they are sent, and in the sandbox.

    validate(...)                 everything that AWS would reject in one request: the entry point
    require_valid(...)            the same as an error
    request_findings(...)         the same of several requests, as findings
    plan_request_findings(plan)   of all requests of a plan

Two sources: botocore's service models (``model``), and limits that only AWS's documentation states
(``documented``). What depends on the account (names in use, quotas, permissions) is preflight's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from peagle.errors import Refused
from peagle.findings import Finding, error
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.requests import Request, requests, with_replaced
from peagle.request_validation.documented import against_documentation
from peagle.request_validation.model import Invalid, against_model, api_name, copy_source

_WRITING = ("add_", "associate_", "attach_", "copy_", "create_", "put_", "register_", "request_",
            "start_", "tag_", "update_")  # fmt: skip
"""Prefixes of the operations that create or change something."""

_EXAMPLES = {
    EXECUTION_ROLE: "arn:aws:iam::123456789012:role/peagle",
    MODEL_BUCKET: "b" * 63,
}
"""Values for a plan's placeholders; the bucket has the longest name."""


class InvalidRequest(Refused, code="invalid-request"):
    """AWS would reject this request; nothing was sent."""


def is_write(operation: str) -> bool:
    """Whether the operation (``create_model``) creates or changes something."""
    return operation.startswith(_WRITING)


def validate(
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    region: str,
    instance_types: Collection[str] | None = None,
) -> tuple[Invalid, ...]:
    """Everything that AWS would reject in this call, named as in boto3.

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
    """Raise InvalidRequest, with the operation, the key, and what is wrong and allowed."""
    found = validate(service, operation, parameters, region)
    if found:
        first, *others = found
        more = f"; and {len(others)} more: {', '.join(o.path for o in others)}" if others else ""
        message = f"{api_name(service, operation)}: {first.text}{more}"
        raise InvalidRequest(message, first.fix or "nothing was sent to AWS")


def plan_request_findings(plan: Plan) -> tuple[Finding, ...]:
    """What AWS would reject in the requests of ``plan``, whatever role and bucket."""
    filled = [
        replace(request, parameters=with_replaced(request.parameters, _EXAMPLES))
        for request in requests(plan)
    ]
    return request_findings(filled, plan.region)


_REQUEST_INVALID = "request-invalid"
"""AWS would reject a request of the plan: botocore's model or a limit forbids a value."""


def request_findings(made: Iterable[Request], region: str) -> tuple[Finding, ...]:
    """What AWS would reject in those requests, as findings."""
    return tuple(
        error(
            _REQUEST_INVALID,
            f"{api_name(request.service, request.operation)} {invalid.path}".rstrip(),
            invalid.message,
            invalid.fix or "change the option of the plan that this value comes from",
        )
        for request in made
        for invalid in validate(request.service, request.operation, request.parameters, region)
    )
