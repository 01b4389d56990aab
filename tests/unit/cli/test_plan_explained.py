"""A plan explains itself: every argument, every part of the memory, every place, in plain words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.cli.view.plan import MEANINGS, explain
from peagle.planning import Options, make_plan

CATALOG = load_catalog()
ONE_OF_EACH_GPU = list({i.gpu_architecture: i.type for i in CATALOG.instances.instances}.values())


def run(*arguments: str, width: str = "120") -> Result:
    settings = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None, "COLUMNS": width}
    return CliRunner().invoke(cli, arguments, env=settings)


Curve = tuple[str | None, int, tuple[int, int, int]]
PAYS: tuple[Curve, ...] = (
    (None, 0, (50, 300, 900)),
    ("p-eagle", 3, (90, 400, 800)),
    ("p-eagle", 7, (120, 350, 700)),
)
"""Speeds with 1, 8 and 32 requests at a time: speculation pays with 1 and 8."""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A catalogue folder with speeds of gpt-oss-20b on an L40S."""
    return measured(tmp_path, PAYS)


def measured(place: Path, curves: tuple[Curve, ...]) -> str:
    """A catalogue folder in which this was measured."""
    rows = [
        {
            "drafter": drafter,
            "k": k,
            "concurrency": load,
            "output_tokens_per_second": speed,
            "prompt_tokens": 2048,
            "output_tokens": 256,
        }
        for drafter, k, speeds in curves
        for load, speed in zip((1, 8, 32), speeds, strict=True)
    ]
    document: dict[str, Any] = {
        "pair": "openai/gpt-oss-20b",
        "date": "2026-11-20",
        "engine": {"version": "0.28.0"},
        "gpu": "L40S",
        "tensor_parallel_size": 1,
        "synthetic": True,
        "speeds": rows,
    }
    (place / "evidence").mkdir()
    (place / "evidence" / "speed.json").write_text(json.dumps(document))
    return str(place)


@pytest.mark.thorough
@pytest.mark.parametrize("target_id", CATALOG.targets)
def test_every_argument_that_a_pair_can_get_has_a_meaning(target_id: str) -> None:
    """With each drafter, and with the first one on each GPU."""
    target = CATALOG.targets[target_id]
    settings = {setting.name for setting in target.engine_arguments}
    settings |= {s.name for drafter in target.drafters for s in drafter.engine_arguments}
    assert {f"--{name}" for name in settings} <= set(MEANINGS)
    first, *others = [f"{target.short_name}+{drafter.name}" for drafter in target.drafters]
    some = [(first, instance_type) for instance_type in ONE_OF_EACH_GPU]
    for pair, instance_type in [*some, *((pair, None) for pair in others)]:
        made = make_plan(Options(pair=pair, instance_type=instance_type), CATALOG)
        for name, _, meaning in explain(made.engine_arguments):
            assert meaning, (pair, name)


def test_argv_is_parsed_as_vllm_does() -> None:
    config = '{"method":"eagle3","num_speculative_tokens":7,"parallel_drafting":true}'
    found = explain(["--async-scheduling", "--unheard-of", "x", "--speculative-config", config])
    assert [(name, value) for name, value, _ in found] == [
        ("--async-scheduling", ""),
        ("--unheard-of", "x"),
        ("--speculative-config", ""),
        ("method", "eagle3"),
        ("num_speculative_tokens", "7"),
        ("parallel_drafting", "true"),
    ]


ON_L40S = ("--instance-type", "ml.g6e.xlarge", "--instance-count", "1", "--max-model-len", "8k")


@pytest.mark.thorough
def test_where_speculation_loses_the_plan_proposes_none(own: str) -> None:
    arguments = (*ON_L40S, "--concurrency", "32", "--json")
    made = json.loads(run("--catalog", own, "plan", "gpt-oss-20b", *arguments).stdout)
    assert made["speculation"] is None
    assert made["speed"]["tokens_per_second"] == 900
    kept = json.loads(run("--catalog", own, "plan", "gpt-oss-20b+p-eagle", *arguments).stdout)
    assert kept["speculation"]["k"] == 3
    assert fix_of(kept, "speculation-loses").startswith("use --no-speculation")


def planned(catalog: str, *arguments: str) -> Any:
    return json.loads(run("--catalog", catalog, "plan", *arguments, "--json").stdout)


def fix_of(made: Any, code: str) -> str:
    (finding,) = [finding for finding in made["findings"] if finding["code"] == code]
    return str(finding["fix"])
