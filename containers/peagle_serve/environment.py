"""``SM_VLLM_*`` variables as vLLM's arguments, exactly as AWS's vLLM container reads them.

Source: aws/deep-learning-containers, scripts/docker/vllm/sagemaker_args.py (2026-08).

    SM_VLLM_X_Y=v           --x-y v
    SM_VLLM_X=true          --x            (also the empty value)
    SM_VLLM_X=false         nothing
    SM_VLLM_X={"a": 1}      --x {"a": 1}   an object is one token, byte for byte
    SM_VLLM_X=["a", {}]     --x a {}       an array is a token for each element; empty: nothing

In addition, a value that begins with a dash is joined to its flag with ``=``, because argparse
would read it as a flag. Of several values none may begin with a dash.

A name that is no argument of the installed vLLM would be rejected after a minute, be ignored, or be
read as the argument that it begins (``--trust-rem``). Importing vLLM takes ten seconds, so its
flags are looked up in its source, in milliseconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peagle_serve.contract import PREFIX, SPECULATION, InvalidEnvironment
from peagle_serve.json_reader import read

_DECODER = json.JSONDecoder(parse_int=float)  # of any length, which int refuses and vLLM does not
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""argparse reads these as values."""


def decode(text: str) -> Any:
    """Lenient, as vLLM: what a strict reader refuses must not pass a check unseen. Raises
    ValueError for text that is not JSON."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def read_speculative_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """The speculative configuration; empty without one. Raises InvalidJson, ValueError."""
    text = environment.get(SPECULATION)
    document = {} if text is None else read(text, SPECULATION)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


WHOLE_ARRAY_FLAGS = frozenset(
    {"--allowed-origins", "--allowed-methods", "--allowed-headers", "--middleware"}
)
"""vLLM parses the values of these; an array stays one token."""


def make_flag(name: str) -> str:
    """``--max-model-len`` of ``SM_VLLM_MAX_MODEL_LEN``, in every spelling that reaches vLLM."""
    return "--" + name[len(PREFIX) :].lower().replace("_", "-")


def name_variable(flag: str) -> str:
    """``SM_VLLM_MAX_MODEL_LEN`` of ``--max-model-len``."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def canonical_name(name: str) -> str:
    """``SM_VLLM_MAX_MODEL_LEN`` of ``SM_VLLM_max-model-len``; other variables are unchanged."""
    return name_variable(make_flag(name)) if name.startswith(PREFIX) else name


