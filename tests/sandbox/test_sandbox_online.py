"""``peagle plan --online --sandbox``: the three things that a quota can be, end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from peagle import sandbox as aws_sandbox
from tests.sandbox.sandboxes import INSTANCE_TYPE, Account, Sandbox

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _as_it_was(sandbox: Sandbox) -> Iterator[None]:
    yield
    with sandbox.at_home():
        aws_sandbox.set_quota(INSTANCE_TYPE, 2)
        for operation in ("GetProducts", "ListServiceQuotas", "GetServiceQuota"):
            aws_sandbox.set_fault(operation, "")


def look(sandbox: Sandbox) -> tuple[dict[str, Any], dict[str, str], int]:
    """The plan, its findings about money and quota, and the exit code."""
    done = sandbox.peagle(
        "plan", "tiny", "--instance-type", INSTANCE_TYPE, "--online", "--sandbox", "--json"
    )
    plan = json.loads(done.stdout)
    about = ("price-", "quota-")
    found = {f["code"]: f["message"] for f in plan["findings"] if f["code"].startswith(about)}
    return plan, found, done.returncode


def test_all_is_well(sandbox: Sandbox) -> None:
    plan, found, code = look(sandbox)

    assert (sorted(found), code) == (["price-not-amazons", "quota-enough"], 0)
    assert plan["price_per_hour_usd"] > 0


def test_zero(sandbox: Sandbox) -> None:
    look(sandbox)
    with sandbox.at_home():
        aws_sandbox.set_quota(INSTANCE_TYPE, 0)

    _, found, code = look(sandbox)

    assert (sorted(found), code) == (["price-not-amazons", "quota-zero"], 3)


def test_in_use(sandbox: Sandbox, account: Account) -> None:
    names = [account.endpoint() for _ in range(2)]

    _, found, code = look(sandbox)

    assert (sorted(found), code) == (["price-not-amazons", "quota-in-use"], 0)
    assert ", ".join(sorted(names)) in found["quota-in-use"]
    for name in names:
        account.settled(name)
        account.gone(name)


def test_unknown_and_the_snapshot(sandbox: Sandbox) -> None:
    with sandbox.at_home():
        aws_sandbox.set_quota(INSTANCE_TYPE, 2)  # forgets what was heard
        for operation in ("GetProducts", "ListServiceQuotas", "GetServiceQuota"):
            aws_sandbox.set_fault(operation, "AccessDeniedException")

    plan, found, code = look(sandbox)

    assert (sorted(found), code) == (["price-snapshot", "quota-unknown"], 0)
    assert "not allowed: pricing:GetProducts" in found["price-snapshot"]
    assert plan["price_per_hour_usd"] > 0
