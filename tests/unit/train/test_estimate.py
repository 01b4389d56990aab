"""The plan of a training: amounts, hours, cost, acceptance, break-even and advice."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from peagle.catalog import find_instance, find_pair, load_catalog
from peagle.catalog.loading import load_table
from peagle.catalog.tables import TrainingTable
from peagle.planning import Options, make_plan
from peagle.planning.load import Load
from peagle.speed.acceptance import Acceptance, curve_through
from peagle.train.data import Conversation
from peagle.train.estimate import (
    DataSize,
    Range,
    Rates,
    TrainingOptions,
    TrainingPlan,
    expected_curves,
    measure_data,
    new_head,
    plan_training,
    training_hours,
    training_rate,
)
from peagle.train.recipe import Recipe
from tests.support import raises_code

CATALOG, TABLE, RECIPE = load_catalog(), load_table(TrainingTable), Recipe()
DECAY = CATALOG.speed_model.decay
H100, L40S = "ml.p5.4xlarge", "ml.g6e.xlarge"
RATES = Rates(
    "measured",
    regeneration=Range(500.0, 1000.0, 2000.0),
    epoch=Range(5_000.0, 10_000.0, 20_000.0),
    seconds=Range(180.0, 360.0, 720.0),
    epoch_seconds=Range(60.0, 120.0, 240.0),
)


def data_of(conversations: int, prompt: int = 300, answer: int = 450) -> DataSize:
    tokens = conversations * (prompt + answer)
    return DataSize(
        conversations, tokens, conversations, conversations * prompt, conversations * answer
    )


def planned(pair: str, conversations: int, **more: Any) -> TrainingPlan:
    options = TrainingOptions(
        pair=pair, instance_type=more.pop("on", L40S), concurrency=more.pop("load", 8)
    )
    recipe = more.pop("recipe", RECIPE)
    return plan_training(options, data_of(conversations), recipe, CATALOG, TABLE, **more)


def usd_of(plan: TrainingPlan) -> float:
    assert plan.usd is not None
    return plan.usd.likely


def message(role: str, tokens: int) -> dict[str, str]:
    return {"role": role, "content": "word" * (tokens - 4)}


def conversation(messages: list[dict[str, str]]) -> Conversation:
    return Conversation("", "all", tuple(messages), answered=True, question="")


SHORT = Recipe(sequence_length=400, answer_tokens=360)
KEPT = replace(SHORT, keep_answers=True)
QUESTION, ANSWER = message("user", 100), message("assistant", 50)


@pytest.mark.parametrize(
    ("conversations", "answer_tokens", "size"),
    [
        ([[QUESTION, ANSWER]], None, DataSize(1, 150, 1, 100, 50)),
        ([[QUESTION, ANSWER, QUESTION, ANSWER]], None, DataSize(1, 300, 2, 350, 100)),
        ([[QUESTION, ANSWER], [QUESTION]], None, DataSize(2, 300, 2, 200, 100)),
        ([[QUESTION]], 20, DataSize(1, 120, 1, 100, 20)),
        ([[QUESTION]], None, DataSize(1, 400, 1, 100, 360)),
        ([[QUESTION, ANSWER]], 350, DataSize(1, 400, 1, 100, 350)),
        ([[QUESTION, ANSWER]], 900, DataSize(1, 400, 1, 100, 360)),
    ],
)
def test_data_is_measured(
    conversations: list[list[dict[str, str]]], answer_tokens: int | None, size: DataSize
) -> None:
    assert measure_data(map(conversation, conversations), SHORT, answer_tokens) == size


def test_answers_that_are_kept_have_their_length() -> None:
    conversations = map(conversation, [[QUESTION, message("assistant", 370)], [QUESTION]])
    assert measure_data(conversations, KEPT) == DataSize(2, 500, 1, 100, 370, regenerates=False)


def test_there_must_be_answers_to_keep() -> None:
    with raises_code("no-answers"):
        measure_data([conversation([QUESTION])], KEPT)


def test_hours_are_amounts_over_rates() -> None:
    recipe = Recipe(epochs=2)
    hours = training_hours(data_of(10_000), RATES, recipe)
    assert hours["regeneration"].likely == pytest.approx(4_500_000 / 1000 / 3600)
    assert hours["epochs"].likely == pytest.approx(15_000_000 / 10_000 / 3600)
    assert hours["starts"].likely == pytest.approx(5 * 120 / 3600)
    parts = [hours[part] for part in ("regeneration", "epochs", "starts")]
    assert hours["total"].low == pytest.approx(sum(part.low for part in parts))
    assert hours["total"].low < hours["total"].likely < hours["total"].high
    kept = training_hours(replace(data_of(10_000), regenerates=False), RATES, recipe)
    assert kept["regeneration"] == Range(0, 0, 0)


def test_each_epoch_is_saved_and_measured() -> None:
    plan = planned("qwen3-8b", 10_000, rates=RATES, recipe=Recipe(epochs=6))
    assert plan.hours["starts"].likely == pytest.approx((360 + 120 * 6) / 3600)
    assert plan.disk_bytes // plan.checkpoint_bytes == 6 + 1


def test_short_answers_are_limited_by_the_requests() -> None:
    """36,015 answers of the tiny target took 4 to 6 minutes on H200 hosts."""
    hours = planned("tiny", 36_015, on="ml.p5en.48xlarge").hours["regeneration"]
    assert hours.low * 60 == pytest.approx(4, rel=0.01)
    assert hours.high * 60 == pytest.approx(6, rel=0.01)


@pytest.mark.parametrize(("step", "measured"), [(4096, 80_000), (8192, 190_000)])
def test_the_steps_of_a_small_head_are_as_fast_as_measured(step: int, measured: int) -> None:
    target, recipe = find_pair(CATALOG, "tiny").target, Recipe(sequence_length=step)
    data = data_of(36_015, 50, 130)
    rate = training_rate(target, new_head(target, recipe), data, recipe, 989.0, TABLE)
    assert rate.likely == pytest.approx(measured, rel=0.2)
    assert rate.low < measured < rate.high


def test_a_step_of_a_large_head_takes_as_long_as_measured() -> None:
    """Two processes on two H200 made 25,200 tokens/s (evidence/compared/training-2xh200.json)."""
    target, data = find_pair(CATALOG, "qwen3-8b").target, data_of(1023, 54, 256)
    rate = training_rate(target, new_head(target, RECIPE), data, RECIPE, 989.0, TABLE)
    assert rate.likely == pytest.approx(12_600, rel=0.2)
    assert rate.low < 12_600 < rate.high


@pytest.mark.parametrize(("optimizer", "gain"), [("muon", 1.2), ("adamw", 1.03)])
def test_the_arithmetic_decides_for_a_large_head(optimizer: str, gain: float) -> None:
    """Muon's is that of a step, whatever its tokens; AdamW has none to speak of."""
    target, data = find_pair(CATALOG, "qwen3-8b").target, data_of(100)
    settings = {} if optimizer == "muon" else {"optimizer": optimizer}
    recipes = [Recipe(sequence_length=n, settings=settings) for n in (8192, 16_384)]
    head = new_head(target, RECIPE)
    usual, longer = (training_rate(target, head, data, each, 989.0, TABLE) for each in recipes)
    assert longer.likely == pytest.approx(gain * usual.likely, rel=0.05)
    assert usual.low < usual.likely < usual.high


