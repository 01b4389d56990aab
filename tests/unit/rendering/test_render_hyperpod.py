"""The plan for SageMaker HyperPod's inference operator."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.catalog.tables import InstanceTable
from peagle.cli.main import cli
from peagle.data import data_folder
from peagle.errors import Unsupported
from peagle.options import Overrides
from peagle.planning import Options, Plan, make_plan
from peagle.render import render
from peagle.render.kubernetes import manifest_file, variables
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import arguments
from tests.support import examples, in_process, raises_code
from tests.unit.rendering.kubernetes import (
    NASTY,
    environment_of,
    expanded,
    manifests,
    operator_models,
)
from tests.unit.rendering.plans import CATALOG, SHAPES, limited, plan_of

REFUSED = {
    "two-prefixes": "one S3 prefix",
    "streamed": "weights_by",
    "streamed-and-uploaded": "weights_by",
    "rolled-out": "--rollout",
    "rolled-out-at-once": "--rollout",
    "observed": "--observe",
    "company": "subnets",
    "baked": "the weights are in the image",
}
"""Shapes that cannot be expressed, and the cause."""

EXPRESSED = [shape for shape in SHAPES if shape not in REFUSED]


def spec_of(plan: Plan) -> dict[str, Any]:
    (document,) = manifests("hyperpod", plan)
    spec: dict[str, Any] = document["spec"]
    return spec


def with_options(**options: Any) -> Plan:
    return make_plan(Options(pair="gpt-oss-20b", **options), CATALOG)


@pytest.mark.parametrize("shape", EXPRESSED)
def test_the_operators_own_models_accept_it(shape: str) -> None:
    spec = spec_of(plan_of(shape))
    model = operator_models()._HPEndpoint

    read = model.model_validate(spec)

    assert set(spec) <= set(model.model_fields)  # the model ignores other keys
    assert read.model_dump(exclude_unset=True, by_alias=False) == spec


@pytest.mark.parametrize("shape", REFUSED)
def test_what_belongs_to_an_endpoint_is_refused_by_name(shape: str) -> None:
    with raises_code("format-unsupported", Unsupported) as refused:
        render("hyperpod", plan_of(shape), CATALOG)
    assert REFUSED[shape] in refused.value.message
    assert refused.value.fix.startswith("use ")
    assert "hyperpod" not in refused.value.fix


@pytest.mark.thorough
def test_every_option_of_an_endpoint_is_refused_by_name() -> None:
    company = plan_of("company").company
    tiny = plan_of("uploaded")
    plans = {
        "--ami": tiny.model_copy(update={"overrides": Overrides(ami="default")}),
        "--ttl": limited(),
        "log_retention": with_options(log_retention=7),
        "network_isolation": tiny.model_copy(
            update={"company": company.model_copy(update={"subnets": ()})}
        ),
        "kms_key": with_options(kms_key="alias/models"),
        "capture_retention": with_options(capture_data="s3://captured", capture_retention=9),
        "--scale-to-zero": with_options(
            instance_type="ml.g6e.12xlarge", copies=4, max_instances=2, scale_to_zero=True
        ),
    }
    for option, plan in plans.items():
        with raises_code("format-unsupported", Unsupported) as refused:
            render("hyperpod", plan, CATALOG)
        assert option in refused.value.message


@given(st.dictionaries(st.sampled_from(["CHAT_TEMPLATE", "X", "SEED"]), NASTY, min_size=1))
@settings(max_examples=examples(60))
def test_the_container_gets_the_same_arguments_as_on_an_endpoint(values: dict[str, str]) -> None:
    given = {f"SM_VLLM_{name}": text for name, text in values.items()} | {"HOME": "/root"}
    written = manifest_file("x", [{"env": variables(plan_of("uploaded"), given)}], ["a comment"])

    environment = environment_of(yaml.safe_load(written.content))

    assert environment == given
    assert argv_of(environment) == argv_of(given)


def argv_of(environment: dict[str, str]) -> list[str]:
    """The arguments that the container's entrypoint makes of it, or its error."""
    try:
        return arguments(environment)
    except InvalidEnvironment as error:
        return [error.message]


