"""Endpoints of which the sandbox serves a stand-in, since this machine cannot run the target."""

from __future__ import annotations

import pytest

from tests.sandbox.sandboxes import Account
from tests.unit.rendering.plans import plan_of
from tests.unit.sandbox.test_stand_in import P_EAGLE, speculating

pytestmark = pytest.mark.sandbox


def test_the_sandbox_says_that_a_stand_in_serves(account: Account) -> None:
    name = account.endpoint(speculating(**P_EAGLE, model="amazon/head"), ModelDataSource=None)
    found = account.settled(name)
    assert found["EndpointStatus"] == "InService"
    assert account.sagemaker.list_tags(ResourceArn=found["EndpointArn"])["Tags"] == [
        {"Key": "peagle:stand-in", "Value": "peagle/tiny"}
    ]
    assert account.wait_for_line(name, "stand-in for")[0] == (
        "sandbox: peagle/tiny is the stand-in for openai/gpt-oss-20b, which this machine cannot "
        "run: its target (openai/gpt-oss-20b) would have to be downloaded"
    )
    (status,) = account.sandbox.told("sandbox", "status")["endpoints"]
    assert status["stand_in"] == "peagle/tiny"
    argv = account.ask(name, {})["argv"]
    assert argv[argv.index("--served-model-name") + 1] == "openai/gpt-oss-20b"
    assert (
        "served by peagle/tiny as a stand-in" in account.sandbox.peagle("sandbox", "status").stdout
    )
    account.gone(name)


def test_a_stand_in_serves_under_the_plans_other_settings_and_the_log_says_why(
    account: Account,
) -> None:
    plan = plan_of("streamed")

    name = account.endpoint(plan.environment, ModelDataSource=None)

    assert account.settled(name)["EndpointStatus"] == "InService"
    target = plan.target.weights.location
    lines = account.wait_for_line(name, "stand-in for")
    assert lines[0].endswith(
        f"its target ({target}) is streamed, and the CPU engine has no streamer"
    )
    left_out = f"SM_VLLM_LOAD_FORMAT=runai_streamer is left out: it belongs to {target}"
    assert any(left_out in line for line in account.log(name))
    argv = account.ask(name, {})["argv"]
    assert "--load-format" not in argv
    assert argv[argv.index("--served-model-name") + 1] == plan.target.id
    account.gone(name)
