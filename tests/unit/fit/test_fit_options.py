"""What ``peagle fit`` is asked, and what follows: GPUs, the limit at which it fits, and advice."""

import json
from typing import Any

import pytest

from peagle.catalog import find_instance, find_pair, load_catalog
from peagle.checkpoints.models import Checkpoint
from peagle.errors import UserError
from peagle.fit.building import draft_model, fit_case, nearest_gpu, read_target, target_model
from peagle.fit.estimate import missing_bytes
from peagle.fit.report import FitOptions, FitReport, fit, mildest
from peagle.fit.weights import QUANTIZED_BYTES
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION
from peagle.vllm.gpus import cuda_visible_gib, needed_capability, parallel_sizes, visible_gib
from tests.support import raises_code
from tests.unit.checks.cases import GEOMETRY, catalog_case

CATALOG = load_catalog()
L40S, FOUR_L40S = "ml.g6e.xlarge", "ml.g6e.12xlarge"


def no_files(location: str) -> Checkpoint:
    raise AssertionError(location)


def report(pair: str = "gpt-oss-20b", **options: Any) -> FitReport:
    return fit(FitOptions(pair=pair, **options), CATALOG, no_files)


@pytest.mark.parametrize(("options", "code"), [
    ({}, "missing-option"),
    ({"k": 3, "speculation": False, "instance_type": L40S}, "conflicting-options"),
    ({"drafter": "x", "speculation": False, "instance_type": L40S}, "conflicting-options"),
    ({"drafter_embeddings": "own", "speculation": False, "instance_type": L40S},
     "conflicting-options"),
    ({"enforce_eager": True, "compiled": True, "instance_type": L40S}, "conflicting-options"),
    ({"gpu_memory_gib": 80.0, "instance_type": L40S}, "conflicting-options"),
    ({"tensor_parallel_size": 2, "instance_type": L40S}, "tensor-parallel"),
    ({"tensor_parallel_size": 3, "instance_type": FOUR_L40S}, "tensor-parallel"),
    ({"tensor_parallel_size": 16, "gpu_memory_gib": 80.0}, "tensor-parallel"),
])  # fmt: skip
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], code: str) -> None:
    with raises_code(code, UserError):
        report(**options)


@pytest.mark.parametrize("options", [
    {"k": 3, "instance_type": L40S},
    {"speculation": False, "instance_type": L40S},
    {"enforce_eager": True, "instance_type": L40S},
    {"compiled": True, "gpu_memory_gib": 80.0},
    {"tensor_parallel_size": 8, "gpu_memory_gib": 80.0},
])  # fmt: skip
def test_options_that_go_together_are_estimated(options: dict[str, Any]) -> None:
    made = report(**options)
    assert made.fits
    assert made.refusal is None
    assert made.advice == ()
    assert (made.without_speculation is None) is (options.get("speculation") is False)
    assert made.gpu_guessed is ("gpu_memory_gib" in options)


@pytest.mark.parametrize(("pair", "options", "gpus"), [
    ("gpt-oss-20b", {"instance_type": FOUR_L40S}, 1),
    ("gpt-oss-20b", {"instance_type": FOUR_L40S, "tensor_parallel_size": 2}, 2),
    ("gpt-oss-120b", {"instance_type": FOUR_L40S}, 2),
    ("gpt-oss-120b", {"gpu_memory_gib": 22.0}, 1),
    ("gpt-oss-120b", {"gpu_memory_gib": 22.0, "tensor_parallel_size": 8}, 8),
    ("gpt-oss-120b", {"instance_type": L40S}, 1),
])  # fmt: skip
def test_estimate_is_on_fewest_gpus_that_fit(pair: str, options: dict[str, Any], gpus: int) -> None:
    assert report(pair, **options).tensor_parallel_size == gpus


@pytest.mark.parametrize(("options", "name", "value"), [
    ({}, "gpu_memory_utilization", GPU_MEMORY_UTILIZATION),
    ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization", 0.5),
    ({"settings": {"gpu-memory-utilization": "0.7"}}, "gpu_memory_utilization", 0.7),
    ({"settings": {"gpu-memory-utilization": "1"}}, "gpu_memory_utilization", 1.0),
    ({"settings": {"gpu-memory-utilization": "1.5"}}, "gpu_memory_utilization",
     GPU_MEMORY_UTILIZATION),
    ({"settings": {"gpu-memory-utilization": "0"}}, "gpu_memory_utilization",
     GPU_MEMORY_UTILIZATION),
    ({"settings": {"gpu-memory-utilization": "true"}}, "gpu_memory_utilization",
     GPU_MEMORY_UTILIZATION),
    ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype", "bfloat16"),
    ({"max_num_batched_tokens": 4096}, "max_num_batched_tokens", 4096),
    ({"settings": {"max-num-batched-tokens": "512"}}, "max_num_batched_tokens", 512),
    ({"concurrency": 3}, "max_num_seqs", 3),
    ({"max_model_len": 4096}, "max_model_len", 4096),
    ({}, "max_model_len", 32_768),
    ({}, "k", 7),
    ({"k": 2}, "k", 2),
    ({"speculation": False}, "k", 0),
    ({"vllm": "0.27.1"}, "vllm", "0.27.1"),
])  # fmt: skip
def test_setting_is_users_or_the_default(options: dict[str, Any], name: str, value: object) -> None:
    assert report(instance_type=L40S, **options).settings[name] == value


