"""The three calls: valid for AWS, named by their content, complete."""

import re

import pytest

from peagle.render.requests import requests
from tests.support import rejected_values
from tests.unit.rendering.plans import ALL_PAIRS, SHAPES, plan_for, plan_of


@pytest.mark.parametrize("shape", SHAPES)
def test_the_requests_are_valid_for_aws(shape: str) -> None:
    assert rejected_values(plan_of(shape)) == []


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_the_requests_of_every_bundled_pair_are_valid_for_aws(pair: str) -> None:
    assert rejected_values(plan_for(pair)) == []


def test_names_depend_on_the_content() -> None:
    plan = plan_of("from-hub")
    model, config, _ = (r.parameters for r in requests(plan))
    assert re.fullmatch(r"peagle-gpt-oss-20b-[0-9a-f]{8}", model["ModelName"])
    assert config["EndpointConfigName"] == model["ModelName"]
    assert requests(plan) == requests(plan_of.__wrapped__("from-hub"))
    other = plan.model_copy(update={"instance_count": 3})
    assert requests(other)[0].parameters["ModelName"] != model["ModelName"]
    without_texts = plan.model_copy(update={"findings": (), "reasons": ()})
    assert requests(without_texts) == requests(plan)


def test_a_long_name_is_shortened_for_the_hash() -> None:
    model, _, endpoint = (r.parameters for r in requests(plan_of("draftless")))
    assert endpoint["EndpointName"] == "a" * 63
    assert re.fullmatch(r"a{54}-[0-9a-f]{8}", model["ModelName"])
    hyphens = plan_of("from-hub").model_copy(update={"name": f"{'a' * 50}{'-' * 9}aaa"})
    assert "--" not in requests(hyphens)[0].parameters["ModelName"]


def test_invalid_characters_of_a_tag_are_replaced() -> None:
    tags = requests(plan_of("own-folder"))[0].parameters["Tags"]
    assert tags[1]["Value"] == "openai/gpt-oss-20b+/data/my head_s _best_"
