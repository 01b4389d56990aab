"""Inference components: copies of a model on an endpoint's instances, with AWS's own errors."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import ROLE, Account, until

pytestmark = pytest.mark.sandbox
TYPE = "ml.g6.12xlarge"
"""Has four GPUs."""


@pytest.fixture(scope="module")
def endpoint(account: Account) -> str:
    """An endpoint in service without a model, and two models."""
    with account.sandbox.at_home():
        set_quota(TYPE, 2)
    for name in ("one", "two"):
        account.model(name)
    account.model("broken", {"VLLM_FAKE_ENGINE": "crash"})
    scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 1}
    variant = {
        "VariantName": "AllTraffic",
        "InstanceType": TYPE,
        "InitialInstanceCount": 1,
        "ManagedInstanceScaling": scaling,
    }
    account.sagemaker.create_endpoint_config(
        EndpointConfigName="hosts", ExecutionRoleArn=ROLE, ProductionVariants=[variant]
    )
    account.sagemaker.create_endpoint(EndpointName="hosts", EndpointConfigName="hosts")
    description = account.wait_until_stable("hosts")
    assert description["EndpointStatus"] == "InService", description
    assert description["ProductionVariants"][0]["ManagedInstanceScaling"] == scaling
    return "hosts"


def create(account: Account, name: str, copies: int, model: str = "one", gpus: int = 1) -> Any:
    """A component, once it is in service or failed."""
    account.sagemaker.create_inference_component(
        InferenceComponentName=name,
        EndpointName="hosts",
        VariantName="AllTraffic",
        Specification=specification(model, gpus),
        RuntimeConfig={"CopyCount": copies},
    )
    return stable(account, name)


def specification(model: str, gpus: int = 1) -> dict[str, Any]:
    needs = {"NumberOfAcceleratorDevicesRequired": gpus, "MinMemoryRequiredInMb": 1024}
    return {"ModelName": model, "ComputeResourceRequirements": needs}


def describe(account: Account, name: str) -> Any:
    return account.sagemaker.describe_inference_component(InferenceComponentName=name)


def stable(account: Account, name: str) -> Any:
    return until(
        lambda: describe(account, name),
        lambda component: component["InferenceComponentStatus"] in ("InService", "Failed"),
    )


def delete(account: Account, name: str) -> None:
    account.sagemaker.delete_inference_component(InferenceComponentName=name)
    until(
        lambda: account.sagemaker.list_inference_components()["InferenceComponents"],
        lambda components: all(each["InferenceComponentName"] != name for each in components),
    )


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as refused:
        call()
    return str(refused.value)


def test_each_copy_is_an_engine_with_a_stream_in_the_components_log(
    account: Account, endpoint: str
) -> None:
    component = create(account, "copies", 2)
    assert component["InferenceComponentStatus"] == "InService", component
    assert component["RuntimeConfig"] == {"DesiredCopyCount": 2, "CurrentCopyCount": 2}
    group = "/aws/sagemaker/InferenceComponents/copies"
    streams = account.logs.describe_log_streams(logGroupName=group)["logStreams"]
    assert len(streams) == 2
    answer = account.invoke(endpoint, {}, InferenceComponentName="copies")
    assert answer is not None
    text = refusal(lambda: account.invoke(endpoint, {}))
    assert "Inference Component Name header is required" in text
    text = refusal(lambda: account.invoke(endpoint, {}, InferenceComponentName="unknown"))
    assert "not found" in text
    text = refusal(lambda: account.sagemaker.delete_endpoint(EndpointName=endpoint))
    assert "has the inference component(s) copies" in text
    delete(account, "copies")


def test_copies_scale_to_zero_and_back(account: Account, endpoint: str) -> None:
    create(account, "scaled", 1)

    def scale(copies: int) -> Any:
        account.sagemaker.update_inference_component_runtime_config(
            InferenceComponentName="scaled", DesiredRuntimeConfig={"CopyCount": copies}
        )
        return stable(account, "scaled")["RuntimeConfig"]["CurrentCopyCount"]

    assert scale(2) == 2
    assert scale(0) == 0
    text = refusal(lambda: account.invoke(endpoint, {}, InferenceComponentName="scaled"))
    assert "has no capacity to process this request" in text
    assert scale(1) == 1
    account.invoke(endpoint, {}, InferenceComponentName="scaled")
    delete(account, "scaled")


def test_an_update_that_fails_keeps_the_earlier_model(account: Account, endpoint: str) -> None:
    create(account, "updated", 1)

    def update(model: str) -> Any:
        account.sagemaker.update_inference_component(
            InferenceComponentName="updated", Specification=specification(model)
        )
        return stable(account, "updated")

    assert update("two")["Specification"]["ModelName"] == "two"
    failed = update("broken")
    assert failed["Specification"]["ModelName"] == "two"
    assert failed["InferenceComponentStatus"] == "InService"
    assert failed["FailureReason"]
    account.invoke(endpoint, {}, InferenceComponentName="updated")
    delete(account, "updated")


def test_a_component_needs_an_endpoint_for_components(account: Account, live: str) -> None:
    text = refusal(
        lambda: account.sagemaker.create_inference_component(
            InferenceComponentName="misplaced",
            EndpointName=live,
            VariantName="AllTraffic",
            Specification=specification("one"),
            RuntimeConfig={"CopyCount": 1},
        )
    )
    assert "whose variants have models" in text
    text = refusal(lambda: account.invoke(live, {}, InferenceComponentName="misplaced"))
    assert "header is not allowed" in text
