"""Several engines behind one endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import INSTANCE_TYPE, Account, until

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _quota(account: Account) -> Iterator[None]:
    """Enough instances for all tests here."""
    with account.sandbox.at_home():
        set_quota(INSTANCE_TYPE, 20)
        yield
        set_quota(INSTANCE_TYPE, 2)


def streams(account: Account, name: str) -> list[str]:
    group = f"/aws/sagemaker/Endpoints/{name}"
    found = account.logs.describe_log_streams(logGroupName=group)["logStreams"]
    return [stream["logStreamName"] for stream in found]


def counts(account: Account, name: str) -> dict[str, int]:
    variants = account.describe(name)["ProductionVariants"]
    return {variant["VariantName"]: variant["CurrentInstanceCount"] for variant in variants}


def endpoint(account: Account, name: str, *variants: dict[str, Any]) -> str:
    """An endpoint in service, whose model has its own name."""
    account.model(name)
    account.sagemaker.create_endpoint_config(
        EndpointConfigName=name,
        ProductionVariants=[
            {"ModelName": name, "InstanceType": INSTANCE_TYPE, **variant} for variant in variants
        ],
    )
    account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    found = account.wait_until_stable(name)
    assert found["EndpointStatus"] == "InService", found
    return name


def test_every_instance_of_every_variant_has_an_engine_and_a_log_stream(account: Account) -> None:
    blue = {"VariantName": "blue", "InitialInstanceCount": 2, "InitialVariantWeight": 3.0}
    green = {"VariantName": "green", "InitialInstanceCount": 1, "InitialVariantWeight": 1.0}
    name = endpoint(account, "several", blue, green)

    assert counts(account, name) == {"blue": 2, "green": 1}
    assert Counter(one.partition("/")[0] for one in streams(account, name)) == counts(account, name)
    answers = [account.runtime.invoke_endpoint(EndpointName=name, Body=b"{}") for _ in range(8)]
    invoked = Counter(one["InvokedProductionVariant"] for one in answers)
    assert invoked == {"blue": 6, "green": 2}
    for stream in streams(account, name):
        body = b'{"do": "log", "text": "asked"}'
        account.runtime.invoke_endpoint(
            EndpointName=name, Body=body, TargetVariant=stream.partition("/")[0]
        )
    until(lambda: account.log(name).count("fake: asked"), lambda count: count == 3)

    account.delete(name)
    assert account.sandbox.json("sandbox", "status")["endpoints"] == []


def test_more_instances_than_this_machine_should_run_are_fewer_engines(account: Account) -> None:
    name = endpoint(account, "many", {"VariantName": "v", "InitialInstanceCount": 6})

    assert counts(account, name) == {"v": 4}
    account.wait_for_line(name, "sandbox: the sandbox runs 4 of 6 instances")
    account.delete(name)


def test_capacities_start_and_end_engines(account: Account) -> None:
    name = endpoint(account, "scaled", {"VariantName": "v", "InitialInstanceCount": 1})
    for count in (2, 1):
        account.sagemaker.update_endpoint_weights_and_capacities(
            EndpointName=name,
            DesiredWeightsAndCapacities=[{"VariantName": "v", "DesiredInstanceCount": count}],
        )
        assert account.describe(name)["EndpointStatus"] == "Updating"
        account.wait_until_stable(name)
        assert counts(account, name) == {"v": count}
    assert len(streams(account, name)) == 2
    account.delete(name)
