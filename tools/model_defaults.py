"""Writes model_catalog/architectures.json: what vLLM and transformers make of a config.json.

    $(peagle engine status --json | jq -r .python) tools/model_defaults.py

It runs in the Python of the CPU engine, whose transformers fills in the keys that public files
leave out, and whose vLLM has the registry of classes that it serves.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parent.parent / "model_catalog" / "architectures.json"

KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
    "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts",
    "num_experts_per_tok", "moe_topk", "moe_k", "moe_intermediate_size", "n_shared_experts",
    "shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step",
    "expert_layer_period", "expert_layer_offset", "interleave_moe_layer_step",
    "sliding_window", "use_sliding_window", "max_window_layers",
    "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "attn_layer_period", "attn_layer_offset", "state_size", "mamba_d_state", "mamba_d_conv",
    "mamba_expand", "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "ssm_state_size",
    "conv_kernel", "expand", "n_groups", "attn_output_gate",
    "hidden_size_per_layer_input", "num_kv_shared_layers", "multi_query",
    "new_decoder_architecture", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
)  # fmt: skip
"""The keys that ``peagle.checkpoints`` reads."""


def default_values(config: type[Any]) -> dict[str, Any]:
    """The keys that a config class sets by default, without those that it computes."""
    parameters = inspect.signature(config).parameters
    names = {key: getattr(config, "attribute_map", {}).get(key, key) for key in KEYS}
    stated = {key: parameters[name].default for key, name in names.items() if name in parameters}
    return {
        key: value for key, value in stated.items() if isinstance(value, int | str) and value != ""
    }


def model_types() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """The defaults by the model type of a decoder, and the decoder of each larger model."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    defaults, decoders = {}, {}
    for model_type in sorted({*CONFIG_MAPPING.keys(), *_CONFIG_REGISTRY.keys()}):
        try:
            source = _CONFIG_REGISTRY if model_type in _CONFIG_REGISTRY else CONFIG_MAPPING
            config = source[model_type]()
            text = config.get_text_config(decoder=True)
            stated = default_values(type(text))
        except Exception as error:  # a class without defaults has none to write
            print(f"{model_type}: {error!r:.100}")
            continue
        if {"vocab_size", "num_hidden_layers"} <= stated.keys():
            if text.model_type in (model_type, ""):
                defaults[model_type] = stated
            else:
                decoders[model_type] = text.model_type
    generators = {*modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *_CONFIG_REGISTRY.keys()}
    generators |= set(decoders.values())
    return {key: defaults[key] for key in defaults if key in generators}, decoders


def classes_not_served() -> dict[str, str]:
    """Classes that this vLLM does not serve, each with the last version that did or nothing."""
    import transformers
    from transformers.models.auto import modeling_auto
    from vllm.model_executor.models import registry

    def classes(names: Iterable[Any]) -> set[str]:
        return {
            class_name
            for name in names
            for class_name in ([name] if isinstance(name, str) else name)
        }

    gone = registry._PREVIOUSLY_SUPPORTED_MODELS
    generators = classes(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    generators |= classes(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values())
    unserved = {}
    for name in sorted((generators | set(gone)) - set(registry._VLLM_MODELS)):
        # vLLM serves others by their classes in transformers, where these allow it.
        model_class = getattr(transformers, name, None)
        if model_class is None or not model_class.is_backend_compatible():
            unserved[name] = gone.get(name, "")
    return unserved


def main() -> None:
    """Write the table, one model type a line."""
    defaults, decoders = model_types()
    table: dict[str, dict[str, Any]] = {
        "versions": {
            name: import_module(name).__version__.partition("+")[0]
            for name in ("transformers", "vllm")
        },
        "not_served": classes_not_served(),
        "decoders": decoders,
        "defaults": defaults,
    }
    parts = []
    for section, items in table.items():
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(items.items()))
        parts.append(f'"{section}": {{\n{rows}\n}}')
    TABLE.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
