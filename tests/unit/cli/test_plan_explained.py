"""A plan explains itself: every argument, every part of the memory, every place, in plain words."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.cli.output.plan import MEANINGS, SPECULATION, explain, instances_table
from peagle.planning import Options, make_plan

CATALOG = load_catalog()
ONE_OF_EACH_GPU = list({i.gpu_architecture: i.type for i in CATALOG.instances.instances}.values())


def run(*arguments: str, width: str = "120") -> Result:
    settings = {"AWS_REGION": None, "AWS_DEFAULT_REGION": None, "COLUMNS": width}
    return CliRunner().invoke(cli, arguments, env=settings)


def words(done: Result) -> str:
    return " ".join(done.stdout.split())


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
    """A catalogue folder with speeds of gpt-oss-20b on an L4, which is the cheapest that fits."""
    return measured(tmp_path, PAYS)


def measured(place: Path, curves: tuple[Curve, ...]) -> str:
    """A catalogue folder in which this was measured."""
    rows = [
        {"drafter": drafter, "k": k, "concurrency": load, "output_tokens_per_second": speed}
        for drafter, k, speeds in curves
        for load, speed in zip((1, 8, 32), speeds, strict=True)
    ]
    document: dict[str, Any] = {
        "pair": "openai/gpt-oss-20b",
        "date": "2026-11-20",
        "engine": {"version": "0.26.0"},
        "gpu": "L4",
        "tensor_parallel_size": 1,
        "synthetic": True,
        "speeds": rows,
    }
    (place / "evidence").mkdir()
    (place / "evidence" / "speed.json").write_text(json.dumps(document))
    return str(place)


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


def test_meanings_fit_on_a_line() -> None:
    for meaning in (*MEANINGS.values(), *SPECULATION.values()):
        assert 0 < len(meaning) <= 80
        assert meaning[0].islower() or meaning[0] in "KGP"


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


@pytest.mark.parametrize("width", ["80", "120"])
def test_plan_shows_engine_arguments_and_memory(width: str) -> None:
    seen = words(run("plan", "gpt-oss-20b", width=width))
    for text in (
        "Engine arguments",
        "--max-num-seqs 8 concurrent requests; excess requests queue",
        "num_speculative_tokens 7 K, the tokens drafted per step",
        "schedules the next step while the GPU computes; P-EAGLE's model cards set it",
        "weights of the target",
        "weights of the drafter",
        "KV cache",
    ):
        assert text in seen
    assert seen.count("--async-scheduling") == 1, "its reason stands beside it, not once more"


def test_a_plan_shows_three_places_and_says_what_is_not_known() -> None:
    done = run("plan", "gpt-oss-20b")
    table = done.stdout.partition("Best instances for this load")[2].partition("\n\n")[0]
    _, heads, *lines, legend, _ = table.splitlines()
    assert "USD/hour" in heads
    assert len(lines) == 3
    assert lines[0].startswith("*")
    assert all("unverified" in line and line.rstrip().endswith(" -") for line in lines)
    assert legend.startswith("*: planned.")
    assert "speed unverified: no measurement on 1 x" in words(done)


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    """As drawn at 80 columns; a pipe gets 120."""
    made = make_plan(Options(pair="gpt-oss-20b", instance_type="ml.p6-b200.48xlarge"), CATALOG)
    console = Console(width=80, file=StringIO(), highlight=False)
    console.print(instances_table(made, console.width))
    assert isinstance(console.file, StringIO)
    drawn = console.file.getvalue()
    assert "ml.p6-b200.48xlarge" in drawn
    assert "…" not in drawn


def test_a_measured_plan_shows_speed_money_and_where_it_is_from(own: str) -> None:
    done = run("--catalog", own, "plan", "gpt-oss-20b", "--instance-type", "ml.g6.xlarge")
    seen = words(done)
    assert "K=3" in seen
    assert "speed 400 tokens/s in total (300 without speculation), $0.78 per million" in seen
    assert "measured on 1 x L4 with vLLM 0.26.0, 2026-11-20, synthetic acceptance" in seen
    assert "k 3 the fastest measured: 400 tokens/s with 8 requests at a time" in seen


def test_where_speculation_loses_the_plan_proposes_none(own: str) -> None:
    arguments = ("--instance-type", "ml.g6.xlarge", "--concurrency", "32", "--json")
    made = json.loads(run("--catalog", own, "plan", "gpt-oss-20b", *arguments).stdout)
    assert made["speculation"] is None
    assert "speculation-loses" in [finding["code"] for finding in made["findings"]]
    assert made["speed"]["tokens_per_second"] == 900
    kept = json.loads(run("--catalog", own, "plan", "gpt-oss-20b+p-eagle", *arguments).stdout)
    assert kept["speculation"]["k"] == 3


def planned(catalog: str, *arguments: str) -> Any:
    return json.loads(run("--catalog", catalog, "plan", *arguments, "--json").stdout)


def fix_of(made: Any, code: str) -> str:
    (finding,) = [finding for finding in made["findings"] if finding["code"] == code]
    return str(finding["fix"])


@pytest.mark.parametrize("asked", [(), ("--min-tokens-per-second", "200"), ("--concurrency", "1")])
def test_where_all_drafters_lose_the_plan_proposes_none(
    asked: tuple[str, ...], tmp_path: Path
) -> None:
    losing = measured(tmp_path, LOSES)
    made = planned(losing, "gpt-oss-20b", *asked)
    assert (made["speculation"], made["drafter"]) == (None, None)
    assert made["instance_type"] == "ml.g6.xlarge"
    assert "--speculative-config" not in made["engine_arguments"]
    assert fix_of(made, "speculation-loses").startswith("planned without speculation; to")
    seen = words(run("--catalog", losing, "plan", "gpt-oss-20b", *asked))
    assert "reaches" in seen
    assert "at best (K=3) with P-EAGLE" in seen


def test_slow_named_drafter_gets_the_better_choice_of_the_same_evidence(
    tmp_path: Path,
) -> None:
    catalog = measured(tmp_path, MIXED)
    made = planned(catalog, "gpt-oss-20b+eagle3", "--instance-type", "ml.g6.xlarge")
    assert made["speculation"]["k"] == 3, "it was named"
    assert fix_of(made, "speculation-loses") == (
        "use gpt-oss-20b+p-eagle --k 3 (400 tokens/s) or --no-speculation (300 tokens/s), unless "
        "your requests are more predictable"
    )
    for better, speed in ((("gpt-oss-20b+p-eagle", "--k", "3"), 400),
                          (("gpt-oss-20b+eagle3", "--no-speculation"), 300)):  # fmt: skip
        again = planned(catalog, *better, "--instance-type", "ml.g6.xlarge")
        assert again["speed"]["tokens_per_second"] == speed
        assert "speculation-loses" not in [finding["code"] for finding in again["findings"]]


def test_drafter_that_needs_more_instances_than_none_is_noted() -> None:
    asked = ("--concurrency", "64", "--min-tokens-per-second", "12000", "--json")
    made = json.loads(run("plan", "gpt-oss-20b+eagle3", *asked).stdout)
    assert made["instance_count"] == 2
    assert fix_of(made, "speculation-costs-more") == "use --no-speculation"
    alone = json.loads(run("plan", "gpt-oss-20b+eagle3", "--no-speculation", *asked).stdout)
    assert alone["instance_count"] == 1
    assert alone["speed"]["tokens_per_second"] >= 12000


def test_the_document_has_the_places_and_the_speed(own: str) -> None:
    made = json.loads(run("--catalog", own, "plan", "gpt-oss-20b", "--json").stdout)
    assert len(made["alternatives"]) == 3
    assert {
        "instance_type", "tensor_parallel_size", "price_per_hour_usd", "max_concurrency",
        "kv_cache_tokens", "tokens_per_second", "speed_source", "usd_per_million_tokens", "k",
        "verified",
    } <= set(made["alternatives"][0])  # fmt: skip


def test_limits_are_part_of_the_next_command(own: str) -> None:
    done = run(
        "--catalog", own, "plan", "gpt-oss-20b", "--min-tokens-per-second", "400",
        "--max-price-per-hour", "2.7",
    )  # fmt: skip
    assert "--min-tokens-per-second 400 --max-price-per-hour 2.7" in words(done)


@pytest.mark.parametrize("flag", ["--min-tokens-per-second", "--max-price-per-hour"])
def test_a_limit_is_a_number_above_zero(flag: str) -> None:
    assert run("plan", "gpt-oss-20b", flag, "0").exit_code == 2
