"""What each of vLLM's arguments means, for who has never seen one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MEANINGS: dict[str, str] = {
    "--model": "where the weights of the target, the model that answers, come from",
    "--revision": "which version of those weights",
    "--load-format": "how weights are read; runai_streamer: straight from S3, in parallel",
    "--served-model-name": 'what requests call the model, in "model"',
    "--max-model-len": "longest context: a prompt and its answer together, in tokens",
    "--max-num-seqs": "requests that are answered at the same time; more wait their turn",
    "--tensor-parallel-size": "GPUs over which one copy of the model is divided",
    "--gpu-memory-utilization": "share of each GPU's memory that the engine may take",
    "--kv-cache-dtype": "how the cache stores its numbers; fp8 takes half the memory of 16 bits",
    "--dtype": "the type of number to compute with",
    "--enforce-eager": "starts sooner and answers slower: no CUDA graphs, no compilation",
    "--max-num-batched-tokens": "most tokens of one step; long prompts are cut into such pieces",
    "--max-cudagraph-capture-size": "largest batch for which GPU work is recorded in advance",
    "--block-size": "tokens of one page of the cache",
    "--stream-interval": "tokens that a streamed answer sends at once",
    "--enable-prefix-caching": "keeps what it computed of a prompt for prompts that begin alike",
    "--no-enable-prefix-caching": "forgets a prompt with its answer, also if the next begins alike",
    "--async-scheduling": "prepares the next step while the GPU still computes this one",
    "--no-async-scheduling": "prepares the next step when the GPU has finished this one",
    "--trust-remote-code": "runs Python code that comes with the weights",
    "--speculative-config": "speculation: a drafter guesses tokens, the target checks them at once",
}
"""Argument -> what it does, in plain words."""

SPECULATION: dict[str, str] = {
    "method": "how drafts are made",
    "model": "where the weights of the drafter come from",
    "revision": "which version of those weights",
    "num_speculative_tokens": "K, the tokens that are drafted for each step of the target",
    "parallel_drafting": "P-EAGLE: all K drafts at once instead of one after the other",
    "prompt_lookup_max": "longest piece of text that is looked up in what came before",
    "prompt_lookup_min": "shortest piece of text that is looked up",
}
"""Key of ``--speculative-config`` -> what it does."""


@dataclass(frozen=True)
class Explained:
    """One argument, or one key of ``--speculative-config``, with what it means ("" if unknown)."""

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
