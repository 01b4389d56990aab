"""What the sandbox is sent: calls of AWS, its own control calls, templates, engines' answers."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from unittest import mock
from wsgiref.types import StartResponse, WSGIEnvironment

from hypothesis import strategies as st

from peagle.catalog import load_catalog
from peagle.engine.process import EngineProcess
from peagle.errors import PeagleError
from peagle.request_validation import service_model
from peagle.sandbox import account, sagemaker
from peagle.sandbox.account import may_be_assumed
from peagle.sandbox.client import _request
from peagle.sandbox.endpoints import count_instances
from peagle.sandbox.faults import FAULTS, SERVICES
from peagle.sandbox.launch import (
    LaunchFailed,
    ModelData,
    download,
    launch_spec,
    stand_in_for,
)
from peagle.sandbox.requests import Refused, read_token
from peagle.sandbox.scaling import due_time
from peagle.sandbox.server import _REGION_KEY, _respond, control, create_app
from peagle.sandbox.stacks import with_types
from peagle.sandbox.state import AccessKey
from tests.fuzz.inputs import binary, encoded, json_bytes, texts
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.account import ACCOUNT, ROLE
from tests.fuzz.parsers.commands import CREATE_CONFIG, CREATE_MODEL
from tests.fuzz.parsers.engines import Connection, response
from tests.fuzz.parsers.files import folder
from tests.fuzz.parsers.warm import ARCHIVE, TARS

NOW = datetime(2026, 11, 22, 8, 0, tzinfo=UTC).timestamp()
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA/20261122/us-east-1/{}/aws4_request, SignedHeaders=host"
KEY = AccessKey("AKIA", "secret")
TOKEN = (
    "sagemaker.amazonaws.com/?Action=CallWithBearerToken&X-Amz-Credential=AKIA%2F20261122%2F"
    "us-east-1%2Fsagemaker%2Faws4_request&X-Amz-Date=20261122T080000Z&X-Amz-Expires=43200&"
    "X-Amz-Signature=abc&Version=1"
)
QUOTAS = {"ServiceCode": "sagemaker", "QuotaCode": "L-1", "DesiredValue": 5.0, "MaxResults": 5,
          "NextToken": "3"}  # fmt: skip
PRODUCTS = {"ServiceCode": "AmazonSageMaker", "Filters": [{"Field": "instanceName", "Value": "x"}]}
TARGETS = (
    "SageMaker.CreateModel", "SageMaker.CreateEndpointConfig", "SageMaker.DescribeEndpoint",
    *account.OPERATIONS, "x", "AnyScaleFrontendService.RegisterScalableTarget",
)  # fmt: skip
NAMES = tuple(sorted(SERVICES))


@dataclass(frozen=True)
class Sent:
    """A request to the sandbox."""

    method: str = "POST"
    path: str = "/"
    service: str = "sagemaker"
    target: str = ""
    query: str = ""
    length: str | None = None
    kind: str = "application/x-amz-json-1.1"
    body: bytes = b"{}"
    host: str = "127.0.0.1:4566"
    authorization: str = ""

    def environ(self) -> WSGIEnvironment:
        return {
            "REQUEST_METHOD": self.method, "PATH_INFO": self.path, "QUERY_STRING": self.query,
            "HTTP_AUTHORIZATION": self.authorization
            or (SIGNED.format(self.service) if self.service else ""),
            "HTTP_HOST": self.host, "HTTP_X_AMZ_DATE": "20261122T080000Z",
            "HTTP_X_AMZ_TARGET": self.target, "CONTENT_TYPE": self.kind,
            "CONTENT_LENGTH": str(len(self.body)) if self.length is None else self.length,
            "wsgi.input": io.BytesIO(self.body), "wsgi.url_scheme": "http",
        }  # fmt: skip


def _moto(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [])
    return [b""]


@cache
def installed() -> None:
    """Let this process's moto be the sandbox's, without a server."""
    sagemaker.install()
    for sent in (
        Sent(target=TARGETS[0]),
        Sent("PUT", "/bucket", "s3"),
        Sent(service="cloudformation"),
    ):
        _call(sent)  # imports most of moto


def _call(sent: Sent) -> None:
    environ = sent.environ() | {_REGION_KEY: "us-east-1"}
    with suppress(Refused):
        found = _respond(_moto, environ)
        assert 200 <= found.status_code < 600
        found.get_data()


def _signature(sent: Sent) -> None:
    """A request of anyone."""
    statuses: list[str] = []
    application = create_app(_moto, KEY)
    b"".join(application(sent.environ(), lambda status, headers: statuses.append(status)))  # type: ignore[arg-type]
    assert statuses[0][:1] == "4"


def _control(case: tuple[str, str, bytes]) -> None:
    method, path, body = case
    try:
        found = control(method, path, Sent(method, body=body).environ())
        found.get_data()
    finally:
        FAULTS.clear()
        account.forget()


def _token(text: str) -> None:
    encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()
    for given in (text, f"Bearer {text}", f"Bearer sagemaker-api-key-{encoded}",
                  f"Bearer sagemaker-api-key-{text}"):  # fmt: skip
        try:
            read_token(given, KEY, NOW)
        except Refused:
            continue


def _archive(content: bytes) -> None:
    def save(_: object, file: Path) -> None:
        file.write_bytes(content)

    root = folder() / "ml"
    shutil.rmtree(root, ignore_errors=True)
    data = ModelData("s3://bucket/model.tar.gz", PurePosixPath("model"), archive=True)
    with (
        mock.patch("peagle.sandbox.launch.objects_of", return_value=[("model.tar.gz", None)]),
        mock.patch("peagle.sandbox.launch.save_object", save),
    ):
        download(data, root, "us-east-1")


def _daemon(received: bytes) -> None:
    Connection.received = received
    with (
        mock.patch("http.client.HTTPConnection", Connection),
        mock.patch("peagle.sandbox.client.wait_for_end", return_value=False),
        mock.patch("peagle.sandbox.state.read_access_key", return_value=KEY),
    ):
        _request(EngineProcess(2**22 - 1, 5, 4566, ""), "GET", "/status")


def _launch(case: tuple[Any, Any]) -> None:
    config, model = case
    for variant in config["ProductionVariants"]:
        spec = launch_spec("us-east-1", "e", variant, [model["PrimaryContainer"]])
        stand_in_for(spec.environment, load_catalog().targets["peagle/tiny"])
    count_instances(config["ProductionVariants"])


AT = "at(2030-01-31T20:00:00)"

TEMPLATE = {
    "Model": {"Type": "AWS::SageMaker::Model", "Properties": CREATE_MODEL},
    "Config": {"Type": "AWS::SageMaker::EndpointConfig", "DependsOn": "Model",
               "Properties": {**CREATE_CONFIG, "A": {"Fn::Sub": "${Model}-x"}}},
    "Endpoint": {"Type": "AWS::SageMaker::Endpoint",
                 "Properties": {"EndpointConfigName": {"Fn::GetAtt": ["Config", "Name"]},
                                "Tags": [{"Key": "a", "Value": {"Ref": "Model"}}]}},
}  # fmt: skip


def _template(resources: Any) -> None:
    if not isinstance(resources, dict):
        return
    shape = service_model("sagemaker").operation_model("CreateEndpointConfig").input_shape
    for document in resources.values():
        if isinstance(document, dict):
            with_types(shape, document.get("Properties") or {})


METHODS = st.sampled_from(("POST", "GET", "PUT", "DELETE", "HEAD"))
BODIES = json_bytes(CREATE_MODEL, CREATE_CONFIG, QUOTAS, PRODUCTS) | binary(
    b"Action=AssumeRole&Version=2011-06-15&a=b"
)
CALLS = st.builds(
    Sent,
    method=METHODS,
    path=st.sampled_from(("/", "/bucket", "/bucket/key", "/endpoints/e/invocations",
                          "/endpoints/e/openai/v1/models", "/service/x/operation/y"))
    | texts("/endpoints/e/invocations-response-stream", "/bucket/a/key"),
    service=st.sampled_from(NAMES) | texts("sagemaker"),
    target=st.sampled_from(TARGETS) | texts("SageMaker.CreateModel"),
    query=st.sampled_from(("", "tagging", "Action=x", "a=b&a=c")) | texts("tagging=&uploads&a=%ff"),
    length=st.none() | st.none() | texts("2", "-1", "99999999999", "", "0x10"),
    kind=st.sampled_from(("application/x-amz-json-1.1", "application/x-www-form-urlencoded")),
    body=BODIES,
    host=st.just("127.0.0.1:4566") | texts("bucket.localhost:4566"),
)  # fmt: skip
UNSIGNED = st.builds(
    Sent,
    path=texts("/bucket/key", "//a", "http://x/y", most=1),
    query=texts("a=b", most=2),
    length=st.none() | texts("2", "-1", most=1),
    host=texts("127.0.0.1:4566", "[::1", most=1),
    authorization=st.just("") | texts(SIGNED.format("s3") + ", Signature=abc", "Peagle x", most=2),
)
FAULT = {"operation": "CreateEndpoint", "kind": "insufficient-capacity", "times": 1,
         "instance_type": "ml.g6.xlarge", "seconds": 0.5}  # fmt: skip
QUOTA = {"instance_type": "ml.g6.xlarge", "value": 5.0, "region": "us-east-1"}
INSTANCE = {"instances": [
    {"type": "ml.g9.xlarge", "gpu": "L9", "gpu_count": 1, "gpu_memory_mib": 1000,
     "gpu_architecture": "sm_90", "vcpus": 4, "memory_gib": 16},
]}  # fmt: skip
CLOCK = {"seconds": 5}
CONTROL = st.tuples(
    METHODS,
    st.sampled_from(("/quota", "/faults", "/instances", "/status", "/quotas", "/clock", "/x")),
    json_bytes(FAULT, QUOTA, INSTANCE, CLOCK),
)
TYPED = {"ProductionVariants": CREATE_CONFIG["ProductionVariants"]}
CONTAINER = ACCOUNT["describe_model"]

PARSERS = (
    Parser(
        "sandbox-call",
        _call,
        [
            Sent(target=target, body=encoded(body))
            for target in TARGETS
            for body in (CREATE_MODEL, QUOTAS)
        ]
        + [
            Sent("PUT", "/bucket", "s3", query="tagging", kind="x"),
            Sent(path="/endpoints/e/invocations"),
            Sent(path="/endpoints/e/openai/v1/models", service=""),
            Sent(service="sts", kind="application/x-www-form-urlencoded", body=b"Action=x"),
        ],
        inputs=CALLS,
        prepare=installed,
    ),
    Parser(
        "sandbox-signature",
        _signature,
        [
            Sent(),
            Sent(authorization="Peagle x"),
            Sent(authorization="9" * 60_000),
            Sent(path="http:/\udcff/x"),
            Sent(query="a=\udcff"),
        ],
        inputs=UNSIGNED,
        prepare=installed,
    ),
    Parser(
        "sandbox-control",
        _control,
        [
            ("POST", "/faults", encoded(FAULT)),
            ("GET", "/status", b""),
            ("PUT", "/quota", encoded(QUOTA)),
            ("PUT", "/instances", encoded(INSTANCE)),
            ("PUT", "/clock", encoded(CLOCK)),
        ],
        inputs=CONTROL,
        prepare=installed,
    ),
    Parser("model-archive", _archive, [ARCHIVE], (PeagleError, LaunchFailed), inputs=TARS),
    Parser(
        "sandbox-answer",
        _daemon,
        [response(b"{}"), response(b'{"message": "no"}', 400)],
        PeagleError,
    ),
    Parser("bearer-token", _token, [TOKEN]),
    Parser("launch", _launch, [(TYPED, CONTAINER)], typed=True),
    Parser("template", _template, [TEMPLATE]),
    Parser("trust-policy", may_be_assumed, [json.dumps(ROLE["AssumeRolePolicyDocument"])]),
    Parser("schedule", lambda given: due_time(*given), [(AT, "UTC")]),
)
