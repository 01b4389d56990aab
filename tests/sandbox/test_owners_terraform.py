"""What a rendered Terraform module makes; skips without terraform or a mirror of its provider."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.planning import Plan
from peagle.render import requests
from peagle.sandbox.client import set_quota
from tests.iac.formats import Described, from_api, from_planned
from tests.iac.terraform import change, configure, relax, run, running_provider, write_module
from tests.sandbox.owners import (
    TYPE,
    Machine,
    check_a_foreign_deployment,
    left_of,
    reaching,
    upload_weights,
)
from tests.sandbox.sandboxes import BUCKET, ROLE, Account
from tests.unit.rendering.plans import SHAPES, limited, plan_of

pytestmark = [pytest.mark.sandbox, pytest.mark.exhaustive]
NAME = "by-module"
VARIABLES = ("-var", f"execution_role_arn={ROLE}", "-var", f"model_bucket={BUCKET}")
# One request at a time, so that the log of the sandbox shows what each was for.
OPTIONS = ("-input=false", "-no-color", "-parallelism=1", *VARIABLES)


@pytest.fixture(scope="module")
def variables(account: Account) -> Iterator[dict[str, str]]:
    """With which Terraform reaches the account, through a provider that runs already."""
    network = reaching(account)
    with running_provider(network) as attached:
        yield network | attached


@pytest.fixture
def machine(
    account: Account, variables: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with account.sandbox.at_home():
        set_quota(TYPE, 40)
    return Machine(tmp_path / "home", account)


def rendered(machine: Machine, folder: Path, *options: str) -> Path:
    """The rendered module, initialized."""
    machine.render("terraform", NAME, folder, *options)
    relax(folder)
    return initialized(folder)


def initialized(folder: Path) -> Path:
    configure(folder)
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def applied(folder: Path) -> subprocess.CompletedProcess[str]:
    return run(folder, "apply", "-auto-approve", *OPTIONS)


def apply(folder: Path, machine: Machine) -> None:
    """An apply that succeeds."""
    done = applied(folder)
    assert done.returncode == 0, f"{done.stderr}\n{machine.account.sandbox.log_end()}"


def test_what_a_module_made(machine: Machine, tmp_path: Path) -> None:
    module = rendered(machine, tmp_path / "module")
    upload_weights(machine.account, NAME)
    apply(module, machine)
    check_a_foreign_deployment(machine, NAME, "a Terraform module")
    again = run(module, "plan", "-detailed-exitcode", *OPTIONS)
    assert again.returncode == 0, f"the tag of the proof is no change: {again.stdout}"
    done = run(module, "destroy", "-auto-approve", *OPTIONS)
    assert done.returncode == 0, done.stderr


def test_an_update_that_is_rolled_back_fails_and_deletes_nothing_that_serves(
    machine: Machine, tmp_path: Path
) -> None:
    """The provider calls such an update a success (terraform-provider-aws 46663 and 48997)."""
    module = rendered(machine, tmp_path / "module", "--max-instances", "2")
    upload_weights(machine.account, NAME)
    apply(module, machine)
    account = machine.account
    assert scaled(account) == [(1, 2)]
    serving = account.describe(NAME)["EndpointConfigName"]
    good = (module / "values.json").read_text()
    change(module, lambda values: values["model"]["environment"].update(VLLM_FAKE_ENGINE="crash"))
    failed = applied(module)
    assert_serves_as_before(failed, account, serving)
    change(module, lambda values: values["model"]["environment"].update(ANOTHER="try"))
    again = applied(module)
    assert_serves_as_before(again, account, serving)
    (module / "values.json").write_text(good)
    apply(module, machine)
    served = account.describe(NAME)["EndpointConfigName"]
    assert served != serving, "names are not used twice"
    assert len(left_of(account, NAME)) == 3, "what served, and the failed ones, are removed"
    done = run(module, "destroy", "-auto-approve", *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert left_of(account, NAME) == []
    assert scaled(account) == []


def assert_serves_as_before(
    failed: subprocess.CompletedProcess[str], account: Account, serving: str
) -> None:
    """The apply failed with the reason, and what serves is there with its model."""
    assert failed.returncode == 1
    words = " ".join(failed.stderr.replace("│", " ").split())
    assert f"SageMaker rolled the update of {NAME} back: {serving} still serves" in words, (
        f"{words}\n{account.sandbox.log_end()}"
    )
    assert account.describe(NAME)["EndpointConfigName"] == serving
    config = account.sagemaker.describe_endpoint_config(EndpointConfigName=serving)
    (variant,) = config["ProductionVariants"]
    account.sagemaker.describe_model(ModelName=variant["ModelName"])


def scaled(account: Account) -> list[tuple[int, int]]:
    """The bounds of all endpoints that scale."""
    scaling = account.client("application-autoscaling")
    targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"]
    return [(target["MinCapacity"], target["MaxCapacity"]) for target in targets]


def test_the_module_makes_of_the_values_what_the_requests_ask_for(
    machine: Machine, tmp_path: Path
) -> None:
    """One plan for every shape: the root module with a list of values."""
    shapes = {shape: plan_of(shape) for shape in SHAPES if shape != "two-prefixes"}
    shapes["limited"] = limited()
    values = {}
    for shape, plan in shapes.items():
        write_module(tmp_path, plan)
        values[shape] = json.loads((tmp_path / "values.json").read_text())
    (tmp_path / "values.json").write_text(json.dumps(values))
    root = tmp_path / "main.tf"
    root.write_text(for_each(root.read_text()))
    initialized(tmp_path)
    end = ("-var", "ends_at=2030-01-31T20:00:00")
    done = run(tmp_path, "plan", "-out=planned", *OPTIONS, *end)
    assert done.returncode == 0, done.stderr
    shown = json.loads(run(tmp_path, "show", "-json", "planned").stdout)
    modules = shown["planned_values"]["root_module"]["child_modules"]
    resources = {module["address"].split('"')[1]: module["resources"] for module in modules}
    assert {shape: from_planned(resources[shape]) for shape in shapes} == {
        shape: asked(plan) for shape, plan in shapes.items()
    }
    (schedule,) = [
        module for module in resources["limited"] if module["type"] == "aws_scheduler_schedule"
    ]
    assert schedule["values"]["schedule_expression"] == "at(2030-01-31T20:00:00)"


def for_each(root: str) -> str:
    """The root module that calls its module once for each of the values."""
    text = root[: root.index("output ")].replace("local.values.", "each.value.")
    text = text.replace("each.value.region", '"us-east-1"')
    return text.replace('module "endpoint" {', 'module "endpoint" {\n  for_each = local.values')


def asked(plan: Plan) -> Described:
    """What the requests of the plan ask for, without the AMI, which is new to the provider."""
    model, config, endpoint = (request.parameters for request in requests(plan))
    text = json.dumps([model, config, endpoint])
    text = text.replace("${ExecutionRoleArn}", ROLE).replace("${ModelBucket}", BUCKET)
    model, config, endpoint = json.loads(text)
    config["ProductionVariants"][0].pop("InferenceAmiVersion", None)
    return from_api(model, config, endpoint)
