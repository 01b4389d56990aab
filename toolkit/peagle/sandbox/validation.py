"""Reject requests as AWS does, by its service models and its documentation.

Clients check only part of a request, moto almost nothing. ``peagle.request_validation`` checks
everything that AWS checks, here and before the toolkit sends a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from wsgiref.types import WSGIEnvironment
from xml.etree import ElementTree

from botocore import xform_name
from moto.sagemaker.exceptions import ValidationError

from peagle.request_validation import validate
from peagle.request_validation.model import UnknownKey, service_model
from peagle.sandbox.calls import Call, error_response
from peagle.sandbox.protocol import LARGEST_BODY, Response, request_body
from peagle.sandbox.services import endpoint_types
from peagle_serve.json_reader import InvalidJson, Limits, read

_CHECKED = ("sagemaker", "application-autoscaling")
"""Services whose every request is checked; botocore has the same names for them."""

_CHECKED_OF_S3 = {"CreateBucket": "InvalidBucketName", "PutBucketTagging": "InvalidTag"}
"""Operation of S3 -> the error code for what is wrong with it."""


def rejected_response(call: Call, environ: WSGIEnvironment) -> Response | None:
    """AWS's error if it would reject the request; ``None`` for a valid one."""
    if call.service == "s3" and call.operation in _CHECKED_OF_S3:
        code, parameters = _CHECKED_OF_S3[call.operation], _of_s3(call, environ)
    elif "HTTP_X_AMZ_TARGET" in environ:
        try:
            code, parameters = "ValidationException", json_parameters(environ)
        except InvalidJson as error:
            return error_response(call, 400, "SerializationException", f"{error}.")
        if call.service not in _CHECKED or not _is_known(call):
            return None
    else:
        return None
    message = problems_text(call.service, xform_name(call.operation), parameters, call.region)
    return error_response(call, 400, code, message) if message else None


def json_parameters(environ: WSGIEnvironment) -> dict[str, Any]:
    """The parameters of a call whose body is JSON, which remains readable. Raises InvalidJson."""
    body = request_body(environ) or b"{}"
    parameters = read(body, "The body", limits=Limits(size=LARGEST_BODY))
    if not isinstance(parameters, dict):
        raise InvalidJson("The body", "is not an object")
    return parameters


def _is_known(call: Call) -> bool:
    return call.operation in service_model(call.service).operation_names


def check_request(operation: str, parameters: Mapping[str, Any], region: str) -> None:
    """Raise ValidationError, with every problem, if SageMaker would reject the request."""
    message = problems_text("sagemaker", operation, parameters, region)
    if message:
        raise ValidationError(message)


def problems_text(service: str, operation: str, parameters: Mapping[str, Any], region: str) -> str:
    """AWS's message about every problem of a request; empty for a valid one.

    Instance types of the catalogue are allowed even if botocore does not know them yet. Keys that
    botocore does not know are ignored, as a client may be newer than the sandbox.
    """
    found = [
        problem.aws_message or problem.text
        for problem in validate(
            service, operation, _without_nulls(parameters), region, endpoint_types()
        )
        if not isinstance(problem, UnknownKey)
    ]
    errors = "error" if len(found) == 1 else "errors"
    return f"{len(found)} validation {errors} detected: {'; '.join(found)}" if found else ""


def _of_s3(call: Call, environ: WSGIEnvironment) -> dict[str, Any]:
    parameters: dict[str, Any] = {"Bucket": environ["PATH_INFO"].strip("/").partition("/")[0]}
    if call.operation == "PutBucketTagging":
        try:
            document = ElementTree.fromstring(request_body(environ))  # nosec B314 # bounded by expat
        except ElementTree.ParseError:
            return {**parameters, "Tagging": {"TagSet": []}}
        tags = [
            {part.tag.rpartition("}")[2]: part.text or "" for part in tag}
            for tag in document.iter()
            if tag.tag.rpartition("}")[2] == "Tag"
        ]
        parameters["Tagging"] = {"TagSet": tags}
    return parameters


def _without_nulls(value: Any) -> Any:
    """``value`` without members that are null, which AWS treats as absent."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
