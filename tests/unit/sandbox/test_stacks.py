"""CloudFormation in the sandbox, in process: types of values."""

import pytest

from peagle.request_validation import service_model
from peagle.sandbox.stacks import with_types

INPUT = service_model("sagemaker").operation_model("CreateEndpointConfig").input_shape


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("InitialInstanceCount", "2", 2),
    ("InitialInstanceCount", 2, 2),
    ("InitialInstanceCount", "two", "two"),
    ("InitialVariantWeight", "0.5", 0.5),
    ("EnableSSMAccess", "true", True),
    ("EnableSSMAccess", "false", False),
    ("EnableSSMAccess", "yes", "yes"),
    ("VariantName", 1, "1"),
    ("VariantName", True, "true"),
    ("Unknown", "1", "1"),
])  # fmt: skip
def test_a_value_of_a_template_gets_the_type_that_the_service_expects(
    key: str, value: object, expected: object
) -> None:
    (variant,) = with_types(INPUT, {"ProductionVariants": [{key: value}]})["ProductionVariants"]
    assert (variant[key], type(variant[key])) == (expected, type(expected))
