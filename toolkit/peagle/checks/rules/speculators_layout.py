"""A head in the speculators format has the parts by which vLLM recognises and reads it.

Without speculators_config vLLM does not know what the folder holds, without speculators_model_type
not what kind of head, and without transformer_layer_config not of what size. It refuses each when
it starts.
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
    """An error that names the parts that are missing."""
    config = config_of(case)
    missing = [part for part in _PARTS if not _there(config, part)]
    # transformer_layer_config alone is no sign: other formats nest their layers too.
    if not missing or not any(config.get(part) is not None for part in _PARTS[:2]):
        return
    message = (
        f"config.json of {location_of(case)} is in the speculators format, but has no "
        f"{' and no '.join(missing)}"
    )
    yield error(CODE, "drafter", message, "copy the head again, config.json included")


def _there(config: Mapping[str, Any], part: str) -> bool:
    value = config.get(part)
    return isinstance(value, str) if part == _PARTS[0] else isinstance(value, Mapping)
