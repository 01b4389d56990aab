"""Counts of files and options are limited before anything is built from them: the numbers here took
gigabytes, or minutes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from peagle.case import build_case
from peagle.catalog import find_pair, load_catalog
from peagle.checkpoints import Checkpoint, Tensor
from peagle.checkpoints.files import parse_config
from peagle.checks import check
from peagle.errors import DamagedCheckpoint, UserError
from peagle.planning import Options, make_plan
from tests.support import raises_code
from tests.unit.checks.cases import GEOMETRY, catalog_case, read

HEAD = dict(read(GEOMETRY / "gpt-oss-20b/p-eagle").config)
TARGET = dict(read(GEOMETRY / "gpt-oss-20b/target").config)
HUGE = 2**31 - 1
DEEPEST = 1_000


@pytest.fixture(autouse=True)
def quick() -> Any:
    start = time.process_time()
    yield
    assert time.process_time() - start < 5


LAYERS = ("num_hidden_layers", "num_aux_hidden_states", "num_nextn_predict_layers",
          "num_kv_shared_layers")  # fmt: skip


@pytest.mark.parametrize("holder", ["", "text_config", "transformer_layer_config"])
@pytest.mark.parametrize("key", LAYERS)
def test_a_config_with_too_many_layers_is_refused(key: str, holder: str) -> None:
    value = DEEPEST + 1
    document = TARGET | {key: value} if not holder else TARGET | {holder: TARGET | {key: value}}
    with raises_code("config-damaged", DamagedCheckpoint) as refused:
        parse_config(json.dumps(document).encode())
    assert f"{key} is {value}, not a whole number from" in refused.value.message


@pytest.mark.parametrize("name", ["layers.{}.x", "model.layers.{}.mlp.up_proj.weight"])
def test_a_tensor_named_after_endless_digits_is_no_layer(name: str) -> None:
    tensors = {name.format("9" * 5_000): Tensor("BF16", (8, 8), 0)}
    case = catalog_case("gpt-oss-20b")
    assert check(replace(case, target_checkpoint=Checkpoint("/target", TARGET, tensors)))
    assert check(replace(case, drafter_checkpoint=Checkpoint("/head", HEAD, tensors)))


@pytest.mark.parametrize("name", ["k", "max_model_len", "concurrency", "tensor_parallel_size"])
@pytest.mark.parametrize("value", [HUGE + 1, 10**300], ids=["one", "many"])
def test_a_huge_number_of_the_user_names_its_option(name: str, value: int) -> None:
    catalog = load_catalog()
    pair = find_pair(catalog, "gpt-oss-20b")
    counts: dict[str, Any] = {name: value}
    flag = "--tp" if name == "tensor_parallel_size" else f"--{name.replace('_', '-')}"
    with raises_code("out-of-range", UserError) as refused:
        if name in Options.model_fields:
            counts = {"options": Options(pair="gpt-oss-20b", **counts)}
        build_case(catalog, pair.target, pair.drafter, **counts)
    assert f"{flag} is more than 2,147,483,647" in refused.value.message


@pytest.mark.parametrize("digits", [300, 5_000])
def test_a_setting_with_a_huge_number_is_an_error_of_the_user(digits: int) -> None:
    settings = {"max-num-batched-tokens": "9" * digits}
    with raises_code("invalid-argument", UserError) as refused:
        make_plan(Options(pair="gpt-oss-20b", settings=settings), load_catalog())
    assert "--set max-num-batched-tokens" in refused.value.message
