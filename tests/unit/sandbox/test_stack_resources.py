"""What stacks are made of: the order of resources, generated names, types of properties."""

from __future__ import annotations

import re
from typing import Any

import pytest

from peagle.request_validation.model import service_model
from peagle.sandbox.stack_resources import _typed, generated_name, in_order


@pytest.mark.parametrize(
    "reference",
    [
        {"Ref": "B"},
        {"Fn::GetAtt": ["B", "Arn"]},
        {"Fn::GetAtt": "B.Arn"},
        {"Fn::Sub": "x-${AWS::Region}-${B}"},
        {"Fn::Sub": ["${name}-${B.Arn}", {"name": "n"}]},
        {"Fn::Join": ["-", ["a", {"Ref": "B"}]]},
    ],
)
def test_a_resource_comes_after_those_that_it_refers_to(reference: dict[str, Any]) -> None:
    resources = {"A": {"Properties": {"P": [reference]}}, "B": {"Properties": {}}}
    assert in_order(resources) == ["B", "A"]


def test_a_resource_comes_after_those_that_it_depends_on() -> None:
    resources = {"A": {"DependsOn": ["B"]}, "B": {"DependsOn": "C"}, "C": {}}
    assert in_order(resources) == ["C", "B", "A"]


def test_a_generated_name_fits_sagemaker_and_begins_with_the_stack() -> None:
    assert re.fullmatch(r"stack-Endpoint-[A-Za-z0-9]{12}", generated_name("stack", "Endpoint"))
    long = generated_name("s" * 49 + "-x", "Endpoint")
    assert re.fullmatch(r"s{49}-[A-Za-z0-9]{12}", long)


def test_numbers_and_truths_get_the_types_of_the_service() -> None:
    shape = service_model("sagemaker").operation_model("CreateEndpointConfig").input_shape
    given = {
        "EnableNetworkIsolation": "true",
        "ProductionVariants": [
            {"VariantName": 1, "InitialInstanceCount": "2", "InitialVariantWeight": "0.5"}
        ],
        "KmsKeyId": "k",
    }
    assert _typed(shape, given) == {
        "EnableNetworkIsolation": True,
        "ProductionVariants": [
            {"VariantName": "1", "InitialInstanceCount": 2, "InitialVariantWeight": 0.5}
        ],
        "KmsKeyId": "k",
    }
    wrong = {"ProductionVariants": [{"InitialInstanceCount": "many"}]}
    assert _typed(shape, wrong) == wrong
