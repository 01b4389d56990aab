"""When the sandbox's engines compile: to collect, and with a warm start beside the weights."""

from __future__ import annotations

import pytest

from tests.sandbox.sandboxes import OUR_IMAGE, WEIGHTS, Account, folder_on_s3

pytestmark = pytest.mark.sandbox

EAGER = "SM_VLLM_ENFORCE_EAGER"


@pytest.fixture
def with_warm_start(account: Account) -> dict[str, object]:
    """A model data source with a warm start beside the weights."""
    account.upload("warmed/", {**WEIGHTS, "warm/0123.json": b"{}"})
    return {"S3DataSource": folder_on_s3("warmed/")}


def variables_of(account: Account, name: str) -> list[str]:
    assert account.wait_until_stable(name)["EndpointStatus"] == "InService"
    found: list[str] = account.invoke(name, {})["environment"]
    return found


def test_an_engine_is_not_compiled_by_default(account: Account, live: str) -> None:
    assert EAGER in variables_of(account, live)


def test_an_engine_that_collects_is_compiled(account: Account) -> None:
    name = account.endpoint({"PEAGLE_WARM": "collect"}, Image=OUR_IMAGE)

    variables = variables_of(account, name)
    assert EAGER not in variables
    assert "PEAGLE_CACHE" in variables, "not where engines of this machine have theirs"
    account.wait_for_line(name, "sandbox: the model is compiled")
    account.delete(name)


def test_an_engine_with_a_warm_start_beside_its_weights_is_compiled(
    account: Account, with_warm_start: dict[str, object]
) -> None:
    name = account.endpoint(ModelDataSource=with_warm_start, Image=OUR_IMAGE)

    assert EAGER not in variables_of(account, name)
    account.delete(name)


def test_aws_s_image_compiles_at_every_start(
    account: Account, with_warm_start: dict[str, object]
) -> None:
    name = account.endpoint(ModelDataSource=with_warm_start)

    assert EAGER in variables_of(account, name), "it does not know warm starts"
    account.delete(name)
