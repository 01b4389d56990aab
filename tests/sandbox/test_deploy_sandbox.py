"""Deploy against the sandbox, as processes: Ctrl-C wherever it comes, refusals, and what is left.

The engine behind the sandbox is a stand-in that starts at once and logs statistics as vLLM does;
real vLLM has its own tests in ``tests/engine``.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.sandbox.client import set_quota
from tests import forked
from tests.sandbox.sandboxes import Account, Sandbox
from tests.support import in_process, run_as_process, run_in_process
from tests.unit.containers.weights import safetensors

pytestmark = pytest.mark.sandbox

NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes")


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


def _left(account: Account) -> dict[str, list[str]]:
    """All that a deploy could have left in the account."""
    sagemaker = account.sagemaker
    found = {
        "endpoints": [e["EndpointName"] for e in sagemaker.list_endpoints()["Endpoints"]],
        "configs": [
            c["EndpointConfigName"] for c in sagemaker.list_endpoint_configs()["EndpointConfigs"]
        ],
        "models": [m["ModelName"] for m in sagemaker.list_models()["Models"]],
        "buckets": [b["Name"] for b in account.s3.list_buckets()["Buckets"]],
    }
    return {kind: names for kind, names in found.items() if names}


def _records(sandbox: Sandbox) -> list[Path]:
    return [path for path in (sandbox.home / "deployments").rglob("*") if path.is_file()]


def test_a_missing_role_and_image_are_told_before_anything_is_created(
    sandbox: Sandbox, account: Account
) -> None:
    role = "arn:aws:iam::123456789012:role/nobody"
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:0.28.0"
    refused = sandbox.peagle(*DEPLOY, "--role", role, "--image", image)

    assert refused.returncode == 3, refused.stderr
    assert "there is no role 'nobody' in account 123456789012" in refused.stderr
    assert f"ECR in us-east-1 has no image {image}" in refused.stderr
    assert _left(account) == {}


@pytest.fixture
def deployed(sandbox: Sandbox) -> Iterator[Any]:
    done = sandbox.peagle(*DEPLOY)
    assert done.returncode == 0, done.stderr
    yield done
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def test_aws_s_image_is_proved_from_its_log_and_goes_completely(
    sandbox: Sandbox, account: Account, deployed: Any
) -> None:
    assert "proof       at least 100 drafts, from the endpoint's log" in deployed.stderr
    assert "nothing tested them:\n  --gpu-memory-utilization 0." in deployed.stderr
    document = sandbox.json("status", NAME, "--sandbox")
    assert document["state"] == "InService"
    assert document["proof"]["source"] == "log"
    assert document["sandbox"] is True
    assert document["openai_base_url"] == f"{account.url}/endpoints/{NAME}/openai/v1"
    (row,) = sandbox.json("list", "--sandbox")["deployments"]
    assert row["state"] == "InService"
    assert "fake: INFO starting with" in sandbox.peagle("logs", NAME, "--sandbox").stdout

    done = sandbox.peagle("destroy", NAME, "--sandbox", "--yes")

    assert done.returncode == 0, done.stderr
    assert _left(account) == {}
    assert _records(sandbox) == []


@pytest.fixture
def fresh(sandbox: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """A home where no sandbox runs yet."""
    home = Sandbox(tmp_path, sandbox.engine)
    yield home
    home.peagle("sandbox", "stop")


def test_a_declined_deploy_stops_the_sandbox_that_it_started(fresh: Sandbox) -> None:
    done = in_process(*DEPLOY[:-1], stdin=b"n\n", terminal=True, environment=fresh.environment)

    assert done.code == 2
    assert "not deployed; nothing was changed" in done.err
    assert fresh.json("sandbox", "status")["running"] is False
    assert fresh.processes() == []


def test_a_declined_copy_stops_the_sandbox_that_it_started(fresh: Sandbox) -> None:
    sync = ("weights", "sync", "tiny", "s3://models/tiny/", "--sandbox")
    done = in_process(*sync, stdin=b"n\n", terminal=True, environment=fresh.environment)

    assert done.code == 2
    assert "not copied; nothing was changed" in done.err
    assert fresh.processes() == []


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [("--bucket", "No_Such", "invalid-bucket"), ("--role", "no-such-role", "unknown-role")],
)
def test_a_wrong_bucket_or_role_changes_nothing(
    fresh: Sandbox, option: str, value: str, code: str
) -> None:
    """No command is for the user's own account, where the sandbox has ended."""
    done = in_process(*DEPLOY, option, value, "--json", environment=fresh.environment)
    error = json.loads(done.err.splitlines()[-1])["error"]

    assert (done.code, error["code"], error["command"]) == (2, code, None)
    assert fresh.json("list", "--sandbox")["deployments"] == []
    assert fresh.processes() == []


