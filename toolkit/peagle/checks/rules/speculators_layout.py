"""A head in the speculators format whose config.json lacks required parts.

vLLM recognizes the format by speculators_config, the kind of head by speculators_model_type, and
takes its sizes from transformer_layer_config. It refuses to start without any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peagle.case import Case
from peagle.checks.facts import config_of, location_of
from peagle.findings import Finding, error

CODE = "speculators-layout"
ABOUT = "head"
VLLM_NOTICES = "at start"

_PARTS = ("speculators_model_type", "speculators_config", "transformer_layer_config")


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the missing parts."""
    config = config_of(case)
    missing = [part for part in _PARTS if not _present(config, part)]
    # Other formats also have transformer_layer_config.
    if not missing or not any(config.get(part) is not None for part in _PARTS[:2]):
        return
    message = (
        f"config.json of {location_of(case)} is in the speculators format but lacks "
        f"{' and '.join(missing)}"
    )
    yield error(CODE, "drafter", message, "copy the head again, including config.json")


def _present(config: Mapping[str, Any], part: str) -> bool:
    value = config.get(part)
    return isinstance(value, str) if part == _PARTS[0] else isinstance(value, Mapping)
