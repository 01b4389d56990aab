"""The three calls: valid for AWS, named by their content, complete."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from peagle.errors import PeagleError
from peagle.findings import errors
from peagle.planning import Options, make_plan
from peagle.render.requests import requests
from tests.support import examples, plan_request_findings
from tests.unit.rendering.plans import ALL_PAIRS, CATALOG, SHAPES, plan_for, plan_of


@pytest.mark.parametrize("shape", SHAPES)
def test_the_requests_are_valid_for_aws(shape: str) -> None:
    assert plan_request_findings(plan_of(shape)) == ()


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_the_requests_of_every_bundled_pair_are_valid_for_aws(pair: str) -> None:
    assert plan_request_findings(plan_for(pair)) == ()


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


# Any options are refused, or make requests that are valid for AWS.
_ODD = st.text(alphabet="aZ09-_./:%=+@ \t\n\"'\\{}[]$äß漢🙂\0", max_size=80)
_WORDS = st.text(alphabet="aZ09-_.=+@'\"\\{}[]$äß漢🙂", min_size=1, max_size=80)
_NAMES = st.one_of(
    st.from_regex(r"[a-zA-Z0-9]([a-zA-Z0-9\-]{0,61}[a-zA-Z0-9])?", fullmatch=True), _ODD
)
_S3 = st.builds("s3://{}/{}".format, st.sampled_from(["heads", "a.b", "x" * 63]), _WORDS | _ODD)
_DEEP = st.integers(900, 1100).map(lambda length: f"s3://heads/{'d' * length}")
_HEADS = st.one_of(_S3, _DEEP, _WORDS.map("/data/{}".format), _ODD)
_IMAGES = st.one_of(st.from_regex(r"[a-z0-9./:\-@]{1,80}", fullmatch=True), _ODD,
                    st.integers(200, 300).map("i".__mul__))  # fmt: skip
_KEYS = st.one_of(st.sampled_from(["alias/models", "1234abcd-12ab-34cd-56ef-1234567890ab"]), _ODD)
_TAG_TEXTS = st.one_of(
    st.text(alphabet="aZ09 _.:/=+-@äß漢", max_size=300),
    st.sampled_from(["aws:x", "AWS:x", "peagle:pair", "Peagle:x", "", " ", "a b", "a\u2028"]),
    _ODD,
)
_REGIONS = st.sampled_from(["us-east-1", "eu-west-1", "cn-north-1", "us-gov-west-1", "x"])


def _ids(kind: str) -> st.SearchStrategy[tuple[str, ...]]:
    """Ids of subnets or security groups, some of them invalid, too many, or twice."""
    valid = st.from_regex(rf"{kind}-[0-9a-f]{{8}}([0-9a-f]{{9}})?", fullmatch=True)
    return st.lists(valid | _ODD, max_size=18).map(tuple)


@st.composite
def _options(draw: st.DrawFn) -> dict[str, Any]:
    """A pair and a few options, some of them invalid."""
    choices = {
        "name": _NAMES,
        "region": _REGIONS,
        "instance_count": st.integers(1, 10**9),
        "k": st.integers(1, 8),
        "max_model_len": st.integers(1000, 200_000),
        "concurrency": st.integers(1, 10**4),
        "drafter": _HEADS,
        "image": _IMAGES,
        "model_source": st.one_of(_S3, _DEEP),
        "baked_weights": st.booleans(),
        "weights_by": st.sampled_from(["mount", "stream"]),
        "subnets": _ids("subnet"),
        "security_groups": _ids("sg"),
        "network_isolation": st.booleans(),
        "kms_key": _KEYS,
        "tags": st.dictionaries(_TAG_TEXTS, _TAG_TEXTS, max_size=60),
        "name_prefix": st.one_of(st.sampled_from(["acme-", "a", "x" * 40, "-"]), _ODD),
        "permissions_boundary": st.one_of(st.just("arn:aws:iam::123456789012:policy/a/b"), _ODD),
    }
    given_ = draw(st.sets(st.sampled_from(sorted(choices)), max_size=4))
    return {"pair": draw(st.sampled_from(ALL_PAIRS)), **{n: draw(choices[n]) for n in given_}}


@pytest.mark.thorough
@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(_options())
def test_any_options_are_refused_or_make_valid_requests(chosen: dict[str, Any]) -> None:
    try:
        plan = make_plan(Options(**chosen), CATALOG)
    except PeagleError:
        return
    assume(not errors(plan.findings))
    assert plan_request_findings(plan) == ()
