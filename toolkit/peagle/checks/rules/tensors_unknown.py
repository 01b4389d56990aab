"""A head whose weights have tensors that its class does not have.

vLLM rejects such a tensor when it loads the weights. Other rules report extra layers, and biases,
which it ignores.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.head_layout import allowed, has_own_rule, plain_name
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MIXED_FILES, layer_of
from peagle_serve.safetensors import first_names

RULE = Rule("tensors-unknown", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    known = allowed(head.config)
    unknown = [
        name
        for name in head.tensors
        if plain_name(name) not in known
        and not has_own_rule(name)
        and (layer_of(name) or 0) < (head.config.layers or 0)
        and not _ignored(name)
    ]
    if known and unknown:
        message = (
            f"the weights of {head.location} have {first_names(unknown, 3)}, which its class "
            "does not have"
        )
        yield RULE.error("drafter", message, MIXED_FILES)


def _ignored(name: str) -> bool:
    """Whether vLLM skips the tensor, or has it as a merged one."""
    merged = ".qkv_proj" in name or ".gate_up_proj" in name
    return merged or name.endswith(".bias") or name.startswith("input_norm.")
