"""A request that AWS would refuse is refused before it is sent, with a fix."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from peagle.errors import PeagleError
from peagle.request_validation import (
    InvalidRequest,
    is_write,
    plan_request_findings,
    require_valid,
    validate,
)
from peagle.request_validation.model import matches
from tests.unit.aws.cloud import ROLE, FakeAws
from tests.unit.aws.plans import IMAGE, a_plan, another
from tests.unit.aws.world import World

REGION = "us-east-1"
S3 = {"S3Uri": "s3://models/pair/", "S3DataType": "S3Prefix", "CompressionType": "None"}
CONTAINER = {
    "Image": IMAGE,
    "Environment": {"SM_VLLM_MODEL": "a/target"},
    "ModelDataSource": {"S3DataSource": S3},
    "AdditionalModelDataSources": [{"ChannelName": "drafter", "S3DataSource": S3}],
}
VARIANT = {
    "VariantName": "AllTraffic",
    "ModelName": "pair-1",
    "InitialInstanceCount": 1,
    "InstanceType": "ml.g5.xlarge",
    "InferenceAmiVersion": "al2023-ami-sagemaker-inference-gpu-4-1",
    "ContainerStartupHealthCheckTimeoutInSeconds": 600,
}
GOOD: dict[str, dict[str, Any]] = {
    "create_model": {
        "ModelName": "pair-1",
        "ExecutionRoleArn": ROLE,
        "PrimaryContainer": CONTAINER,
        "Tags": [{"Key": "peagle:pair", "Value": "a/target+a/head"}],
    },
    "create_endpoint_config": {"EndpointConfigName": "pair-1", "ProductionVariants": [VARIANT]},
    "create_endpoint": {"EndpointName": "pair", "EndpointConfigName": "pair-1"},
    "update_endpoint": {
        "EndpointName": "pair",
        "EndpointConfigName": "pair-1",
        "DeploymentConfig": {
            "RollingUpdatePolicy": {
                "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50},
                "WaitIntervalInSeconds": 60,
            }
        },
    },
}
ENV = "PrimaryContainer.Environment"
MOUNT = "PrimaryContainer.ModelDataSource.S3DataSource"
VAR = "ProductionVariants[0]"
BATCH = "DeploymentConfig.RollingUpdatePolicy.MaximumBatchSize"

BROKEN: list[tuple[str, str, Any, str, str]] = [
    # operation, where a value is put, the value, path and text of the error
    ("create_model", "ModelNam", "x", "ModelNam", "did you mean ModelName"),
    ("create_model", "ModelName", "under_score", "ModelName", "does not match"),
    ("create_model", "ModelName", "x" * 64, "ModelName", "64 characters; allowed: at most 63"),
    ("create_model", "ModelName", "", "ModelName", "does not match"),
    ("create_model", "ModelName", 7, "ModelName", "expected text, found 7"),
    ("create_model", "ModelName", None, "ModelName", "expected text, found nothing"),
    ("create_model", "ExecutionRoleArn", "arn:aws:iam::1:role/x", "ExecutionRoleArn", "pattern"),
    ("create_model", "ExecutionRoleArn", "x", "ExecutionRoleArn", "from 20 to 2048"),
    ("create_model", "EnableNetworkIsolation", "yes", "EnableNetworkIsolation", "true or false"),
    ("create_model", "PrimaryContainer.Image", "a b", "PrimaryContainer.Image", "pattern"),
    ("create_model", "PrimaryContainer.Image", "i" * 256, "PrimaryContainer.Image", "most 255"),
    (
        "create_model",
        "PrimaryContainer.Image",
        "111122223333.dkr.ecr.eu-west-1.amazonaws.com/peagle:1",
        "PrimaryContainer.Image",
        "is in eu-west-1",
    ),
    ("create_model", ENV, {f"K{n}": "" for n in range(101)}, ENV, "101 entries; allowed: at most"),
    ("create_model", ENV, {"K": "v" * 1025}, f"{ENV}.K", "1,025 characters"),
    ("create_model", ENV, {"K": 1}, f"{ENV}.K", "expected text"),
    ("create_model", ENV, {"1K": "v"}, f"{ENV}.1K (the name)", "pattern"),
    ("create_model", ENV, {f"K{n}": "ä" * 512 for n in range(40)}, ENV, "bytes; allowed: 32768"),
    ("create_model", "Containers", [{"Image": "i"}], "", "exactly one of PrimaryContainer"),
    ("create_model", "PrimaryContainer", {}, "", "exactly one of PrimaryContainer"),
    ("create_model", "PrimaryContainer.Image", "", "PrimaryContainer", "Image or ModelPackageName"),
    ("create_model", "PrimaryContainer.ModelDataUrl", "s3://a/b.tar.gz", "PrimaryContainer",
     "are mutually exclusive"),
    ("create_model", f"{MOUNT}.S3Uri", "s3://models/pair", f"{MOUNT}.S3Uri", "write s3://models/pair/"),
    ("create_model", f"{MOUNT}.S3Uri", "s3://models//pair/", f"{MOUNT}.S3Uri", "empty part"),
    ("create_model", f"{MOUNT}.S3Uri", "https://models/pair/", f"{MOUNT}.S3Uri", "not an s3://"),
    ("create_model", f"{MOUNT}.S3Uri", "models/pair/", f"{MOUNT}.S3Uri", "pattern"),
    ("create_model", f"{MOUNT}.S3DataType", "S3Object", f"{MOUNT}.S3Uri", "needs one object"),
    ("create_model", f"{MOUNT}.S3DataType", "S3Prefx", f"{MOUNT}.S3DataType", "did you mean S3Pre"),
    ("create_model", f"{MOUNT}.CompressionType", "Gzip", f"{MOUNT}.CompressionType", "compressed"),
    (
        "create_model",
        "PrimaryContainer.AdditionalModelDataSources",
        [{"ChannelName": "d", "S3DataSource": S3}] * 2,
        "PrimaryContainer.AdditionalModelDataSources",
        "2 entries have the ChannelName 'd'",
    ),
    (
        "create_model",
        "PrimaryContainer.AdditionalModelDataSources",
        [{"ChannelName": "..", "S3DataSource": S3}],
        "PrimaryContainer.AdditionalModelDataSources[0].ChannelName",
        "names no folder",
    ),
    (
        "create_model",
        "PrimaryContainer.AdditionalModelDataSources",
        [{"ChannelName": f"d{n}", "S3DataSource": S3} for n in range(6)],
        "PrimaryContainer.AdditionalModelDataSources",
        "6 entries; allowed: at most 5",
    ),
    ("create_model", "Tags", [{"Key": f"k{n}", "Value": ""} for n in range(51)], "Tags", "most 50"),
    ("create_model", "Tags", [{"Key": "AWS:x", "Value": ""}], "Tags[0].Key", "AWS's own"),
    ("create_model", "Tags", [{"Key": "a", "Value": "b"}] * 2, "Tags", "have the Key 'a'"),
    ("create_model", "Tags", [{"Key": "a", "Value": "b;c"}], "Tags[0].Value", "does not match"),
    ("create_model", "Tags", [{"Key": "a"}], "Tags[0].Value", "missing key"),
    ("create_model", "Tags", {"a": "b"}, "Tags", "expected a list"),
    ("create_endpoint_config", f"{VAR}.InstanceType", "ml.g5.xlrge", f"{VAR}.InstanceType",
     "did you mean ml.g5.xlarge"),
    ("create_endpoint_config", f"{VAR}.InstanceType", "ml.bogus", f"{VAR}.InstanceType",
     "not one of the 277 allowed"),
    ("create_endpoint_config", f"{VAR}.InferenceAmiVersion", "gpu-4-1",
     f"{VAR}.InferenceAmiVersion", "al2023-ami-sagemaker-inference-gpu-4-1"),
    ("create_endpoint_config", f"{VAR}.InstanceType", "ml.c5.xlarge", f"{VAR}.InferenceAmiVersion",
     "cannot use"),
    ("create_endpoint_config", f"{VAR}.InferenceAmiVersion", "al2-ami-sagemaker-inference-neuron-2",
     f"{VAR}.InferenceAmiVersion", "Neuron drivers"),
    ("create_endpoint_config", f"{VAR}.ContainerStartupHealthCheckTimeoutInSeconds", 7200,
     f"{VAR}.ContainerStartupHealthCheckTimeoutInSeconds", "is 7200; allowed: from 60 to 3600"),
    ("create_endpoint_config", f"{VAR}.ModelDataDownloadTimeoutInSeconds", 59,
     f"{VAR}.ModelDataDownloadTimeoutInSeconds", "from 60 to 3600"),
    ("create_endpoint_config", f"{VAR}.InitialInstanceCount", True, f"{VAR}.InitialInstanceCount",
     "expected a whole number, found True"),
    ("create_endpoint_config", f"{VAR}.InitialInstanceCount", 0, f"{VAR}.InitialInstanceCount",
     "at least 1"),
    ("create_endpoint_config", f"{VAR}.VariantName", "a_b", f"{VAR}.VariantName", "pattern"),
    ("create_endpoint_config", f"{VAR}.VolumeSizeInGB", 513, f"{VAR}.VolumeSizeInGB", "to 512"),
    ("create_endpoint_config", f"{VAR}.ServerlessConfig",
     {"MemorySizeInMB": 1024, "MaxConcurrency": 1}, VAR, "exactly one of InstanceType"),
    ("create_endpoint_config", f"{VAR}.ModelName", "", VAR, "needs ExecutionRoleArn"),
    ("create_endpoint_config", f"{VAR}.RoutingConfig", {"RoutingStrategy": "KV"},
     f"{VAR}.RoutingConfig.RoutingStrategy", "allowed: "),
    (
        "create_endpoint_config",
        f"{VAR}.RoutingConfig",
        {"RoutingStrategy": "RANDOM", "PrefixAwareRoutingConfig": {"PrefixLength": 1024}},
        f"{VAR}.RoutingConfig.PrefixAwareRoutingConfig",
        "requires RoutingStrategy PREFIX_AWARE",
    ),
    (
        "create_endpoint_config",
        f"{VAR}.ManagedInstanceScaling",
        {"MinInstanceCount": 3, "MaxInstanceCount": 2},
        f"{VAR}.ManagedInstanceScaling.MinInstanceCount",
        "make MaxInstanceCount the larger",
    ),
    ("create_endpoint_config", "ProductionVariants", [], "ProductionVariants", "from 1 to 10"),
    ("create_endpoint_config", "ProductionVariants", [VARIANT] * 2, "ProductionVariants",
     "2 entries have the VariantName 'AllTraffic'"),
    ("create_endpoint", "EndpointName", "-a", "EndpointName", "does not match"),
    ("create_endpoint", "EndpointName", "e" * 64, "EndpointName", "at most 63"),
    ("update_endpoint", f"{BATCH}.Value", 51, f"{BATCH}.Value", "from 5 to 50"),
    ("update_endpoint", "DeploymentConfig.BlueGreenUpdatePolicy", {
        "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 0}},
     "DeploymentConfig", "are mutually exclusive"),
]  # fmt: skip


def put(document: Any, path: str, value: Any) -> Any:
    """A copy of ``document`` with ``value`` at ``path``."""
    changed = copy.deepcopy(document)
    *steps, last = path.replace("[0]", ".0").split(".")
    place = changed
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


@pytest.mark.parametrize("operation", GOOD)
def test_a_valid_request_passes(operation: str) -> None:
    assert validate("sagemaker", operation, GOOD[operation], REGION) == ()


@pytest.mark.parametrize(
    ("operation", "place", "value", "path", "text"),
    BROKEN,
    ids=[f"{n}-{broken[3]}" for n, broken in enumerate(BROKEN)],
)
def test_an_invalid_value_is_reported(
    operation: str, place: str, value: Any, path: str, text: str
) -> None:
    found = validate("sagemaker", operation, put(GOOD[operation], place, value), REGION)

    reported = {problem.path: f"{problem.message} {problem.fix}" for problem in reversed(found)}
    assert text in reported[path]


def test_a_missing_key_is_reported() -> None:
    (found,) = validate("sagemaker", "create_endpoint", {"EndpointName": "e"}, REGION)

    assert (found.path, found.message) == ("EndpointConfigName", "missing key")


def test_the_limits_are_exact() -> None:
    full = {f"K{n:02}": "v" * 1021 for n in range(32)}
    assert sum(len(k) + len(v) for k, v in full.items()) == 32 * 1024
    model = put(GOOD["create_model"], ENV, full)
    assert validate("sagemaker", "create_model", model, REGION) == ()

    over = put(model, f"{ENV}.K00", "v" * 1022)

    assert [p.path for p in validate("sagemaker", "create_model", over, REGION)] == [ENV]


def test_the_environments_of_all_containers_count_together() -> None:
    half = {"Image": IMAGE, "Environment": {f"K{n}": "v" * 1000 for n in range(17)}}
    model = {"ModelName": "m", "ExecutionRoleArn": ROLE, "Containers": [half]}
    assert validate("sagemaker", "create_model", model, REGION) == ()

    model["Containers"] = [half, half]

    (found,) = validate("sagemaker", "create_model", model, REGION)
    assert "all containers" in found.message


def test_one_error_names_operation_key_value_and_the_nearest() -> None:
    wrong = put(GOOD["create_endpoint_config"], f"{VAR}.InstanceType", "ml.g5.xlrge")
    wrong = put(wrong, "EndpointConfigName", "a_b")

    with pytest.raises(InvalidRequest) as refused:
        require_valid("sagemaker", "create_endpoint_config", wrong, REGION)

    assert isinstance(refused.value, PeagleError)
    assert refused.value.exit_code == 3
    assert str(refused.value).startswith("CreateEndpointConfig: EndpointConfigName: 'a_b'")
    assert "1 more: ProductionVariants[0].InstanceType" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_requests_to_other_services_are_checked() -> None:
    bad = {"RoleName": "has space", "AssumeRolePolicyDocument": "{}"}
    assert [p.path for p in validate("iam", "create_role", bad, REGION)] == ["RoleName"]
    for name in ("Caps", "ab", "a_b", "1.2.3.4", "a..b", "b" * 64):
        (found,) = validate("s3", "create_bucket", {"Bucket": name}, REGION)
        assert found.path == "Bucket"
    assert validate("s3", "create_bucket", {"Bucket": "peagle-sagemaker-x-1"}, REGION) == ()
    where = {"Bucket": "abc", "CreateBucketConfiguration": {"LocationConstraint": "eu-wst-1"}}
    (found,) = validate("s3", "create_bucket", where, REGION)
    assert "eu-west-1" in found.fix
    tagging = {"Bucket": "abc", "Tagging": {"TagSet": [{"Key": "aws:a", "Value": ""}]}}
    (found,) = validate("s3", "put_bucket_tagging", tagging, REGION)
    assert found.path == "Tagging.TagSet[0].Key"
    target = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": "endpoint/e/variant/v",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "MinCapacity": 2,
        "MaxCapacity": 1,
    }
    service = "application-autoscaling"
    (found,) = validate(service, "register_scalable_target", target, REGION)
    assert found.path == "MinCapacity"


ALARM = {
    "AlarmName": "a", "ComparisonOperator": "LessThanThreshold", "EvaluationPeriods": 2,
    "Threshold": 1.0,
}  # fmt: skip
STAT = {"Metric": {"Namespace": "N", "MetricName": "M"}, "Period": 60, "Stat": "Sum"}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"Period": 60, "EvaluationPeriods": 1440}, None),
        ({"Period": 60, "EvaluationPeriods": 1441}, "EvaluationPeriods"),
        ({"Period": 3600, "EvaluationPeriods": 168}, None),
        ({"Period": 3600, "EvaluationPeriods": 169}, "EvaluationPeriods"),
        ({"Metrics": [{"Id": "a", "MetricStat": STAT}]}, None),
        ({"Metrics": [{"Id": "a", "MetricStat": STAT, "ReturnData": False}]}, "Metrics"),
    ],
)
def test_an_alarm_has_one_value_and_evaluates_at_most_a_day_of_short_periods(
    changes: dict[str, Any], path: str | None
) -> None:
    found = validate("cloudwatch", "put_metric_alarm", {**ALARM, **changes}, REGION)
    assert [one.path for one in found] == ([path] if path else [])


def test_an_invalid_request_is_not_sent(world: World) -> None:
    wrong = put(GOOD["create_endpoint"], "EndpointName", "under_score")

    with pytest.raises(InvalidRequest):
        world.aws.call("sagemaker", "create_endpoint", **wrong)

    assert world.cloud.calls == []


def test_every_request_of_deploy_is_checked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def record(service: str, operation: str, *more: Any) -> None:
        checked.append(operation)
        require_valid(service, operation, *more)

    monkeypatch.setattr("peagle.aws.client.require_valid", record)

    world.deploy(a_plan())
    world.deploy(another(a_plan()))

    assert {"create_model", "create_endpoint_config", "create_endpoint", "update_endpoint"} <= {
        *checked
    }
    assert [call for call in world.cloud.calls if is_write(call)] == checked


def test_reading_requests_are_not_checked() -> None:
    for operation in ("describe_endpoint", "list_tags", "get_role", "head_object",
                      "invoke_endpoint", "delete_model", "filter_log_events"):  # fmt: skip
        assert not is_write(operation)


def test_preflight_refuses_before_anything_is_created(world: World) -> None:
    plan = a_plan(environment={"SM_VLLM_MODEL": "v" * 1025}, name="peagle-pair")

    found = world.preflight(plan)

    (finding,) = [f for f in found.findings if f.code == "request-invalid"]
    assert finding.level == "error"
    assert finding.where == "CreateModel PrimaryContainer.Environment.SM_VLLM_MODEL"
    assert not any(is_write(call) for call in world.cloud.calls)


def test_a_plan_is_valid_for_every_role_and_bucket() -> None:
    assert plan_request_findings(a_plan()) == ()

    (finding,) = plan_request_findings(
        a_plan(download_timeout_seconds=600, instance_type="ml.g5.xlrge")
    )

    assert finding.where.endswith("ProductionVariants[0].InstanceType")


@pytest.mark.parametrize(
    ("value", "fits"),
    [("Zürich 漢字 ½ _.:/=+-@", True), ("", True), ("a;b", False), ("🙂", False), ("a\nb", False)],
)
def test_java_classes_are_those_of_unicode(value: str, fits: bool) -> None:
    assert matches(r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)", value) is fits


def test_a_pattern_that_python_cannot_read_forbids_nothing() -> None:
    assert matches(r"([\p{L}]*)${1,128}", "anything")


COPY = {"Bucket": "models-b", "Key": "b/model"}


@pytest.mark.parametrize(
    "source",
    [
        "models-a/a/model",
        {"Bucket": "models-a", "Key": "a/model"},
        {"Bucket": "models-a", "Key": "a/model", "VersionId": "1"},
    ],
)
def test_a_copy_source_may_be_given_in_parts(source: Any) -> None:
    assert validate("s3", "copy_object", {**COPY, "CopySource": source}, REGION) == ()


@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ({"Bucket": "models-a"}, "CopySource.Key", "missing key"),
        ({"Bucket": 3, "Key": "a"}, "CopySource.Bucket", "expected text, found 3"),
        (3, "CopySource", "expected text, found 3"),
    ],
)
def test_a_copy_source_is_checked(source: Any, path: str, message: str) -> None:
    (found,) = validate("s3", "copy_object", {**COPY, "CopySource": source}, REGION)

    assert (found.path, found.message) == (path, message)


def test_the_client_of_the_tests_checks_requests(world: World) -> None:
    assert isinstance(world.aws, FakeAws)
