"""What a load knows of its engines."""

from dataclasses import replace

import pytest

from peagle.catalog import load_catalog
from peagle.planning import Options, make_plan
from peagle.planning.load import Load
from tests.unit.planning.small_catalog import CHAT, P_EAGLE
from tests.unit.planning.speeds import measured, row, run

UNPUBLISHED = P_EAGLE.model_copy(update={"weights": "s3://my-bucket/head", "published": ()})
_GRAPHS = "cuda-graphs-of-load"
RUN = run(speeds=(row("p-eagle", 5, 8, 900.0, acceptance_length=3.1),))


def test_the_runs_of_a_drafter_say_its_acceptance_but_not_that_of_a_head_of_the_same_name() -> None:
    load = Load(CHAT, "0.28.0", 4096, 8, measured(RUN))
    unpublished = replace(load, own_head=UNPUBLISHED)
    acceptance = load.acceptance(UNPUBLISHED, 5)
    assert (acceptance.basis, acceptance.length) == ("measured", 3.1)
    assert set(unpublished.names(UNPUBLISHED)) == {"s3://my-bucket/head"}
    assert unpublished.acceptance(UNPUBLISHED, 5).basis == "unknown"
    assert unpublished.acceptance(None, 0).basis == "none"


@pytest.mark.parametrize(("concurrency", "k", "settings", "size"), [
    (64, 7, {}, None),  # 512 tokens a step, which vLLM's default holds
    (96, 7, {}, "768"),
    (128, 10, {}, "1408"),
    (128, 10, {"max-cudagraph-capture-size": "1024"}, "1024"),
    (128, 10, {"max-cudagraph-capture-size": ""}, None),
    (128, 10, {"enforce-eager": "true"}, None),
    (128, 10, {"max-num-batched-tokens": "1024"}, None),  # no step has more
])  # fmt: skip
def test_plans_set_the_cuda_graphs_of_their_load(
    concurrency: int, k: int, settings: dict[str, str], size: str | None
) -> None:
    options = Options(
        pair="qwen3-coder-30b", instance_type="ml.p5en.48xlarge", copies=1, k=k,
        concurrency=concurrency, prompt_tokens=512, output_tokens=1024, settings=settings,
    )  # fmt: skip
    plan = make_plan(options, load_catalog())
    assert plan.environment.get("SM_VLLM_MAX_CUDAGRAPH_CAPTURE_SIZE") == size
    reasons = [because for because in plan.reasons if because.code == _GRAPHS]
    assert [because.value for because in reasons] == ([size] if size and not settings else [])
    assert not [finding for finding in plan.findings if finding.level == "error"]


@pytest.mark.parametrize(("concurrency", "each", "size"), [
    (320, 40, "608"),
    (1000, 125, "1888"),  # 146 requests fit with these graphs, 150 without
])  # fmt: skip
def test_cuda_graphs_are_for_the_requests_of_one_copy(
    concurrency: int, each: int, size: str
) -> None:
    options = Options(
        pair="qwen3-coder-30b", instance_type="ml.p5en.48xlarge", copies=8, k=14,
        concurrency=concurrency, prompt_tokens=128, output_tokens=1024,
    )  # fmt: skip
    plan = make_plan(options, load_catalog())
    assert plan.environment["SM_VLLM_MAX_CUDAGRAPH_CAPTURE_SIZE"] == size
    assert plan.environment["SM_VLLM_MAX_NUM_SEQS"] == str(concurrency)
    (because,) = [reason for reason in plan.reasons if reason.code == _GRAPHS]
    assert because.values["requests"] == each


@pytest.mark.parametrize(("pair", "instance", "k", "concurrency", "size"), [
    ("qwen3-coder-30b", "ml.p5en.48xlarge", 3, 32, "400"),  # 272 new tokens, and 31 steps of 4
    ("qwen3-coder-30b", "ml.g7e.2xlarge", 0, 8, "272"),
    ("qwen3-coder-30b", "ml.p5en.48xlarge", 7, 32, "528"),  # 8 more than vLLM's default
    ("gpt-oss-20b", "ml.p5en.48xlarge", 3, 32, None),  # vLLM's default is 1,024
])  # fmt: skip
def test_cuda_graphs_of_conversations_hold_a_step_that_begins_a_turn(
    pair: str, instance: str, k: int, concurrency: int, size: str | None
) -> None:
    speculation = {"k": k} if k else {"speculation": False}
    options = Options(
        pair=pair, instance_type=instance, concurrency=concurrency, prompt_tokens=6912,
        output_tokens=256, cached_prompt_tokens=6656, **speculation,
    )  # fmt: skip
    plan = make_plan(options, load_catalog())
    assert plan.environment.get("SM_VLLM_MAX_CUDAGRAPH_CAPTURE_SIZE") == size
    turns = [because.values["turn"] for because in plan.reasons if because.code == _GRAPHS]
    assert turns == ([True] if size else [])


def test_cuda_graphs_in_the_arguments_are_in_the_fit_without_a_known_speed() -> None:
    options = Options(
        pair="qwen3-coder-30b+dflash", instance_type="ml.p5en.48xlarge", copies=8,
        concurrency=640,
    )  # fmt: skip
    plan = make_plan(options, load_catalog())
    size = plan.environment["SM_VLLM_MAX_CUDAGRAPH_CAPTURE_SIZE"]
    without = make_plan(
        options.model_copy(update={"settings": {"max-cudagraph-capture-size": ""}}), load_catalog()
    )
    assert int(size) > 512
    assert plan.fit.kv_cache_gib < without.fit.kv_cache_gib
