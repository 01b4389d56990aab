"""What vLLM's own functions say. Run by the engine's own python, as a script.

    python asking.py QUESTIONS.json ANSWERS.json

``{"kv_groups": [...], "runner_v2": {...}}``, each answered under its own name; see the functions.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

BLOCK_TOKENS = 16


def main() -> None:
    """Read the questions, write the answers."""
    questions_file, answers_file = sys.argv[1:]
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
    with open(questions_file) as file:
        questions = json.load(file)
    answers = {
        "kv_groups": [kv_groups(layers) for layers in questions["kv_groups"]],
        "runner_v2": {name: runner_v2(asked) for name, asked in questions["runner_v2"].items()},
    }
    with open(answers_file, "w") as file:
        json.dump(answers, file)


def kv_groups(layers: list[dict[str, Any]]) -> int | None:
    """In how many cache groups the layers of the drafter lie, or ``None`` where vLLM cannot group.

    A layer has ``drafter`` (whether it is one of its), ``kind``, ``kv_heads``, ``head_dim`` and
    ``window``.
    """
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    specs = {f"layer.{number}": _spec(layer) for number, layer in enumerate(layers)}
    drafter = {f"layer.{n}" for n, layer in enumerate(layers) if layer["drafter"]}
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False)
    )
    try:
        groups = get_kv_cache_groups(config, specs)
    except NotImplementedError:
        return None
    return sum(not drafter.isdisjoint(group.layer_names) for group in groups)


def runner_v2(engine: dict[str, Any]) -> list[str]:
    """What of this engine's arguments model runner V2 cannot do, by vLLM's own list."""
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(**engine).create_engine_config()
    unsupported: list[str] = config._get_v2_model_runner_unsupported_features()
    return unsupported


def _spec(layer: dict[str, Any]) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    sizes = {
        "block_size": BLOCK_TOKENS,
        "num_kv_heads": layer["kv_heads"],
        "head_size": layer["head_dim"],
        "dtype": torch.bfloat16,
    }
    if layer["kind"] == "sliding":
        return SlidingWindowSpec(**sizes, sliding_window=layer["window"])
    return FullAttentionSpec(**sizes)


if __name__ == "__main__":
    main()
