"""A head in the speculators format whose config.json lacks required parts.

vLLM recognizes the format by speculators_config, the kind of head by speculators_model_type, and
takes its sizes from transformer_layer_config. It does not start without any of them.
"""

from collections.abc import Mapping

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import COPY_CONFIG
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("speculators-layout", about="head", vllm_notices="at start")

_PARTS = {
    "speculators_model_type": str,
    "speculators_config": Mapping,
    "transformer_layer_config": Mapping,
}
_OTHER_FORMATS_TOO = "transformer_layer_config"


@for_head
def check(case: Case, head: Head) -> Findings:
    config = head.document
    missing = [part for part, kind in _PARTS.items() if not isinstance(config.get(part), kind)]
    present = [part for part in _PARTS if config.get(part) is not None]
    if missing and present not in ([], [_OTHER_FORMATS_TOO]):
        message = (
            f"config.json of {head.location} is in the speculators format but lacks "
            f"{' and '.join(missing)}"
        )
        yield RULE.error("drafter", message, COPY_CONFIG)
