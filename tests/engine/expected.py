"""What real vLLM 0.28.0 does with the broken pairs of the corpus, and what no test here shows."""

from __future__ import annotations

from typing import Any

from tests.engine.damage import TILES
from tests.engine.verdicts import (
    Accepts,
    Dies,
    Drafts,
    Refuses,
    Unnoticed,
    Verdict,
    WastesBeyond,
)

_SHAPE = "is invalid for input of size"
_WORDLESS = "AssertionError in weight_loader: "
_WORDLESS_QKV = "AssertionError in load_qkv_weight: "
"""vLLM's check of a tensor's shape raises without a message."""
GOOD: dict[str, Verdict] = {
    "P-EAGLE": Accepts(2.15),
    "EAGLE-3": Accepts(2.45),
    "P-EAGLE, speculators": Unnoticed("P-EAGLE"),
    "EAGLE-3, speculators": Unnoticed("EAGLE-3"),
    "P-EAGLE, autodetected": Unnoticed("P-EAGLE"),
    "EAGLE-3, autodetected": Unnoticed("EAGLE-3"),
    "half of the vocabulary": Accepts(1.15),
    "a long request": Accepts(2.15),
    "the layer after the last": Accepts(2.15),
    "four layers, as the fix says": Unnoticed("EAGLE-3, speculators"),
    "four layers and Qwen3's layers": Accepts(1.0),
    "full and sliding layers in one group": Unnoticed("P-EAGLE"),
    "bfloat16 on a CPU with tiles, started as the container does": Accepts(2.15),
    "a hybrid target of 12 and 12 layers": Accepts(1.0),
}
BROKEN: dict[str, tuple[str, Verdict]] = {
    "a reduced vocabulary without d2t": ("d2t-missing", Drafts(1.05)),
    "a reduced vocabulary without lm_head": ("lm-head-missing", Drafts(1.05)),
    "no fc": ("tensors-missing", Drafts(1.3)),
    "integers without a scale": ("tensor-dtype", Drafts(1.6)),
    "FP8 in config.json and not in the weights": ("tensor-dtype", Drafts(1.3)),
    "another tokenizer": ("tokenizer-differs", Drafts(1.1)),
    "a target with a layer less": ("target-differs", Drafts(2.0)),
    "a target without auxiliary hidden states": (
        "eagle3-target-support",
        Refuses("does not support EAGLE3 interface"),
    ),
    "a hybrid target of 4 and 4 layers": ("kv-group-rule", Refuses("same kv cache group")),
    "K of 20": ("k-above-trained", WastesBeyond(8, at_most=0.02)),
    "a long request above the head's context": ("context-above-drafter", Drafts(1.0)),
}
CORPUS: dict[str, Verdict] = {
    # masked slots
    "no mask": Refuses("mask_hidden not found in weights"),
    "mask of a single number": Drafts(2.15),
    "no placeholder": Refuses("`ptd_token_id` specified in its config.json"),
    "placeholder is the size of the vocabulary": Dies("index out of range"),
    "the first key that vLLM reads is outside": Dies("index out of range"),
    "EAGLE-3 head started as P-EAGLE": Refuses("`ptd_token_id` specified in its config.json"),
    "EAGLE-3 speculators head started as P-EAGLE": Refuses("`ptd_token_id` specified"),
    "P-EAGLE head started as EAGLE-3": Drafts(1.9),
    # the target's hidden states
    "auxiliary states off": Refuses("has no attribute 'fc_input_size'"),
    "hidden states of another width": Dies(_SHAPE),
    "fc for two hidden states": Refuses("Tried to load weights of size"),
    "four layers read, three built for": Dies(_SHAPE),
    "two equal layers in the list": Dies(_SHAPE),
    "no layers listed, and vLLM's default collides in a target of six layers": Dies(_SHAPE),
    "a layer beyond the target": Dies(_SHAPE),
    # the head's own layers
    "a bias that config.json does not mention": Unnoticed("P-EAGLE"),
    "a window of 8 tokens": Drafts(1.7),
    "full and sliding layers": Refuses("same kv cache group"),
    "fewer kinds of attention than layers": Refuses("must be equal to the number of `layer_types`"),
    "the target's EOS as mask token": Drafts(2.1),
    # vocabularies
    "a larger vocabulary": Dies("shape mismatch"),
    "more tokens drafted than the target has": Dies("shape mismatch"),
    "d2t of another size": Refuses("Attempted to load weight"),
    "embeddings of half the vocabulary": Refuses(_WORDLESS),
    "a narrow head without embeddings": Drafts(1.05),
    # tensors
    "config.json with fewer layers than the weights": Refuses("parameter named 'layers.3'"),
    "an unknown tensor": Refuses("parameter named 'adapter'"),
    "a first layer as wide as the others": Refuses(_WORDLESS_QKV),
    # formats
    "the target as head": Refuses("`ptd_token_id` specified in its config.json"),
    "no num_hidden_layers": Drafts(1.3),
    "no norm_before_residual": Drafts(1.95),
    "a class of a training framework": Refuses("['Eagle3PEagleDraftModel'] are not supported"),
    "layers of a type without a speculators class": Refuses("Unsupported model_type mistral"),
    "no speculators_config": Refuses("Should have a `model_type` key"),
    "speculators head without its mask token": Refuses("mask_token_id"),
    "trained for another target": Unnoticed("P-EAGLE"),
    # target and load
    "a missing layer of the target": Refuses("were not initialized from checkpoint"),
    "a context above the target's": Refuses("is greater than the derived max_model_len"),
    "heads that three GPUs cannot divide": Refuses("must be divisible by tensor parallel size"),
    "a step as small as the draft slots": Refuses("enough slots to schedule a token"),
    "no padding in parallel": Refuses("only supports padded drafter batch"),
    "a drafter on three GPUs": Refuses("cannot be other value than 1 or target model"),
    # settings that conflict with a drafter
    "adapters": Dies("index out of range"),
    "a pipeline": Refuses("Pipeline parallelism is not supported for this model"),
    "prefix caching": Unnoticed("P-EAGLE"),
    "a removed key": Refuses("Unexpected keyword argument"),
    "a removed sampling method": Refuses("should be 'standard', 'synthetic' or 'block'"),
    "bfloat16 on a CPU with AMX tiles": Refuses("Dimension out of range"),
}
"""Cases of the rules' corpus that the engine gets unchanged."""
_TWO_GROUPS = {"num_gpu_blocks_override": 160}
ENGINE: dict[str, dict[str, Any]] = {
    "a window of 8 tokens": _TWO_GROUPS,
    "full and sliding layers": _TWO_GROUPS,
    "hidden states of another width": {"max_num_seqs": 1},
    "a step as small as the draft slots": {"max_num_seqs": 4},
    "bfloat16 on a CPU with AMX tiles": {"dtype": "bfloat16"},
}
"""Arguments with which the damage of a case is the first problem that the engine finds."""
BEFORE = {"bfloat16 on a CPU with AMX tiles": (TILES,)}
"""Functions to call in the process of the engine before a case of the corpus."""
_AWS = "about AWS, its images and its instances, not about vLLM"
_KNOWN = "not about what vLLM does, but about what is known of the pair"
_OTHER = "another version of vLLM than 0.28.0 on the CPU"
NOT_SHOWN = {
    "ami-driver": _AWS,
    "ami-unknown": _AWS,
    "dynamic-k": "needs CUDA graphs (vLLM 0.26.0 on an H200; config/vllm.py)",
    "gpu-too-new": "needs a GPU",
    "gpu-too-old": "needs a GPU",
    "image-not-in-ecr": _AWS,
    "image-not-in-region": _AWS,
    "image-version": _AWS,
    "log-stats-off": _AWS,
    "instance-not-in-region": _AWS,
    "instance-region-unknown": _AWS,
    "instance-unknown": _AWS,
    "known-problem": _KNOWN,
    "long-context-head": _KNOWN,
    "model-runner-v2": "V2 needs Triton, so a GPU; a test reads vLLM's own list instead",
    "peagle-qwen3-head": f"{_OTHER}: below 0.24.0 (model_executor/models/registry.py)",
    "region-unknown": _AWS,
    "runtime-unknown": _AWS,
    "speculators-format": f"{_OTHER}: below 0.22.0 (vllm-project/vllm 41826)",
    "structured-output": f"{_OTHER}: below 0.22.0 (vllm-project/vllm 42004)",
    "target-numerics": "needs FP8 and MXFP4 kernels, so a GPU",
    "vllm-below-minimum": f"{_OTHER}: the oldest that each head needs",
    "vllm-cpu-broken": f"{_OTHER}: 0.30.0",
}
"""Rules whose problem the engine on this machine cannot show, and why."""
