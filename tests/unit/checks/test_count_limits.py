"""Counts of files and options are limited before anything is built from them: the numbers here took
gigabytes, or minutes."""

import math
import time
from contextlib import suppress
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.checkpoints import Checkpoint, Tensor
from peagle.checks import check
from peagle.checks.report import CheckOptions
from peagle.errors import DamagedCheckpoint, UserError
from peagle.options import Options, check_numbers
from peagle.planning import make_plan
from tests.support import raises_code
from tests.unit.checks.cases import GEOMETRY, catalog_case, read, with_options

HEAD = dict(read(GEOMETRY / "gpt-oss-20b/p-eagle").config)
TARGET = dict(read(GEOMETRY / "gpt-oss-20b/target").config)
HUGE = 2**31 - 1


@pytest.fixture(autouse=True)
def quick() -> Any:
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


LAYERS = ("num_hidden_layers", "num_aux_hidden_states", "num_nextn_predict_layers",
          "num_kv_shared_layers")  # fmt: skip


@pytest.mark.parametrize("holder", ["", "text_config", "transformer_layer_config"])
@pytest.mark.parametrize("key", LAYERS)
def test_a_config_with_too_many_layers_is_refused_or_checked_quickly(key: str, holder: str) -> None:
    target, head = (
        document | ({key: HUGE} if not holder else {holder: document | {key: HUGE}})
        for document in (TARGET, HEAD)
    )
    case = catalog_case("gpt-oss-20b")
    with suppress(DamagedCheckpoint):
        check(with_options(case, target_checkpoint=Checkpoint("/target", target, {})))
    check(with_options(case, drafter_checkpoint=Checkpoint("/head", head, {})))


@pytest.mark.parametrize("name", ["layers.{}.x", "model.layers.{}.mlp.up_proj.weight"])
def test_a_tensor_named_after_endless_digits_is_no_layer(name: str) -> None:
    tensors = {name.format("9" * 5_000): Tensor("BF16", (8, 8), 0)}
    case = catalog_case("gpt-oss-20b")
    assert check(with_options(case, target_checkpoint=Checkpoint("/target", TARGET, tensors)))
    assert check(with_options(case, drafter_checkpoint=Checkpoint("/head", HEAD, tensors)))


@pytest.mark.parametrize(("name", "least", "shown"), [
    ("k", 1, "--k"),
    ("max_model_len", 1, "--max-model-len"),
    ("concurrency", 1, "--concurrency"),
    ("tensor_parallel_size", 1, "--tensor-parallel-size"),
])  # fmt: skip
@pytest.mark.parametrize("value", [-1, 0, 1, HUGE, HUGE + 1, 10**300])
def test_a_count_that_no_engine_takes_names_its_option(
    name: str, least: int, shown: str, value: int
) -> None:
    asked: dict[str, Any] = {name: value}
    options = CheckOptions(pair="tiny", **asked)
    if least <= value <= HUGE:
        check_numbers(options)
        return
    with raises_code("out-of-range", UserError) as refused:
        check_numbers(options)
    assert refused.value.message.startswith(f"{shown} {value} ")


@pytest.mark.parametrize(("options", "shown"), [
    ({"cached_prompt_tokens": 0}, ""),
    ({"cached_prompt_tokens": -1}, "--cached-prompt-tokens -1"),
    ({"shared_prompt_tokens": -1}, "shared_prompt_tokens -1"),
    ({"prompt_tokens": 0}, "--prompt-tokens 0"),
    ({"copies": 0}, "--copies 0"),
    ({"copies": "auto"}, ""),
    ({"min_instances": 0}, ""),
    ({"max_instances": 0}, "--max-instances 0"),
    ({"max_price_per_hour": 0.0}, "--max-price-per-hour 0"),
    ({"max_price_per_hour": 1e-9}, ""),
    ({"min_tokens_per_second": math.inf}, "--min-tokens-per-second inf"),
    ({"budget": math.nan}, "--budget nan"),
    ({"target_concurrency": -0.5}, "target_concurrency -0.5"),
])  # fmt: skip
def test_a_number_of_a_plan_is_within_its_limits(options: dict[str, Any], shown: str) -> None:
    asked = Options(pair="tiny", **options)
    if not shown:
        check_numbers(asked)
        return
    with raises_code("out-of-range", UserError) as refused:
        check_numbers(asked)
    assert refused.value.message.startswith(f"{shown} ")


@pytest.mark.parametrize("digits", [300, 5_000])
def test_a_setting_with_a_huge_number_is_an_error_of_the_user(digits: int) -> None:
    settings = {"max-num-batched-tokens": "9" * digits}
    with raises_code("invalid-argument", UserError) as refused:
        make_plan(Options(pair="gpt-oss-20b", settings=settings), load_catalog())
    assert "--set max-num-batched-tokens" in refused.value.message
