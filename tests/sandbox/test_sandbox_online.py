"""``peagle plan --online --sandbox``: quota available, used up and unknown, end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from peagle.sandbox.client import add_fault, clear_faults, set_quota
from tests.sandbox.sandboxes import INSTANCE_TYPE, Account, Sandbox

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _restored(sandbox: Sandbox) -> Iterator[None]:
    yield
    with sandbox.at_home():
        set_quota(INSTANCE_TYPE, 2)
        clear_faults()


def plan_online(sandbox: Sandbox) -> tuple[dict[str, Any], dict[str, str], int]:
    """The plan, its findings about price and quota, and the exit code."""
    done = sandbox.peagle(
        "plan", "tiny", "--instance-type", INSTANCE_TYPE, "--online", "--sandbox", "--json"
    )
    plan = json.loads(done.stdout)
    about = ("price-", "quota-")
    found = {f["code"]: f["message"] for f in plan["findings"] if f["code"].startswith(about)}
    return plan, found, done.returncode


def test_quota_available(sandbox: Sandbox) -> None:
    plan, found, code = plan_online(sandbox)

    assert (sorted(found), code) == (["price-not-from-aws", "quota-enough"], 0)
    assert plan["price_per_hour_usd"] > 0


def test_quota_of_zero(sandbox: Sandbox) -> None:
    plan_online(sandbox)
    with sandbox.at_home():
        set_quota(INSTANCE_TYPE, 0)

    _, found, code = plan_online(sandbox)

    assert (sorted(found), code) == (["price-not-from-aws", "quota-zero"], 3)


def test_quota_used_up(sandbox: Sandbox, account: Account) -> None:
    names = [account.endpoint() for _ in range(2)]

    _, found, code = plan_online(sandbox)

    assert (sorted(found), code) == (["price-not-from-aws", "quota-in-use"], 0)
    assert ", ".join(sorted(names)) in found["quota-in-use"]
    for name in names:
        account.wait_until_stable(name)
        account.delete(name)


def test_denied_access_falls_back_to_the_snapshot(sandbox: Sandbox) -> None:
    with sandbox.at_home():
        set_quota(INSTANCE_TYPE, 2)  # clears the cache
        for operation in ("GetProducts", "ListServiceQuotas", "GetServiceQuota"):
            add_fault(operation, "access-denied")

    plan, found, code = plan_online(sandbox)

    assert (sorted(found), code) == (["price-snapshot", "quota-unknown"], 0)
    assert "access denied: pricing:GetProducts" in found["price-snapshot"]
    assert plan["price_per_hour_usd"] > 0
