"""What real vLLM 0.28.0 does with the broken pairs of the corpus, and what no test here shows."""

from typing import Any

from tests.engine.verdicts import Verdict, accepts, dies, drafts, refuses, unnoticed

_SHAPE = "is invalid for input of size"
_WORDLESS = "AssertionError in weight_loader: "
_WORDLESS_QKV = "AssertionError in load_qkv_weight: "
"""vLLM's check of a tensor's shape raises without a message."""
GOOD: dict[str, Verdict] = {
    "P-EAGLE": accepts(2.15),
    "EAGLE-3": accepts(2.45),
    "P-EAGLE, speculators": unnoticed("P-EAGLE"),
    "EAGLE-3, speculators": unnoticed("EAGLE-3"),
    "P-EAGLE, autodetected": unnoticed("P-EAGLE"),
    "EAGLE-3, autodetected": unnoticed("EAGLE-3"),
    "half of the vocabulary": accepts(1.15),
    "a long request": accepts(2.15),
    "the layer after the last": accepts(2.15),
    "four layers, as the fix says": unnoticed("EAGLE-3, speculators"),
    "four layers and Qwen3's layers": accepts(1.0),
    "full and sliding layers in one group": unnoticed("P-EAGLE"),
    "bfloat16 on a CPU with tiles, started as the container does": accepts(2.15),
    "a hybrid target of 12 and 12 layers": accepts(1.0),
}
BROKEN: dict[str, tuple[str, Verdict]] = {
    "a reduced vocabulary without d2t": ("d2t-missing", drafts(1.05)),
    "a reduced vocabulary without lm_head": ("lm-head-missing", drafts(1.05)),
    "lm_head with other rows": ("draft-vocabulary", refuses(_WORDLESS)),
    "a smaller vocabulary": ("vocabulary-mismatch", drafts(2.15)),
    "mask of two hidden states": ("mask-shape", refuses("must match the size of tensor b (512)")),
    "no fc": ("tensors-missing", drafts(1.3)),
    "FP8 in config.json and not in the weights": ("tensor-dtype", drafts(1.3)),
    "another tokenizer": ("tokenizer-differs", drafts(1.1)),
    "a target with a layer less": ("target-differs", drafts(2.0)),
    "a target without auxiliary hidden states": (
        "eagle3-target-support",
        refuses("does not support EAGLE3 interface"),
    ),
    "a hybrid target of 4 and 4 layers": ("kv-group-rule", refuses("same kv cache group")),
    "K of 20": ("k-above-trained", Verdict("never", wasted_beyond=8)),
    "a long request above the head's context": ("context-above-drafter", drafts(1.0)),
}
CORPUS: dict[str, Verdict] = {
    # masked slots
    "no mask": refuses("mask_hidden not found in weights"),
    "mask of a single number": drafts(2.15),
    "no placeholder": refuses("`ptd_token_id` specified in its config.json"),
    "placeholder is the size of the vocabulary": dies("index out of range"),
    "the first key that vLLM reads is outside": dies("index out of range"),
    "EAGLE-3 head started as P-EAGLE": refuses("`ptd_token_id` specified in its config.json"),
    "EAGLE-3 speculators head started as P-EAGLE": refuses("`ptd_token_id` specified"),
    "P-EAGLE head started as EAGLE-3": drafts(1.9),
    # the target's hidden states
    "auxiliary states off": refuses("has no attribute 'fc_input_size'"),
    "hidden states of another width": dies(_SHAPE),
    "fc for two hidden states": refuses("Tried to load weights of size"),
    "four layers read, three built for": dies(_SHAPE),
    "two equal layers in the list": dies(_SHAPE),
    "no layers listed, and vLLM's default collides in a target of six layers": dies(_SHAPE),
    "a layer beyond the target": dies(_SHAPE),
    # the head's own layers
    "a bias that config.json does not mention": unnoticed("P-EAGLE"),
    "a window of 8 tokens": drafts(1.7),
    "full and sliding layers": refuses("same kv cache group"),
    "fewer kinds of attention than layers": refuses("must be equal to the number of `layer_types`"),
    "the target's EOS as mask token": drafts(2.1),
    # vocabularies
    "a larger vocabulary": dies("shape mismatch"),
    "more tokens drafted than the target has": dies("shape mismatch"),
    "d2t of another size": refuses("Attempted to load weight"),
    "embeddings of half the vocabulary": refuses(_WORDLESS),
    "a narrow head without embeddings": drafts(1.05),
    # tensors
    "config.json with fewer layers than the weights": refuses("parameter named 'layers.3'"),
    "an unknown tensor": refuses("parameter named 'adapter'"),
    "a first layer as wide as the others": refuses(_WORDLESS_QKV),
    # formats
    "the target as head": refuses("`ptd_token_id` specified in its config.json"),
    "no num_hidden_layers": drafts(1.3),
    "no norm_before_residual": drafts(1.95),
    "a class of a training framework": refuses("['Eagle3PEagleDraftModel'] are not supported"),
    "layers of a type without a speculators class": refuses("Unsupported model_type mistral"),
    "no speculators_config": refuses("Should have a `model_type` key"),
    "speculators head without its mask token": refuses("mask_token_id"),
    "trained for another target": unnoticed("P-EAGLE"),
    # target and load
    "a missing layer of the target": refuses("were not initialized from checkpoint"),
    "a context above the target's": refuses("is greater than the derived max_model_len"),
    "heads that three GPUs cannot divide": refuses("must be divisible by tensor parallel size"),
    # settings that conflict with a drafter
    "adapters": dies("index out of range"),
    "prefix caching": unnoticed("P-EAGLE"),
    "a removed key": refuses("Unexpected keyword argument"),
    "a removed sampling method": refuses("should be 'standard', 'synthetic' or 'block'"),
}
"""Cases of the rules' corpus that the engine gets unchanged."""
_TWO_GROUPS = {"num_gpu_blocks_override": 160}
ENGINE: dict[str, dict[str, Any]] = {
    "a window of 8 tokens": _TWO_GROUPS,
    "full and sliding layers": _TWO_GROUPS,
    "hidden states of another width": {"max_num_seqs": 1},
}
"""Arguments with which the damage of a case is the first problem that the engine finds."""
NOT_SHOWN = frozenset({
    # about AWS, its images and its instances, not about vLLM
    "ami-driver", "ami-unknown", "image-not-in-ecr", "image-not-in-region", "image-version",
    "log-stats-off", "instance-not-in-region", "instance-region-unknown", "instance-unknown",
    "region-unknown", "runtime-unknown",
    # about what is known of the pair, not about what vLLM does
    "known-problem", "long-context-head",
    # need a GPU: CUDA graphs, Triton, FP8 and MXFP4 kernels
    "dynamic-k", "gpu-too-old", "target-numerics",
    # another version of vLLM than 0.28.0 on the CPU
    "vllm-below-minimum",
    "vllm-cpu-broken",
})  # fmt: skip
"""Rules whose problem the engine on this machine cannot show."""
