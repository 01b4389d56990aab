"""A head whose config.json lacks sizes.

For a missing size vLLM uses the default of the class, such as 32 layers. Weights that no file
fills stay uninitialized: vLLM starts, and nearly no draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import COPY_CONFIG
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import speculators_layout

RULE = Rule("config-incomplete", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    if any(speculators_layout.check(case)):
        return
    sizes = {
        "hidden_size": head.config.hidden_size,
        "num_hidden_layers": head.config.layers,
        "num_attention_heads": head.config.query_heads,
        "intermediate_size": head.config.intermediate_size,
        "vocab_size": head.config.vocab_size,
    }
    missing = [key for key, value in sizes.items() if value is None]
    if missing:
        message = f"config.json of {head.location} lacks {', '.join(missing)}"
        yield RULE.error("drafter", message, COPY_CONFIG)
