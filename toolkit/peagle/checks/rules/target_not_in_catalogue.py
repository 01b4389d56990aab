"""A target that the catalogue does not have, so that only its checkpoint is known.

vLLM serves it with its own defaults. Its licence, the oldest vLLM that supports it, and settings
that its model card asks for, such as the parsers of tool calls and reasoning, are unknown.
"""

from peagle.case import Case
from peagle.checkpoints.entries import is_from_checkpoint
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("target-not-in-catalogue", about="target", vllm_notices="never")

_UNKNOWN = "licence, oldest vLLM, default drafter and the settings of its model card"


def check(case: Case) -> Findings:
    read, target = case.target_checkpoint, case.target
    if read is None or not is_from_checkpoint(target):
        return
    sizes = "config.json and the weight headers" if read.tensors else "config.json alone"
    message = f"{target.id} is not in the catalogue; sizes are from {sizes}; unknown: {_UNKNOWN}"
    command = ("peagle", "catalog", "init", read.location)
    yield RULE.note("target", message, Fix("to state them, write a catalogue entry", command))