def test_more_tokens_and_epochs_cost_more_and_are_accepted_more() -> None:
    plans = [planned("qwen3-8b", conversations) for conversations in (20_000, 50_000, 500_000)]
    plans += [
        planned("qwen3-8b", 500_000, recipe=replace(RECIPE, epochs=epochs)) for epochs in (10, 20)
    ]
    for before, after in pairwise(plans):
        assert before.expected
        assert after.expected
        assert before.expected.likely <= after.expected.likely
        assert before.hours["total"].likely < after.hours["total"].likely
        assert before.disk_bytes < after.disk_bytes
        assert usd_of(before) < usd_of(after)
    for plan in plans:
        assert plan.expected
        assert plan.expected.low <= plan.expected.likely <= plan.expected.high <= plan.k + 1


def test_with_fewer_tokens_than_any_published_head_nothing_is_expected() -> None:
    plan = planned("qwen3-8b", 5_000, on=H100)
    assert (plan.expected, plan.tokens_per_second, plan.k) == (None, None, 5)
    assert plan.break_even
    assert plan.advice == "train-more-data"
    assert plan.conversations_needed is not None
    assert plan.conversations_needed > 5_000


def test_a_published_head_is_on_the_curve() -> None:
    for head in TABLE.heads:
        likely = expected_curves(head.count_tokens(TABLE), TABLE, DECAY)[1].length(head.k)
        assert likely == pytest.approx(head.acceptance_length, abs=0.01)


