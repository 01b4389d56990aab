"""What a rendered Terraform module made; skips without terraform or a mirror of its provider."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle.sandbox.client import set_quota
from tests.iac.test_terraform import mirrors, run
from tests.sandbox.owners import (
    TYPE,
    Machine,
    check_a_foreign_deployment,
    check_an_adopted_deployment,
    reaching,
    upload_weights,
)
from tests.sandbox.sandboxes import BUCKET, ROLE, Account

pytestmark = pytest.mark.sandbox

NAME = "by-module"
VARIABLES = ("-var", f"execution_role_arn={ROLE}", "-var", f"model_bucket={BUCKET}")
OPTIONS = ("-input=false", "-no-color", *VARIABLES)


@pytest.fixture
def machine(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    for name, value in reaching(account).items():
        monkeypatch.setenv(name, value)
    with account.sandbox.at_home():
        set_quota(TYPE, 40)
    return Machine(tmp_path / "home", account)


@pytest.fixture
def module(machine: Machine, tmp_path: Path) -> Path:
    """The rendered module with the provider of the mirror, which does not know the newest AMI."""
    mirror = next(mirrors(), None)
    if shutil.which("terraform") is None or mirror is None:
        pytest.skip("no terraform with an offline mirror of hashicorp/aws on this machine")
    folder = machine.render("terraform", NAME, tmp_path / "module")
    main = folder / "main.tf.json"
    document = json.loads(main.read_text())
    document["terraform"]["required_providers"]["aws"]["version"] = ">= 5.100"
    config = document["resource"]["aws_sagemaker_endpoint_configuration"]["this"]
    del config["production_variants"][0]["inference_ami_version"]
    main.write_text(json.dumps(document))
    (folder / "terraform.rc").write_text(
        f'provider_installation {{\n  filesystem_mirror {{ path = "{mirror}" }}\n}}\n'
    )
    done = run(folder, "init", "-backend=false", "-input=false", "-no-color")
    assert done.returncode == 0, done.stderr
    return folder


def test_what_a_module_made(machine: Machine, module: Path) -> None:
    upload_weights(machine.account, NAME)
    done = run(module, "apply", "-auto-approve", *OPTIONS)
    assert done.returncode == 0, done.stderr

    check_a_foreign_deployment(machine, NAME, "a Terraform module")

    again = run(module, "plan", "-detailed-exitcode", *OPTIONS)
    assert again.returncode == 0, f"the tag of the proof is no change: {again.stdout}"
    check_an_adopted_deployment(machine, NAME)