def test_a_declined_deploy_leaves_a_sandbox_that_ran_before(
    sandbox: Sandbox, account: Account
) -> None:
    keyboard, terminal = pty.openpty()
    os.write(keyboard, b"n\n")
    done = run_as_process(*DEPLOY[:-1], env=sandbox.environment, stdin=terminal)
    os.close(terminal)
    os.close(keyboard)

    assert done.returncode == 2
    assert sandbox.json("sandbox", "status")["running"] is True
    assert _left(account) == {}


def test_records_of_the_sandbox_are_not_seen_without_it(sandbox: Sandbox, deployed: Any) -> None:
    done = sandbox.peagle("status", NAME)

    assert done.returncode == 2
    assert f"(it is in the sandbox: peagle status {NAME} --sandbox)" in done.stderr


def test_a_different_vllm_version_is_reported(sandbox: Sandbox) -> None:
    done = sandbox.peagle(*DEPLOY, "--vllm", "0.19.0")
    document = sandbox.json("status", NAME, "--sandbox")
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")

    assert "vLLM 0.28.0 (sandbox); the plan has 0.19.0" in done.stderr
    assert (document["vllm"], document["vllm_here"]) == ("0.19.0", "0.28.0")


def test_what_errors_advise_leads_to_the_sandbox_too(sandbox: Sandbox) -> None:
    done = sandbox.peagle("status", "nothing", "--sandbox")

    assert "peagle list --sandbox" in done.stderr


def test_a_quota_of_the_sandbox_can_be_raised_after_a_refused_deploy(fresh: Sandbox) -> None:
    """Its fix changes the sandbox that the deploy started, which therefore runs on."""
    refused = in_process(*DEPLOY, "--instance-count", "3", "--json", environment=fresh.environment)
    error = json.loads(refused.err.splitlines()[-1])["error"]

    assert (refused.code, error["code"]) == (3, "quota-too-small")
    assert error["command"][:4] == ["peagle", "sandbox", "quota", "set"]
    assert fresh.peagle(*error["command"][1:]).returncode == 0


def test_quota_0_is_refused_and_nothing_is_made(sandbox: Sandbox, account: Account) -> None:
    with sandbox.at_home():
        set_quota("ml.g5.xlarge", 0)
    try:
        done = sandbox.peagle(*DEPLOY)
    finally:
        with sandbox.at_home():
            set_quota("ml.g5.xlarge", 10)

    assert done.returncode == 3
    assert "'ml.g5.xlarge for endpoint usage' is 0" in done.stderr
    assert _left(account) == {}
    assert _records(sandbox) == []


@pytest.fixture
def theirs(account: Account) -> Iterator[str]:
    """An endpoint that peagle did not make."""
    files = {"config.json": b"{}", "model.safetensors": safetensors({"a.weight": [1]})}
    account.upload("tiny/", files)
    name = account.endpoint()
    account.wait_until_stable(name)
    yield name
    account.delete(name)
    account.sagemaker.delete_endpoint_config(EndpointConfigName=name)
    account.sagemaker.delete_model(ModelName=name)
    for file in files:
        account.s3.delete_object(Bucket="models", Key=f"tiny/{file}")
    account.s3.delete_bucket(Bucket="models")


def test_an_endpoint_of_another_owner_is_not_changed(
    sandbox: Sandbox, account: Account, theirs: str
) -> None:
    done = sandbox.peagle(*DEPLOY, "--name", theirs)

    assert done.returncode == 3
    assert "choose another --name" in done.stderr
    assert account.describe(theirs)["EndpointStatus"] == "InService"
    assert _left(account)["models"] == [theirs]


STEPS = [
    "Creating bucket",
    "Uploading",
    "Creating model",
    "Creating endpoint configuration",
    "Creating endpoint |",
    "Creating |",
    "Proving",
]