def test_epochs_of_the_same_tokens_are_worth_less_than_new_ones() -> None:
    assert TABLE.effective_epochs(1) == 1
    assert 1.9 < TABLE.effective_epochs(2) < 2
    assert TABLE.effective_epochs(1000) == pytest.approx(1 + TABLE.repeats)


@pytest.mark.parametrize("pair", ["qwen3-8b", "gpt-oss-120b", "qwen3-coder-30b"])
@pytest.mark.parametrize("load", [1, 8, 32])
def test_at_the_break_even_acceptance_both_are_as_fast(pair: str, load: int) -> None:
    plan = planned(pair, 50_000, load=load, on=H100)
    target, instance = find_pair(CATALOG, pair).target, find_instance(CATALOG.instances, H100)
    head = new_head(target, RECIPE)
    serving = Load(
        target,
        CATALOG.runtimes.default,
        target.default_max_model_len,
        load,
        CATALOG,
        workload=plan.workload,
    )
    assert plan.break_even
    for even in plan.break_even:
        if even.length is None:
            continue
        curve, speeds = curve_through(((plan.k, even.length),), DECAY), []
        if curve.decay != DECAY:
            continue  # nearly every draft is accepted: a K has its own curve
        for k in range(1, RECIPE.depths + 1):
            acceptance = Acceptance(curve.length(k), "assumed", "")
            engine = serving.engine(instance, 1, head, k)
            speed = serving.performance(engine, head, k, load, assumed=acceptance)
            speeds.append(speed.tokens_per_second or 0.0)
        assert max(speeds) == pytest.approx(even.tokens_per_second, rel=0.01)


def test_a_head_that_is_expected_to_win_is_advised() -> None:
    plan = planned("qwen3-8b", 500_000)
    assert plan.advice == "train"
    assert plan.conversations_needed is not None
    assert plan.conversations_needed <= 500_000
    fewer = planned("qwen3-8b", plan.conversations_needed - 2_000)
    assert fewer.advice == "train-more-data"
    assert fewer.conversations_needed == plan.conversations_needed


def test_a_target_with_a_fast_head_needs_no_other() -> None:
    plan = planned("gpt-oss-20b", 500_000)
    assert plan.advice == "do-not-train"
    assert plan.conversations_needed is None
    assert {even.against.drafter for even in plan.break_even} == {None, "p-eagle"}
    first, *_ = plan.alternatives.items()
    assert first == ("p-eagle", ("peagle", "local", "up", "gpt-oss-20b+p-eagle"))


