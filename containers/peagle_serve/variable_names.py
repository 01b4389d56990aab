"""Whether every variable is a known one: a wrong name would be ignored, or rejected after a minute.

The arguments depend on the version of vLLM, so they are looked up in the source of the installed
one. Importing it would take ten seconds; reading the source takes milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from peagle_serve.contract import OWN_VARIABLES, PREFIX, SPECULATION, InvalidEnvironment
from peagle_serve.environment import flag_of

KNOWN = tuple(
    PREFIX + flag
    for flag in (
        "SPECULATIVE_CONFIG", "MODEL", "MAX_MODEL_LEN", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS",
        "TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE",
        "GPU_MEMORY_UTILIZATION", "KV_CACHE_DTYPE", "QUANTIZATION", "DTYPE", "REVISION",
        "TOKENIZER", "SERVED_MODEL_NAME", "TRUST_REMOTE_CODE", "ENFORCE_EAGER",
        "ENABLE_PREFIX_CACHING", "CHAT_TEMPLATE", "LOAD_FORMAT",
    )
)  # fmt: skip
"""The most important variables; the others depend on the version of vLLM."""

_OWN_PREFIX = "PEAGLE_"

NEGATION = f"{PREFIX}NO_"
"""Switches of vLLM have a negation: ``--no-enforce-eager``."""

_ALIKE = 0.9
"""Similarity from 0 to 1. No flag of vLLM 0.28.0 is this similar to another one of ``KNOWN``."""
_SOMEWHAT_ALIKE = 0.6
_OWN_ALIKE = 0.55

_ENGINE_ARGUMENTS = "engine/arg_utils.py"
_SERVER_ARGUMENTS = tuple(f"entrypoints/{each}/cli_args.py" for each in
                          ("openai", "launchers", "common"))  # fmt: skip
"""The first in vLLM 0.16 to 0.28, the second in 0.29 to 0.32, the last in 0.33."""
_FLAG = re.compile(r'"(--[a-z0-9][\w-]*)"')
_LONGEST_GAP = 200
"""Characters from a flag to the end of its first argument."""
_FIELD = re.compile(r"^    ([a-z]\w*)\s*:", re.MULTILINE)
"""vLLM generates the flags of the server's arguments from fields."""


def check_names(names: Collection[str]) -> None:
    """Raise InvalidEnvironment for the first name that is similar to a known one."""
    for name in sorted(names):
        if name == PREFIX:
            raise InvalidEnvironment(f"{PREFIX} has no argument name", "remove it")
        meant = _meant(name, names)
        if meant:
            raise InvalidEnvironment(
                f"{name} is not a variable of this container", f"did you mean {meant}?"
            )


def check_arguments(environment: Mapping[str, str], source: str | None = None) -> None:
    """Raise InvalidEnvironment for the first ``SM_VLLM_*`` name without an argument of this vLLM,
    and for a switch that is neither true nor false: vLLM would turn it on and ignore the value.

    Passes if vLLM's source has an unknown form: then vLLM decides. Tests set ``source``, which is
    searched instead of vLLM's.
    """
    variables = sorted(name for name in environment if name.startswith(PREFIX))
    text = vllm_source() if source is None else source
    if not text or not all(is_argument(name, text) for name in KNOWN):
        return
    for name in variables:
        if not is_argument(name, text):
            raise InvalidEnvironment(
                f"{name} is not an argument of this vLLM version", _nearest(name, text)
            )
        if is_switch(name, text):
            check_switch(name, environment[name])


def check_switch(name: str, text: str) -> None:
    """Raise InvalidEnvironment for a switch that is neither true nor false."""
    if text.strip().lower() not in ("", "true", "false"):
        raise InvalidEnvironment(f"{name} is {text!r}", "set it to true or false")


def is_argument(name: str, source: str) -> bool:
    """Whether vLLM's source defines the argument of the variable ``name``."""
    return any(
        f'"{spelled}"' in source
        or re.search(rf"^    {re.escape(spelled[2:].replace('-', '_'))}\s*:", source, re.MULTILINE)
        for spelled in {flag_of(name), _positive(name)}
    )


def is_switch(name: str, source: str) -> bool:
    """Whether that argument takes no value."""
    flag = _positive(name)
    field = f"\n    {flag[2:].replace('-', '_')}: bool"
    if f"{field} =" in source or f"{field} | None =" in source:
        return True
    at = source.find(f'"{flag}",')
    rest = source[at + len(flag) + 3 : at + _LONGEST_GAP]
    return at >= 0 and rest.lstrip().startswith('action="store_true"')


def _positive(name: str) -> str:
    """The flag of a variable, without a negation."""
    return flag_of(name).replace("--no-", "--", 1)


def vllm_source() -> str:
    """The source of vLLM's arguments; "" if it is not found. Does not import vLLM."""
    found = find_spec("vllm")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    try:
        server = [folders[0] / name for name in _SERVER_ARGUMENTS]
        files = [folders[0] / _ENGINE_ARGUMENTS, next(file for file in server if file.is_file())]
        return "\n".join(file.read_text(encoding="utf-8") for file in files)
    except (IndexError, OSError, StopIteration, ValueError):
        return ""


def _nearest(name: str, source: str) -> str:
    fields = (field.replace("_", "-") for field in _FIELD.findall(source))
    flags = {flag[2:] for flag in _FLAG.findall(source)} | set(fields)
    known = [flag.replace("-", "_").upper() for flag in flags]
    near = _close(name[len(PREFIX) :].upper(), known, _SOMEWHAT_ALIKE)
    return (
        f"did you mean {PREFIX}{near}?"
        if near
        else "remove it, or use a vLLM version that has the argument"
    )


def _meant(name: str, names: Collection[str]) -> str | None:
    """The known name that this one of ``names`` probably stands for."""
    upper = name.upper().replace("-", "_")
    if name.startswith(PREFIX) and "-" not in name and upper.replace(NEGATION, PREFIX) in KNOWN:
        return None
    if upper.endswith("SPECULATIVE_CONFIG"):
        return SPECULATION
    if upper.startswith(_OWN_PREFIX):
        if name in OWN_VARIABLES:
            return None
        # Compared without the common prefix, which would make any two similar.
        own = {known.removeprefix(_OWN_PREFIX): known for known in OWN_VARIABLES}
        return own.get(_close(upper.removeprefix(_OWN_PREFIX), own, _OWN_ALIKE) or "")
    if f"SM_{upper}" in KNOWN:
        return None if f"SM_{upper}" in names else f"SM_{upper}"
    if not upper.startswith("SM"):
        return None
    return _close(upper, KNOWN, _ALIKE)


def _close(name: str, known: Iterable[str], alike: float) -> str | None:
    from difflib import get_close_matches  # only needed for mistakes

    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=alike)), None)
