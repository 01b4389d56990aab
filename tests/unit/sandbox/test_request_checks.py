"""The sandbox validates requests with the toolkit's validator, for its own catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto.sagemaker.exceptions import ValidationError

from peagle.catalog import load_catalog
from peagle.sandbox import services, validation

NEW_TYPE = "ml.g99.xlarge"
KNOWN_TYPE = "ml.g6.xlarge"


@pytest.fixture
def _newer_catalog() -> Iterator[None]:
    """A client's catalogue has an instance type that botocore does not know."""
    (known,) = (one for one in load_catalog().instances.instances if one.type == KNOWN_TYPE)
    new = known.model_copy(update={"type": NEW_TYPE, "quota_code": None})
    services.add_instances([new.model_dump(mode="json")])
    yield
    services.reset()


def create_config(instance_type: str, **more: Any) -> None:
    variant = {
        "VariantName": "v",
        "ModelName": "m",
        "InitialInstanceCount": 1,
        "InstanceType": instance_type,
        **more,
    }
    parameters = {"EndpointConfigName": "c", "ProductionVariants": [variant]}
    validation.check_request("create_endpoint_config", parameters, "us-east-1")


@pytest.mark.usefixtures("_newer_catalog")
def test_an_instance_type_of_the_catalogue_is_accepted_before_botocore_knows_it() -> None:
    create_config(NEW_TYPE)
    services.set_quota(NEW_TYPE, 1, "us-east-1")
    assert services.quota_value(NEW_TYPE, "us-east-1") == 1


def test_other_instance_types_are_refused_with_awss_message() -> None:
    with pytest.raises(ValidationError) as refused:
        create_config(NEW_TYPE)
    assert str(refused.value.message).startswith(
        f"1 validation error detected: Value '{NEW_TYPE}' at "
        "'productionVariants.1.member.instanceType' failed to satisfy constraint: Member must "
        "satisfy enum value set: [ml."
    )


def test_keys_of_a_newer_client_and_nulls_are_ignored() -> None:
    create_config(KNOWN_TYPE, InvitedTomorrow=True, RoutingConfig=None)
