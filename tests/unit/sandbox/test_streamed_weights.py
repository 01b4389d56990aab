"""A plan that streams its weights, in the sandbox: the CPU engine cannot, so tiny stands in."""

from __future__ import annotations

import pytest

from tests.unit.rendering.plans import plan_of
from tests.unit.sandbox.sandboxes import Account


@pytest.mark.sandbox
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
