"""An update whose proof fails returns to what served before; ``peagle rollback`` does on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.sandbox.sandboxes import Account, Sandbox
from tests.sandbox.test_prove import engine_file

pytestmark = pytest.mark.sandbox

NAME = "peagle-updated"
DEPLOY = (
    "deploy", "tiny", "--name", NAME, "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes",
)  # fmt: skip


@pytest.fixture
def account(sandbox: Sandbox) -> Iterator[Account]:
    """Afterwards nothing is deployed."""
    yield Account(sandbox)
    sandbox.peagle("destroy", NAME, "--sandbox", "--yes")


def _models(account: Account) -> int:
    return len(account.sagemaker.list_models()["Models"])


def test_a_failed_update_is_rolled_back_and_a_proved_one_on_demand(
    sandbox: Sandbox, account: Account
) -> None:
    first = sandbox.json(*DEPLOY)

    with engine_file(sandbox, "acceptance", "1.1"):
        failed = sandbox.peagle(*DEPLOY, "--k", "3", "--json")

    document = json.loads(failed.stdout)
    assert failed.returncode == 3, failed.stderr
    assert "changes     K 7 -> 3\n" in failed.stderr
    assert json.loads(failed.stderr.splitlines()[-1])["error"]["code"] == "rolled-back"
    assert (document["state"], document["k"], document["rolled_back"]) == ("InService", 7, True)
    assert account.describe(NAME)["EndpointConfigName"] == first["endpoint_config"]
    assert _models(account) == 1

    updated = sandbox.json(*DEPLOY, "--k", "3")
    assert (updated["state"], updated["k"]) == ("InService", 3)
    assert _models(account) == 2

    returned = sandbox.json("rollback", NAME, "--sandbox", "--yes")
    assert (returned["state"], returned["k"]) == ("InService", 7)
    assert returned["changes"] == [{"setting": "k", "before": 3, "after": 7}]
    assert account.describe(NAME)["EndpointConfigName"] == first["endpoint_config"]

    removed = sandbox.json("destroy", NAME, "--previous", "--sandbox", "--yes")["removed"]
    assert {one["type"] for one in removed} == {"EndpointConfig", "Model"}
    assert _models(account) == 1
    assert sandbox.peagle("invoke", NAME, "hello", "--no-stream", "--sandbox").returncode == 0
