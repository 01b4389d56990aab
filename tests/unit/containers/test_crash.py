"""Logs of vLLM's crashes, and the container's last line for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_serve.contract import InvalidEnvironment
from peagle_serve.crash import parse_crash

LOGS = Path(__file__).parent / "crashes"

# Log -> part of the line, cause and part of the fix; the comment is the environment.
CRASHES = {
    # the target's config.json has vocab_size 999, the weights have 1024
    "target-vocabulary": (
        "AssertionError: assert loaded_weight.shape[output_dim] == self.org_vocab_size",
        "weights-and-config", "config.json and weights belong to different models"),
    # the head's config.json has num_hidden_layers 2, the weights have 4
    "head-layers": ("ValueError: There is no module or parameter named 'layers.2'",
        "weights-and-config", "config.json and weights belong to different models"),
    # see the README beside it
    "amx-small-layers": (
        "IndexError: Dimension out of range (expected to be in range of [-1, 0], but got -2)",
        "amx-small-layers", "set SM_VLLM_DTYPE=float32"),
    # norm.weight of the head as [128, 2]
    "head-misshaped": (
        "AssertionError: Attempted to load weight (torch.Size([128, 2])) into parameter "
        "(torch.Size([256]))", "head-does-not-fit", "the head was trained for a different target"),
    # SM_VLLM_BLOCK_SIZE=7
    "block-size": ("ValueError: No common block size for 7.", "wrong-value",
        "remove SM_VLLM_BLOCK_SIZE"),
    # SM_VLLM_QUANTIZATION=zzz
    "quantization": ("ModelConfig Value error, Unknown quantization method: zzz.", "wrong-value",
        "correct the SM_VLLM_"),
    # SM_VLLM_MAX_NUM_BATCHED_TOKENS=0
    "batched-tokens": (
        "SchedulerConfig max_num_batched_tokens Input should be greater than or equal to 1, not 0",
        "wrong-value", "correct the SM_VLLM_"),
    # VLLM_CPU_KVCACHE_SPACE=0.0001
    "kv-cache-tiny": ("VllmConfig Value error, invalid literal for int() with base 10: '0.0001'",
        "wrong-value", "(or VLLM_) variable"),
    # VLLM_CPU_KVCACHE_SPACE=10000
    "kv-cache-huge": ("less than requested memory for kv", "out-of-memory",
        "lower VLLM_CPU_KVCACHE_SPACE"),
    # SM_VLLM_TENSOR_PARALLEL_SIZE=64
    "tensor-parallel": ("attention heads (4) must be divisible by tensor parallel size (64)",
        "tensor-parallel", "set SM_VLLM_TENSOR_PARALLEL_SIZE"),
    # SM_VLLM_MAX_MODEL_LEN=99999
    "context": ("max_model_len (99999) is greater than the derived max_model_len",
        "context-too-long", "lower --max-model-len"),
    # SM_VLLM_DTYPE=float7
    "dtype": ("api_server.py: error: argument --dtype: invalid choice: 'float7'",
        "unknown-argument", "correct or remove that argument"),
    # "method": "foo"
    "unknown-method": ("SpeculativeConfig method Input should be 'ngram'", "wrong-speculation",
        "correct the speculative configuration"),
    # "foo": 1
    "unknown-key": ("SpeculativeConfig foo Unexpected keyword argument", "wrong-speculation",
        "correct the speculative configuration"),
    # a gated target on the Hub
    "gated": ("Cannot access gated repo for url https://hub/acme/gated/resolve/main/config.json",
        "gated-model", "copy the model to S3"),
    # the same as drafter
    "gated-head": ("Access to model acme/gated is restricted.", "gated-model",
        "copy the model to S3"),
    # a target on the Hub, without a network
    "missing": ("LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder",
        "missing-weights", "mount the weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", CRASHES)
def test_the_cause_is_found_in_a_real_log(name: str) -> None:
    words, cause, fix = CRASHES[name]

    crash = parse_crash((LOGS / f"{name}.log").read_text(encoding="utf-8").splitlines())

    assert words in crash.line
    assert crash.cause == cause
    assert fix in crash.fix
    assert "\n" not in str(InvalidEnvironment(crash.line, crash.fix))


def test_every_log_has_an_expectation() -> None:
    assert {file.stem for file in LOGS.glob("*.log")} == set(CRASHES)


def test_lines_of_another_process_do_not_belong_to_a_message() -> None:
    lines = ["(Worker pid=9) ValueError: no", "(EngineCore pid=8) goes on", "(Worker pid=9) more"]

    assert parse_crash(lines).line == "ValueError: no"
