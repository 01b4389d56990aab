"""Deploy with weights in S3 and with weights in the image, against the sandbox."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.sandboxes import Account, Sandbox

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--name", NAME, "--instance-type", "ml.g5.xlarge", "--sandbox",
          "--yes")  # fmt: skip
PAIR = "s3://models/tiny/"
IN_S3 = ("--model-source", f"{PAIR}target/", "--drafter", f"{PAIR}drafter/")
IMAGE = f"123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'a' * 64}"


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    account = Account(sandbox)
    account.push(IMAGE)
    return account


@pytest.fixture
def copied(sandbox: Sandbox, account: Account) -> Iterator[Account]:
    """The pair in S3."""
    sandbox.json("weights", "sync", "tiny", PAIR, "--sandbox", "--yes")
    yield account
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def _container(account: Account) -> dict[str, Any]:
    """What the model was created with."""
    (model,) = account.sagemaker.list_models()["Models"]
    found: dict[str, Any] = account.sagemaker.describe_model(ModelName=model["ModelName"])
    return dict(found["PrimaryContainer"])


def test_incomplete_weights_are_refused_and_the_advised_command_completes_them(
    sandbox: Sandbox, copied: Account
) -> None:
    copied.s3.delete_object(Bucket="models", Key="tiny/target/model.safetensors")

    refused = sandbox.peagle(*DEPLOY, *IN_S3)

    assert refused.returncode == 3
    assert "the copy of the target is incomplete: model.safetensors is missing" in refused.stderr
    assert copied.sagemaker.list_models()["Models"] == []
    advised = refused.stderr.splitlines()[-1].partition("complete it: peagle ")[2].rstrip(")")
    assert advised == f"weights sync peagle/tiny+p-eagle {PAIR} --target-only --sandbox"
    repaired = sandbox.peagle(*shlex.split(advised), "--yes")
    assert repaired.returncode == 0, repaired.stderr
    deployed = sandbox.peagle(*DEPLOY, *IN_S3)
    assert deployed.returncode == 0, deployed.stderr
    source = _container(copied)["ModelDataSource"]["S3DataSource"]
    assert source["S3Uri"] == PAIR


def test_weights_of_another_pair_are_refused(sandbox: Sandbox, copied: Account) -> None:
    words = ("deploy", "qwen3-8b", "--model-source", f"{PAIR}target/", "--sandbox", "--yes")

    refused = sandbox.peagle(*words)

    assert refused.returncode == 3
    assert "the target there is from peagle/tiny+p-eagle" in refused.stderr


@pytest.mark.parametrize(
    ("pair", "drafter", "gone", "expected"),
    [
        ("tiny", "drafter", "drafter/config.json", "is incomplete: config.json is missing"),
        ("tiny", "drafter", "target/config.json", "the copy of the target is incomplete"),
        ("tiny+eagle3", "drafter", "", "the plan needs a head that drafts one token at a time"),
        ("tiny", "target", "", "the folder of a target, not of a drafter"),
    ],
    ids=["half-drafter", "half-target", "another-pair", "no-drafter"],
)
def test_a_plan_that_asks_is_refused_in_the_words_of_deploy(
    sandbox: Sandbox, copied: Account, pair: str, drafter: str, gone: str, expected: str
) -> None:
    if gone:
        copied.s3.delete_object(Bucket="models", Key=f"tiny/{gone}")
    weights = ("--model-source", f"{PAIR}target/", "--drafter", f"{PAIR}{drafter}/")
    words = (pair, *DEPLOY[2:-1], *weights)

    planned = sandbox.peagle("plan", *words, "--online")
    deployed = sandbox.peagle("deploy", *words, "--yes")

    assert (planned.returncode, deployed.returncode) == (3, 3)
    assert expected in planned.stderr
    assert planned.stderr.splitlines()[-1] == deployed.stderr.splitlines()[-1]
    assert "Next:" not in planned.stdout
    assert copied.sagemaker.list_models()["Models"] == []


def test_a_plan_of_a_whole_pair_has_its_head_read(sandbox: Sandbox, copied: Account) -> None:
    document = sandbox.json("plan", "tiny", *DEPLOY[2:-1], *IN_S3, "--online")

    codes = {finding["code"] for finding in document["findings"]}
    assert "head-not-read" not in codes
    assert not {code for code in codes if code.startswith("weights-")}


def test_a_warm_start_and_the_lock_of_a_killed_copy_do_not_keep_it_from_being_deployed(
    sandbox: Sandbox, copied: Account
) -> None:
    for name in ("warm/" + "0a" * 16 + ".tar.gz", "peagle-weights.lock"):
        copied.s3.put_object(Bucket="models", Key=f"tiny/{name}", Body=b"x")

    deployed = sandbox.peagle(*DEPLOY, *IN_S3)

    assert "foreign-objects" not in deployed.stderr
    assert deployed.returncode == 0, deployed.stderr
    for name in ("warm/" + "0a" * 16 + ".tar.gz", "peagle-weights.lock"):
        copied.s3.delete_object(Bucket="models", Key=f"tiny/{name}")


def test_deploy_says_why_what_lies_there_was_not_restored(
    sandbox: Sandbox, copied: Account
) -> None:
    key = f"tiny/warm/{'0a' * 16}.json"
    copied.s3.put_object(Bucket="models", Key=key, Body=json.dumps({"sha256": "0" * 64}).encode())

    deployed = sandbox.peagle(*DEPLOY, *IN_S3, "--image", IMAGE, "--json")

    copied.s3.delete_object(Bucket="models", Key=key)
    assert "No warm start: " in deployed.stderr
    reported = json.loads(deployed.stdout)["warm_start"]
    assert reported["restored"] is False
    assert "holds no readable artifact" in reported["detail"]


def test_weights_are_pinned_and_a_change_under_a_deployment_is_refused(
    sandbox: Sandbox, copied: Account
) -> None:
    document = sandbox.json(*DEPLOY, *IN_S3, "--image", IMAGE)
    manifest = copied.s3.get_object(Bucket="models", Key="tiny/peagle-weights.json")["Body"].read()
    pin = hashlib.sha256(manifest).hexdigest()
    assert _container(copied)["Environment"]["PEAGLE_WEIGHTS_SHA256"] == pin
    assert document["pins"]["weights"] == pin
    assert document["licences"] == {"target": "apache-2.0", "drafter": None}

    copied.s3.put_object(Bucket="models", Key="tiny/peagle-weights.json", Body=manifest + b"\n")
    refused = sandbox.peagle(*DEPLOY, *IN_S3, "--image", IMAGE)

    assert refused.returncode == 3
    assert f"{pin} is pinned; instances that start now are refused" in refused.stderr
    assert "licences    target apache-2.0, drafter unknown" in refused.stderr


def test_an_image_with_its_weights_gets_no_mount_and_nothing_is_uploaded(
    sandbox: Sandbox, account: Account
) -> None:
    before = [bucket["Name"] for bucket in account.s3.list_buckets()["Buckets"]]
    try:
        deployed = sandbox.peagle(*DEPLOY, "--image", IMAGE, "--baked-weights")

        assert "uploads" not in deployed.stderr
        assert "weights     in the image: nothing is uploaded or mounted" in deployed.stderr
        container = _container(account)
        assert container["Image"] == IMAGE
        assert "ModelDataSource" not in container
        assert container["Environment"]["SM_VLLM_MODEL"] == "/opt/ml/model/target"
        assert [bucket["Name"] for bucket in account.s3.list_buckets()["Buckets"]] == before
        document = sandbox.json("status", NAME, "--sandbox")
        assert document["stand_in"] == "peagle/tiny"
        log = sandbox.peagle("logs", NAME, "--sandbox").stdout
        assert f"its weights are baked into {IMAGE}, which this sandbox does not run" in log
    finally:
        sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--baked-weights",), "add --image URI"),
        (("--baked-weights", "--image", IMAGE, *IN_S3), "not baked into an image"),
    ],
)
def test_what_no_image_can_have_is_refused_at_once(
    sandbox: Sandbox, more: tuple[str, ...], expected: str
) -> None:
    refused = sandbox.peagle(*DEPLOY, *more)

    assert refused.returncode == 2
    assert expected in refused.stderr


def test_a_plan_file_keeps_that_the_image_has_its_weights(sandbox: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    options = ("--image", IMAGE, "--baked-weights", "--verbose", "--out", str(file))
    made = sandbox.peagle("plan", "tiny", *options)
    assert "baked into the image" in " ".join(made.stdout.split())

    for form in ("cloudformation", "terraform"):
        done = sandbox.peagle("render", form, str(file), "-o", str(tmp_path / form))
        assert done.returncode == 0, done.stderr
    refused = sandbox.peagle("render", "dockerfile", str(file), "-o", str(tmp_path / "image"))
    assert refused.returncode == 3
    assert "existing image with baked weights" in refused.stderr
    assert not (tmp_path / "image").exists()
