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
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from peagle_serve.contract import PREFIX, SPECULATION, InvalidEnvironment
from peagle_serve.json_reader import read

_DECODER = json.JSONDecoder()
_BLANK = " \t\n\r"


class JsonPart(NamedTuple):
    """A value, and the range of the text that it was parsed from."""

    value: Any
    start: int
    end: int


def elements(text: str) -> list[JsonPart]:
    """The elements of a JSON array. Raises ValueError for other text.

    Lenient, as AWS's container: the elements are passed on as they are written, not used here.
    """
    return [part for _, part in _parts(text, list, "[")]


def without_escapes(text: str) -> str:
    """JSON with every character as itself. Raises ValueError, RecursionError for other text.

    Lenient, as vLLM: what a strict reader refuses must not pass a check unseen.
    """
    return json.dumps(_DECODER.decode(text), ensure_ascii=False)


def members(text: str) -> dict[str, JsonPart]:
    """The members of a JSON object by name. Raises InvalidJson, ValueError for other text."""
    read(text, "the text")
    return dict(_parts(text, _Pairs, "{"))


def read_speculative_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """The speculative configuration; empty without one. Raises ValueError for an invalid one."""
    text = environment.get(SPECULATION)
    return {} if text is None else {name: part.value for name, part in members(text).items()}


def object_sequence(text: str) -> list[JsonPart]:
    """The objects of ``{...} {...}``; empty if ``text`` is anything else."""
    try:
        parts = list(_values(text))
    except (ValueError, RecursionError):
        return []
    return parts if all(isinstance(part.value, dict) for part in parts) else []


class _Pairs(list[tuple[str, Any]]):
    """An object with all its members, including equal names."""


_PAIRS = json.JSONDecoder(object_pairs_hook=_Pairs)


def _parts(text: str, kind: type[list[Any]], opening: str) -> Iterator[tuple[str, JsonPart]]:
    """The name (empty in an array) and the value of every part."""
    try:
        whole = _PAIRS.decode(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if type(whole) is not kind:
        raise ValueError(f"not JSON that begins with {opening}")
    at, name = text.index(opening) + 1, ""
    for _ in whole:
        if kind is _Pairs:
            key = _value_at(text, at)
            at, name = _skip_blank(text, key.end) + 1, key.value
        part = _value_at(text, at)
        yield name, part
        at = _skip_blank(text, part.end) + 1


def _values(text: str) -> Iterator[JsonPart]:
    at = _skip_blank(text, 0)
    while at < len(text):
        part = _value_at(text, at)
        yield part
        at = _skip_blank(text, part.end)


def _value_at(text: str, at: int) -> JsonPart:
    start = _skip_blank(text, at)
    value, end = _DECODER.raw_decode(text, start)
    return JsonPart(value, start, end)


def _skip_blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""argparse reads these as values."""

WHOLE_ARRAY_FLAGS = frozenset(
    {"--allowed-origins", "--allowed-methods", "--allowed-headers", "--middleware"}
)
"""vLLM parses the values of these; an array stays one token."""


def arguments(environment: Mapping[str, str]) -> list[str]:
    """vLLM's arguments for every ``SM_VLLM_*`` variable, in the order of their names.

    Raises InvalidEnvironment for a value that no argument can hold.
    """
    argv: list[str] = []
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        try:
            argv += _argument(flag_of(name), environment[name])
        except ValueError as error:
            raise InvalidEnvironment(
                f"{name} has {error}", "change the value: vLLM would read it as an argument"
            ) from None
    return argv


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


def variable_of(flag: str) -> str:
    """``SM_VLLM_MAX_MODEL_LEN`` of ``--max-model-len``."""
    return PREFIX + flag.removeprefix("--").replace("-", "_").upper()


def _argument(flag: str, value: str) -> list[str]:
    switch = value.strip().lower()
    if switch == "false":
        return []
    if switch == "true" or not value:
        return [flag]
    tokens = tokens_of(flag, value)
    if "--" in tokens:  # argparse drops it anywhere
        raise ValueError("the value '--'")
    if len(tokens) == 1 and tokens[0].startswith("-"):
        return [f"{flag}={tokens[0]}"]
    for token in tokens:
        if token.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(token):
            raise ValueError(f"several values, one of which begins with a dash: {token!r}")
    return [flag, *tokens] if tokens else []


def tokens_of(flag: str, value: str) -> list[str]:
    """The tokens after ``flag`` for a value other than a switch."""
    text = value.strip()
    if flag in WHOLE_ARRAY_FLAGS:
        return [value]
    if text.startswith("["):
        try:
            return [_token(part, text) for part in elements(text)]
        except ValueError:
            return [value]
    objects = object_sequence(text)
    return [_token(part, text) for part in objects] if len(objects) > 1 else [value]


def _token(part: JsonPart, text: str) -> str:
    """A string without its quotes, ``null`` as "", everything else as it is written."""
    if isinstance(part.value, str):
        return part.value
    return "" if part.value is None else text[part.start : part.end]
