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
LOSES: tuple[Curve, ...] = (
    (None, 0, (50, 300, 900)),
    ("p-eagle", 3, (45, 290, 800)),
    ("p-eagle", 7, (40, 280, 700)),
    ("eagle3", 3, (42, 250, 600)),
)
"""Speculation never pays, whatever drafts."""
MIXED: tuple[Curve, ...] = (*PAYS, ("eagle3", 3, (40, 250, 600)))
"""P-EAGLE pays, and EAGLE-3 does not."""


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


@pytest.mark.thorough
@pytest.mark.parametrize("asked", [(), ("--min-tokens-per-second", "200")])
def test_where_all_drafters_lose_the_plan_proposes_none(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    losing = measured(tmp_path, LOSES)
    made = planned(losing, "gpt-oss-20b", *ON_L40S, *asked)
    assert (made["speculation"], made["drafter"]) == (None, None)
    assert "--speculative-config" not in made["engine_arguments"]


def test_slow_named_drafter_gets_the_better_choice(tmp_path: Path) -> None:
    catalog = measured(tmp_path, MIXED)
    made = planned(catalog, "gpt-oss-20b+eagle3", *ON_L40S)
    assert made["speculation"]["k"] == 3, "it was named"
    assert fix_of(made, "speculation-loses").startswith("use --no-speculation")
    again = planned(catalog, "gpt-oss-20b+eagle3", "--no-speculation", *ON_L40S)
    assert again["speed"]["tokens_per_second"] == 300
    assert "speculation-loses" not in [finding["code"] for finding in again["findings"]]


@pytest.mark.thorough
def test_the_document_has_the_places_and_the_speed(own: str) -> None:
    made = json.loads(run("--catalog", own, "plan", "gpt-oss-20b", "--json").stdout)
    assert len(made["alternatives"]) >= 3
    speed = {
        "tokens_per_second", "low", "high", "basis", "ttft_seconds", "itl_seconds",
        "usd_per_million_tokens", "acceptance_length", "acceptance_basis", "source",
        "cached_prompt_tokens", "conversations", "extrapolated",
    }  # fmt: skip
    place = {
        "instance_type", "instance_count", "tensor_parallel_size", "price_per_hour_usd", "gpu",
        "max_concurrency", "kv_cache_tokens", "drafter", "k", "verified",
        "speed_source", "batch",
    }  # fmt: skip
    assert set(made["speed"]) == speed
    for one in (made["without_speculation"], *made["alternatives"]):
        assert set(one) == speed | place
    assert made["without_speculation"]["drafter"] is None
