"""``peagle fit``, as a user types it: the estimate, its checks and its advice."""

import json
import shutil
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peagle.catalog import load_catalog
from peagle.fit.report import Advice
from tests.support import in_process
from tests.unit.checks.damage import WEIGHTS, RawTensor, write_tensors

GEOMETRY = Path(__file__).parents[3] / "model_catalog" / "configs"
H200 = ("--gpu-memory-gib", "139.8")


def answer(*arguments: str) -> Any:
    done = in_process("fit", *arguments, "--json")
    assert done.code == 0, done.err
    return done.document


def folder(name: str, part: str = "target") -> str:
    return str(GEOMETRY / name / part)


def shown(*arguments: str) -> Any:
    """The fit, whether it is one or is refused."""
    return in_process("fit", *arguments, "--json").document


def refused(*arguments: str) -> Any:
    """What is shown of a case that the checks refuse: the fit all the same."""
    done = in_process("fit", *arguments, "--json")
    assert done.code == 3, done.err
    fit = done.document
    assert fit["weights_gib"] > 0
    assert fit["findings"][0]["level"] == "error"
    return {finding["code"] for finding in fit["findings"]}


def test_a_pair_and_the_geometry_it_was_made_of_agree(tmp_path: Path) -> None:
    arguments = (*H200, "--max-model-len", "16384", "--max-num-seqs", "64", "--no-speculation")
    whole = tmp_path / "gemma"
    shutil.copytree(folder("gemma-4-31b"), whole)
    (whole / "preprocessor_config.json").write_text("{}")
    by_name = answer("gemma-4-31b", *arguments)
    by_folder = answer("--target", str(whole), *arguments)
    assert by_name["terms"] == by_folder["terms"]
    text = answer("gemma-4-31b", *arguments, "--text-only")
    assert by_name["weights_gib"] - text["weights_gib"] == pytest.approx(1.07, abs=0.01)


def test_every_flag_counts() -> None:
    base = ("qwen3-coder-30b", *H200, "--max-num-seqs", "128")
    plain = answer(*base)["kv_cache_tokens"]
    changes: list[tuple[tuple[str, ...], bool]] = [
        (("--gpu-memory-utilization", "0.8"), False), (("--max-num-seqs", "700"), False),
        (("--max-num-batched-tokens", "32768"), False), (("--kv-cache-dtype", "fp8"), True),
        (("--no-speculation",), True), (("--enforce-eager",), True), (("--compiled",), True),
        (("--tp", "2"), True), (("--vllm", "0.20.2"), True),
    ]  # fmt: skip
    for change, more in changes:
        tokens = answer(*base, *change)["kv_cache_tokens"]
        assert (tokens > plain) == more, change
        assert tokens != plain, change
    assert answer(*base, "--k", "3")["terms"] != answer(*base, "--k", "6")["terms"]


def test_an_argument_of_vllm_that_has_no_option_here() -> None:
    tokens = answer("qwen3-8b", *H200)["kv_cache_tokens"]
    doubled = answer("qwen3-8b", *H200, "--set", "kv-cache-dtype=fp8")["kv_cache_tokens"]
    assert doubled == answer("qwen3-8b", *H200, "--kv-cache-dtype", "fp8")["kv_cache_tokens"]
    assert doubled > 1.9 * tokens
    decided = in_process("fit", "qwen3-8b", *H200, "--set", "max-num-seqs=4", "--json")
    assert decided.refusal["code"] == "decided-by-plan"
    unknown = shown("qwen3-8b", *H200, "--set", "kv-cache-type=fp8")["findings"][0]
    assert unknown["code"] == "engine-argument"
    assert "did you mean kv-cache-dtype" in unknown["fix"]


LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip
SMALL = (*H200, "--max-num-seqs", "8")


def written(
    place: Path, config: dict[str, Any], tensors: dict[str, RawTensor] | None = None
) -> str:
    """A folder with this config.json and, where given, weights; returns where."""
    (place / "config.json").write_text(json.dumps(config))
    if tensors:
        write_tensors(place / WEIGHTS, tensors)
    return str(place)


