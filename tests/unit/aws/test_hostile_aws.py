"""Answers of AWS that are not UTF-8, not JSON or XML, of another type, or cut short: every function
that reads one returns, or raises an error with a fix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from peagle.aws import ecr, prices, quotas, refresh_sources, roles, runtime, s3, sagemaker
from peagle.aws.client import Aws, Keys, connect
from peagle.aws.image_records import image_resources
from peagle.aws.s3_source import S3Source
from peagle.catalog import load_catalog
from peagle.errors import PeagleError
from peagle.sandbox.invocations import payload_part, stream_error
from peagle.weights.bucket import Bucket, read_lock
from peagle.weights.inspect import inspect_weights
from peagle.weights.layout import WeightsPrefix
from peagle.weights.manifest import read_manifest
from tests.support import raises_code

REGION = "us-east-1"
PREFIX = WeightsPrefix.parse("s3://a-bucket/weights/")
TABLES = load_catalog()


def _listed(aws: Aws, service: str, operation: str, key: str, **parameters: Any) -> Any:
    return list(aws.items(service, operation, key, **parameters))


READERS: dict[str, Callable[[Aws], Any]] = {
    "who": lambda aws: aws.account,
    "endpoint": lambda aws: sagemaker.describe(aws, "chat"),
    "tags": lambda aws: sagemaker.tags_of(aws, "arn:aws:sagemaker:us-east-1:1:endpoint/chat"),
    "role": lambda aws: roles.find_role(aws, None),
    "given role": lambda aws: roles.find_role(aws, "arn:aws:iam::111122223333:role/chat"),
    "quota": lambda aws: quotas.endpoint_quota(aws, "ml.g6e.xlarge", "L-1"),
    "quotas": quotas.default_quotas,
    "instances in use": lambda aws: quotas.instances_in_use(aws, "ml.g6e.xlarge"),
    "prices": prices.fetch_prices,
    "regions": lambda aws: prices.hosting_regions(aws, "ml.g6e.xlarge"),
    "instance types": lambda aws: refresh_sources.with_types(
        TABLES.instances, ["ml.g6e.xlarge", "ml.g9.xlarge"],
        refresh_sources.describe_types(aws, ["ml.g6e.xlarge", "ml.g9.xlarge"]),
    ),
    "login": lambda aws: ecr.login(aws, "registry"),
    "repository": lambda aws: ecr.ensure_repository(aws, "chat"),
    "image": lambda aws: ecr.image_digest(aws, "chat", "1"),
    "images": image_resources,
    "log": lambda aws: list(runtime.Tail(aws, "chat", 0.0).new()),
    "log of a stream": lambda aws: runtime.has_logged_between(aws, "chat", "a", 0, 1),
    "bucket": lambda aws: s3.bucket_exists(aws, "a-bucket"),
    "own bucket": lambda aws: s3.is_our_bucket(aws, "a-bucket"),
    "delete objects": lambda aws: s3.delete_objects(aws, "a-bucket", ["a"]),
    "names": lambda aws: S3Source(aws, "s3://a-bucket/weights").names(),
    "sizes": lambda aws: Bucket(aws, "a-bucket").sizes("weights/"),
    "head": lambda aws: Bucket(aws, "a-bucket").head("a"),
    "uploads": lambda aws: Bucket(aws, "a-bucket").unfinished_uploads("weights/"),
    "parts": lambda aws: Bucket(aws, "a-bucket").uploaded_bytes("a", "u"),
    "lock": lambda aws: read_lock(Bucket(aws, "a-bucket"), PREFIX),
    "manifest": lambda aws: read_manifest(Bucket(aws, "a-bucket"), PREFIX),
    "weights": lambda aws: inspect_weights(aws, PREFIX),
    "stream": lambda aws: list(runtime.stream(aws, "chat", {"stream": True})),
    "answer": lambda aws: runtime.ask(aws, "chat", {}),
}  # fmt: skip


class Raw:
    """The body of a response, as urllib3 gives it to botocore."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    def close(self) -> None:
        pass

    def stream(self, **_: Any) -> Iterator[bytes]:
        yield self.read()

    def read(self, size: int | None = None, **_: Any) -> bytes:
        size = len(self._rest) if size is None else size
        read, self._rest = self._rest[:size], self._rest[size:]
        return read


class Hostile:
    """A connection whose every response has this status and body, in turn with the models' own."""

    def __init__(self) -> None:
        self.body, self.status = b"", 200
        self.headers: dict[str, str] = {}
        self.shaped: Any = None
        self.aws = connect(REGION, keys=Keys("key", "secret"))
        for service in (
            "sts", "sagemaker", "iam", "service-quotas", "pricing", "ec2", "ecr", "logs", "s3",
            "sagemaker-runtime", "codebuild", "resourcegroupstaggingapi",
        ):  # fmt: skip
            events = self.aws.client(service).meta.events
            events.register_first("before-call", self._remember)
            events.register_first("before-send", self._answer)
            events.register_first("needs-retry", lambda **_: False)

    def _remember(self, model: Any, **_: Any) -> None:
        self._model = model

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        body = self.body
        if self.shaped is not None and self._model.output_shape is not None:
            members = self._model.output_shape.members
            body = json.dumps({key: self.shaped(shape) for key, shape in members.items()}).encode()
        return AWSResponse(request.url, self.status, dict(self.headers), Raw(body))


