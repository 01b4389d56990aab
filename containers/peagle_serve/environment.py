"""``SM_VLLM_*`` variables as vLLM's arguments, exactly as AWS's vLLM container reads them.

Source: aws/deep-learning-containers, scripts/docker/vllm/sagemaker_args.py (2026-08).

    SM_VLLM_X_Y=v           --x-y v
    SM_VLLM_X=true          --x            (also the empty value)
    SM_VLLM_X=false         nothing
    SM_VLLM_X={"a": 1}      --x {"a": 1}   an object is one token, byte for byte
    SM_VLLM_X=["a", {}]     --x a {}       an array is a token for each element; empty: nothing

In addition, a value that begins with a dash is joined to its flag with ``=``, because argparse
would read it as a flag. Of several values none may begin with a dash. Parts of JSON values are
copied as they are written, never formatted again.

A name that is no argument of the installed vLLM would be rejected after a minute, or be ignored.
Importing vLLM takes ten seconds, so its flags are looked up in its source, in milliseconds.
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
from typing import Any, NamedTuple

from peagle_serve.contract import OWN_VARIABLES, PREFIX, SPECULATION, InvalidEnvironment
from peagle_serve.json_reader import read

_DECODER = json.JSONDecoder()
_BLANK = re.compile(r"[ \t\n\r]*")


class JsonPart(NamedTuple):
    """A value, and the range of the text that it was parsed from."""

    value: Any
    start: int
    end: int


def elements(text: str) -> list[JsonPart]:
    """The elements of a JSON array. Raises ValueError for other text.

    Lenient, as AWS's container: the elements are passed on as they are written, not used here.
    """
    array = _decode(text)
    if not isinstance(array, list):
        raise ValueError("not a JSON array")
    parts, at = [], text.index("[") + 1
    for _ in array:
        parts.append(_value_at(text, at))
        at = _skip_blank(text, parts[-1].end) + 1
    return parts


def members(text: str) -> dict[str, JsonPart]:
    """The members of a JSON object by name. Raises InvalidJson, ValueError for other text."""
    document = read(text, "the text")
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    parts, at = {}, text.index("{") + 1
    for _ in document:
        name = _value_at(text, at)
        part = _value_at(text, _skip_blank(text, name.end) + 1)
        parts[name.value] = part
        at = _skip_blank(text, part.end) + 1
    return parts


def object_sequence(text: str) -> list[JsonPart]:
    """The objects of ``{...} {...}``; empty if ``text`` is anything else."""
    parts, at = [], _skip_blank(text, 0)
    try:
        while at < len(text):
            parts.append(_value_at(text, at))
            at = _skip_blank(text, parts[-1].end)
    except (ValueError, RecursionError):
        return []
    return parts if all(isinstance(part.value, dict) for part in parts) else []


def without_escapes(text: str) -> str:
    """JSON with every character as itself. Raises ValueError for other text.

    Lenient, as vLLM: what a strict reader refuses must not pass a check unseen.
    """
    return json.dumps(_decode(text), ensure_ascii=False)


def read_speculative_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """The speculative configuration; empty without one. Raises ValueError for an invalid one."""
    text = environment.get(SPECULATION)
    return {} if text is None else {name: part.value for name, part in members(text).items()}


def _decode(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def _value_at(text: str, at: int) -> JsonPart:
    start = _skip_blank(text, at)
    value, end = _DECODER.raw_decode(text, start)
    return JsonPart(value, start, end)


def _skip_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""argparse reads these as values."""

WHOLE_ARRAY_FLAGS = frozenset(
    {"--allowed-origins", "--allowed-methods", "--allowed-headers", "--middleware"}
)
"""vLLM parses the values of these; an array stays one token."""

GUARDED_FLAGS = (
    *("--api-key", "--config", "--disable-log-stats", "--distributed-executor-backend"),
    *("--enable-log-outputs", "--enable-log-requests", "--hf-token", "--io-processor-plugin"),
    *("--load-format", "--log-config-file", "--logits-processors"),
    *("--middleware", "--model-class-overrides", "--model-impl", "--model-loader-extra-config"),
    *("--reasoning-parser-plugin", "--scheduler-cls", "--spec-method", "--spec-model"),
    *("--spec-tokens", "--speculative-config", "--tool-parser-plugin", "--trust-remote-code"),
    *("--worker-cls", "--worker-extension-cls"),
)
"""The flags that checks of secrets, code and weights look for. vLLM's argparse accepts a unique
beginning of a flag as the flag (``--trust-rem``), so these are also known by their beginnings."""
_COMPLETE_FLAGS = frozenset({*GUARDED_FLAGS, "--model", "--reasoning-parser"})
"""Flags of vLLM 0.28.0 that are the beginning of a guarded one are flags themselves."""
_SHORTEST_BEGINNING = len("--io")


def flag_of(name: str) -> str:
    """``--max-model-len`` of ``SM_VLLM_MAX_MODEL_LEN``, in every spelling that reaches vLLM."""
    flag = "--" + name[len(PREFIX) :].lower().replace("_", "-")
    if flag in _COMPLETE_FLAGS or len(flag) < _SHORTEST_BEGINNING:
        return flag
    complete = [guarded for guarded in GUARDED_FLAGS if guarded.startswith(flag)]
    return complete[0] if len(complete) == 1 else flag


