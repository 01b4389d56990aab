"""The sandbox's own requests, below ``/_peagle``: status, quotas, instance types, faults, calls.

They need the secret of the sandbox's access key (``router``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import asdict
from functools import partial
from types import NoneType
from typing import Any

from pydantic import ValidationError

from peagle.engine.process import is_alive
from peagle.sandbox import alarms, services
from peagle.sandbox.autoscaling import set_speed
from peagle.sandbox.client import EndpointStatus
from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.faults import FAULTS, KINDS, Fault
from peagle.sandbox.protocol import Response, json_response
from peagle.sandbox.sagemaker import all_endpoints
from peagle.sandbox.scheduler import CLOCK, fire_due
from peagle_serve.json_reader import read

_STARTED = time.time()


def respond(method: str, path: str, body: bytes) -> Response:
    """The answer to a request for ``/_peagle<path>``; 400 for an invalid document."""
    try:
        return _answer(method, path, body)
    except ValidationError as error:
        reason = "; ".join(f"{_place(one['loc'])}: {one['msg']}" for one in error.errors())
    except ValueError as error:
        reason = str(error)
    return _refused(f"{method} {path} got an invalid document: {reason}", "see the commands")


def _answer(method: str, path: str, body: bytes) -> Response:
    match method, path:
        case "GET", "/status":
            endpoints = [asdict(_endpoint_status(*found)) for found in all_endpoints()]
            endpoints.sort(key=lambda one: (one["region"], one["name"]))
            uptime = round(time.time() - _STARTED, 1)
            return json_response({"uptime_seconds": uptime, "endpoints": endpoints})
        case "PUT", "/quota":
            try:
                services.set_quota(**_fields(body, _QUOTA, set(_QUOTA)))
            except services.NoSuchQuota as error:
                return _refused(str(error), "use a type that AWS lists")
            return json_response({})
        case "GET", "/quotas":
            return json_response({"quotas": services.changed_quotas()})
        case "PUT", "/minute":
            alarms.set_minute(**_fields(body, {"seconds": (int, float)}, {"seconds"}))
            return json_response({})
        case "PUT", "/instances":
            services.add_instances(_entries(body))
            return json_response({})
        case "PUT", "/scaling":
            set_speed(**_fields(body, {"speed": (int, float)}, {"speed"}))
            return json_response({})
        case _, "/faults":
            return _faults(method, body)
        case "PUT", "/clock":
            ahead = CLOCK.advance(**_fields(body, _CLOCK, set(_CLOCK)))
            return json_response({"seconds_ahead": ahead, "fired": fire_due(CLOCK.now())})
        case "GET", "/calls":
            return json_response({"calls": FAULTS.calls()})
        case "DELETE", "/calls":
            FAULTS.forget_calls()
            return json_response({})
    return json_response({"message": f"the sandbox has no {method} {path}"}, 404)


_document = partial(read, what="the request")


_QUOTA: dict[str, tuple[type, ...]] = {
    "instance_type": (str,),
    "value": (int, float),
    "region": (str,),
}
_CLOCK: dict[str, tuple[type, ...]] = {"seconds": (int, float)}
_FAULT: dict[str, tuple[type, ...]] = {
    "operation": (str,),
    "kind": (str,),
    "times": (int, NoneType),
    "instance_type": (str, NoneType),
    "seconds": (int, float),
    "seen": (int,),
}
_CLEARED: dict[str, tuple[type, ...]] = {"operation": (str, NoneType)}


def _fields(
    body: bytes, known: Mapping[str, tuple[type, ...]], needed: Set[str] = frozenset()
) -> dict[str, Any]:
    """The document, an object with these fields. Raises ValueError for another; an empty body and
    null are an object without fields."""
    found = _document(body or b"null")
    fields = {} if found is None else found
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if unknown := sorted(set(fields) - set(known)):
        raise ValueError(f"unknown field {unknown[0][:40]!r}; known: {', '.join(known)}")
    if missing := sorted(needed - set(fields)):
        raise ValueError(f"the field {missing[0]!r} is missing")
    for name, value in fields.items():
        if type(value) not in known[name]:
            raise ValueError(f"the field {name!r} has a value of the wrong type")
    return fields


def _entries(body: bytes) -> list[Mapping[str, Any]]:
    found = _document(body)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ValueError("it is not a list of JSON objects")
    return found


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "it"


def _faults(method: str, body: bytes) -> Response:
    if method == "POST":
        fault = Fault(**_fields(body, _FAULT, {"operation", "kind"}))
        try:
            FAULTS.add(fault)
        except ValueError as error:
            return _refused(str(error), _FAULT_FIX)
    elif method == "DELETE":
        operation = _fields(body, _CLEARED).get("operation")
        return json_response({"removed": FAULTS.clear(operation)})
    return json_response({"faults": [asdict(fault) for fault in FAULTS.all()]})


_FAULT_FIX = (
    "use the name of an API operation, such as CreateEndpoint, and one of these faults: "
    f"{', '.join(KINDS)}"
)


def _refused(message: str, fix: str) -> Response:
    return json_response({"message": message, "fix": fix}, 400)


def _endpoint_status(region: str, endpoint: SandboxEndpoint) -> EndpointStatus:
    engines = endpoint.engines
    instance = engines[0] if engines else None
    process = instance.process if instance else None
    alive = process if process and is_alive(process) else None
    uptime = time.time() - instance.started_at if instance and alive else None
    return EndpointStatus(
        name=endpoint.endpoint_name,
        region=region,
        state=endpoint.endpoint_status,
        failure_reason=endpoint.failure_reason,
        stand_in=instance.stand_in if instance else None,
        pid=alive.pid if alive else None,
        port=alive.port if alive else None,
        uptime_seconds=round(uptime, 1) if uptime is not None else None,
        instances=len(engines),
        not_applied=instance.not_applied if instance else (),
    )