def _interrupted_at(sandbox: Sandbox, step: str) -> tuple[int, str]:
    """Deploy, and press Ctrl-C as soon as progress says ``step``; exit code and all of stderr."""
    return forked.start(*DEPLOY, environment=sandbox.environment).interrupted_at(step)


@pytest.mark.parametrize("step", STEPS)
def test_ctrl_c_at_every_step_is_remembered_and_can_be_removed(
    sandbox: Sandbox, account: Account, step: str
) -> None:
    code, output = _interrupted_at(sandbox, step)

    assert code == 130, output
    assert "Traceback" not in output
    assert f"peagle destroy {NAME} --sandbox" in output
    assert _records(sandbox)
    done = sandbox.peagle("destroy", NAME, "--sandbox", "--yes")
    assert done.returncode == 0, done.stderr
    assert _left(account) == {}
    assert _records(sandbox) == []


def test_ctrl_c_and_the_same_command_again_goes_on(sandbox: Sandbox, account: Account) -> None:
    _interrupted_at(sandbox, "Creating model")
    before = sandbox.json("status", NAME, "--sandbox")

    done = sandbox.peagle(*DEPLOY)

    assert before["state"] == "Incomplete"
    assert done.returncode == 0, done.stderr
    assert sandbox.json("status", NAME, "--sandbox")["endpoint_status"] == "InService"
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")
    assert _left(account) == {}


def test_plain_aws_clients_variables_lead_deploy_to_the_sandbox_too(
    sandbox: Sandbox, account: Account
) -> None:
    """``eval "$(peagle sandbox env)"``, then deploy without ``--sandbox``: it is the same."""
    variables = sandbox.json("sandbox", "env")
    plain = [word for word in DEPLOY if word != "--sandbox"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_in_process(*arguments, env={**sandbox.environment, **variables})

    done = run(*plain, "--json")

    assert done.returncode == 0, done.stderr
    assert f'"openai_base_url": "{account.url}/endpoints/{NAME}/openai/v1"' in done.stdout
    assert '"sandbox": true' in done.stdout
    assert "free in the sandbox" in done.stderr
    assert sandbox.json("status", NAME, "--sandbox")["state"] == "InService"
    assert run("deploy", "tiny", "--profile", "x").returncode == 2
    assert run("destroy", NAME, "--yes").returncode == 0
    assert _records(sandbox) == []
    assert _left(account) == {}


@pytest.mark.parametrize("words", [("status", NAME), ("invoke", NAME, "say hello")])
def test_in_another_region_the_command_for_its_own_is_named(
    sandbox: Sandbox, deployed: Any, words: tuple[str, ...]
) -> None:
    done = sandbox.peagle(*words, "--sandbox", "--region", "eu-west-1", "--json")

    assert done.returncode == 2
    error = json.loads(done.stderr)["error"]
    assert error["fix"] == "it is in us-east-1"
    assert sandbox.peagle(*error["command"][1:]).returncode == 0


def test_invoke_says_what_is_not_as_on_aws(sandbox: Sandbox, deployed: Any) -> None:
    ask = ("invoke", NAME, "hello", "--no-stream", "--sandbox")

    greedy, sampled = sandbox.peagle(*ask), sandbox.peagle(*ask, "--temperature", "0.5")

    assert "55005" not in greedy.stderr
    assert sampled.stderr.count("vllm issue 55005") == 1
    assert "stands in" not in sampled.stderr


def test_invoke_says_who_answers_in_the_place_of_a_large_target(sandbox: Sandbox) -> None:
    large = ("deploy", "gpt-oss-120b", "--name", "large", "--sandbox", "--yes")
    sandbox.peagle(*large)

    output = sandbox.peagle("invoke", "large", "hello", "--no-stream", "--sandbox").stderr
    sandbox.peagle("destroy", "large", "--sandbox", "--yes")

    assert output.count("Answered by peagle/tiny, a stand-in") == 1


def test_deploy_starts_the_sandbox_and_says_so(tmp_path: Path, sandbox: Sandbox) -> None:
    fresh = Sandbox(tmp_path, sandbox.engine)
    try:
        first, second = fresh.peagle(*DEPLOY, "--no-wait"), fresh.peagle(*DEPLOY)
    finally:
        fresh.peagle("sandbox", "stop")

    assert "Starting the sandbox\n" in first.stderr
    assert "Starting the sandbox" not in second.stderr
