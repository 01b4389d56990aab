"""Requests of AWS clients: who signed them, their operation, their errors, and what is refused."""

import base64
import io
import time
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config

from peagle.aws.client import Keys, connect
from peagle.sandbox.requests import (
    TOKEN_PREFIX,
    Refused,
    authenticate,
    problems_text,
    read_call,
    read_token,
    request_body,
)
from peagle.sandbox.state import AccessKey

TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/v",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
IN_BUCKET = {"Bucket": "b"}
OBJECT = {"Bucket": "b", "Key": "folder/k"}
UPLOAD = {**OBJECT, "UploadId": "u"}


ACTIONS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "sagemaker": ("sagemaker", {"list_endpoints": {}}),
    "sagemaker-runtime": ("sagemaker", {"invoke_endpoint": {"EndpointName": "e", "Body": b""}}),
    "iam": ("iam", {"get_role": {"RoleName": "r"}}),
    "cloudwatch": ("monitoring", {"describe_alarms": {}}),
    "service-quotas": ("servicequotas", {"list_service_quotas": {"ServiceCode": "s"}}),
    "application-autoscaling": ("application-autoscaling", {"register_scalable_target": TARGET}),
    "s3": ("s3", {
        "list_buckets": {}, "create_bucket": IN_BUCKET, "get_bucket_tagging": IN_BUCKET,
        "list_objects_v2": {**IN_BUCKET, "Prefix": "p"}, "get_object": OBJECT,
        "delete_objects": {**IN_BUCKET, "Delete": {"Objects": [{"Key": "k"}]}},
        "put_object": {**OBJECT, "Body": b"x"}, "create_multipart_upload": OBJECT,
        "upload_part": {**UPLOAD, "PartNumber": 1, "Body": b"x"},
        "complete_multipart_upload": UPLOAD, "abort_multipart_upload": UPLOAD,
        "upload_part_copy": {**UPLOAD, "PartNumber": 1, "CopySource": "b/k"},
        "copy_object": {**OBJECT, "CopySource": "b/k"}, "put_object_tagging": {
            **OBJECT, "Tagging": {"TagSet": []}},
        "head_bucket": IN_BUCKET, "head_object": OBJECT, "delete_object": OBJECT,
        "delete_bucket_lifecycle": IN_BUCKET, "list_multipart_uploads": IN_BUCKET,
    }),
}  # fmt: skip
"""Client -> the prefix of its actions, and calls."""


@pytest.mark.parametrize("service", ACTIONS)
def test_a_request_of_boto3_is_named_by_its_action(service: str) -> None:
    prefix, calls = ACTIONS[service]
    for operation, parameters in calls.items():
        environ = signed(service, operation, **parameters)
        body = environ["wsgi.input"].getvalue()
        call = read_call(environ)
        assert call is not None
        assert call.action == f"{prefix}:{operation.title().replace('_', '')}"
        assert call.region == "eu-west-1"
        assert environ["wsgi.input"].read() == body, "the body remains readable"


KEY = AccessKey("PEAGLE0123456789ABCD", "a-secret")
URL = "http://127.0.0.1:1"
Environ = dict[str, Any]


class Held(Exception):
    """Holds a request instead of sending it."""

    def __init__(self, request: AWSPreparedRequest) -> None:
        super().__init__()
        self.request = request


def client(service: str, key: AccessKey = KEY, **config: Any) -> Any:
    return boto3.client(
        service, region_name="eu-west-1", endpoint_url=URL, aws_access_key_id=key.id,
        aws_secret_access_key=key.secret, config=Config(**config),
    )  # fmt: skip


def environ_of(method: str, url: str, headers: dict[str, str], body: bytes = b"") -> Environ:
    """A request as werkzeug gives it to the sandbox."""
    path = url.removeprefix(URL)
    named = {name.upper().replace("-", "_"): value for name, value in headers.items()}
    return {
        **{n if n.startswith("CONTENT_T") else f"HTTP_{n}": v for n, v in named.items()},
        "REQUEST_METHOD": method,
        "REQUEST_URI": path,
        "PATH_INFO": urlsplit(path).path,
        "QUERY_STRING": urlsplit(path).query,
        "HTTP_HOST": "127.0.0.1:1",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }


def signed(service: str, operation: str, key: AccessKey = KEY, **parameters: Any) -> Environ:
    """The request of a boto3 call."""
    caller = client(service, key)

    def hold(request: AWSPreparedRequest, **_: Any) -> None:
        raise Held(request)

    caller.meta.events.register("before-send.*", hold)
    with pytest.raises(Held) as held:
        getattr(caller, operation)(**parameters)
    request = held.value.request
    content = request.body.read() if hasattr(request.body, "read") else request.body or b""
    body = content if isinstance(content, bytes) else str(content).encode()
    headers = {
        name: value.decode() if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }
    return environ_of(str(request.method), str(request.url), headers, body)


