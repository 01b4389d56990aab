"""Copies of real vLLM with the tiny pair: each is proved by its own drafts, they scale to zero, and
the first request wakes one; the time from zero to the first token."""

from typing import Any

import pytest

from peagle.sandbox.client import set_scaling_speed
from tests.sandbox.sandboxes import Account, Sandbox, until

pytestmark = [pytest.mark.engine, pytest.mark.sandbox, pytest.mark.exhaustive]
NAME = "peagle-zero"
PROMPT = "What does textwrap.wrap do?"
SPEED = 1000
"""A quarter of an hour of scaling passes in a second."""


def test_copies_are_proved_one_by_one_sleep_and_wake_with_the_first_requests(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peagle.deploy.invoke.RETRY_SECONDS", 0.5)
    account = Account(sandbox)
    options = ("--name", NAME, "--instance-type", "ml.g6.12xlarge", "--copies", "2",
               "--scale-to-zero")  # fmt: skip
    deployed = sandbox.json("deploy", "tiny", *options, "--sandbox", "--yes")
    assert (deployed["scaling"]["min_copies"], deployed["scaling"]["max_copies"]) == (0, 2)
    assert (deployed["copies_running"], deployed["instances_running"]) == (2, 1)
    assert_each_copy_drafts(deployed["proof"])
    set_scaling_speed(SPEED)
    try:
        asleep = until(lambda: status(sandbox), lambda now: now["instances_running"] == 0)
        assert (asleep["copies_running"], asleep["price_per_hour_usd"]) == (0, 0.0)
        set_scaling_speed(1)  # it stays awake then
        words = ("invoke", NAME, PROMPT, "--max-tokens", "16", "--sandbox")
        answer = sandbox.json(*words)
    finally:
        set_scaling_speed(1)
    assert answer["output_tokens"] > 0
    waited = answer["waited_seconds"] + answer["first_token_seconds"]
    assert answer["waited_seconds"] > 0
    print(f"seconds from zero to the first token: {waited:.1f}")  # shown by pytest -rA
    assert status(sandbox)["copies_running"] == 1
    metrics = account.client("cloudwatch").list_metrics(MetricName="NoCapacityInvocationFailures")
    assert metrics["Metrics"][0]["Dimensions"] == [
        {"Name": "InferenceComponentName", "Value": NAME}
    ]
    sandbox.json("destroy", NAME, "--sandbox", "--yes")


def assert_each_copy_drafts(proof: dict[str, Any]) -> None:
    """Each copy counted its own accepted tokens, enough for a proof of it alone."""
    first, second = proof["instances"]
    assert first["stream"] != second["stream"]
    assert first["drafts"] + second["drafts"] == proof["drafts"]
    for copy in (first, second):
        accepted = copy["drafts"] * sum(copy["acceptance_per_position"])
        assert copy["passed"]
        assert copy["drafts"] >= proof["min_drafts"] == 100
        assert accepted == pytest.approx(copy["drafts"] * (copy["acceptance_length"] - 1), rel=0.01)
        assert accepted > copy["drafts"] * (proof["floor"] - 1) > 0


def status(sandbox: Sandbox) -> dict[str, Any]:
    report: dict[str, Any] = sandbox.json("status", NAME, "--sandbox")
    return report
