"""Deploy with weights in S3, against the sandbox."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sandbox.sandboxes import Account, Sandbox

pytestmark = pytest.mark.sandbox
NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--name", NAME, "--instance-type", "ml.g5.xlarge", "--sandbox",
          "--yes")  # fmt: skip
PAIR = "s3://models/tiny/"
IN_S3 = ("--model-source", f"{PAIR}target/", "--drafter", f"{PAIR}drafter/")


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


@pytest.fixture
def copied(sandbox: Sandbox, account: Account) -> Iterator[Account]:
    """The pair in S3."""
    sandbox.json("weights", "sync", "tiny", PAIR, "--sandbox", "--yes")
    yield account
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def _container(account: Account) -> dict[str, Any]:
    """What the model was created with."""
    (model,) = account.sagemaker.list_models()["Models"]
    description: dict[str, Any] = account.sagemaker.describe_model(ModelName=model["ModelName"])
    return dict(description["PrimaryContainer"])


def test_incomplete_weights_are_refused_and_the_advised_command_completes_them(
    sandbox: Sandbox, copied: Account
) -> None:
    copied.s3.delete_object(Bucket="models", Key="tiny/target/model.safetensors")
    refused = sandbox.peagle(*DEPLOY, *IN_S3)
    assert refused.returncode == 3
    assert "the copy of the target is incomplete: it lacks model.safetensors" in refused.stderr
    assert copied.sagemaker.list_models()["Models"] == []
    advised = refused.stderr.splitlines()[-1].partition("complete it: peagle ")[2].rstrip(")")
    assert advised == f"weights sync peagle/tiny+p-eagle {PAIR} --target-only --sandbox"
    repaired = sandbox.peagle(*shlex.split(advised), "--yes")
    assert repaired.returncode == 0, repaired.stderr
    deployed = sandbox.peagle(*DEPLOY, *IN_S3)
    assert deployed.returncode == 0, deployed.stderr
    source = _container(copied)["ModelDataSource"]["S3DataSource"]
    assert source["S3Uri"] == PAIR