def refused(environ: Environ) -> str:
    """The code with which a request is refused."""
    with pytest.raises(Refused) as raised:
        authenticate(environ, KEY)
    assert raised.value.status == 403
    return raised.value.code


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("sagemaker", "list_endpoints", {"NameContains": "ü b"}),
    ("sagemaker-runtime", "invoke_endpoint", {"EndpointName": "e", "Body": b'{"a": 1}'}),
    ("sts", "get_caller_identity", {}),
    ("cloudwatch", "describe_alarms", {}),
    ("iam", "get_role", {"RoleName": "r"}),
    ("s3", "list_objects_v2", {"Bucket": "b", "Prefix": "a b/+ü&~=(*)'!", "Delimiter": "/"}),
    ("s3", "get_object", {"Bucket": "b", "Key": "a b//+ü/../%2F;~(1)=&.txt"}),
    ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b"weights", "Metadata": {"a": "b c"}}),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("service", "operation", "parameters"), CALLS)
def test_a_call_of_the_owner_is_accepted_and_every_other_refused(
    service: str, operation: str, parameters: dict[str, Any]
) -> None:
    environ = signed(service, operation, **parameters)
    body = environ["wsgi.input"].getvalue()
    authenticate(environ, KEY)
    assert environ["wsgi.input"].read() == body, "the body remains readable"
    unknown_key = AccessKey("testing", KEY.secret)
    code = refused(signed(service, operation, unknown_key, **parameters))
    assert code.startswith(("Inv", "Unr"))
    environ = signed(service, operation, **parameters)
    environ["HTTP_AUTHORIZATION"] = ""
    refused(environ)


def test_a_region_that_is_none_is_refused() -> None:
    for region in ("..", "a/b", "eu-west-1\n", ""):
        environ = signed("sagemaker", "list_endpoints")
        authorization = environ["HTTP_AUTHORIZATION"].replace("eu-west-1", region)
        refused(environ | {"HTTP_AUTHORIZATION": authorization})


@pytest.mark.parametrize(("length", "status"), [
    ("-5", 400), ("²", 400), ("9" * 5000, 413), ("101", 413),
])  # fmt: skip
def test_a_length_that_is_negative_or_huge_is_refused(length: str, status: int) -> None:
    body = io.BytesIO(b"x" * 200)
    with pytest.raises(Refused) as raised:
        request_body({"CONTENT_LENGTH": length, "wsgi.input": body}, 100)
    assert raised.value.status == status
    assert body.tell() <= 101, "no more is read"


@pytest.mark.parametrize(
    "sent", [b"65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n", b"-1\r\n", b"zz\r\n", b""]
)
def test_a_body_in_chunks_is_bounded_and_its_errors_are_the_clients(sent: bytes) -> None:
    from werkzeug.serving import DechunkedInput

    environ = {"REQUEST_METHOD": "POST", "wsgi.input_terminated": True}
    with pytest.raises(Refused) as raised:
        request_body(environ | {"wsgi.input": DechunkedInput(io.BytesIO(sent))}, 100)
    assert raised.value.status == (413 if sent.startswith(b"65") else 400)


KEYS = Keys("testing", "a-secret")


def region_of_token(authorization: str, now: float | None = None) -> str:
    return read_token(authorization, AccessKey("testing", "a-secret"), now)


def make_token(seconds: int = 3600, keys: Keys = KEYS) -> str:
    aws = connect("eu-west-1", endpoint_url="http://127.0.0.1:1", keys=keys)
    return aws.bearer_token(seconds)


def tampered(old: str, new: str) -> str:
    """A token whose content was changed."""
    text = base64.b64decode(make_token().removeprefix(TOKEN_PREFIX)).decode()
    assert old in text
    return TOKEN_PREFIX + base64.b64encode(text.replace(old, new).encode()).decode()


def test_a_token_names_its_region_until_it_expires() -> None:
    token = make_token(seconds=600)
    soon, late = (time.time() + 60 * minutes for minutes in (9, 11))
    for scheme in ("Bearer", "bearer"):
        assert region_of_token(f"{scheme} {token}", now=soon) == "eu-west-1"
    with pytest.raises(Refused):
        region_of_token(f"Bearer {token}", now=late)
    with pytest.raises(Refused, match="access key"):
        region_of_token(f"Bearer {make_token(keys=Keys('another', 'a-secret'))}")


@pytest.mark.parametrize(("old", "new"), [
    ("X-Amz-Credential=testing", "X-Amz-Credential=other"),
    ("X-Amz-Expires=3600", "X-Amz-Expires=1h"),
])  # fmt: skip
def test_a_token_for_something_else_is_refused(old: str, new: str) -> None:
    with pytest.raises(Refused):
        region_of_token(f"Bearer {tampered(old, new)}")


NEW_TYPE = "ml.g99.xlarge"
KNOWN_TYPE = "ml.g6.xlarge"


def problems(instance_type: str, **more: Any) -> str:
    variant = {
        "VariantName": "v",
        "ModelName": "m",
        "InitialInstanceCount": 1,
        "InstanceType": instance_type,
        **more,
    }
    parameters = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    return problems_text("sagemaker", "create_endpoint_config", parameters)


def test_keys_of_a_newer_client_are_accepted() -> None:
    assert "ProductionVariants[0].InstanceType" in problems(NEW_TYPE)
    assert problems(KNOWN_TYPE, InvitedTomorrow=True) == ""
