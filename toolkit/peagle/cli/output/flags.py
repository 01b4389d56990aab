"""What each of vLLM's arguments means, for readers who are new to vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MEANINGS: dict[str, str] = {
    "--model": "the target: a Hugging Face id, folder or s3:// prefix",
    "--revision": "revision of the weights",
    "--load-format": "how weights are loaded; runai_streamer reads them from S3 in parallel",
    "--served-model-name": "the model name in requests",
    "--max-model-len": "longest context, prompt and output together, in tokens",
    "--max-num-seqs": "concurrent requests; excess requests queue",
    "--tensor-parallel-size": "GPUs that share one copy of the model",
    "--gpu-memory-utilization": "share of each GPU's memory that the engine may use",
    "--kv-cache-dtype": "data type of the KV cache; fp8 takes half the memory of 16 bits",
    "--dtype": "data type of weights and activations",
    "--enforce-eager": "no CUDA graphs and no compilation: starts sooner, runs slower",
    "--max-num-batched-tokens": "most tokens per step; longer prompts are split into chunks",
    "--max-cudagraph-capture-size": "largest batch with a CUDA graph",
    "--block-size": "tokens per block of the KV cache",
    "--stream-interval": "tokens per chunk of a streamed response",
    "--enable-prefix-caching": "reuses the KV cache of common prompt prefixes",
    "--no-enable-prefix-caching": "disables prefix caching",
    "--async-scheduling": "schedules the next step while the GPU computes",
    "--no-async-scheduling": "schedules the next step after the GPU has finished",
    "--trust-remote-code": "runs Python code from the model repository",
    "--speculative-config": "speculation: a drafter proposes tokens, the target verifies them",
}
"""Argument -> its meaning."""

SPECULATION: dict[str, str] = {
    "method": "how tokens are drafted",
    "model": "the drafter: a Hugging Face id, folder or s3:// prefix",
    "revision": "revision of the weights",
    "num_speculative_tokens": "K, the tokens drafted per step",
    "parallel_drafting": "P-EAGLE: drafts all K tokens in one pass",
    "prompt_lookup_max": "longest n-gram to look up in the prompt",
    "prompt_lookup_min": "shortest n-gram to look up",
}
"""Key of ``--speculative-config`` -> its meaning."""


@dataclass(frozen=True)
class Explained:
    """One argument or key of ``--speculative-config`` with its meaning, "" if unknown."""

    name: str
    value: str
    meaning: str


def explained(arguments: Sequence[str]) -> Iterator[Explained]:
    """Every argument of an argv in its order; the keys of ``--speculative-config`` follow it."""
    for flag, value in _pairs(arguments):
        if flag != "--speculative-config":
            yield Explained(flag, value, MEANINGS.get(flag, ""))
            continue
        yield Explained(flag, "", MEANINGS[flag])
        for key, setting in json.loads(value).items():
            shown = setting if isinstance(setting, str) else json.dumps(setting)
            yield Explained(key, shown, SPECULATION.get(key, ""))


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values; a bare flag has ""."""
    for at, word in enumerate(arguments):
        if word.startswith("--"):
            after = arguments[at + 1] if at + 1 < len(arguments) else "--"
            yield word, "" if after.startswith("--") else after