def test_scaling_follows_requests_at_a_time_per_pod() -> None:
    plan = plan_of("scaled")
    scaling = spec_of(plan)["autoScalingSpec"]
    assert plan.scaling is not None

    assert (scaling["minReplicaCount"], scaling["maxReplicaCount"]) == (2, 5)
    trigger = scaling["prometheusTrigger"]
    assert trigger["targetValue"] == plan.scaling.target_concurrency
    assert trigger["metricType"] == "Average"
    for gauge in ("running", "waiting"):
        assert f'vllm:num_requests_{gauge}{{model_name="openai/gpt-oss-20b"}}' in trigger["query"]


def test_copies_scale_as_pods() -> None:
    plan = with_options(instance_type="ml.g6e.12xlarge", copies=4, min_instances=1, max_instances=3)
    scaling = spec_of(plan)["autoScalingSpec"]
    assert plan.scaling is not None
    assert (scaling["minReplicaCount"], scaling["maxReplicaCount"]) == (
        plan.scaling.min_copies,
        plan.scaling.max_copies,
    )


def test_data_capture_and_tags_are_the_endpoints() -> None:
    plan = with_options(
        capture_data="s3://captured/here",
        capture_percent=5,
        capture_retention=0,
        tags={"cost center": "R+D"},
    )
    spec = spec_of(plan)

    assert spec["dataCapture"]["s3Uri"] == "s3://captured/here"
    assert spec["dataCapture"]["sagemakerEndpoint"]["initialSamplingPercentage"] == 5
    assert spec["tags"] == [{"name": "cost center", "value": "R+D"}]


def test_an_instance_that_the_catalogue_does_not_have_gets_gpus_only() -> None:
    plan = plan_of("uploaded").model_copy(update={"instance_type": "ml.new.xlarge"})
    worker = spec_of(plan)["worker"]
    assert isinstance(CATALOG.instances, InstanceTable)
    assert worker["resources"]["requests"] == {"nvidia.com/gpu": 1}


@pytest.mark.parametrize("shape", EXPRESSED)
def test_the_gate_checks_the_head_and_proves_every_pod(shape: str) -> None:
    plan = plan_of(shape)
    service, job = manifests("hyperpod", plan, "gate.yaml")
    pod = job["spec"]["template"]["spec"]
    (prove,) = pod["containers"]
    checks = pod.get("initContainers", [])

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"app": plan.name.lower()}
    asked = parsed(prove["args"])
    assert asked["url"] == f"http://{service['metadata']['name']}:8080/v1"
    assert asked["instances"] == plan.engines
    assert str(asked["plan_file"]) == "/plan/plan.json"
    assert len(checks) == bool(plan.drafter and plan.drafter.weights)
    for check in checks:
        assert plan.speculation is not None
        found = parsed(check["args"])
        assert found["k"] == plan.speculation.k
        assert found["drafter"]
    for one in (service, job, *pod["volumes"]):
        name = one.get("metadata", one)["name"]
        assert len(name) <= 63


def parsed(words: list[str]) -> dict[str, Any]:
    """The options of a command in a manifest."""
    name, *rest = [expanded(word, {}) for word in words]
    root = cli.make_context("peagle", [name, *rest])
    command = cli.get_command(root, name)
    assert command is not None
    return command.make_context(name, rest, parent=root, resilient_parsing=True).params


def test_the_head_check_of_the_gate_passes_and_fails() -> None:
    _, job = manifests("hyperpod", plan_of("uploaded"), "gate.yaml")
    (check,) = job["spec"]["template"]["spec"]["initContainers"]
    tiny = data_folder("model_catalog") / "peagle" / "tiny"
    places = {"--target": tiny / "target", "--drafter": tiny / "p-eagle"}
    words = [expanded(word, {}) for word in check["args"]]
    for option, place in places.items():
        words[words.index(option) + 1] = str(place)

    fits = in_process(*words)
    words[words.index("--drafter") + 1] = str(tiny / "target")
    wrong = in_process(*words)

    assert fits.code == 0, fits.err
    assert wrong.code == 3
