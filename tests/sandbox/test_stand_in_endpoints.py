"""Endpoints with a stand-in, because this machine cannot run the target."""

from __future__ import annotations

import pytest

from tests.sandbox.sandboxes import Account
from tests.unit.rendering.plans import plan_of
from tests.unit.sandbox.test_launch import P_EAGLE, speculating

pytestmark = pytest.mark.sandbox


def test_status_and_tags_name_the_stand_in(account: Account) -> None:
    name = account.endpoint(speculating(**P_EAGLE, model="amazon/head"), ModelDataSource=None)
    found = account.wait_until_stable(name)
    assert found["EndpointStatus"] == "InService"
    assert account.sagemaker.list_tags(ResourceArn=found["EndpointArn"])["Tags"] == [
        {"Key": "peagle:stand-in", "Value": "peagle/tiny"}
    ]
    assert account.wait_for_line(name, "stand-in for")[0] == (
        "sandbox: peagle/tiny is the stand-in for openai/gpt-oss-20b, which this machine cannot "
        "run: its target (openai/gpt-oss-20b) would have to be downloaded"
    )
    (status,) = account.sandbox.json("sandbox", "status")["endpoints"]
    assert status["stand_in"] == "peagle/tiny"
    argv = account.invoke(name, {})["argv"]
    assert argv[argv.index("--served-model-name") + 1] == "openai/gpt-oss-20b"
    assert (
        "served by peagle/tiny as a stand-in" in account.sandbox.peagle("sandbox", "status").stdout
    )
    account.delete(name)


def test_a_stand_in_serves_with_the_plans_settings_and_the_log_has_the_reason(
    account: Account,
) -> None:
    plan = plan_of("streamed")

    name = account.endpoint(plan.environment, ModelDataSource=None)

    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    target = plan.target.weights.location
    lines = account.wait_for_line(name, "stand-in for")
    assert lines[0].endswith(
        f"its target ({target}) is streamed, and the CPU engine has no streamer"
    )
    left_out = f"SM_VLLM_LOAD_FORMAT=runai_streamer is left out: it belongs to {target}"
    assert any(left_out in line for line in account.log(name))
    argv = account.invoke(name, {})["argv"]
    assert "--load-format" not in argv
    assert argv[argv.index("--served-model-name") + 1] == plan.target.id
    account.delete(name)
