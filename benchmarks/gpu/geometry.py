"""The pairs: where their config.json files lie, and the engine arguments that serve them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2] / "tests" / "geometry"
PAIRS = ("gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b", "gemma-4-31b")
CARD_K = {"gpt-oss-20b": 7, "gpt-oss-120b": 5, "qwen3-coder-30b": 10, "gemma-4-31b": 7}
SECOND_K = {"gpt-oss-20b": 3, "gpt-oss-120b": 3, "qwen3-coder-30b": 5, "gemma-4-31b": 3}

# What a head's checkpoint holds beside its own layers; the rest it shares with the target.
OWN_TENSORS: dict[tuple[str, str], tuple[str, ...]] = {
    **{(pair, "p-eagle"): ("embed_tokens", "lm_head") for pair in PAIRS},
    ("gpt-oss-20b", "eagle3"): ("embed_tokens", "lm_head"),
    ("gpt-oss-120b", "eagle3"): ("lm_head",),
    ("qwen3-coder-30b", "eagle3"): ("lm_head",),
    ("gemma-4-31b", "eagle3"): ("embed_tokens", "lm_head"),
}


@dataclass(frozen=True)
class Setting:
    """One start of the engine."""

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

    @property
    def name(self) -> str:
        """A name that tells it from every other, and serves as a file name."""
        drafter = f"{self.drafter}-k{self.k}" if self.drafter else "none"
        parts = [self.pair, drafter, f"u{self.gpu_memory_utilization}", f"l{self.max_model_len}"]
        parts += [f"s{self.max_num_seqs}", f"t{self.max_num_batched_tokens or 'default'}"]
        parts += [self.kv_cache_dtype, f"tp{self.tensor_parallel_size}"]
        parts += ["eager"] * self.enforce_eager + ["prefix"] * self.enable_prefix_caching
        parts += ["shared"] * (not self.own_tensors)
        return "_".join(parts)

    def own(self) -> tuple[str, ...]:
        """The tensors that the head keeps for itself."""
        if not self.drafter or not self.own_tensors:
            return ()
        return OWN_TENSORS[self.pair, self.drafter]


def speculation(setting: Setting) -> dict[str, Any] | None:
    """vLLM's --speculative-config, as the toolkit's plans give it."""
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
    if setting.drafter:
        arguments["speculative_config"] = speculation(setting)
    if setting.pair.startswith("gemma"):
        # Its image processor is a file that is not here; text alone needs none.
        arguments["limit_mm_per_prompt"] = {"image": 0, "video": 0, "audio": 0}
    return arguments
