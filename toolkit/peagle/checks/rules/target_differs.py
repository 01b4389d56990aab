"""The checkpoint is the target of the pair.

vLLM serves whatever model it finds. The plan's memory, its context and its head would be those of
another one: 20B and 120B of one family differ in a few numbers of config.json.
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
    """An error that says in which numbers the two differ."""
    checkpoint, target = case.target_checkpoint, case.target
    if checkpoint is None:
        return
    if is_head(checkpoint.config):
        message = f"{checkpoint.location} holds a draft head, and {target.id} is a model"
        yield error(CODE, "target", message, "name the folder of the target itself")
        return
    differences = list(_differences(shape_of(case), target.architecture))
    if not differences:
        return
    message = f"{checkpoint.location} is not {target.id}: {', '.join(differences)}"
    if not case.own_target:
        what = f"what the catalogue says of {target.id}"
        message = f"{checkpoint.location} is not {what}: {', '.join(differences)}"
        fix = "correct the catalogue's file, or its weights: plans count with those numbers"
        yield error(CODE, "target", message, fix)
    elif _own_pair(case):
        fix = (
            "to plan with this model, write a catalogue file with its own numbers; here "
            f"{target.short_name} only says how the drafter is started"
        )
        yield note(CODE, "target", message, fix)
    else:
        fix = f"name the place of {target.id}, or write a catalogue file for this model"
        yield error(CODE, "target", message, fix)


def _own_pair(case: Case) -> bool:
    """Whether head and target that were read fit each other, and the head not the catalogue's."""
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
    for name, (there, wanted) in pairs.items():
        if there != wanted:
            yield f"{name} {there}, not {wanted}"


def _kv_heads(shape: Architecture) -> tuple[int, ...]:
    return tuple(sorted({group.kv_heads for group in shape.attention}))
