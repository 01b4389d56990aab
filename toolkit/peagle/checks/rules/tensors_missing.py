"""A head whose weights lack tensors.

vLLM does not require all of a draft head's tensors. Missing ones stay uninitialized: the endpoint
becomes healthy, and nearly no draft is accepted. Another rule reports whole layers.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import COPY_AGAIN
from peagle.checks.head_layout import layers_in, plain_name, required
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import layer_of
from peagle_serve.safetensors import first_names

_ADD_ZEROS = (
    "if the head was trained without it, add it as zeros: with attention_bias vLLM's Llama layers "
    "have it"
)

RULE = Rule("tensors-missing", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    shapes = required(head.config)
    found, layers = {plain_name(name) for name in head.tensors}, layers_in(head.tensors)
    merged = any(".qkv_proj" in name or ".gate_up_proj" in name for name in found)
    if shapes is None or not found or merged:
        return
    missing = [name for name in shapes if name not in found and layer_of(name) in {None, *layers}]
    if missing:
        message = f"the weights of {head.location} lack {first_names(missing, 3)}"
        only_output = all(name.endswith("o_proj.bias") for name in missing)
        yield RULE.error("drafter", message, _ADD_ZEROS if only_output else COPY_AGAIN)
