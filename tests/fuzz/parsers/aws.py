"""AWS's answers, as botocore has parsed them: of the right types, with anything in the texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

from botocore.exceptions import ClientError

from peagle.aws import ecr, runtime
from peagle.aws import images as codebuild
from peagle.aws.client import Aws, translated
from peagle.aws.errors import Missing
from peagle.aws.prices import QuotaNeed, prices_in, quota_findings
from peagle.aws.refresh import sdk_images
from peagle.aws.runtime import Tail
from peagle.aws.s3 import S3Source
from peagle.aws.sagemaker import describe_component
from peagle.aws.vpc import find_routes, find_security_groups, find_subnets
from peagle.catalog import load_catalog
from peagle.deploy.diff import changes
from peagle.deploy.discover import find_deployment, find_deployments
from peagle.deploy.revisions import proof_in, revision_in
from peagle.errors import PeagleError
from peagle.protocol import engine_message
from peagle.warm import _container_reply
from tests.fuzz.inputs import encoded
from tests.fuzz.parser import Parser
from tests.fuzz.parsers.account import (
    ACCOUNT,
    BUILD,
    CODES,
    IMAGES,
    KEPT,
    LOGIN,
    MESSAGES,
    NOW,
    PRODUCT,
    QUOTA,
    REGION,
    TAGS,
)
from tests.fuzz.parsers.engines import ANSWER, COUNTERS, FAILURE, PIECE, STREAM, WHOLE_LOG
from tests.fuzz.parsers.files import folder, written
from tests.unit.aws.network import GROUP, NAT, S3_GATEWAY, SUBNETS, Network, group, table


class Answers(Aws):
    """A connection on which every operation has one answer; without one, nothing exists."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(None, REGION, own_scope="123456789012")
        self.answers: Mapping[str, Any] = answers

    def in_region(self, region: str) -> Aws:
        return self

    def best_effort(self) -> Aws:
        return self

    def client(self, service: str) -> Any:
        return SimpleNamespace(meta=SimpleNamespace(endpoint_url="https://x.amazonaws.com"))

    def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        if operation not in self.answers:
            raise Missing(f"{operation}: it does not exist")
        found = self.answers[operation]
        return found if isinstance(found, dict) else {"Contents": found}

    def items(
        self, service: str, operation: str, key: str, **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        yield from self.answers.get(operation, ())

    def events(self, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        yield from self.answers[operation]

    caller: Any = {"Account": "123456789012", "Arn": "arn:aws:sts::123456789012:assumed-role/x/y"}


def _account(answers: Any) -> None:
    described = {
        name: {**answer, "CreationTime": NOW, "LastModifiedTime": NOW} if "describe" in name
        else answer for name, answer in answers.items()
    }  # fmt: skip
    aws = Answers(**described)
    found = [find_deployment(aws, "mine"), *find_deployments(aws)[0]]
    revisions = [one for each in found if each for one in each.revisions]
    for before in revisions:
        other = before.served.model_copy(update={"variables": {"A_TOKEN": "x"}, "settings": {}})
        changes(before.served, other)
        changes(other, revisions[0].served)


COMPONENT = {
    "InferenceComponentName": "mine",
    "InferenceComponentArn": "arn:aws:sagemaker:us-east-1:123456789012:inference-component/mine",
    "InferenceComponentStatus": "InService",
    "Specification": {"ModelName": "mine-0a1b2c3d", "StartupParameters": {}},
    "RuntimeConfig": {"DesiredCopyCount": 4, "CurrentCopyCount": 3},
}


def _component(answer: dict[str, Any]) -> None:
    answers = Answers(describe_inference_component={**answer, "LastModifiedTime": NOW})
    describe_component(answers, "mine")


def _proof(tags: dict[str, str]) -> None:
    proof_in(tags, "0a1b2c3d")
    revision_in(tags, "peagle:previous")


def _quota(case: tuple[Any, Any]) -> None:
    quota, account = case
    aws = Answers(
        get_service_quota={"Quota": quota}, list_service_quotas=[quota],
        list_aws_default_service_quotas=[quota],
        **{name: account[name] for name in ("list_endpoints", "describe_endpoint",
                                            "describe_endpoint_config")},
    )  # fmt: skip
    need = QuotaNeed("ml.g6.xlarge", 1, 1)
    with mock.patch.dict("os.environ", {"PEAGLE_HOME": str(folder() / "home")}):
        quota_findings(aws, need, load_catalog().instances)


def _prices(row: str) -> None:
    prices_in([row], REGION)


def _images(content: bytes) -> None:
    place = written("sdk/vllm.json", content)
    package = SimpleNamespace(version="1", locate_file=lambda name: place)
    with mock.patch("importlib.metadata.distribution", return_value=package):
        sdk_images(load_catalog().runtimes)


def _network(answers: Any) -> None:
    aws = Answers(**answers)
    find_subnets(aws, ["subnet-0a1b2c3d"])
    find_security_groups(aws, [GROUP])
    find_routes(aws, "vpc-1", SUBNETS)


def _build(case: Any) -> None:
    aws = Answers(batch_get_builds={"builds": case["builds"]},
                  get_log_events={"events": case["events"], "nextForwardToken": None})  # fmt: skip
    codebuild._wait(aws, "id", lambda line: None, mock.Mock())


def _login(token: str) -> None:
    ecr.login(Answers(get_authorization_token={"authorizationData": [
        {"authorizationToken": token}]}), "host")  # fmt: skip


def _error(case: tuple[str, str, int, str]) -> None:
    code, message, status, original = case
    response: Any = {
        "Error": {"Code": code, "Message": message}, "OriginalStatusCode": status,
        "OriginalMessage": original, "ResponseMetadata": {"HTTPStatusCode": status},
    }  # fmt: skip
    engine_message(original)
    try:
        with translated("sagemaker", REGION):
            raise ClientError(response, "CreateEndpoint")
    except PeagleError as error:
        _container_reply(error)


def _invoked(body: bytes) -> None:
    class Body:
        def read(self) -> bytes:
            return body

    aws = Answers(invoke_endpoint={"Body": Body()})
    runtime.counters(aws, "mine")
    runtime.ask(aws, "mine", {})


def _streamed(parts: list[bytes]) -> None:
    events = [{"PayloadPart": {"Bytes": part}} for part in parts]
    list(runtime.stream(Answers(invoke_endpoint_with_response_stream=events), "mine", {}))


def _tail(messages: list[str]) -> None:
    entries = [
        {"eventId": str(at), "timestamp": at, "message": message, "logStreamName": "v/i-1"}
        for at, message in enumerate(messages)
    ]
    Tail(Answers(filter_log_events=entries), "mine", 0.0).drain()


def _listing(entries: Any) -> None:
    source = S3Source(Answers(list_objects_v2=entries), "s3://bucket/peagle")
    source.names()


_NETWORK = {
    "describe_subnets": {"Subnets": Network().subnets},
    "describe_security_groups": {
        "SecurityGroups": [group(), group(IpProtocol="tcp", FromPort=80, ToPort=443)]
    },
    "describe_route_tables": {"RouteTables": [table(NAT), table(NAT, subnet=SUBNETS[0])]},
    "describe_vpc_endpoints": {"VpcEndpoints": [S3_GATEWAY]},
}
PARSERS = (
    Parser("network", _network, [_NETWORK], PeagleError, typed=True),
    Parser("account", _account, [ACCOUNT], PeagleError, typed=True, kept=KEPT),
    Parser("proof-tag", _proof, [TAGS]),
    Parser("quotas", _quota, [(QUOTA, ACCOUNT)], PeagleError, typed=True, kept=KEPT),
    Parser(
        "inference-component",
        _component,
        [COMPONENT],
        PeagleError,
        typed=True,
        kept=("InferenceComponentName", "InferenceComponentArn"),
    ),
    Parser("price-list", _prices, [json.dumps(PRODUCT)], PeagleError),
    Parser("image-table", _images, [encoded(IMAGES)], PeagleError),
    Parser("codebuild", _build, [BUILD], PeagleError, typed=True),
    Parser("ecr-login", _login, [LOGIN], PeagleError),
    Parser(
        "aws-error",
        _error,
        [(code, message, 400, json.dumps(FAILURE)) for code in CODES for message in MESSAGES],
    ),
    Parser(
        "invocation",
        _invoked,
        [encoded(answer) for answer in (ANSWER, COUNTERS, FAILURE)],
        PeagleError,
    ),
    Parser("event-stream", _streamed, [[STREAM[:50], STREAM[50:]], [encoded(PIECE)]], PeagleError),
    Parser("log-events", _tail, [WHOLE_LOG]),
    Parser(
        "s3-listing",
        _listing,
        [[{"Key": "peagle/config.json", "Size": 3, "ETag": f'"{"a" * 32}"'}]],
        PeagleError,
        typed=True,
    ),
)
