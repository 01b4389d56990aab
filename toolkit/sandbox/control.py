"""What AWS has no call for: the state of the sandbox itself, its quotas, and what it refuses."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from toolkit.local.process import is_alive
from toolkit.sandbox import faults
from toolkit.sandbox.client import EndpointStatus
from toolkit.sandbox.runtime.call import Answer, Refusal
from toolkit.sandbox.sagemaker.backend import all_endpoints
from toolkit.sandbox.sagemaker.endpoint import Endpoint
from toolkit.sandbox.services import quotas

_STARTED = time.time()


def answer(method: str, path: str, body: bytes) -> Answer:
    """Answer a question of ``toolkit.sandbox.client``."""
    if (method, path) == ("GET", "/status"):
        return _json(_status())
    if (method, path) == ("PUT", "/quota"):
        return _set_quota(json.loads(body))
    if (method, path) == ("PUT", "/fault"):
        faults.set_fault(**json.loads(body))
        return _json({})
    return Refusal(404, "", {"message": f"the sandbox has no {method} {path}"}).answer


def _status() -> dict[str, Any]:
    endpoints = [asdict(_endpoint(region, endpoint)) for region, endpoint in all_endpoints()]
    return {
        "uptime_seconds": round(time.time() - _STARTED, 1),
        "endpoints": sorted(endpoints, key=lambda one: (one["region"], one["name"])),
    }


def _endpoint(region: str, endpoint: Endpoint) -> EndpointStatus:
    deployment = endpoint.deployment or endpoint.coming
    process = deployment.process if deployment else None
    alive = process if process and is_alive(process) else None
    up = time.time() - deployment.started_at if deployment and alive else None
    return EndpointStatus(
        name=endpoint.endpoint_name,
        region=region,
        state=endpoint.endpoint_status,
        failure_reason=endpoint.failure_reason,
        stand_in=deployment.stand_in if deployment else None,
        pid=alive.pid if alive else None,
        port=alive.port if alive else None,
        uptime_seconds=round(up, 1) if up is not None else None,
    )


def _set_quota(given: dict[str, Any]) -> Answer:
    try:
        quotas.set_value(given["instance_type"], float(given["value"]), given["region"])
    except quotas.NoSuchQuota as error:
        return Refusal(400, "", {"message": str(error), "fix": "see AWS's list of types"}).answer
    return _json({})


def _json(document: dict[str, Any]) -> Answer:
    content = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(content))}
    return Answer(200, headers, iter((content,)))