def test_the_budget_decides_the_epochs() -> None:
    unlimited = planned("qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0)
    assert unlimited.basis == "measured"
    assert (
        planned("qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0, budget=1e6).epochs
        == RECIPE.epochs
    )
    budget = usd_of(unlimited) * 0.7
    less = planned("qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0, budget=budget)
    assert 1 <= less.epochs < RECIPE.epochs
    assert usd_of(less) <= budget
    assert less.asked_epochs == RECIPE.epochs


def test_a_budget_below_one_epoch_is_refused_with_what_it_pays_for() -> None:
    single_epoch = planned(
        "qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0, recipe=replace(RECIPE, epochs=1)
    )
    budget = usd_of(single_epoch) * 0.9
    with raises_code("budget-too-small") as raised:
        planned("qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0, budget=budget)
    affordable = int(raised.value.fix.split("at most ")[1].split()[0].replace(",", ""))
    assert planned("qwen3-8b", affordable, rates=RATES, usd_per_hour=2.0, budget=budget).epochs == 1
    with raises_code("budget-too-small"):
        planned("qwen3-8b", 5_000, rates=RATES, usd_per_hour=2.0, budget=0.01)


def test_few_conversations_are_a_warning() -> None:
    codes = [{finding.code for finding in planned("tiny", n).findings} for n in (9_999, 10_000)]
    assert ["data-few" in each for each in codes] == [True, False]


def test_a_budget_needs_a_price() -> None:
    options = TrainingOptions(pair="qwen3-8b", gpu="B300", concurrency=8)
    with raises_code("conflicting-options"):
        plan_training(options, data_of(100), RECIPE, CATALOG, TABLE, budget=10.0)
    plan = plan_training(
        options, data_of(100), RECIPE, CATALOG, TABLE, budget=1e3, usd_per_hour=50.0
    )
    assert usd_of(plan) == pytest.approx(50.0 * plan.hours["total"].likely)


def test_what_a_probe_measured_is_of_this_machine() -> None:
    plan = planned("qwen3-8b", 5_000, rates=RATES)
    assert (plan.basis, plan.instance_type, plan.usd) == ("measured", L40S, None)


def test_a_head_that_does_not_fit_beside_its_target_is_refused() -> None:
    with raises_code("does-not-fit"):
        planned("gemma-4-31b", 5_000, on=H100)


def test_an_unknown_gpu() -> None:
    options = TrainingOptions(pair="qwen3-8b", gpu="H900", concurrency=8)
    with raises_code("unknown-gpu"):
        plan_training(options, data_of(100), RECIPE, CATALOG, TABLE)


def test_a_gpu_without_data_gives_no_hours() -> None:
    model = CATALOG.speed_model.model_copy(update={"gpus": ()})
    options = TrainingOptions(pair="tiny", instance_type=H100, concurrency=8)
    plan = plan_training(
        options, data_of(100), RECIPE, replace(CATALOG, speed_model=model, speeds={}), TABLE
    )
    assert (plan.basis, plan.hours, plan.usd) == ("unknown", {}, None)
    assert (plan.advice, plan.break_even) == ("unknown", ())


def test_the_disk_must_hold_data_and_checkpoints() -> None:
    plan = planned("qwen3-8b", 5_000)
    assert plan.disk_bytes > (plan.epochs + 1) * plan.checkpoint_bytes


def test_without_a_gpu_that_of_the_usual_plan_is_taken() -> None:
    options = TrainingOptions(pair="tiny", concurrency=8)
    plan = plan_training(options, data_of(3_000), RECIPE, CATALOG, TABLE)
    assert plan.instance_type == "ml.g6.xlarge"


def test_where_the_head_does_not_fit_the_cheapest_instance_with_the_memory_is_taken() -> None:
    plan = plan_training(TrainingOptions(pair="gemma-4-31b"), data_of(100), RECIPE, CATALOG, TABLE)
    usual = make_plan(Options(pair="gemma-4-31b"), CATALOG)
    assert plan.instance_type != usual.instance_type
    assert (plan.usd_per_hour or 0) > (usual.price_per_hour_usd or 0)
