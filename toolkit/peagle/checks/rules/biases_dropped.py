"""Biases in the head's weights for which vLLM has no place.

vLLM ignores every bias that its class does not have, without a line in its log: a Llama head has
them only with attention_bias or mlp_bias, a Qwen3 head never on o_proj or in the feed-forward
block. The head then computes something else than it was trained for.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.head_layout import has_own_rule, layers_in, plain_name, required
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import layer_of
from peagle_serve.safetensors import first_names

RULE = Rule("biases-dropped", about="head", vllm_notices="never")

_SWITCHES = {"attention_bias": ("q_proj", "k_proj", "v_proj", "o_proj"),
             "mlp_bias": ("gate_proj", "up_proj", "down_proj")}  # fmt: skip
"""Key of config.json -> the projections of a Llama head that have a bias with it."""


@for_head
def check(case: Case, head: Head) -> Findings:
    shapes = required(head.config)
    dropped = [
        name
        for name in head.tensors
        if shapes is not None
        and name.endswith(".bias")
        and plain_name(name) not in shapes
        and not has_own_rule(name)
        and not _is_merged(name)
        and layer_of(name) in {None, *layers_in(shapes)}
    ]
    if dropped:
        message = f"vLLM ignores {first_names(dropped, 3)} of {head.location}"
        yield RULE.warning("drafter", message, _fix(head, dropped))


def _is_merged(name: str) -> bool:
    return ".qkv_proj" in name or ".gate_up_proj" in name


def _fix(head: Head, dropped: list[str]) -> str:
    parts = {name.split(".")[-2] for name in dropped}
    keys = [key for key, names in _SWITCHES.items() if parts & set(names)]
    helps = head.config.model_type == "llama" and parts <= {
        part for key in keys for part in _SWITCHES[key]
    }
    if not helps:
        return "measure acceptance: the head runs without them; train it without biases"
    where = "transformer_layer_config." if head.config.speculators_format else ""
    return f"set {' and '.join(where + key for key in keys)} to true"
