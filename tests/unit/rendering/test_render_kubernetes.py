"""The plan for HyperPod's inference operator and for KServe: valid by their own schemas, with every
value as it is on an endpoint, and what they cannot express."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.cli.main import cli
from peagle.data import data_folder
from peagle.errors import Unsupported
from peagle.options import Overrides
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Pins
from peagle.render import render
from peagle.render.formats.kserve import additional_arguments, engine_variables
from peagle.render.kubernetes import manifest_file, variables
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import arguments
from tests.support import examples, in_process, raises_code
from tests.unit.rendering.kubernetes import (
    NASTY,
    environment_of,
    expanded,
    from_template,
    manifests,
    operator_models,
    preset,
)
from tests.unit.rendering.plans import CATALOG, SHAPES, limited, plan_of

SCHEMA = json.loads(Path(__file__).with_name("llm_inference_service.json").read_text("utf-8"))
REFUSED = {
    "streamed": "weights_by", "streamed-and-uploaded": "weights_by", "rolled-out": "--rollout",
    "rolled-out-at-once": "--rollout", "observed": "--observe", "company": "subnets",
    "baked": "the weights are in the image",
}  # fmt: skip
"""Shapes that neither can express, and the cause."""
ONE_ALONE = {"hyperpod": {"two-prefixes": "one S3 prefix"}, "kserve": {"scaled": "--max-instances"}}


def expressed(format: str) -> list[str]:
    return [shape for shape in SHAPES if shape not in REFUSED | ONE_ALONE[format]]


def spec_of(plan: Plan, format: str = "hyperpod") -> dict[str, Any]:
    (document,) = manifests(format, plan)
    spec: dict[str, Any] = document["spec"]
    return spec


def with_options(**options: Any) -> Plan:
    return make_plan(Options(**{"pair": "gpt-oss-20b", **options}), CATALOG)


def tiny(**changes: Any) -> Plan:
    return plan_of("uploaded").model_copy(update=changes)


def with_variable(name: str, text: str) -> Plan:
    return tiny(environment={**plan_of("uploaded").environment, name: text})


@pytest.mark.parametrize(
    ("format", "shape", "word"),
    [(name, shape, word) for name, alone in ONE_ALONE.items()
     for shape, word in (REFUSED | alone).items()],
)  # fmt: skip
def test_what_belongs_to_an_endpoint_is_refused_by_name(format: str, shape: str, word: str) -> None:
    with raises_code("format-unsupported", Unsupported) as refused:
        render(format, plan_of(shape), CATALOG)
    assert word in refused.value.message
    assert refused.value.fix.startswith("use ")
    assert format not in refused.value.fix


@pytest.mark.parametrize(("formats", "word", "make"), [
    ("hyperpod kserve", "--ami", lambda: tiny(overrides=Overrides(ami="default"))),
    ("hyperpod kserve", "--ttl", limited),
    ("hyperpod kserve", "--name", lambda: tiny(name="1e3")),
    ("hyperpod", "capture_retention",
     lambda: with_options(capture_data="s3://captured", capture_retention=9)),
    ("hyperpod", "--scale-to-zero",
     lambda: with_options(instance_type="ml.g6e.12xlarge", copies=4, max_instances=2,
                          scale_to_zero=True)),
    ("kserve", "download_timeout", lambda: tiny(overrides=Overrides(download_timeout=600))),
    ("kserve", "PEAGLE_DRAIN_SECONDS",
     lambda: tiny(overrides=Overrides(environment={"PEAGLE_DRAIN_SECONDS": "5"}))),
    ("kserve", "SHA-256", lambda: tiny(pins=Pins(weights="a" * 64))),
    ("kserve", "served-model-name", lambda: with_variable("SM_VLLM_SERVED_MODEL_NAME", "a $(b)")),
    ("kserve", "/opt/ml", lambda: with_variable("SM_VLLM_CHAT_TEMPLATE", "/opt/ml/model/x.jinja")),
])  # fmt: skip
def test_every_option_of_an_endpoint_is_refused_by_name(
    formats: str, word: str, make: Callable[[], Plan]
) -> None:
    for name in formats.split():
        with raises_code("format-unsupported", Unsupported) as refused:
            render(name, make(), CATALOG)
        assert word in refused.value.message


@pytest.mark.parametrize("shape", expressed("hyperpod"))
def test_the_operators_own_models_accept_it(shape: str) -> None:
    spec = spec_of(plan_of(shape))
    model = operator_models()._HPEndpoint
    read = model.model_validate(spec)
    assert set(spec) <= set(model.model_fields)  # the model ignores other keys
    assert read.model_dump(exclude_unset=True, by_alias=False) == spec


@given(st.dictionaries(st.sampled_from(["CHAT_TEMPLATE", "X", "SEED"]), NASTY, min_size=1))
@settings(max_examples=examples(60))
def test_the_container_gets_the_same_variables_as_on_an_endpoint(values: dict[str, str]) -> None:
    named = {f"SM_VLLM_{name}": text for name, text in values.items()} | {"HOME": "/root"}
    env = {"env": variables(plan_of("uploaded"), named)}
    written = manifest_file("x", [env], ["a comment"])
    assert environment_of(yaml.safe_load(written.content)) == named


def test_scaling_follows_requests_at_a_time_per_pod() -> None:
    plan = plan_of("scaled")
    scaling = spec_of(plan)["autoScalingSpec"]
    assert plan.scaling is not None
    assert (scaling["minReplicaCount"], scaling["maxReplicaCount"]) == (2, 5)
    trigger = scaling["prometheusTrigger"]
    assert trigger["targetValue"] == plan.scaling.target_concurrency
    for gauge in ("running", "waiting"):
        assert f'vllm:num_requests_{gauge}{{model_name="openai/gpt-oss-20b"}}' in trigger["query"]
    pods = with_options(instance_type="ml.g6e.12xlarge", copies=4, min_instances=1, max_instances=3)
    scaling = spec_of(pods)["autoScalingSpec"]
    assert pods.scaling is not None
    bounds = (pods.scaling.min_copies, pods.scaling.max_copies)
    assert (scaling["minReplicaCount"], scaling["maxReplicaCount"]) == bounds


def test_data_capture_and_tags_are_the_endpoints() -> None:
    spec = spec_of(
        with_options(capture_data="s3://captured/here", capture_percent=5, capture_retention=0,
                     tags={"cost center": "R+D"})
    )  # fmt: skip
    assert spec["dataCapture"]["s3Uri"] == "s3://captured/here"
    assert spec["dataCapture"]["sagemakerEndpoint"]["initialSamplingPercentage"] == 5
    assert spec["tags"] == [{"name": "cost center", "value": "R+D"}]
    unknown = spec_of(tiny(instance_type="ml.new.xlarge"))["worker"]["resources"]["requests"]
    assert unknown == {"nvidia.com/gpu": 1}, "the catalogue knows neither its memory nor its cores"


@pytest.mark.parametrize("shape", expressed("hyperpod"))
def test_the_gate_checks_the_head_and_proves_every_pod(shape: str) -> None:
    plan = plan_of(shape)
    service, job = manifests("hyperpod", plan, "gate.yaml")
    pod = job["spec"]["template"]["spec"]
    (prove,), checks = pod["containers"], pod.get("initContainers", [])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"app": plan.name.lower()}
    asked = parsed(prove["args"])
    assert asked["url"] == f"http://{service['metadata']['name']}:8080/v1"
    assert (asked["instances"], str(asked["plan_file"])) == (plan.engines, "/plan/plan.json")
    assert len(checks) == bool(plan.drafter and plan.drafter.weights)
    for check in checks:
        assert plan.speculation is not None
        assert parsed(check["args"])["k"] == plan.speculation.k
    assert all(len(each.get("metadata", each)["name"]) <= 63
               for each in (service, job, *pod["volumes"]))  # fmt: skip


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
    folder = data_folder("model_catalog") / "peagle" / "tiny"
    words = [expanded(word, {}) for word in check["args"]]
    for option, place in {"--target": "target", "--drafter": "p-eagle"}.items():
        words[words.index(option) + 1] = str(folder / place)
    fits = in_process(*words)
    words[words.index("--drafter") + 1] = str(folder / "target")
    assert fits.code == 0, fits.err
    assert in_process(*words).code == 3


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a ``vllm`` that prints its arguments."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "vllm"
    program.write_text("#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n")
    program.chmod(0o755)
    return folder


def evaluated(shell: str, script: str, environment: Mapping[str, str], folder: Path) -> list[str]:
    """The arguments of vLLM when that shell runs the preset's script."""
    done = subprocess.run(
        [shell, "-c", script, "--"],
        env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/home", **environment},
        capture_output=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("shape", expressed("kserve"))
def test_kserve_accepts_it_and_its_shell_starts_vllm_as_planned(shape: str, stub: Path) -> None:
    plan = plan_of(shape)
    (document,) = manifests("kserve", plan)
    jsonschema.validate(document, SCHEMA)
    argv = evaluated("/bin/bash", *preset(document), stub)
    name = plan.environment["SM_VLLM_SERVED_MODEL_NAME"]
    assert argv[:4] == ["serve", "/mnt/models", "--served-model-name", name]
    ours = arguments(engine_variables(plan))
    assert argv[argv.index("/space/service") + 1 :] == ours
    planned = arguments({k: v for k, v in plan.environment.items() if k.startswith("SM_VLLM_")})
    given_by_kserve = {"--model", "--revision", "--served-model-name"}
    assert flags(ours) == flags(planned) - given_by_kserve


def flags(argv: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in argv if word.startswith("--")}


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(["CHAT_TEMPLATE", "X", "SEED"]), NASTY, min_size=1))
@settings(max_examples=examples(60), deadline=None)
def test_every_value_reaches_vllm_as_it_is(stub: Path, values: dict[str, str]) -> None:
    """Through the template, Kubernetes and the shell, in bash and in the simplest one."""
    variables = {f"SM_VLLM_{name}": text for name, text in values.items()}
    try:
        intended = arguments(variables)
    except InvalidEnvironment:
        return
    text = expanded(from_template(additional_arguments(variables)), {"HOME": "/home"})
    for shell in ("/bin/bash", "/bin/sh"):
        script = 'eval "exec vllm ${VLLM_ADDITIONAL_ARGS} $@"'
        assert evaluated(shell, script, {"VLLM_ADDITIONAL_ARGS": text}, stub) == intended


def test_a_changed_plan_is_another_member_of_the_same_group() -> None:
    plan = plan_of("from-hub")
    more = plan.model_copy(update={"instance_count": 3})
    (first,), (second,), (third,) = (
        manifests("kserve", each) for each in (plan, with_options(k=3), more)
    )
    assert first["metadata"]["name"] != second["metadata"]["name"]
    routes = [document["spec"]["router"]["route"] for document in (first, second)]
    assert routes[0] == routes[1] == {"group": "peagle-gpt-oss-20b", "weight": 100}
    assert third["metadata"] == first["metadata"], "replicas are no other revision"