def test_advice_is_the_smallest_change_and_names_its_option() -> None:
    refused = report("gpt-oss-120b", gpu_memory_gib=79.2, concurrency=1024)
    assert not refused.fits
    assert refused.refusal is not None
    for change in refused.advice:
        flag, *values = change.options
        assert flag.startswith("--")
        assert change.option.startswith(flag)
        assert len(values) == (change.knob not in ("no-speculation", "text-only", "enforce-eager"))
    named = {change.knob: change for change in refused.advice}
    assert named["tp"].options == ("--tensor-parallel-size", "2")
    first = mildest(refused.advice)
    assert first is not None
    order = ("gpu-memory-utilization", "max-num-seqs", "max-num-batched-tokens", "max-model-len")
    assert first.knob == next(knob for knob in order if knob in named)
    assert mildest(()) is None


@pytest.mark.parametrize(("gib", "gpu"), [
    (79.19, "H100"), (80.0, "H100"), (139.8, "H200"), (141.0, "H200"), (44.39, "L40S"),
    (22.05, "A10G"), (14.56, "T4"), (1.0, "T4"), (2048.0, "B300"),
])  # fmt: skip
def test_memory_alone_is_that_of_the_nearest_gpu(gib: float, gpu: str) -> None:
    assert nearest_gpu(CATALOG.instances, gib).gpu == gpu
    assert nearest_gpu(CATALOG.instances, gib, 80).capability >= 80


@pytest.mark.parametrize(("gib", "visible"), [
    (79.19, 79.19), (79.2, 79.19), (81.5, 79.19), (81.6, 81.6), (79.18, 79.18),
])  # fmt: skip
def test_memory_of_a_data_sheet_is_what_cuda_sees(gib: float, visible: float) -> None:
    assert cuda_visible_gib(gib, "H100") == visible


@pytest.mark.parametrize(("gpu", "mib", "visible"), [
    ("H100", 81_920, 79.19), ("A100", 40_960, 39.49), ("A100", 81_920, 79.15),
    ("H100", 40_960, 38.8), ("unknown", 102_400, 97.0),
])  # fmt: skip
def test_a_gpu_without_a_measured_memory_loses_three_percent(
    gpu: str, mib: int, visible: float
) -> None:
    assert visible_gib(gpu, mib) == visible


@pytest.mark.parametrize(("dtype", "quantization", "capability"), [
    ("bfloat16", None, 80), ("float16", None, 75), ("float16", "mxfp4", 80),
    ("float16", "nvfp4", 80), ("float16", "fp8", 75), ("float32", None, 75),
])  # fmt: skip
def test_a_dtype_needs_a_capability(dtype: str, quantization: str | None, capability: int) -> None:
    assert needed_capability(dtype, quantization) == capability


@pytest.mark.parametrize(("query_heads", "kv_heads", "gpus", "sizes"), [
    (64, (8,), 8, [1, 2, 4, 8]), (64, (8,), 7, [1, 2, 4]), (64, (8,), 16, [1, 2, 4, 8, 16]),
    (24, (8,), 16, [1, 2, 4, 8]), (40, (10,), 8, [1, 2]), (8, (4, 3), 8, [1]),
])  # fmt: skip
def test_gpus_divide_all_heads(
    query_heads: int, kv_heads: tuple[int, ...], gpus: int, sizes: list[int]
) -> None:
    assert parallel_sizes(query_heads, kv_heads, gpus) == sizes


def test_an_instance_type_has_its_own_gpus() -> None:
    four = find_instance(CATALOG.instances, FOUR_L40S)
    made = report(instance_type=FOUR_L40S)
    assert (made.gpu_count, made.gpu, made.instance_type) == (4, four.gpu, FOUR_L40S)
    assert made.gpu_memory_gib == round(four.gpu_memory_mib / 1024, 3)
    assert made.terms["kept_by_driver"] == round(
        four.gpu_memory_mib / 1024 - visible_gib(four.gpu, four.gpu_memory_mib), 3
    )


