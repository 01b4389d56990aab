"""Every field of a plan is in every format, or the format refuses and names one that can."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from pydantic import ValidationError

from peagle.errors import Unsupported
from peagle.planning import Options, Plan, make_plan
from peagle.render import format_names, render
from peagle.speed.models import Slo
from tests.unit.rendering.plans import CATALOG

RICH = Options(
    pair="gpt-oss-20b",
    min_instances=8,
    max_instances=12,
    concurrency=32,
    slo=Slo(ttft=0.5),
    rollout="canary",
    observe=True,
    ttl=8 * 3600,
    tags={"team": "search"},
    kms_key="arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
    subnets=("subnet-0a1b2c3d",),
    security_groups=("sg-0a1b2c3d",),
    permissions_boundary="arn:aws:iam::123456789012:policy/boundary",
)
IN_S3 = Options(pair="gpt-oss-120b", drafter="s3://heads/gpt-oss-120b", k=4)
ABOUT_ITSELF = (
    "alternatives", "findings", "fit", "format", "output_tokens", "price_date", "prompt_tokens",
    "proof", "reasons", "speed", "without_speculation",
    "rollout.extra_instances", "rollout.extra_usd_per_hour", "pins.any_warm",
)  # fmt: skip
"""What a plan says of itself, and what `peagle prove` reads from it: no resource has it."""
DERIVED = (
    "concurrency", "drafter", "engine_arguments", "max_model_len", "runtime.cuda", "runtime.vllm",
    "speculation", "target", "company.name_prefix",
)  # fmt: skip
"""What the environment, the image, the mounts and the name are made of. The options that choose
these are changed instead."""
OPTIONS: dict[str, Any] = {
    "k": 2,
    "max_model_len": 4096,
    "concurrency": 16,
    "speculation": False,
    "drafter": "someone/another-head",
    "name_prefix": "acme-",
    "instance_type": "ml.p5.4xlarge",
    "region": "eu-west-1",
    "vllm": "0.30.0",
}


@cache
def plan_with(**changed: Any) -> Plan:
    return make_plan(RICH.model_copy(update=changed), CATALOG)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values that are not empty; of a list, its first item."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for item in value[:1]:
            yield from leaves(item, (*path, 0))
    elif value is not None:
        yield path


def changed(plan: Plan, path: tuple[str | int, ...]) -> Plan | None:
    """The plan with another value there; ``None`` where the model has no other."""
    document = plan.model_dump(mode="json")
    part: Any = document
    for key in path[:-1]:
        part = part[key]
    before = part[path[-1]]
    for other in candidates(before):
        made = copy.deepcopy(document)
        part = made
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = other
        try:
            return Plan.model_validate_json(json.dumps(made))
        except ValidationError:
            continue
    return None


def candidates(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value - 1]
    if value.startswith("{"):
        return [json.dumps({**json.loads(value), "num_speculative_tokens": 1})]
    return [one for one in (f"{value}x", f"{value[:-1]}9", "linear", "percent") if one != value]


def rendered(format: str, plan: Plan) -> list[bytes] | None:
    """The contents of the files; ``None`` where the format refuses, and names one that can."""
    try:
        return [file.content for file in render(format, plan, CATALOG)]
    except Unsupported as refused:
        if any(name in refused.fix for name in format_names()):
            return None
        raise


@pytest.mark.parametrize("options", [RICH, IN_S3], ids=["rich", "in-s3"])
def test_a_changed_field_changes_every_format(options: Options) -> None:
    plan = make_plan(options, CATALOG)
    before = {name: rendered(name, plan) for name in format_names()}
    silent = []
    for path in leaves(plan.model_dump(mode="json")):
        field = ".".join(str(part) for part in path)
        other = None if field.startswith((*ABOUT_ITSELF, *DERIVED)) else changed(plan, path)
        if other is not None:
            silent += [
                f"{name}: {field}"
                for name, files in before.items()
                if files is not None and rendered(name, other) == files
            ]
    assert silent == []


@pytest.mark.parametrize("option", OPTIONS)
def test_a_changed_option_changes_every_format(option: str) -> None:
    plan, other = plan_with(kms_key=None), plan_with(**{"kms_key": None, option: OPTIONS[option]})
    assert [
        name
        for name in format_names()
        if (files := rendered(name, plan)) is not None and rendered(name, other) == files
    ] == []
