"""Deploy against the sandbox, as processes: Ctrl-C wherever it comes, refusals, and what is left.

The engine behind the sandbox is a stand-in that starts at once and logs statistics as vLLM does;
real vLLM has its own tests in ``tests/engine``.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.sandbox.sandboxes import Account, Sandbox
from tests.support import in_process, run_in_process

pytestmark = pytest.mark.sandbox
NAME = "peagle-tiny"
DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes")


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


def _left(account: Account) -> dict[str, list[str]]:
    """All that a deploy could have left in the account."""
    sagemaker = account.sagemaker
    resources = {
        "endpoints": [e["EndpointName"] for e in sagemaker.list_endpoints()["Endpoints"]],
        "configs": [
            c["EndpointConfigName"] for c in sagemaker.list_endpoint_configs()["EndpointConfigs"]
        ],
        "models": [m["ModelName"] for m in sagemaker.list_models()["Models"]],
        "buckets": [b["Name"] for b in account.s3.list_buckets()["Buckets"]],
    }
    return {kind: names for kind, names in resources.items() if names}


def _records(sandbox: Sandbox) -> list[Path]:
    return [path for path in (sandbox.home / "deployments").rglob("*") if path.is_file()]


@pytest.fixture
def fresh(sandbox: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """A home where no sandbox runs yet."""
    home = Sandbox(tmp_path, sandbox.engine)
    yield home
    home.peagle("sandbox", "stop")


def test_a_declined_deploy_leaves_the_sandbox_that_it_started_empty(fresh: Sandbox) -> None:
    done = in_process(*DEPLOY[:-1], stdin=b"n\n", terminal=True, environment=fresh.environment)
    assert done.code == 2
    assert "not deployed; nothing was changed" in done.err
    assert fresh.json("list", "--sandbox")["deployments"] == []


STEPS = [
    "Uploading", "Creating model", "Creating endpoint |", "Creating |", "Proving",
]  # fmt: skip


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


def test_deploy_says_who_answers_in_the_place_of_a_large_target(sandbox: Sandbox) -> None:
    large = ("deploy", "gpt-oss-120b", "--name", "large", "--sandbox", "--yes")
    output = sandbox.peagle(*large).stdout
    sandbox.peagle("destroy", "large", "--sandbox", "--yes")
    assert output.count("Served by peagle/tiny") == 1
