"""The measured pairs: their config.json files, engine arguments, and the settings to measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "model_catalog" / "configs"
PAIRS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b", "gemma-4-31b")
CARD_K = {"gpt-oss-20b": 7, "gpt-oss-120b": 5, "qwen3-coder-30b": 10, "gemma-4-31b": 7}
SECOND_K = {"gpt-oss-20b": 3, "gpt-oss-120b": 3, "qwen3-coder-30b": 5, "gemma-4-31b": 3}

# What a head's checkpoint contains besides its own layers; it shares the rest with the target.
OWN_TENSORS: dict[tuple[str, str], tuple[str, ...]] = {
    **{(pair, "p-eagle"): ("embed_tokens", "lm_head") for pair in PAIRS},
    ("gpt-oss-20b", "eagle3"): ("embed_tokens", "lm_head"),
    ("gpt-oss-120b", "eagle3"): ("lm_head",),
    ("qwen3-coder-30b", "eagle3"): ("lm_head",),
    ("gemma-4-31b", "eagle3"): ("embed_tokens", "lm_head"),
}


@dataclass(frozen=True)
class Setting:
    """The configuration of one engine start."""

    pair: str
    drafter: str | None = None
    k: int = 0
    gpu_memory_utilization: float = 0.9
    max_model_len: int = 32768
    max_num_seqs: int = 128
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    enable_prefix_caching: bool = False
    own_tensors: bool = True
    max_cudagraph_capture_size: int | None = None

    @property
    def name(self) -> str:
        """A unique name, also used as a file name."""
        drafter = f"{self.drafter}-k{self.k}" if self.drafter else "none"
        parts = [self.pair, drafter, f"u{self.gpu_memory_utilization}", f"l{self.max_model_len}"]
        parts += [f"s{self.max_num_seqs}", f"t{self.max_num_batched_tokens or 'default'}"]
        parts += [self.kv_cache_dtype, f"tp{self.tensor_parallel_size}"]
        parts += ["eager"] * self.enforce_eager + ["prefix"] * self.enable_prefix_caching
        parts += ["shared"] * (not self.own_tensors)
        parts += [f"g{self.max_cudagraph_capture_size}"] * bool(self.max_cudagraph_capture_size)
        return "_".join(parts)

    def own(self) -> tuple[str, ...]:
        """The tensors that the head does not share with the target."""
        if not self.drafter or not self.own_tensors:
            return ()
        return OWN_TENSORS[self.pair, self.drafter]


def speculation(setting: Setting) -> dict[str, Any] | None:
    """vLLM's ``--speculative-config``, as in the toolkit's plans; ``None`` without a drafter."""
    if not setting.drafter:
        return None
    config: dict[str, Any] = {
        "method": "eagle3",
        "model": str(ROOT / setting.pair / setting.drafter),
        "num_speculative_tokens": setting.k,
    }
    if setting.drafter == "p-eagle":
        config["parallel_drafting"] = True
    return config


def engine_arguments(setting: Setting) -> dict[str, Any]:
    """The keyword arguments of vLLM's EngineArgs."""
    arguments: dict[str, Any] = {
        "model": str(ROOT / setting.pair / "target"),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "tensor_parallel_size": setting.tensor_parallel_size,
        "gpu_memory_utilization": setting.gpu_memory_utilization,
        "max_model_len": setting.max_model_len,
        "max_num_seqs": setting.max_num_seqs,
        "kv_cache_dtype": setting.kv_cache_dtype,
        "enforce_eager": setting.enforce_eager,
        "enable_prefix_caching": setting.enable_prefix_caching,
    }
    if setting.max_num_batched_tokens:
        arguments["max_num_batched_tokens"] = setting.max_num_batched_tokens
    if setting.max_cudagraph_capture_size:
        arguments["max_cudagraph_capture_size"] = setting.max_cudagraph_capture_size
    if setting.drafter:
        arguments["speculative_config"] = speculation(setting)
    if setting.pair.startswith("gemma"):
        # model_catalog/configs has no image processor; text input does not need one.
        arguments["limit_mm_per_prompt"] = {"image": 0, "video": 0, "audio": 0}
    return arguments


_FIRST = ("gemma-4-31b", "gpt-oss-20b", "qwen3-coder-30b", "gpt-oss-120b")
"""Pairs by how little evidence exists: Gemma, with two head widths, has the least."""

_VARIED = ("gpt-oss-20b", "qwen3-coder-30b")
"""Pairs for varying one setting at a time: one with and one without sliding windows."""


def memory_settings() -> list[Setting]:
    """Every setting that ``memory`` measures, the most valuable first."""
    rows = [make(pair) for pair in _FIRST for make in (_second_k, _fp8, _card_at_80, _eagle3)]
    for changes in _VARIATIONS:
        rows += [replace(_card(pair), **change) for pair in _VARIED for change in changes]
    rows += [replace(_none(pair), max_num_seqs=seqs) for seqs in (16, 1024) for pair in _VARIED]
    rows += [replace(_none(pair), max_num_batched_tokens=16384) for pair in _VARIED]
    rows += list(_two_gpus())
    rows += [make(pair) for make in (_card, _none, _none_fp8) for pair in PAIRS]
    return list(dict.fromkeys(rows))


_VARIATIONS: tuple[tuple[dict[str, Any], ...], ...] = (
    tuple({"max_num_batched_tokens": tokens} for tokens in (16384, 2048, 32768)),
    tuple({"max_model_len": length} for length in (131072, 8192)),
    ({"enforce_eager": True}, {"enable_prefix_caching": True}),
    tuple({"max_num_seqs": requests} for requests in (1024, 16)),
    ({"own_tensors": False},),
)
"""Changes of one setting each, in groups."""


def _none(pair: str) -> Setting:
    return Setting(pair)


def _card(pair: str) -> Setting:
    return Setting(pair, "p-eagle", CARD_K[pair])


def _second_k(pair: str) -> Setting:
    return Setting(pair, "p-eagle", SECOND_K[pair])


def _eagle3(pair: str) -> Setting:
    return Setting(pair, "eagle3", 3)


def _fp8(pair: str) -> Setting:
    return replace(_card(pair), kv_cache_dtype="fp8")


def _none_fp8(pair: str) -> Setting:
    return Setting(pair, kv_cache_dtype="fp8")


def _card_at_80(pair: str) -> Setting:
    return replace(_card(pair), gpu_memory_utilization=0.8)


def _two_gpus() -> Iterator[Setting]:
    for make in (_card, _none):
        for pair in PAIRS:
            yield replace(make(pair), tensor_parallel_size=2)
