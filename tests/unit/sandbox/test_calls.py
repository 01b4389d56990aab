"""Which AWS operation a request calls: for every operation of S3 that botocore can send, and for
each protocol; and the errors of each protocol as botocore reads them."""

from __future__ import annotations

import io
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.parsers import create_parser

from peagle.sandbox.calls import Call, Protocol, call_of, error_response

TARGET = {
    "ServiceNamespace": "sagemaker",
    "ResourceId": "endpoint/e/variant/v",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
}
IN_BUCKET = {"Bucket": "b"}
OBJECT = {"Bucket": "b", "Key": "folder/k"}
UPLOAD = {**OBJECT, "UploadId": "u"}


class Sent(Exception):
    """Holds a request instead of sending it."""

    def __init__(self, request: AWSPreparedRequest) -> None:
        super().__init__()
        self.request = request


def request(service: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The WSGI environment of a boto3 call."""
    client = boto3.client(
        service,
        region_name="eu-west-1",
        endpoint_url="http://127.0.0.1:1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )

    def hold(request: AWSPreparedRequest, **_: Any) -> None:
        raise Sent(request)

    client.meta.events.register("before-send.*", hold)
    with pytest.raises(Sent) as raised:
        getattr(client, operation)(**parameters)
    sent = raised.value.request
    path, _, query = str(sent.url).removeprefix("http://127.0.0.1:1").partition("?")
    body = sent.body if isinstance(sent.body, bytes) else str(sent.body or "").encode()
    headers = {
        f"HTTP_{name.upper().replace('-', '_')}": value.decode()
        if isinstance(value, bytes)
        else str(value)
        for name, value in sent.headers.items()
    }
    return {
        **headers,
        "REQUEST_METHOD": sent.method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_TYPE": headers.get("HTTP_CONTENT_TYPE", ""),
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "action"),
    [
        ("sagemaker", "list_endpoints", {}, "sagemaker:ListEndpoints"),
        ("sagemaker-runtime", "invoke_endpoint", {"EndpointName": "e", "Body": b""}, "sagemaker:"),
        ("iam", "get_role", {"RoleName": "r"}, "iam:GetRole"),
        ("sts", "get_caller_identity", {}, "sts:GetCallerIdentity"),
        ("cloudwatch", "describe_alarms", {}, "monitoring:DescribeAlarms"),
        ("service-quotas", "list_service_quotas", {"ServiceCode": "s"}, "servicequotas:List"),
        ("resourcegroupstaggingapi", "get_resources", {}, "tagging:GetResources"),
        (
            "application-autoscaling",
            "register_scalable_target",
            TARGET,
            "application-autoscaling:RegisterScalableTarget",
        ),
        ("s3", "list_buckets", {}, "s3:ListBuckets"),
        ("s3", "head_bucket", IN_BUCKET, "s3:HeadBucket"),
        ("s3", "create_bucket", IN_BUCKET, "s3:CreateBucket"),
        ("s3", "delete_bucket", IN_BUCKET, "s3:DeleteBucket"),
        ("s3", "get_bucket_location", IN_BUCKET, "s3:GetBucketLocation"),
        ("s3", "get_bucket_tagging", IN_BUCKET, "s3:GetBucketTagging"),
        ("s3", "list_objects_v2", {**IN_BUCKET, "Prefix": "p"}, "s3:ListObjectsV2"),
        ("s3", "list_multipart_uploads", IN_BUCKET, "s3:ListMultipartUploads"),
        ("s3", "delete_objects", {**IN_BUCKET, "Delete": {"Objects": [{"Key": "k"}]}}, "s3:Del"),
        ("s3", "get_object", OBJECT, "s3:GetObject"),
        ("s3", "head_object", OBJECT, "s3:HeadObject"),
        ("s3", "put_object", {**OBJECT, "Body": b"x"}, "s3:PutObject"),
        ("s3", "copy_object", {**OBJECT, "CopySource": "b/o"}, "s3:CopyObject"),
        ("s3", "delete_object", OBJECT, "s3:DeleteObject"),
        ("s3", "create_multipart_upload", OBJECT, "s3:CreateMultipartUpload"),
        ("s3", "upload_part", {**UPLOAD, "PartNumber": 1, "Body": b"x"}, "s3:UploadPart"),
        ("s3", "list_parts", UPLOAD, "s3:ListParts"),
        ("s3", "complete_multipart_upload", UPLOAD, "s3:CompleteMultipartUpload"),
        ("s3", "abort_multipart_upload", UPLOAD, "s3:AbortMultipartUpload"),
    ],
)
def test_a_request_of_boto3_is_named_by_its_action(
    service: str, operation: str, parameters: dict[str, Any], action: str
) -> None:
    environ = request(service, operation, parameters)
    body = environ["wsgi.input"].getvalue()
    call = call_of(environ)
    assert call is not None
    assert call.action.startswith(action)
    assert call.action.partition(":")[2] == operation.title().replace("_", "")
    assert call.region == "eu-west-1"
    assert environ["wsgi.input"].read() == body, "the body remains readable"


def test_a_request_without_a_signature_calls_no_service() -> None:
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/_peagle/status", "QUERY_STRING": ""}
    assert call_of(environ) is None


@pytest.mark.parametrize(
    ("protocol", "parser"),
    [("json", "json"), ("query", "query"), ("s3", "rest-xml"), ("cbor", "smithy-rpc-v2-cbor")],
)
def test_an_error_is_read_by_the_parser_of_its_protocol(protocol: Protocol, parser: str) -> None:
    call = Call("service", "Operation", protocol)
    response = error_response(call, 400, "SomeCode", "a < b & ü")
    received = {
        "status_code": response.status,
        "headers": response.headers,
        "body": b"".join(response.body),
    }
    found = create_parser(parser).parse(received, None)["Error"]
    assert (found["Code"], found["Message"]) == ("SomeCode", "a < b & ü")
