"""Where the sandbox's engines compile: to collect, and where something collected lies already."""

from __future__ import annotations

import pytest

from tests.sandbox.sandboxes import WEIGHTS, Account, folder_on_s3

pytestmark = pytest.mark.sandbox

EAGER = "SM_VLLM_ENFORCE_EAGER"


@pytest.fixture
def beside(account: Account) -> dict[str, object]:
    """A model data source with something beside the weights that was collected."""
    account.upload("warmed/", {**WEIGHTS, "warm/0123.json": b"{}"})
    return {"S3DataSource": folder_on_s3("warmed/")}


def variables_of(account: Account, name: str) -> list[str]:
    assert account.settled(name)["EndpointStatus"] == "InService"
    found: list[str] = account.ask(name, {})["environment"]
    return found


def test_it_does_not_usually(account: Account, live: str) -> None:
    assert EAGER in variables_of(account, live)


def test_it_does_to_collect_and_says_so(account: Account) -> None:
    name = account.endpoint({"PEAGLE_WARM": "collect"})

    variables = variables_of(account, name)
    assert EAGER not in variables
    assert "PEAGLE_CACHE" in variables, "not where engines of this machine have theirs"
    account.wait_for_line(name, "sandbox: the model is compiled")
    account.gone(name)


def test_it_does_where_something_collected_lies_beside_the_weights(
    account: Account, beside: dict[str, object]
) -> None:
    name = account.endpoint(ModelDataSource=beside)

    assert EAGER not in variables_of(account, name)
    account.gone(name)
