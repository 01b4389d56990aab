"""Copies of the engine on one instance: how many, what each reserves, and when they are named."""

from __future__ import annotations

import pytest

from peagle.catalog import load_catalog
from peagle.errors import UserError
from peagle.planning import Options, Plan, make_plan
from peagle.render.plan_file import plan_document, plan_from
from peagle.render.requests import plan_arguments
from tests.support import decide_alike, raises_code

CATALOG = load_catalog()
EIGHT = "ml.p5.48xlarge"


def plan(**options: object) -> Plan:
    chosen = {"pair": "gpt-oss-20b", "instance_type": EIGHT, **options}
    return make_plan(Options.model_validate(chosen), CATALOG)


def idle(made: Plan) -> list[tuple[str, str]]:
    """Level and fix of the findings on idle GPUs."""
    return [(one.level, one.fix) for one in made.findings if one.code == "gpus-idle"]


def test_one_engine_runs_with_1_and_idle_gpus_name_the_better_plan() -> None:
    made = plan(pair="tiny", copies=1)

    assert made.copies is None
    ((level, fix),) = idle(made)
    assert (level, fix) == ("warning", "use --copies 8 (an inference component)")
    (finding,) = [one for one in made.findings if one.code == "gpus-idle"]
    assert "7 of the 8 GPUs" in finding.message
    assert "8 copies of the engine with 1 GPU each" in finding.message


@pytest.mark.thorough
def test_a_number_of_copies_that_leaves_gpus_idle_names_the_better_one() -> None:
    made = plan(concurrency=64, copies=5, rollout="rolling")

    assert idle(made) == [("warning", "use --copies 4 (an inference component)")]
    (finding,) = [one for one in made.findings if one.code == "gpus-idle"]
    assert "3 of the 8 GPUs" in finding.message
    assert "4 copies of the engine with 2 GPUs each" in finding.message


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"rollout": "all-at-once"}, "--rollout all-at-once"),
        ({"capture_data": "s3://captured/here"}, "--capture-data"),
    ],
)
def test_an_option_that_excludes_copies_is_named_where_gpus_are_idle(
    options: dict[str, object], flag: str
) -> None:
    ((level, fix),) = idle(plan(pair="tiny", **options))
    assert level == "warning"
    assert fix == f"use --copies 8 (an inference component), without {flag}"


def test_captured_data_and_a_scale_to_zero_exclude_each_other_by_name() -> None:
    with pytest.raises(UserError) as raised:
        plan(scale_to_zero=True, capture_data="s3://captured/here")
    assert "which --scale-to-zero makes" in raised.value.message
    assert raised.value.fix == "omit --capture-data or --scale-to-zero"


@pytest.mark.thorough
def test_copies_that_cost_less_than_tensor_parallelism_are_a_note() -> None:
    codes = {one.code: one.level for one in plan(concurrency=64, copies=1).findings}

    assert codes.get("copies-cost-less") == "note"
    assert "copies-cost-less" not in {one.code for one in plan(concurrency=64, copies=8).findings}


def test_tensor_parallelism_is_planned_where_it_costs_less() -> None:
    made = plan(pair="gpt-oss-120b", instance_type="ml.g6.12xlarge", copies="auto")

    assert (made.copies, made.fit.tensor_parallel_size) == (None, 4)


@pytest.mark.thorough
def test_auto_fills_the_instance_and_costs_less_per_token() -> None:
    one, made = plan(concurrency=64, copies=1), plan(concurrency=64, copies="auto")

    assert made.copies is not None
    assert made.copies.per_instance * made.copies.gpus == 8
    assert idle(made) == []
    assert made.price_per_hour_usd == one.price_per_hour_usd
    assert made.speed is not None
    assert one.speed is not None
    assert (made.speed.usd_per_million_tokens or 0) < (one.speed.usd_per_million_tokens or 0)


@pytest.mark.thorough
def test_n_copies_are_n_engines_that_share_the_load() -> None:
    eight = plan(concurrency=64, copies=8)
    single = plan(concurrency=8, instance_type="ml.p5.4xlarge")

    assert eight.speed is not None
    assert single.speed is not None
    assert eight.speed.tokens_per_second == pytest.approx(
        8 * (single.speed.tokens_per_second or 0), rel=0.001
    )
    assert eight.speed.itl_seconds == single.speed.itl_seconds


@pytest.mark.thorough
def test_each_copy_reserves_a_share_of_the_instance() -> None:
    made = plan(copies=4)

    assert made.copies is not None
    assert (made.copies.per_instance, made.engines) == (4, 4)
    assert made.copies.cpu_cores * 4 <= 192
    assert made.copies.memory_mib * 4 <= 2048 * 1024


@pytest.mark.thorough
def test_no_more_copies_than_requests() -> None:
    made = plan(concurrency=2, copies="auto")

    assert made.engines <= 2


@pytest.mark.thorough
def test_a_type_with_one_gpu_needs_no_inference_component() -> None:
    assert plan(instance_type="ml.g6e.xlarge", copies="auto").copies is None


@pytest.mark.parametrize(("copies", "code"), [(9, "too-many-copies"), (0, "out-of-range")])
def test_impossible_numbers_are_refused(copies: int, code: str) -> None:
    with raises_code(code, UserError) as refused:
        plan(copies=copies)
    assert f"--copies {copies} " in refused.value.message


def test_captured_data_is_refused_with_the_reason() -> None:
    with raises_code("capture-of-copies", UserError) as refused:
        plan(copies=4, capture_data="s3://bucket/folder")
    assert "documents no capture of the requests to inference" in refused.value.message


def test_types_without_a_gpu_for_each_copy_are_not_chosen() -> None:
    made = make_plan(Options(pair="gpt-oss-20b", copies=4), CATALOG)

    assert made.fit.gpu_count >= 4
    assert all(one.copies == 4 for one in made.alternatives)


@pytest.mark.thorough
def test_a_plan_file_keeps_the_copies_and_has_no_such_key_without() -> None:
    made = plan(copies=4)

    assert plan_from(plan_document(made), "plan.json") == made
    assert "copies" not in plan_document(plan(copies=1))


@pytest.mark.thorough
def test_auto_is_the_default() -> None:
    assert decide_alike(plan(concurrency=64), plan(concurrency=64, copies="auto"))


@pytest.mark.parametrize(
    "options", [{"capture_data": "s3://bucket/folder"}, {"rollout": "canary", "instance_count": 4}]
)
def test_by_default_no_copies_run_beside_an_option_that_they_exclude(
    options: dict[str, object],
) -> None:
    assert plan(pair="tiny", **options).copies is None


@pytest.mark.thorough
@pytest.mark.parametrize("copies", [1, 8, None])
def test_the_command_of_a_plan_has_the_engines_on_each_instance(copies: int | None) -> None:
    made = plan(concurrency=64, copies=copies)

    words = plan_arguments(made)

    assert words[words.index("--copies") + 1] == str(made.engines)
    assert "--copies" not in plan_arguments(plan(instance_type="ml.g6e.xlarge"))