@pytest.mark.parametrize("more", [
    {"model_type": "rwkv", "layer_types": ["rwkv", "full_attention"] * 2},
    {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"},
    {"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2},
    {"model_type": "jamba", "attn_layer_period": 2, "mamba_d_state": 16},
    {"model_type": "bamba", "attn_layer_indices": [1, 3], "mamba_d_state": 16},
    {"layers_block_type": ["mamba", "attention"] * 2},
    {"model_type": "deepseek_v4", "compress_ratios": [1, 4, 4, 128]},
    {"model_type": "nemotron-nas", "block_configs": [{"attention": {"no_op": True}}]},
])  # fmt: skip
def test_a_cache_that_is_not_modelled_counts_as_full_and_is_named(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    for config in (LLAMA | more, {"text_config": LLAMA | more}):
        fit = shown("--target", written(tmp_path, config), *SMALL)
        assert "cache-estimated" in {finding["code"] for finding in fit["findings"]}


HQQ = LLAMA | {"quantization_config": {"quant_method": "hqq"}}
AWQ = LLAMA | {"quantization_config": {"quant_method": "awq", "bits": 4}}


def test_weights_of_unknown_size_are_refused_where_no_header_tells_it(tmp_path: Path) -> None:
    wrong = in_process("fit", "--target", written(tmp_path, HQQ), *SMALL)
    assert (wrong.code, "quantized with hqq" in wrong.error) == (2, True)


def test_embeddings_in_the_headers_are_counted_and_mentioned(tmp_path: Path) -> None:
    packed = RawTensor("I32", (1024, 512), bytes(4 * 1024 * 512))
    names = [
        f"model.layers.{n}.mlp.{part}_proj.qweight" for n in range(4) for part in ("up", "gate")
    ]
    fit = shown("--target", written(tmp_path, AWQ, dict.fromkeys(names, packed)), *SMALL)
    assert fit["weights_gib"] == pytest.approx(8 * 2 / 1024, abs=0.004), "8 tensors of 2 MiB"
    estimated = [
        finding for finding in fit["findings"] if finding["code"] == "quantization-estimated"
    ]
    assert [finding["level"] for finding in estimated] == ["warning"]
    assert "awq" in estimated[0]["message"]


def test_a_target_in_float32_is_served_in_16_bits(tmp_path: Path) -> None:
    wide, half = (
        shown("--target", written(tmp_path, LLAMA | {"torch_dtype": dtype}), *SMALL)["weights_gib"]
        for dtype in ("float32", "bfloat16")
    )
    assert wide == half


FLAGS = ("--no-speculation", "--text-only", "--enforce-eager", "--compiled")


def options(arguments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The arguments by option, each with its value if it has one."""
    words, options = list(arguments), []
    while words:
        size = 1 if words[0] in FLAGS else 2
        options.append(tuple(words[:size]))
        del words[:size]
    return options


def typed(arguments: tuple[str, ...], advice: Any) -> tuple[str, ...]:
    """The arguments with the advised one instead of, or beside, what they had."""
    option = Advice.model_validate(advice).options
    of_hardware = ("--gpu-memory-gib", "--instance-type")
    gone = of_hardware if option[0] in of_hardware else option[:1]
    kept = (word for typed in options(arguments) if typed[0] not in gone for word in typed)
    return (*kept, *option)


def test_an_error_is_shown_once() -> None:
    done = in_process("fit", "gpt-oss-20b", *H200, "--k", "11")
    assert (done.code, (done.out + done.err).count("exceeds the trained K")) == (3, 1)


@pytest.mark.parametrize("pair", ["gpt-oss-20b", "tiny"])
def test_an_assumed_gpu_runs_the_target(pair: str) -> None:
    document = in_process("fit", pair, "--gpu-memory-gib", "16", "--json").document
    instances = load_catalog().instances.instances
    assert document["gpu_guessed"]
    assert min(each.capability for each in instances if each.gpu == document["gpu"]) >= 80


PAIRS = [
    f"{target.short_name}+{drafter.name}"
    for target in load_catalog().targets.values()
    for drafter in target.drafters[:2]
]
HARDWARE = [
    ("--gpu-memory-gib", "17"), ("--gpu-memory-gib", "24"), ("--gpu-memory-gib", "44.4"),
    ("--gpu-memory-gib", "79.2"), ("--instance-type", "ml.g5.xlarge"),
    ("--instance-type", "ml.g6.12xlarge"), ("--instance-type", "ml.p4d.24xlarge"),
    ("--instance-type", "ml.p5.4xlarge"),
]  # fmt: skip
LOADS = [
    ("--max-model-len", "8192"),
    ("--max-model-len", "120000", "--max-num-seqs", "300"),
    ("--max-model-len", "10000000"),
    ("--max-num-batched-tokens", "4096"),
    ("--max-num-batched-tokens", "65536", "--max-num-seqs", "8"),
    ("--max-num-seqs", "2000", "--vllm", "0.26.0"),
    ("--tp", "1", "--vllm", "0.27.1", "--gpu-memory-utilization", "0.5"),
    ("--k", "1000", "--max-num-seqs", "64"),
    ("--k", "5", "--max-num-seqs", "64", "--text-only"),
    ("--compiled", "--max-num-seqs", "256"),
    ("--no-speculation", "--max-model-len", "60000"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("load", LOADS, ids=" ".join)
def test_every_advice_gives_what_it_says(load: tuple[str, ...]) -> None:
    """And no rule refuses it: the exit code is 0."""
    tried = 0
    for pair, hardware in Random(" ".join(load)).sample(list(product(PAIRS, HARDWARE)), 10):
        if tried >= 4:
            break
        arguments = (*hardware, *load)
        for advice in shown(pair, *arguments)["advice"]:
            fit = answer(pair, *typed(arguments, advice))
            for number in ("kv_cache_tokens", "max_concurrency"):
                assert fit[number] == advice[number], (pair, arguments, advice)
            tried += 1
    assert tried, "some of them do not fit"
