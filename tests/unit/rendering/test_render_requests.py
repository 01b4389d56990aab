"""The three calls: valid for AWS, named by their content, complete."""

from __future__ import annotations

import re

import pytest

from peagle.planning import Plan
from peagle.render import requests
from tests.support import plan_request_findings
from tests.unit.rendering.plans import ALL_PAIRS, SHAPES, plan_for, plan_of


def parameters(plan: Plan) -> list[dict[str, object]]:
    return [request.parameters for request in requests(plan)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_requests_are_valid_for_aws(shape: str) -> None:
    assert plan_request_findings(plan_of(shape)) == ()


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_the_requests_of_every_bundled_pair_are_valid_for_aws(pair: str) -> None:
    assert plan_request_findings(plan_for(pair)) == ()


def test_the_calls_are_in_order() -> None:
    made = requests(plan_of("from-hub"))
    assert [(r.service, r.operation) for r in made] == [
        ("sagemaker", "create_model"),
        ("sagemaker", "create_endpoint_config"),
        ("sagemaker", "create_endpoint"),
    ]


def test_the_calls_refer_to_each_other() -> None:
    plan = plan_of("from-hub")
    model, config, endpoint = (r.parameters for r in requests(plan))
    (variant,) = config["ProductionVariants"]
    assert variant["ModelName"] == model["ModelName"]
    assert endpoint["EndpointConfigName"] == config["EndpointConfigName"]
    assert endpoint["EndpointName"] == plan.name
    assert model["ExecutionRoleArn"] == "${ExecutionRoleArn}"


def test_the_requests_contain_the_plan() -> None:
    plan = plan_of("two-prefixes")
    model, config, _ = (r.parameters for r in requests(plan))
    container, (variant,) = model["PrimaryContainer"], config["ProductionVariants"]
    assert container["Image"] == plan.runtime.image
    assert container["Environment"] == plan.environment
    assert container["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": "s3://models/qwen3-8b/",
        "S3DataType": "S3Prefix",
        "CompressionType": "None",
    }
    (additional,) = container["AdditionalModelDataSources"]
    assert additional["ChannelName"] == "drafter"
    assert additional["S3DataSource"]["S3Uri"] == "s3://heads/qwen3-8b/"
    assert variant["InstanceType"] == plan.instance_type
    assert variant["InferenceAmiVersion"] == plan.runtime.ami
    assert variant["ModelDataDownloadTimeoutInSeconds"] == plan.download_timeout_seconds
    assert variant["ContainerStartupHealthCheckTimeoutInSeconds"] == plan.startup_timeout_seconds


def test_optional_parameters_are_omitted() -> None:
    model, config, _ = (r.parameters for r in requests(plan_of("from-hub")))
    assert set(model["PrimaryContainer"]) == {"Image", "Environment"}
    (variant,) = config["ProductionVariants"]
    assert "ModelDataDownloadTimeoutInSeconds" not in variant
    assert "RoutingConfig" not in variant
    (variant,) = requests(plan_of("no-ami"))[1].parameters["ProductionVariants"]
    assert "InferenceAmiVersion" not in variant


def test_two_instances_share_the_load() -> None:
    (variant,) = requests(plan_of("two-instances"))[1].parameters["ProductionVariants"]
    assert variant["InitialInstanceCount"] == 2
    assert variant["RoutingConfig"] == {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}


def test_names_depend_on_the_content() -> None:
    plan = plan_of("from-hub")
    model, config, _ = (r.parameters for r in requests(plan))
    assert re.fullmatch(r"peagle-gpt-oss-20b-[0-9a-f]{8}", model["ModelName"])
    assert config["EndpointConfigName"] == model["ModelName"]
    assert requests(plan) == requests(plan_of.__wrapped__("from-hub"))
    other = plan.model_copy(update={"instance_count": 3})
    assert requests(other)[0].parameters["ModelName"] != model["ModelName"]
    without_texts = plan.model_copy(update={"findings": (), "reasons": ()})
    assert requests(without_texts) == requests(plan)


def test_a_long_name_is_shortened_for_the_hash() -> None:
    model, _, endpoint = (r.parameters for r in requests(plan_of("draftless")))
    assert endpoint["EndpointName"] == "a" * 63
    assert re.fullmatch(r"a{54}-[0-9a-f]{8}", model["ModelName"])
    hyphens = plan_of("from-hub").model_copy(update={"name": f"{'a' * 50}{'-' * 9}aaa"})
    assert "--" not in requests(hyphens)[0].parameters["ModelName"]


def test_all_resources_have_the_same_tags() -> None:
    plan = plan_of("from-hub")
    tags = [r.parameters["Tags"] for r in requests(plan)]
    assert tags[0] == tags[1] == tags[2]
    values = {tag["Key"]: tag["Value"] for tag in tags[0]}
    name = requests(plan)[0].parameters["ModelName"]
    assert values == {
        "peagle:deployment": plan.name,
        "peagle:pair": plan.pair,
        "peagle:plan": name[-8:],
    }


def test_invalid_characters_of_a_tag_are_replaced() -> None:
    tags = requests(plan_of("own-folder"))[0].parameters["Tags"]
    assert tags[1]["Value"] == "openai/gpt-oss-20b+/data/my head_s _best_"
