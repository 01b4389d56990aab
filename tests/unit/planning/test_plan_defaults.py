"""Stating a default changes nothing; the load decides, not whether an option was given."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, Plan, make_plan
from tests.unit.planning.small_catalog import CATALOG as SMALL
from tests.unit.planning.small_catalog import because, plan

CATALOG = load_catalog()
TARGETS = [target.short_name for target in CATALOG.targets.values()]

DEFAULTS = (
    "name",
    "region",
    "instance_type",
    "instance_count",
    "max_model_len",
    "concurrency",
    "prompt_tokens",
    "output_tokens",
    "vllm",
    "image",
    "weights_by",
    "startup_timeout",
    "download_timeout",
)
"""Options of which the plan shows the default."""

NOT_DECIDED = ("findings", "reasons", "alternatives", "without_speculation", "overrides")
"""What explains or compares."""


def default_of(made: Plan, option: str) -> Any:
    if option == "vllm":
        return made.runtime.vllm
    if option == "image":
        return made.runtime.image
    if option == "weights_by":
        return "mount"
    if option.endswith("_timeout"):
        return getattr(made, f"{option}_seconds")
    return getattr(made, option)


def decided(made: Plan) -> dict[str, Any]:
    return made.model_dump(exclude={*NOT_DECIDED, "options"})


@pytest.mark.thorough
@pytest.mark.parametrize("pair", TARGETS)
def test_stating_all_defaults_does_not_change_the_plan(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    stated = {option: default_of(made, option) for option in DEFAULTS}
    assert decided(make_plan(Options(pair=pair, **stated), CATALOG)) == decided(made)


@pytest.mark.thorough
@pytest.mark.parametrize("pair", TARGETS)
def test_naming_what_the_plan_chose_does_not_change_it(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    if made.speculation is None or made.drafter is None:
        named: dict[str, Any] = {"speculation": False}
    else:
        named = {"drafter": made.drafter.name, "k": made.speculation.k}
    again = make_plan(Options(pair=pair, **named), CATALOG)
    assert decided(again) | {"name": made.name} == decided(made)


@pytest.mark.parametrize("option", DEFAULTS)
def test_stating_a_default_does_not_change_a_plan_without_evidence(option: str) -> None:
    made = make_plan(Options(pair="chat"), SMALL)
    again = make_plan(Options(pair="chat", **{option: default_of(made, option)}), SMALL)
    assert decided(again) == decided(made)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "drafter"),
    [
        ({}, "p-eagle"),
        ({"max_model_len": 32768}, "p-eagle"),
        ({"max_model_len": 65536}, "p-eagle-long"),
        ({"prompt_tokens": 9000}, "p-eagle"),
        ({"prompt_tokens": 12000}, "p-eagle-long"),
        ({"prompt_tokens": 60000}, "p-eagle-long"),
    ],
)
def test_a_long_context_gets_the_head_that_was_trained_for_it(
    options: dict[str, Any], drafter: str
) -> None:
    asked = Options(pair="gpt-oss-20b", k=3, **options)
    made = make_plan(asked, CATALOG)
    assert made.drafter is not None
    assert made.drafter.name == drafter
    default = 65536 if options.get("prompt_tokens") == 60000 else 32768
    assert made.max_model_len == options.get("max_model_len", default)
    named = make_plan(asked.model_copy(update={"drafter": "p-eagle"}), CATALOG)
    assert named.drafter is not None
    assert named.drafter.name == "p-eagle", "the user decides"


@pytest.mark.parametrize(
    ("pair", "options", "context"),
    [
        ("gpt-oss-20b", {"workload": "agent"}, 65536),
        ("gpt-oss-20b", {"workload": "chat"}, 32768),
        ("qwen3-8b", {"workload": "agent"}, 40960),  # the most that it supports
        ("gpt-oss-20b", {"workload": "agent", "prompt_tokens": 60000}, 131072),
    ],
)
def test_the_context_of_a_conversation_has_room_for_further_turns(
    pair: str, options: dict[str, Any], context: int
) -> None:
    assert make_plan(Options(pair=pair, **options), CATALOG).max_model_len == context


def test_a_default_context_that_does_not_fit_is_shortened_with_a_warning() -> None:
    asked = Options(pair="qwen3-8b", instance_type="ml.g6.xlarge")
    made = make_plan(asked, CATALOG)
    assert (made.fit.fits, made.max_model_len) == (True, 16384)
    assert "context-shortened" in [f.code for f in made.findings]
    confirmed = make_plan(asked.model_copy(update={"max_model_len": 16384}), CATALOG)
    assert "context-shortened" not in [f.code for f in confirmed.findings]


def test_requests_are_shortened_to_a_short_context() -> None:
    made = plan(max_model_len=1000)
    assert (made.prompt_tokens, made.output_tokens) == (744, 256)
    made = plan(max_model_len=300, output_tokens=200)
    assert (made.prompt_tokens, made.output_tokens) == (100, 200)
    assert because(plan(prompt_tokens=5, output_tokens=5), "workload") is None


@pytest.mark.thorough
def test_requests_above_the_context_are_an_error_with_a_fix_that_works() -> None:
    made = plan(prompt_tokens=4000, output_tokens=200, max_model_len=4096)
    (finding,) = [f for f in made.findings if f.code == "requests-above-context"]
    assert finding.fix.startswith("use --max-model-len 4200")
    fixed = plan(prompt_tokens=4000, output_tokens=200, max_model_len=4200)
    assert "requests-above-context" not in [f.code for f in fixed.findings]
    assert plan(prompt_tokens=4000, output_tokens=200).max_model_len == 8192
    (finding,) = plan(output_tokens=4096, max_model_len=4096).findings[:1]
    assert finding.where == "output_tokens"
    assert finding.fix.startswith("use --max-model-len 6144, or lower --output-tokens")
    assert plan(output_tokens=4096, max_model_len=6144).prompt_tokens == 2048
    beyond = plan(prompt_tokens=9000)
    assert [f.code for f in beyond.findings if f.level == "error"] == ["requests-above-context"]