def variable_of(flag: str) -> str:
    """``SM_VLLM_MAX_MODEL_LEN`` of ``--max-model-len``."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def canonical_name(name: str) -> str:
    """``SM_VLLM_MAX_MODEL_LEN`` of ``SM_VLLM_max-model-len``; other variables are unchanged."""
    return variable_of(flag_of(name)) if name.startswith(PREFIX) else name


def normalized(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with the canonical name of every argument: what all checks look at.

    Raises InvalidEnvironment for two spellings of one argument, and for a part of a JSON argument
    (``SM_VLLM_SPECULATIVE_CONFIG.method``), which vLLM would merge into it after the checks.
    """
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
    """vLLM's arguments for every ``SM_VLLM_*`` variable, in the order of their names.

    Raises InvalidEnvironment for a value that no argument can hold.
    """
    argv: list[str] = []
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        flag, value = flag_of(name), environment[name]
        switch = value.strip().lower()
        if switch == "false":
            continue
        tokens = [] if switch == "true" or not value else tokens_of(flag, value)
        dashed = [token for token in tokens if token.startswith("-")]
        flags = [token for token in dashed if not _NEGATIVE_NUMBER.fullmatch(token)]
        problem = ""
        if "--" in tokens:  # argparse drops it anywhere
            problem = "the value '--'"
        elif len(tokens) == 1 and dashed:
            argv.append(f"{flag}={tokens[0]}")
            continue
        elif flags:
            problem = f"several values, one of which begins with a dash: {flags[0]!r}"
        if problem:
            raise InvalidEnvironment(
                f"{name} has {problem}", "change the value: vLLM would read it as an argument"
            )
        if tokens or switch == "true" or not value:
            argv += [flag, *tokens]
    return argv


def tokens_of(flag: str, value: str) -> list[str]:
    """The tokens after ``flag`` for a value other than a switch."""
    text = value.strip()
    if flag in WHOLE_ARRAY_FLAGS:
        return [value]
    if text.startswith("["):
        try:
            parts = elements(text)
        except ValueError:
            return [value]
    elif len(parts := object_sequence(text)) < 2:
        return [value]
    return [_token(part, text) for part in parts]


def _token(part: JsonPart, text: str) -> str:
    """A string without its quotes, ``null`` as "", everything else as it is written."""
    if isinstance(part.value, str):
        return part.value
    return "" if part.value is None else text[part.start : part.end]


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
_FLAG = re.compile(r'"--([a-z0-9][\w-]*)"')
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
        rest = {variable.removeprefix(_OWN_PREFIX): variable for variable in OWN_VARIABLES}
        return rest.get(_closest(upper.removeprefix(_OWN_PREFIX), rest, _OWN_ALIKE) or "")
    if f"SM_{upper}" in KNOWN:
        return None if f"SM_{upper}" in names else f"SM_{upper}"
    return _closest(upper, KNOWN, _ALIKE) if upper.startswith("SM") else None


def _closest(name: str, candidates: Iterable[str], alike: float) -> str | None:
    from difflib import get_close_matches  # only needed for mistakes

    return next(iter(get_close_matches(name, sorted(candidates), n=1, cutoff=alike)), None)


def check_arguments(environment: Mapping[str, str], source: str | None = None) -> None:
    """Raise InvalidEnvironment for the first ``SM_VLLM_*`` name without an argument of this vLLM,
    and for a switch that is neither true nor false: vLLM would turn it on and ignore the value.

    Passes if vLLM's source has an unknown form: then vLLM decides. Tests set ``source``, which is
    searched instead of vLLM's.
    """
    text = _vllm_source() if source is None else source
    if not text or not all(_is_argument(name, text) for name in KNOWN):
        return
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        if not _is_argument(name, text):
            flags = [*_FLAG.findall(text), *_FIELD.findall(text)]
            candidates = {flag.replace("-", "_").upper() for flag in flags}
            near = _closest(name[len(PREFIX) :].upper(), candidates, _SOMEWHAT_ALIKE)
            raise InvalidEnvironment(
                f"{name} is not an argument of this vLLM version",
                f"did you mean {PREFIX}{near}?"
                if near
                else "remove it, or use a vLLM version that has the argument",
            )
        if _is_switch(name, text):
            check_switch(name, environment[name])


def check_switch(name: str, text: str) -> None:
    """Raise InvalidEnvironment for a switch that is neither true nor false."""
    if text.strip().lower() not in ("", "true", "false"):
        raise InvalidEnvironment(f"{name} is {text!r}", "set it to true or false")


def _is_argument(name: str, source: str) -> bool:
    """Whether vLLM's source defines the argument of the variable ``name``."""
    return any(
        f'"{flag}"' in source
        or re.search(rf"^    {re.escape(flag[2:].replace('-', '_'))}\s*:", source, re.MULTILINE)
        for flag in {flag_of(name), _positive(name)}
    )


def _is_switch(name: str, source: str) -> bool:
    """Whether that argument takes no value."""
    flag = _positive(name)
    field = f"\n    {flag[2:].replace('-', '_')}: bool"
    if f"{field} =" in source or f"{field} | None =" in source:
        return True
    return re.search(rf'"{re.escape(flag)}",\s*action="store_true"', source) is not None


def _positive(name: str) -> str:
    """The flag of a variable, without a negation."""
    return flag_of(name).replace("--no-", "--", 1)


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
