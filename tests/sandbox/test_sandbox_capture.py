"""Data capture: what an endpoint was asked and answered is in S3, and is training data."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from peagle.train.data import read_training_data
from tests.sandbox.sandboxes import Account, until

pytestmark = pytest.mark.sandbox
BUCKET = "captured"


def capture(**more: Any) -> dict[str, Any]:
    return {
        "EnableCapture": True,
        "InitialSamplingPercentage": 100,
        "DestinationS3Uri": f"s3://{BUCKET}/all",
        "CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}],
        "CaptureContentTypeHeader": {"JsonContentTypes": ["application/json"]},
        **more,
    }


def serve(account: Account, name: str, model: str, settings: dict[str, Any]) -> None:
    variant = {
        "VariantName": "AllTraffic", "ModelName": model, "InitialInstanceCount": 1,
        "InstanceType": "ml.g6.12xlarge",
    }  # fmt: skip
    account.sagemaker.create_endpoint_config(
        EndpointConfigName=name, ProductionVariants=[variant], DataCaptureConfig=settings
    )
    if name == model:
        account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    else:
        account.sagemaker.update_endpoint(EndpointName=model, EndpointConfigName=name)
    assert account.wait_until_stable(model)["EndpointStatus"] == "InService"


@pytest.fixture(scope="module")
def name(account: Account) -> Iterator[str]:
    """An endpoint that captures all requests."""
    account.s3.create_bucket(Bucket=BUCKET)
    serve(account, account.model("asked"), "asked", capture())
    yield "asked"
    account.delete("asked")


def records(account: Account) -> dict[str, dict[str, Any]]:
    listed = account.s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())
    keys = [entry["Key"] for entry in listed]
    bodies = [account.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys]
    return {key: json.loads(body) for key, body in zip(keys, bodies, strict=True)}


def test_captured_requests_are_training_data(account: Account, name: str) -> None:
    for number in range(4):
        account.invoke(name, {"messages": [{"role": "user", "content": f"question {number}"}]})
    body = json.dumps({"prompt": "streamed", "stream": True})
    events = account.runtime.invoke_endpoint_with_response_stream(
        EndpointName=name, Body=body, ContentType="application/json"
    )
    assert list(events["Body"])
    with pytest.raises(account.runtime.exceptions.ModelError):
        account.invoke(name, {"do": "status", "status": 400, "text": "{}"})
    written = until(lambda: records(account), lambda records: len(records) >= 5)
    assert len(written) == 5
    pattern = r"all/asked/AllTraffic/\d{4}/\d\d/\d\d/\d\d/\d\d-\d\d-\d{3}-[0-9a-f-]{36}\.jsonl"
    assert all(re.fullmatch(pattern, key) for key in written)
    outputs = [record["captureData"]["endpointOutput"] for record in written.values()]
    assert sorted(output["encoding"] for output in outputs) == ["BASE64", *["JSON"] * 4]
    data = read_training_data([f"capture:{name}"], account.connect)
    conversations = [*data.train, *data.held_out]
    assert len(conversations) == 5
    assert {each.messages[-1]["content"] for each in conversations} == {"an answer"}


@pytest.mark.parametrize(
    "change",
    [
        {"InitialSamplingPercentage": 0},
        {"EnableCapture": False},
        {"DestinationS3Uri": "s3://missing/all"},
    ],
)
def test_nothing_is_captured(account: Account, name: str, change: dict[str, Any]) -> None:
    before = len(records(account))
    [key] = change
    serve(account, key, name, capture(**change))
    account.invoke(name, {"prompt": "not captured"})
    assert len(records(account)) == before


def test_the_request_alone_is_captured(account: Account, name: str) -> None:
    settings = capture(
        CaptureOptions=[{"CaptureMode": "Input"}], DestinationS3Uri="s3://captured/i"
    )
    del settings["CaptureContentTypeHeader"]
    serve(account, "input", name, settings)
    account.invoke(name, {"prompt": "alone"})
    [record] = [record for key, record in records(account).items() if key.startswith("i/")]
    assert record["captureData"] == {
        "endpointInput": {
            "observedContentType": "application/json", "mode": "INPUT",
            "data": "eyJwcm9tcHQiOiAiYWxvbmUifQ==", "encoding": "BASE64",
        }
    }  # fmt: skip
