"""Whether prefix caching changes what P-EAGLE and EAGLE-3 heads draft for targets whose layers mix
sliding windows and full attention.

Run by the engine's Python, on a GPU, in 2 to 4 minutes:

    python measurements/gpu/prefix_caching.py --out prefix-caching.json

Small random targets of GPT-OSS's and Gemma-4's shape continue greedy conversations, whose turns
repeat the earlier ones, without the cache and with it. There are few tokens, so heads and targets
often agree, and each answer depends on its whole context: a block with wrong content changes
answers and drafts. Rounding does so as well, less in float32 than in bfloat16; how much show the
counts without the cache in smaller steps. Exits with 1 unless there are hits, as many answers are
equal as in smaller steps, but one, and drafts and acceptance are within 3 %. (With the blocks of
the cache moved by hand, no later answer is equal.)
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is in this process, with its weights
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
HIDDEN, K = 256, 5
CONVERSATIONS, TURNS, PROMPT, ADDED, ANSWER = 4, 3, 700, 60, 48
LEAST_LENGTH, ROUNDING = 1.2, 0.03
SLIDING, FULL = "sliding_attention", "full_attention"
Config = dict[str, Any]
BASE: Config = {
    "hidden_size": HIDDEN, "vocab_size": 4, "max_position_embeddings": 4096,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "intermediate_size": 256,
    "num_attention_heads": 8, "num_hidden_layers": 12, "rms_norm_eps": 1e-6, "sliding_window": 128,
    "head_dim": 64, "num_key_value_heads": 2,
}  # fmt: skip
GPT_OSS = BASE | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "rope_theta": 150000,
    "num_local_experts": 8, "num_experts_per_tok": 4, "experts_per_token": 4, "swiglu_limit": 7.0,
    "attention_bias": True, "layer_types": [SLIDING, FULL] * 6,
}  # fmt: skip
GEMMA = BASE | {
    "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "head_dim": 128,
    "num_key_value_heads": 4, "global_head_dim": 256, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "layer_types": ([SLIDING] * 5 + [FULL]) * 2,
    "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
    "tie_word_embeddings": True, "enable_moe_block": False, "use_double_wide_mlp": False,
    "hidden_activation": "gelu_pytorch_tanh", "vocab_size_per_layer_input": 4,
    "rope_parameters": {
        FULL: {"partial_rotary_factor": 0.25, "rope_theta": 1e6, "rope_type": "proportional"},
        SLIDING: {"rope_theta": 1e4, "rope_type": "default"},
    },
}  # fmt: skip
HEAD = BASE | {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 2,
    "draft_vocab_size": 4, "target_hidden_size": HIDDEN, "ptd_token_id": 3,
    "rope_theta": 5e5, "sliding_window": None, "eagle_config": {
        "use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [1, 5, 11]},
}  # fmt: skip
ONE_LAYER = HEAD | {"num_hidden_layers": 1, "head_dim": 128, "num_key_value_heads": 4}
SHAPES: dict[str, tuple[Config, Config, int, bool]] = {
    "gpt-oss, p-eagle": (GPT_OSS, HEAD, 4, True),
    "gemma-4, p-eagle": (GEMMA, HEAD, 4, True),
    "gemma-4, eagle3": (GEMMA, ONE_LAYER, 8, False),
}
"""Target, head, tokens of the vocabulary, and whether the head drafts in parallel. EAGLE-3 runs on
model runner V2, whose warm-up reads more log probabilities than 4 tokens have."""
SIZES = ("vocab_size", "draft_vocab_size", "vocab_size_per_layer_input")
COUNTERS = {"drafts": "spec_decode_num_drafts", "hits": "prefix_cache_hits",
            "accepted": "spec_decode_num_accepted_tokens_per_pos",
            "prompt_tokens": "prefix_cache_queries"}  # fmt: skip


def make_weights(self: Any, model: Any, model_config: Any) -> None:
    """vLLM's dummy weights are so small that only the last token counts; these do what those of a
    new model do, and are the same for a name in each run."""
    import torch

    for name, tensor in model.named_parameters():
        # With the target's output matrix and last hidden states a head drafts what repeats.
        key = name.replace("lm_head", "model.embed_tokens")
        draw = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        values = torch.randn(tensor.shape, generator=draw)
        if name.endswith("bias") or not tensor.is_floating_point():
            values *= 0  # a bias is what all tokens have in common; the other maps tokens
        elif tensor.dim() > 1:
            # Sharp attention, else contexts hardly differ; small embeddings, since as output matrix
            # they make each token repeat itself.
            scales = {"qkv": 2, "embed": 0.25}
            values *= HIDDEN**-0.5 * next((scales[part] for part in scales if part in name), 1)
            if name.endswith("fc.weight"):
                values *= 0.1  # small, so that the head's own layers count
                values[:, -HIDDEN:] += 0.2 * torch.eye(HIDDEN)
        elif "sinks" not in name:
            values.fill_(1)
        tensor.data.copy_(values)


def run(shape: str, cached: bool, more: Config) -> dict[str, Any]:
    """The conversations with one engine: its counts, and all answers."""
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    target, head, vocabulary, is_parallel = SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        for name, config in (("target", target), ("head", head)):
            (path := Path(folder) / name).mkdir()
            sizes = {size: vocabulary for size in SIZES if size in config}
            (path / "config.json").write_text(json.dumps(config | sizes))
        speculation = {"method": "eagle3", "model": f"{folder}/head", "num_speculative_tokens": K,
                       "parallel_drafting": is_parallel}  # fmt: skip
        llm: Any = LLM(**{
            "model": f"{folder}/target", "speculative_config": speculation, "dtype": "float32",
            "load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True,
            "enable_prefix_caching": cached, "max_model_len": 2048, "max_num_seqs": CONVERSATIONS,
            "max_num_batched_tokens": 1024, "kv_cache_memory_bytes": 1 << 30,
            "disable_log_stats": False, **more})  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True, detokenize=False)
    draw, answers = random.Random(7), []
    prompts: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
    for turn in range(TURNS):
        for prompt in prompts:
            prompt += draw.choices(range(vocabulary), k=ADDED if turn else PROMPT)
        sent = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = llm.generate(sent, sampling, use_tqdm=False)
        for prompt, output in zip(prompts, outputs, strict=True):
            answers.append(list(output.outputs[0].token_ids))
            prompt += answers[-1]
    counts = {metric.name.removeprefix("vllm:"): getattr(metric, "values", 0)
              or getattr(metric, "value", 0) for metric in llm.get_metrics()}  # fmt: skip
    groups = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    del llm
    cleanup_dist_env_and_memory()
    row: dict[str, Any] = {name: counts.get(metric, 0) for name, metric in COUNTERS.items()}
    length = round(1 + sum(row["accepted"]) / max(1, row["drafts"]), 3)
    kinds = Counter(type(group.kv_cache_spec).__name__ for group in groups)
    return row | {"acceptance_length": length, "groups": kinds, "answers": answers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("prefix-caching.json"))
    parser.add_argument("--set", type=json.loads, default={}, help="engine arguments, as JSON")
    options = parser.parse_args()
    import torch
    import vllm
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    DummyModelLoader.load_weights = make_weights
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    document: Config = {"engine": {"name": "vllm", "version": vllm.__version__}, "device": device,
                        "script": "measurements/gpu/prefix_caching.py", "rows": []}  # fmt: skip
    for shape in SHAPES:
        runs = {
            "off": run(shape, False, options.set),
            "smaller_steps": run(shape, False, options.set | {"max_num_batched_tokens": 512}),
            "on": run(shape, True, options.set),
        }
        answers = {name: counts.pop("answers") for name, counts in runs.items()}
        off, on = runs["off"], runs["on"]
        for name, counts in runs.items():
            counts["equal_answers"] = sum(map(list.__eq__, answers["off"], answers[name]))
        nearly = [
            abs(1 - on[key] / off[key]) <= ROUNDING for key in ("drafts", "acceptance_length")
        ]
        is_same = all(nearly) and on["equal_answers"] + 1 >= runs["smaller_steps"]["equal_answers"]
        is_real = on["hits"] > 0 == off["hits"] and on["acceptance_length"] > LEAST_LENGTH
        row = {"shape": shape, "passed": is_same and is_real, "answers": len(answers["on"]),
               "distinct_answers": len(set(map(str, answers["on"]))), **runs}  # fmt: skip
        document["rows"].append(row)
        print(json.dumps(row), flush=True)
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    sys.exit(not all(row["passed"] for row in document["rows"]))


if __name__ == "__main__":
    main()