@pytest.mark.parametrize(("pair", "layers", "has_embeddings"), [
    ("gpt-oss-20b+ngram", None, None),
    ("gpt-oss-20b+suffix", None, None),
    ("gpt-oss-20b+p-eagle", 4, True),
    ("gpt-oss-20b+dflash", 8, False),
    ("gemma-4-31b+p-eagle", 4, True),  # not public: the usual layers of its kind
    ("gemma-4-31b+mtp", 1, True),
])  # fmt: skip
def test_a_drafter_with_weights_has_a_model(
    pair: str, layers: int | None, has_embeddings: bool | None
) -> None:
    match = find_pair(CATALOG, pair)
    assert match.drafter is not None
    model = draft_model(match.drafter, target_model(match.target))
    assert (model and model.shape.layers) == layers
    assert (model and model.own_embeddings) == has_embeddings


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, (27, 16 * 72, 72, 3 * 16**2, 10_240)),
    ({"patch_size": 14}, (27, 16 * 72, 72, 3 * 14**2, 10_240)),
    ({"patch_size": None}, (27, 16 * 72, 72, 3 * 16**2, 10_240)),
    ({"head_dim": None, "num_attention_heads": 8}, (27, 1152, 144, 3 * 16**2, 10_240)),
    ({"position_embedding_size": None}, (27, 16 * 72, 72, 3 * 16**2, 0)),
    ({"num_hidden_layers": 0}, None),
])  # fmt: skip
def test_an_image_tower_has_the_sizes_of_its_config(
    changes: dict[str, Any], expected: tuple[int, ...] | None
) -> None:
    config = json.loads((GEOMETRY / "gemma-4-31b/target/config.json").read_text())
    vision = read_target(
        Checkpoint("./gemma", config | {"vision_config": config["vision_config"] | changes})
    ).vision
    sizes = vision and (
        vision.layers, vision.attention_size, vision.head_dim, vision.patch_values,
        vision.positions,
    )  # fmt: skip
    assert sizes == expected


@pytest.mark.parametrize(("settings", "tokens"), [
    ({}, 16), ({"block-size": 32}, 32), ({"block-size": 0}, 16), ({"block-size": "32"}, 16),
])  # fmt: skip
def test_a_block_has_the_size_of_the_setting(settings: dict[str, Any], tokens: int) -> None:
    case = catalog_case("tiny", settings=settings)
    gpu = find_instance(CATALOG.instances, L40S)
    assert fit_case(case, gpu).engine.block_size == tokens


@pytest.mark.parametrize(
    ("size", "gib", "count"), [(1, None, 4), (8, None, 8), (1, 44.0, 1), (2, 44.0, 2)]
)
def test_an_engine_has_the_gpus_of_its_instance_or_as_many_as_it_needs(
    size: int, gib: float | None, count: int
) -> None:
    gpu = find_instance(CATALOG.instances, FOUR_L40S)
    engine = fit_case(catalog_case("tiny", tensor_parallel_size=size), gpu, gib).engine
    assert (engine.gpu_count, engine.tensor_parallel_size) == (count, size)
    stated = gpu.gpu_memory_mib / 1024 if gib is None else gib
    assert engine.gpu_memory_gib + engine.driver_gib == pytest.approx(stated)


@pytest.mark.parametrize(("options", "codes"), [
    ({"max_model_len": 20_000}, set()),  # the rule about long contexts has a note
    ({"max_model_len": 40_000}, {"long-context-head"}),
    ({"max_model_len": 200_000}, {"context-above-target"}),
    ({"k": 11}, {"k-above-trained"}),
    ({"k": 7, "max_num_batched_tokens": 6}, set()),  # the refusal says it
    ({"vllm": "0.15.0"}, {"vllm-below-minimum"}),
])  # fmt: skip
def test_an_estimate_has_findings_but_no_notes(options: dict[str, Any], codes: set[str]) -> None:
    made = report(instance_type=L40S, **options)
    assert {finding.code for finding in made.findings} >= codes
    assert all(finding.level != "note" for finding in made.findings)
    assert (made.refusal is not None) is ("max_num_batched_tokens" in options)


def test_nothing_is_missing_where_it_fits() -> None:
    assert missing_bytes(report(instance_type=L40S).case) == 0
    assert missing_bytes(report("gpt-oss-120b", instance_type=L40S).case) > 2**30


@pytest.mark.parametrize(
    ("quantization", "bits"), [("fp8", 8), ("nvfp4", 4 + 8 / 16), ("mxfp4", 4 + 8 / 32)]
)
def test_a_quantized_weight_takes_its_bits_and_its_scale(quantization: str, bits: float) -> None:
    assert QUANTIZED_BYTES[quantization] * 8 == pytest.approx(bits, rel=1e-3)
