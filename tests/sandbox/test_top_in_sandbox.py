"""``peagle top`` of a deployment in the sandbox, whose engine is a fake one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sandbox.sandboxes import Sandbox, until

pytestmark = pytest.mark.sandbox


def test_top_shows_requests_and_drafts(sandbox: Sandbox) -> None:
    sandbox.json("deploy", "tiny", "--sandbox", "--yes", "--name", "watched")
    before = sandbox.json("top", "watched", "--sandbox")
    for _ in range(4):
        sandbox.json("invoke", "watched", "Hello", "--sandbox", "--max-tokens", "40")

    def asked_in(found: dict[str, Any]) -> float:
        """The window begins with the endpoint."""
        return float(found["requests_per_minute"] * found["window_seconds"] / 60)

    now = until(
        lambda: sandbox.json("top", "watched", "--sandbox"),
        lambda found: asked_in(found) - asked_in(before) > 3.5 and found["acceptance_length"],
        seconds=30,
    )
    assert asked_in(now) - asked_in(before) == pytest.approx(4, abs=0.1)
    assert (now["where"], now["state"], now["instances"]) == ("sandbox", "InService", 1)
    assert now["acceptance_length"] == 2.5
    assert 0 < now["ttft_p50"] < 5
    shown = sandbox.peagle("top", "watched", "--sandbox", "--once")
    assert shown.returncode == 0
    assert "2.50 tokens per step" in shown.stdout
    assert "per million output tokens on AWS" in shown.stdout
