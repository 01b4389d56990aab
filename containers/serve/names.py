"""Variables whose names are nearly right: they would be lost, or refused only after a minute."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from serve.environment import PREFIX
from serve.errors import WrongEnvironment

SPECULATION = f"{PREFIX}SPECULATIVE_CONFIG"

KNOWN = tuple(
    PREFIX + flag
    for flag in (
        "SPECULATIVE_CONFIG",
        "MODEL",
        "MAX_MODEL_LEN",
        "MAX_NUM_SEQS",
        "MAX_NUM_BATCHED_TOKENS",
        "TENSOR_PARALLEL_SIZE",
        "PIPELINE_PARALLEL_SIZE",
        "DATA_PARALLEL_SIZE",
        "GPU_MEMORY_UTILIZATION",
        "KV_CACHE_DTYPE",
        "QUANTIZATION",
        "DTYPE",
        "REVISION",
        "TOKENIZER",
        "SERVED_MODEL_NAME",
        "TRUST_REMOTE_CODE",
        "ENFORCE_EAGER",
        "ENABLE_PREFIX_CACHING",
        "CHAT_TEMPLATE",
        "LOAD_FORMAT",
    )
)
"""The variables that matter most. Not all that vLLM takes: those differ by version."""

_NEGATION = f"{PREFIX}NO_"
"""Switches of vLLM can be turned round: ``--no-enforce-eager``."""

_ALIKE = 0.9
"""How alike names must be, from 0 to 1. No flag of vLLM 0.28.0 is this near to another one here."""


def check_names(names: Iterable[str]) -> None:
    """Raise WrongEnvironment for the first name that is nearly, but not quite, a known one."""
    for name in sorted(names):
        if name == PREFIX:
            raise WrongEnvironment(f"{PREFIX} names no argument", "remove it")
        meant = _meant(name)
        if meant:
            raise WrongEnvironment(f"{name} is not a variable of this container", f"meant {meant}?")


def _meant(name: str) -> str | None:
    upper = name.upper().replace("-", "_")
    if name.startswith(PREFIX) and "-" not in name and upper.replace(_NEGATION, PREFIX) in KNOWN:
        return None
    if upper.endswith("SPECULATIVE_CONFIG"):
        return SPECULATION
    if not upper.startswith("SM"):
        return None
    return next(iter(get_close_matches(upper, KNOWN, n=1, cutoff=_ALIKE)), None)
