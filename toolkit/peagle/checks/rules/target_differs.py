"""A checkpoint that is not the target of the pair.

vLLM serves any model. Memory, context and head of the plan are for the pair's target: the 20B and
120B models of one family differ in a few values of config.json.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Architecture
from peagle.checkpoints.heads import is_head
from peagle.checks.facts import head_of, shape_of, wrong_target
from peagle.findings import Finding, error, note

CODE = "target-differs"
ABOUT = "target"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the values that differ."""
    checkpoint, target = case.target_checkpoint, case.target
    if checkpoint is None:
        return
    if is_head(checkpoint.config):
        message = f"{checkpoint.location} holds a draft head, not the model {target.id}"
        yield error(CODE, "target", message, "pass the folder of the target")
        return
    differences = list(_differences(shape_of(case), target.architecture))
    if not differences:
        return
    message = f"{checkpoint.location} is not {target.id}: {', '.join(differences)}"
    if not case.own_target:
        message = (
            f"{checkpoint.location} differs from the catalogue's {target.id}: "
            f"{', '.join(differences)}"
        )
        fix = "correct the catalogue file or its weights; plans use the values of the file"
        yield error(CODE, "target", message, fix)
    elif _own_pair(case):
        fix = (
            "to plan with this model, write a catalogue file for it; here "
            f"{target.short_name} only determines how the drafter is started"
        )
        yield note(CODE, "target", message, fix)
    else:
        fix = f"pass the location of {target.id}, or write a catalogue file for this model"
        yield error(CODE, "target", message, fix)


def _own_pair(case: Case) -> bool:
    """Whether the head that was read fits the target that was read, not the catalogue's."""
    head, real, known = head_of(case), shape_of(case), case.target.architecture
    if head is None or not wrong_target(case):
        return False
    theirs = (head.target_hidden_size, head.vocab_size)
    return theirs == (real.hidden_size, real.vocab_size) != (known.hidden_size, known.vocab_size)


def _differences(real: Architecture, known: Architecture) -> Iterator[str]:
    pairs = {
        "class": (real.class_name, known.class_name),
        "hidden size": (real.hidden_size, known.hidden_size),
        "layers": (real.layers, known.layers),
        "attention heads": (real.query_heads, known.query_heads),
        "vocabulary": (real.vocab_size, known.vocab_size),
        "experts": (real.experts, known.experts),
        "key-value heads": (_kv_heads(real), _kv_heads(known)),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            yield f"{name} {found}, not {expected}"


def _kv_heads(shape: Architecture) -> tuple[int, ...]:
    return tuple(sorted({group.kv_heads for group in shape.attention}))
