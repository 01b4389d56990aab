"""``SM_VLLM_*`` variables as vLLM's arguments, exactly as AWS's vLLM container reads them.

Source: aws/deep-learning-containers, scripts/docker/vllm/sagemaker_args.py (2026-08).

    SM_VLLM_X_Y=v           --x-y v
    SM_VLLM_X=true          --x            (also the empty value)
    SM_VLLM_X=false         nothing
    SM_VLLM_X={"a": 1}      --x {"a": 1}   an object is one token, byte for byte
    SM_VLLM_X=["a", {}]     --x a {}       an array is a token for each element; empty: nothing

One thing is added: a value that begins with a dash is joined to its flag with ``=``, because
argparse would take it for a flag of its own. Of several values none may begin with one: there is
no way to say that to argparse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from serve.errors import WrongEnvironment
from serve.json_text import elements, object_sequence

PREFIX = "SM_VLLM_"

_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
"""As argparse knows them: these are values to it."""

WHOLE_ARRAY_FLAGS = frozenset(
    {"--allowed-origins", "--allowed-methods", "--allowed-headers", "--middleware"}
)
"""vLLM parses the values of these itself; an array stays one token."""


def arguments(environment: Mapping[str, str]) -> list[str]:
    """vLLM's arguments for every ``SM_VLLM_*`` variable, in the order of their names.

    Raises WrongEnvironment for what cannot be said in arguments.
    """
    argv: list[str] = []
    for name in sorted(name for name in environment if name.startswith(PREFIX)):
        try:
            argv += _argument(flag_of(name), environment[name])
        except ValueError as error:
            raise WrongEnvironment(f"{name} has {error}", "vLLM takes it for an argument") from None
    return argv


def flag_of(name: str) -> str:
    """``--max-model-len`` of ``SM_VLLM_MAX_MODEL_LEN``."""
    return "--" + name[len(PREFIX) :].lower().replace("_", "-")


def _argument(flag: str, value: str) -> list[str]:
    switch = value.strip().lower()
    if switch == "false":
        return []
    if switch == "true" or not value:
        return [flag]
    tokens = _tokens(flag, value)
    if not tokens:
        return []
    if "--" in tokens:  # argparse drops it, wherever it stands
        raise ValueError("the value '--'")
    if len(tokens) == 1 and tokens[0].startswith("-"):
        return [f"{flag}={tokens[0]}"]
    for token in tokens:
        if token.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(token):
            raise ValueError(f"several values, one of which begins with a dash: {token!r}")
    return [flag, *tokens]


def _tokens(flag: str, value: str) -> list[str]:
    text = value.strip()
    if flag in WHOLE_ARRAY_FLAGS:
        return [value]
    if text.startswith("[") and text.endswith("]"):
        return _element_tokens(text) if _is_array(text) else [value]
    objects = object_sequence(text) if text.startswith("{") else []
    if len(objects) > 1:
        return [text[part.start : part.end] for part in objects]
    return [value]


def _is_array(text: str) -> bool:
    try:
        elements(text)
    except ValueError:
        return False
    return True


def _element_tokens(text: str) -> list[str]:
    """A string element without its quotes, ``null`` as nothing, all else as it is spelled."""
    tokens = []
    for part in elements(text):
        if isinstance(part.value, str):
            tokens.append(part.value)
        else:
            tokens.append("" if part.value is None else text[part.start : part.end])
    return tokens
