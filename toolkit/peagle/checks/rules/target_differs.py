"""A checkpoint that is not the target of the pair.

vLLM serves any model. Memory, context and head of the plan are for the pair's target: the 20B and
120B models of one family differ in a few values of config.json.
"""

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.checks.registry import Findings, Rule

RULE = Rule("target-differs", about="target", vllm_notices="never")


def check(case: Case) -> Findings:
    checkpoint, target = case.target_checkpoint, case.target
    if checkpoint is None:
        return
    if case.target_read is None:
        message = f"{checkpoint.location} holds a draft head, not the model {target.id}"
        yield RULE.error("target", message, "pass the folder of the target")
        return
    differences = ", ".join(_differences(case.architecture, target.architecture))
    message = f"{checkpoint.location} is not {target.id}: {differences}"
    if not differences:
        return
    if not case.own_target:
        message = f"{checkpoint.location} differs from the catalogue's {target.id}: {differences}"
        fix = "correct the catalogue file or its weights; plans use the values of the file"
        yield RULE.error("target", message, fix)
    elif _own_pair(case):
        fix = (
            "to plan with this model, write a catalogue file for it; here "
            f"{target.short_name} only determines how the drafter is started"
        )
        yield RULE.note("target", message, fix)
    else:
        fix = f"pass the location of {target.id}, or write a catalogue file for this model"
        yield RULE.error("target", message, fix)


def _own_pair(case: Case) -> bool:
    """Whether the head that was read fits the target that was read, not the catalogue's."""
    if case.head is None:
        return False
    head, read, known = case.head.config, case.architecture, case.target.architecture
    sizes = (head.target_hidden_size, head.vocab_size)
    return sizes == (read.hidden_size, read.vocab_size) != (known.hidden_size, known.vocab_size)


def _differences(read: Architecture, known: Architecture) -> Iterator[str]:
    pairs = {
        "class": (read.class_name, known.class_name),
        "hidden size": (read.hidden_size, known.hidden_size),
        "layers": (read.layers, known.layers),
        "attention heads": (read.query_heads, known.query_heads),
        "vocabulary": (read.vocab_size, known.vocab_size),
        "experts": (read.experts, known.experts),
        "key-value heads": (_kv_heads(read), _kv_heads(known)),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            yield f"{name} {found}, not {expected}"


def _kv_heads(architecture: Architecture) -> tuple[int, ...]:
    return tuple(sorted({group.kv_heads for group in architecture.attention}))
