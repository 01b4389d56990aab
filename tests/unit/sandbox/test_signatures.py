"""What the sandbox's key signed is accepted, as boto3 signs it; everything else is refused."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st

from peagle.sandbox.protocol import BodyRefused, check_length, request_body
from peagle.sandbox.signatures import NotSigned, Verifier
from peagle.sandbox.state import AccessKey

KEY = AccessKey("PEAGLE0123456789ABCD", "a-secret")
OWNER = Verifier(KEY)
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


def refused(environ: Environ, owner: Verifier = OWNER) -> str:
    """AWS's error code for a refused request."""
    with pytest.raises(NotSigned) as raised:
        owner.check(environ)
    return raised.value.codes[""][1]


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
    OWNER.check(environ)
    assert environ["wsgi.input"].read() == body, "the body remains readable"

    guessed = AccessKey(KEY.id, "another-secret")
    assert refused(signed(service, operation, guessed, **parameters)) == "InvalidSignatureException"
    stranger = AccessKey("testing", "testing")
    assert refused(signed(service, operation, stranger, **parameters)).startswith("Unrecognized")
    environ = signed(service, operation, **parameters)
    environ["HTTP_AUTHORIZATION"] = ""
    assert refused(environ) == "MissingAuthenticationTokenException"


@pytest.mark.parametrize(
    "change",
    [
        {"REQUEST_METHOD": "DELETE"},
        {"REQUEST_URI": "/endpoints/other/invocations"},
        {"QUERY_STRING": "a=1"},
        {"HTTP_HOST": "127.0.0.1:2"},
        {"CONTENT_LENGTH": "2", "wsgi.input": io.BytesIO(b"[]")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_signed_request_that_was_changed_is_refused(change: Environ) -> None:
    environ = signed("sagemaker-runtime", "invoke_endpoint", EndpointName="e", Body=b"{}")
    assert refused(environ | change) == "InvalidSignatureException"


@pytest.mark.parametrize("region", ["..", "a/b", "eu-west-1\n", ""])
def test_a_region_that_is_none_is_refused(region: str) -> None:
    environ = signed("sagemaker", "list_endpoints")
    for name in ("HTTP_AUTHORIZATION",):
        environ[name] = environ[name].replace("eu-west-1", region)
    refused(environ)


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_presigned_url_is_accepted_until_it_expires(version: str) -> None:
    def url(key: AccessKey, seconds: int) -> str:
        s3 = client("s3", key, signature_version=version)
        parameters = {"Bucket": "b", "Key": "a b/ü+~(1)=&.txt", "VersionId": "1"}
        text: str = s3.generate_presigned_url("get_object", parameters, seconds)
        return text

    OWNER.check(environ_of("GET", url(KEY, 60), {}))
    assert refused(environ_of("PUT", url(KEY, 60), {})) == "InvalidSignatureException"
    assert refused(environ_of("GET", url(KEY, -60), {})) == "ExpiredTokenException"
    assert refused(environ_of("GET", url(AccessKey(KEY.id, "x"), 60), {})).startswith("Invalid")
    assert refused(environ_of("GET", url(AccessKey("x", "x"), 60), {})).startswith("Unrecognized")


@given(st.text(max_size=200), st.text(max_size=100))
def test_malformed_signatures_are_refused(header: str, query: str) -> None:
    scope = f"Credential={KEY.id}/20260101/eu-west-1/s3/aws4_request"
    now = (datetime.now(UTC) - timedelta(seconds=1)).strftime("%Y%m%dT%H%M%SZ")
    for given_header, given_query in (
        (header, query),
        (f"AWS4-HMAC-SHA256 {scope}, {header}", query),
        ("", f"X-Amz-{scope}&X-Amz-Date={now}&X-Amz-Expires=60&{query}"),
        ("", f"AWSAccessKeyId={KEY.id}&Signature={header}&Expires={query or 1}"),
    ):
        environ = environ_of("GET", f"{URL}/", {"Authorization": given_header})
        refused(environ | {"QUERY_STRING": given_query})


@pytest.mark.parametrize(
    ("length", "status"),
    [("-5", 400), ("five", 400), ("1e3", 400), ("+4", 400), ("²", 400), ("9" * 5000, 413),
     ("101", 413), (None, 411)],
)  # fmt: skip
def test_a_length_that_is_negative_huge_or_absent_is_refused(
    length: str | None, status: int
) -> None:
    environ: Environ = {"REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(b"x" * 200)}
    environ |= {} if length is None else {"CONTENT_LENGTH": length}
    with pytest.raises(BodyRefused) as raised:
        check_length(environ, 100)
    assert raised.value.status == status
    with pytest.raises(BodyRefused):
        request_body(environ, 100)


@pytest.mark.parametrize(
    "sent", [b"65\r\n" + b"x" * 101 + b"\r\n0\r\n\r\n", b"-1\r\n", b"zz\r\n", b""]
)
def test_a_body_in_chunks_is_bounded_and_its_errors_are_the_clients(sent: bytes) -> None:
    from werkzeug.serving import DechunkedInput

    environ = {"REQUEST_METHOD": "POST", "wsgi.input_terminated": True}
    with pytest.raises(BodyRefused) as raised:
        request_body(environ | {"wsgi.input": DechunkedInput(io.BytesIO(sent))}, 100)
    assert raised.value.status == (413 if sent.startswith(b"65") else 400)
