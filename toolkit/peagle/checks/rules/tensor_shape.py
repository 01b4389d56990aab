"""Layer tensors of the head whose shapes differ from config.json.

vLLM rejects a different shape when it loads the weights. The first layer's attention takes
embedding and hidden state side by side, so its inputs are twice as wide.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import other_shape
from peagle.checks.head_layout import has_own_rule, plain_name, required, stored_width
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MIXED_FILES

RULE = Rule("tensor-shape", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    shapes, width = required(head.config), stored_width(head)
    if shapes is None:
        return
    if width is not None:
        message = (
            f"config.json of {head.location} sets hidden_size to {head.config.hidden_size}, but "
            f"its weights have width {width}"
        )
        yield RULE.error("drafter", message, f"set hidden_size to {width}, or {MIXED_FILES}")
        return
    stored = {plain_name(name): name for name in head.tensors}
    wrong = [
        name
        for name, shape in shapes.items()
        if name in stored and not has_own_rule(name) and head.shape(stored[name]) != shape
    ]
    if wrong:
        name, others = wrong[0], len(wrong) - 1
        more = f" ({others} other tensors differ too)" if others else ""
        message = other_shape(head, stored[name], f"{list(shapes[name])}{more}")
        yield RULE.error("drafter", message, MIXED_FILES)