@pytest.fixture(scope="module")
def hostile() -> Hostile:
    return Hostile()


BODIES = {
    "nothing": b"", "null": b"null", "a list": b"[]", "a number": b"7", "text": b'"x"',
    "cut short": b'{"', "an object": b"{}", "no UTF-8": b'{"\xff\xfe": 1}', "deep": b"[" * 100_000,
    "endless digits": b'{"a": ' + b"9" * 5_000 + b"}", "HTML": b"<html><body>busy</body></html>",
    "XML cut short": b"<a><b>", "XML that is not UTF-8": b"<a>\xff</a>",
    "deep XML": b"<a>" * 2_000 + b"</a>" * 2_000, "NaN": b"NaN",
    "entities": b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
}  # fmt: skip


def _survives(hostile: Hostile, name: str) -> None:
    vars(hostile.aws).pop("caller", None)
    try:
        READERS[name](hostile.aws)
    except PeagleError as error:
        text, code = str(error), error.exit_code
    else:
        return
    assert code in (2, 3, 4)
    assert "\n" not in text
    assert len(text) < 2_000


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_bytes_that_are_no_answer(name: str, hostile: Hostile) -> None:
    hostile.shaped = None
    tried = [(body, 200) for body in BODIES.values()]
    for hostile.body, hostile.status in (*tried, (b"{", 400), (b"<a>", 403), (b"\xff", 404)):
        _survives(hostile, name)


def _full(shape: Any, value: Any, depth: int = 0) -> Any:
    """Each value of the shape's outer two levels with the right type, and ``value`` below."""
    kind = shape.type_name
    if depth == 2:
        return value
    if kind == "structure":
        return {key: _full(inner, value, depth + 1) for key, inner in shape.members.items()}
    if kind == "list":
        return [_full(shape.member, value, depth + 1)]
    return value


VALUES: dict[str, Any] = {
    "a list": [1], "an object": {"a": 1}, "a number": 7, "text": "x", "huge": 10**30,
    "negative": -1, "NaN": float("nan"), "true": True, "a list of null": [None], "empty": "",
    "a long text": "x" * 10_000,
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", READERS)
def test_answers_whose_values_have_another_type(name: str, hostile: Hostile) -> None:
    hostile.status = 200
    for value in VALUES.values():
        hostile.shaped = lambda shape, value=value: value
        _survives(hostile, name)
        hostile.shaped = lambda shape, value=value: _full(shape, value)
        _survives(hostile, name)
    hostile.shaped = None


@pytest.mark.parametrize("headers", [
    {"content-length": "x"}, {"content-length": "-5"}, {"content-length": "9" * 5_000},
    {"etag": "", "date": "yesterday"}, {"date": "Sun, 22 Nov 2026 11:00:00 -0000"},
    {"last-modified": "never"}, {"x-amz-checksum-sha256": "???"}, {"x-amz-mp-parts-count": "many"},
])  # fmt: skip
def test_headers_of_another_type(headers: dict[str, str], hostile: Hostile) -> None:
    usual = {"content-length": "2", "etag": '"a"', "last-modified": "Sun, 22 Nov 2026 11:00:00 GMT"}
    hostile.body, hostile.status, hostile.headers = b"{}", 200, usual | headers
    try:
        for name in ("head", "lock", "manifest", "weights"):
            _survives(hostile, name)
    finally:
        hostile.headers = {}


def test_a_key_that_an_answer_lacks_is_named(hostile: Hostile) -> None:
    hostile.body, hostile.status = b"{}", 200

    with raises_code("invalid-response") as refused:
        ecr.login(hostile.aws, "registry")
    assert "ecr:get_authorization_token" in refused.value.message
    assert "has no auth" in refused.value.message


FRAME = payload_part(b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n')
END = payload_part(b"data: [DONE]\n\n")


def test_a_valid_event_stream_is_read(hostile: Hostile) -> None:
    hostile.body, hostile.status = FRAME + END, 200

    assert [one.text for one in runtime.stream(hostile.aws, "chat", {"stream": True})] == ["Hi"]


@pytest.mark.parametrize("content", [
    FRAME, FRAME[:-1], FRAME + END[:20], FRAME[:-4] + b"\0\0\0\0" + END, b"\xff" * 64,
    b"\0\0\0\1" + FRAME, FRAME[:12] + b"\xff" * 40, b"<html>busy</html>" * 10, b"\0" * 100,
    stream_error("died", "StreamBroken"), stream_error("\xff" * 5_000, "x"),
    FRAME.replace(b"event", b"\xff\xfe\xff\xfe\xff"),
])  # fmt: skip
def test_an_invalid_event_stream_is_an_error(content: bytes, hostile: Hostile) -> None:
    hostile.body, hostile.status = content, 200

    with pytest.raises(PeagleError) as raised:
        list(runtime.stream(hostile.aws, "chat", {"stream": True}))

    assert raised.value.exit_code == 4
    assert raised.value.fix


@pytest.mark.parametrize("status", ["x", [1], None, {}, 10**30, -1, "404"])
def test_a_model_error_of_any_form_is_an_error_of_the_engine(status: Any, hostile: Hostile) -> None:
    hostile.headers = {"x-amzn-errortype": "ModelError"}
    hostile.body, hostile.status = json.dumps({"OriginalStatusCode": status}).encode(), 424
    try:
        for name in ("answer", "stream"):
            _survives(hostile, name)
    finally:
        hostile.headers = {}