def normalized(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the canonical name of every argument: what all checks look at. Raises
    InvalidEnvironment for two spellings of one argument, and for a part of a JSON argument
    (``SM_VLLM_SPECULATIVE_CONFIG.method``), which vLLM would merge into it after the checks."""
    names: dict[str, str] = {}
    for name in environment:
        canonical = canonical_name(name)
        if name.startswith(PREFIX) and "." in name:
            argument = canonical.partition(".")[0]
            raise InvalidEnvironment(f"{name} is a part of {argument}", f"set {argument} as JSON")
        if canonical in names:
            raise InvalidEnvironment(
                f"{names[canonical]} and {name} set the same argument", f"set {canonical} only"
            )
        names[canonical] = name
    return {canonical: environment[name] for canonical, name in names.items()}


def arguments(environment: Mapping[str, str]) -> list[str]:
    """vLLM's arguments for every ``SM_VLLM_*`` variable, in the order of their names. Raises
    InvalidEnvironment for a value that no argument can hold."""
    argv: list[str] = []
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        flag, value = make_flag(name), environment[name]
        switch = value.strip().lower()
        if switch == "false":
            continue
        is_bare = switch == "true" or not value
        tokens = [] if is_bare else make_tokens(flag, value)
        flags = [t for t in tokens if t.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(t)]
        # argparse drops "--" anywhere.
        if "--" in tokens or (flags and len(tokens) > 1):
            raise InvalidEnvironment(
                f"{name} has the value {flags[0]!r}",
                "change the value: vLLM would read it as an argument",
            )
        if len(tokens) == 1 and tokens[0].startswith("-"):
            argv.append(f"{flag}={tokens[0]}")
        elif tokens or is_bare:
            argv += [flag, *tokens]
    return argv


def make_tokens(flag: str, value: str) -> list[str]:
    """The tokens after ``flag`` for a value other than a switch: of a JSON array its elements, of
    ``{...} {...}`` the objects, else the value. A string is a token without its quotes, ``null``
    the empty one, everything else as it is written."""
    text = value.strip()
    if flag in WHOLE_ARRAY_FLAGS or not text.startswith(("[", "{")):
        return [value]
    is_array, tokens = text.startswith("["), []
    try:
        if is_array:
            decode(text)
        at = _skip(text, 1, ",") if is_array else 0
        while at < len(text) - is_array:
            part, end = _DECODER.raw_decode(text, at)
            if not is_array and not isinstance(part, dict):
                return [value]
            written = "" if part is None else text[at:end]
            tokens.append(part if isinstance(part, str) else written)
            at = _skip(text, end, "," if is_array else "")
    except (ValueError, RecursionError):
        return [value]
    return tokens if is_array or len(tokens) > 1 else [value]


def _skip(text: str, at: int, more: str) -> int:
    """The place after blanks and the characters ``more``."""
    return len(text) - len(text[at:].lstrip(f" \t\n\r{more}"))


KNOWN = tuple(
    PREFIX + flag
    for flag in (
        "SPECULATIVE_CONFIG", "MODEL", "MAX_MODEL_LEN", "MAX_NUM_SEQS", "MAX_NUM_BATCHED_TOKENS",
        "TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "DATA_PARALLEL_SIZE",
        "GPU_MEMORY_UTILIZATION", "KV_CACHE_DTYPE", "QUANTIZATION", "DTYPE", "REVISION",
        "TOKENIZER", "SERVED_MODEL_NAME", "TRUST_REMOTE_CODE", "ENFORCE_EAGER",
        "ENABLE_PREFIX_CACHING", "CHAT_TEMPLATE", "LOAD_FORMAT"
    )
)  # fmt: skip
"""The most important variables; the others depend on the version of vLLM."""
NEGATION = f"{PREFIX}NO_"
"""Switches of vLLM have a negation: ``--no-enforce-eager``."""


def check_names(names: Collection[str]) -> None:
    """Raise InvalidEnvironment for the first name that lacks the prefix of vLLM's arguments."""
    for name in sorted(names):
        upper, meant = name.upper().replace("-", "_"), ""
        if name.startswith(PREFIX):
            continue  # ``check_arguments`` knows all of vLLM's
        if upper.endswith("SPECULATIVE_CONFIG"):
            meant = SPECULATION
        for argument in (upper, f"SM_{upper}"):
            if argument in KNOWN and argument not in names:
                meant = argument
        if meant:
            message = f"{name} is not a variable of this container"
            raise InvalidEnvironment(message, f"did you mean {meant}?")


_ENGINE_ARGUMENTS = "engine/arg_utils.py"
_SERVER_ARGUMENTS = tuple(f"entrypoints/{each}/cli_args.py" for each in
                          ("openai", "launchers", "common"))  # fmt: skip
"""The first in vLLM 0.16 to 0.28, the second in 0.29 to 0.32, the last in 0.33."""
_NAMES_IN_SOURCE = re.compile(r'"--([a-z0-9][\w-]*)"|^    ([a-z]\w*)\s*:', re.MULTILINE)
"""vLLM generates the flags of the server's arguments from fields."""


def check_arguments(environment: Mapping[str, str], source: str | None = None) -> None:
    """Raise InvalidEnvironment for the first ``SM_VLLM_*`` name without an argument of this vLLM,
    and for a switch that is neither true nor false: vLLM would turn it on and ignore the value.
    Passes if vLLM's source has an unknown form: then vLLM decides. Tests set ``source``, which is
    searched instead of vLLM's."""
    text = _vllm_source() if source is None else source
    matches = _NAMES_IN_SOURCE.findall(text)
    names = {f"{flag or field}".replace("-", "_").upper() for flag, field in matches}

    def is_argument(name: str) -> bool:
        flags = (make_flag(name), make_flag(name).replace("--no-", "--", 1))
        return any(flag[2:].replace("-", "_").upper() in names for flag in flags)

    if not all(map(is_argument, KNOWN)):
        return
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        if not is_argument(name):
            from difflib import get_close_matches  # only needed for mistakes

            near = get_close_matches(name[len(PREFIX) :].upper(), sorted(names), n=1)
            fix = (
                f"did you mean {PREFIX}{near[0]}?" if near else "remove it, or use another version"
            )
            raise InvalidEnvironment(f"{name} is not an argument of this vLLM version", fix)
        flag = make_flag(name).replace("--no-", "--", 1)
        field = re.escape(flag[2:].replace("-", "_"))
        switch = rf'\n    {field}: bool (=|\| None =)|"{re.escape(flag)}",\s*action="store_true"'
        value = environment[name].strip().lower()
        if value not in ("", "true", "false") and re.search(switch, text):
            raise InvalidEnvironment(f"{name} is {value!r}", "set it to true or false")


def vllm_folder() -> Path | None:
    """The folder of the installed vLLM, which is not imported."""
    package = find_spec("vllm")
    places = package.submodule_search_locations if package else None
    return Path(places[0]) if places else None


def _vllm_source() -> str:
    """The source of vLLM's arguments; "" if it is not found."""
    if (folder := vllm_folder()) is None:
        return ""
    try:
        server = next(folder / name for name in _SERVER_ARGUMENTS if (folder / name).is_file())
        files = (folder / _ENGINE_ARGUMENTS, server)
        return "\n".join(file.read_text(encoding="utf-8") for file in files)
    except (OSError, StopIteration, ValueError):
        return ""


_ENDING = ".dist-info"
_TORCH_FOR_CPU = re.compile(r"torch-[^-]*\+cpu", re.IGNORECASE)


def distributions(places: Iterable[str] | None = None) -> list[str]:
    """``name-version`` of all distributions in ``places`` (default ``sys.path``), sorted."""
    names: set[str] = set()
    for place in sys.path if places is None else places:
        with contextlib.suppress(OSError):
            names.update(name for name in os.listdir(place or ".") if name.endswith(_ENDING))
    return sorted(name.removesuffix(_ENDING) for name in names)


def is_for_cpu(installed: Iterable[str]) -> bool:
    """Whether torch, and so vLLM, is built for the CPU."""
    return any(map(_TORCH_FOR_CPU.fullmatch, installed))
