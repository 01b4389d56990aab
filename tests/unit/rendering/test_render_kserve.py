"""The plan for KServe: what its shell makes of the arguments, and what it cannot express."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.errors import Unsupported
from peagle.options import Overrides
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Pins
from peagle.render import render
from peagle.render.formats.kserve import additional_arguments, engine_variables
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import arguments
from tests.support import examples, raises_code
from tests.unit.rendering.kubernetes import NASTY, expanded, from_template, manifests, preset
from tests.unit.rendering.plans import CATALOG, SHAPES, limited, plan_of

SCHEMA = json.loads(
    Path(__file__).with_name("llm_inference_service.json").read_text(encoding="utf-8")
)
REFUSED = {
    "streamed": "weights_by",
    "streamed-and-uploaded": "weights_by",
    "rolled-out": "--rollout",
    "rolled-out-at-once": "--rollout",
    "scaled": "--max-instances",
    "observed": "--observe",
    "company": "subnets",
    "baked": "the weights are in the image",
}
EXPRESSED = [shape for shape in SHAPES if shape not in REFUSED]


def service_of(plan: Plan) -> dict[str, Any]:
    (document,) = manifests("kserve", plan)
    return dict(document)


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


@pytest.mark.parametrize("shape", EXPRESSED)
def test_it_is_valid_by_the_schema_and_the_shell_starts_vllm_as_planned(
    shape: str, stub: Path
) -> None:
    plan = plan_of(shape)
    document = service_of(plan)

    jsonschema.validate(document, SCHEMA)
    argv = evaluated("/bin/bash", *preset(document), stub)

    name = plan.environment["SM_VLLM_SERVED_MODEL_NAME"]
    assert argv[:4] == ["serve", "/mnt/models", "--served-model-name", name]
    own = argv[argv.index("/space/service") + 1 :]
    ours = arguments(engine_variables(plan))
    assert own == ours
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
    rendered = additional_arguments(variables)
    text = expanded(from_template(rendered), {"HOME": "/home"})
    for shell in ("/bin/bash", "/bin/sh"):
        script = 'eval "exec vllm ${VLLM_ADDITIONAL_ARGS} $@"'
        assert evaluated(shell, script, {"VLLM_ADDITIONAL_ARGS": text}, stub) == intended


def test_a_changed_plan_is_another_member_of_the_same_group() -> None:
    one = plan_of("from-hub")
    other = make_plan(Options(pair="gpt-oss-20b", k=3), CATALOG)
    more = one.model_copy(update={"instance_count": 3})
    first, second = service_of(one), service_of(other)

    assert first["metadata"]["name"] != second["metadata"]["name"]
    routes = [document["spec"]["router"]["route"] for document in (first, second)]
    assert routes[0] == routes[1] == {"group": "peagle-gpt-oss-20b", "weight": 100}
    assert service_of(more)["metadata"] == first["metadata"], "replicas are no other revision"


@pytest.mark.parametrize("shape", REFUSED)
def test_what_it_cannot_express_is_refused_by_name(shape: str) -> None:
    with raises_code("format-unsupported", Unsupported) as refused:
        render("kserve", plan_of(shape), CATALOG)
    assert REFUSED[shape] in refused.value.message
    assert refused.value.fix.startswith("use ")
    assert "kserve" not in refused.value.fix


def test_every_other_option_is_refused_by_name() -> None:
    tiny = plan_of("uploaded")

    def own(**overrides: Any) -> Plan:
        return tiny.model_copy(update={"overrides": Overrides(**overrides)})

    def with_variable(name: str, text: str) -> Plan:
        return tiny.model_copy(update={"environment": {**tiny.environment, name: text}})

    plans = {
        "--ami": own(ami="default"),
        "download_timeout": own(download_timeout=600),
        "PEAGLE_DRAIN_SECONDS": own(environment={"PEAGLE_DRAIN_SECONDS": "5"}),
        "SHA-256": tiny.model_copy(update={"pins": Pins(weights="a" * 64)}),
        "--ttl": limited(),
        "--tag": make_plan(Options(pair="tiny", tags={"a": "b"}), CATALOG),
        "--capture-data": make_plan(Options(pair="tiny", capture_data="s3://captured"), CATALOG),
        "--name": tiny.model_copy(update={"name": "1e3"}),
        "served-model-name": with_variable("SM_VLLM_SERVED_MODEL_NAME", "a $(b)"),
        "/opt/ml": with_variable("SM_VLLM_CHAT_TEMPLATE", "/opt/ml/model/x.jinja"),
    }
    for word, plan in plans.items():
        with raises_code("format-unsupported", Unsupported) as refused:
            render("kserve", plan, CATALOG)
        assert word in refused.value.message
