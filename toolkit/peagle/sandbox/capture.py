"""Data capture: what an endpoint was asked and answered, as SageMaker writes it to S3.

    DESTINATION/ENDPOINT/VARIANT/YYYY/MM/DD/HH/MM-SS-mmm-UUID.jsonl

Each record is an object of its own at once; on AWS one has those of some minutes, and comes later.
Answers of ``InvokeEndpointWithResponseStream`` are captured too, as events of a stream, in base64:
AWS documents neither.
"""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from moto.s3.exceptions import MissingBucket

from peagle.render.resources import captured_prefix
from peagle.s3uri import S3Uri
from peagle.sandbox.launch import LaunchSpec, put_object


def is_sampled(config: Mapping[str, Any] | None) -> bool:
    """Whether a DataCaptureConfig captures the next request."""
    if not config or not config.get("EnableCapture", True):
        return False
    return random.random() * 100 < float(config["InitialSamplingPercentage"])


def write_record(spec: LaunchSpec, request: tuple[str, bytes], response: tuple[str, bytes]) -> None:
    """Write a request to an engine and its response, each a content type and a body. Nothing is
    written where there is no such bucket, as on AWS."""
    config = spec.capture or {}
    modes = {option["CaptureMode"] for option in config["CaptureOptions"]}
    headers = config.get("CaptureContentTypeHeader") or {}
    captured = {
        name: {
            "observedContentType": content_type,
            "mode": mode.upper(),
            **_encode(content_type, body, headers.get("JsonContentTypes") or ()),
        }
        for name, mode, (content_type, body) in (
            ("endpointInput", "Input", request),
            ("endpointOutput", "Output", response),
        )
        if modes & {mode, "InputAndOutput"}
    }
    now, event = datetime.now(UTC), str(uuid.uuid4())
    record = {
        "captureData": captured,
        "eventMetadata": {"eventId": event, "inferenceTime": f"{now:%Y-%m-%dT%H:%M:%SZ}"},
        "eventVersion": "0",
    }
    prefix = captured_prefix(config["DestinationS3Uri"], spec.endpoint)
    time = f"{now:%Y/%m/%d/%H/%M-%S}-{now.microsecond // 1000:03}"
    key = f"{prefix.key}{spec.variant}/{time}-{event}.jsonl"
    try:
        put_object(S3Uri(prefix.bucket, key), f"{json.dumps(record)}\n".encode(), spec.region)
    except MissingBucket:
        return


def _encode(content_type: str, body: bytes, json_types: Any) -> dict[str, str]:
    if content_type.partition(";")[0].strip() in json_types:
        return {"data": body.decode("utf-8", "replace"), "encoding": "JSON"}
    return {"data": base64.b64encode(body).decode(), "encoding": "BASE64"}
