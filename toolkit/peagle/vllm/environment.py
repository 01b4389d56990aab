"""Converts vLLM's argv to the environment of AWS's vLLM container, which converts it back.

``peagle_serve.environment`` documents and implements the container's rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from peagle.errors import UserError
from peagle.text import json_number
from peagle.vllm.facts import canonical_name
from peagle_serve.contract import PREFIX
from peagle_serve.environment import WHOLE_ARRAY_FLAGS, flag_of, tokens_of, variable_of

Value = str | int | float | bool
"""The value of one of vLLM's arguments; an object is its JSON."""

MAX_ENTRIES = 100
MAX_KEY_LENGTH = 1024
MAX_VALUE_LENGTH = 1024
MAX_TOTAL_BYTES = 32 * 1024
"""Limits of CreateModel's Environment, from SageMaker's service model and its documentation."""

_FLAG = re.compile(r"--[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def to_environment(arguments: Iterable[str]) -> dict[str, str]:
    """The ``SM_VLLM_*`` variables that the container reads as exactly these arguments.

    Raises UserError for arguments that the environment cannot express.
    """
    environment: dict[str, str] = {}
    for flag, tokens in _by_flag(arguments):
        key = variable_of(flag)
        if key in environment:
            raise UserError(
                f"{flag} is given twice; the container's environment allows it once",
                f"give {flag} once",
                code="invalid-argument",
            )
        environment[key] = _value(flag, tokens)
    return environment


def engine_part(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that become arguments of vLLM."""
    return {key: value for key, value in environment.items() if key.startswith(PREFIX)}


def settings_in(environment: Mapping[str, str]) -> dict[str, Value | None]:
    """vLLM's arguments, without the dashes, in these variables; ``None`` for ``false``, which the
    container omits."""
    return {
        canonical_name(flag_of(key).removeprefix("--")): _setting(value)
        for key, value in engine_part(environment).items()
    }


def _setting(value: str) -> Value | None:
    text = value.strip()
    if text.lower() == "false":
        return None
    if text == "" or text.lower() == "true":
        return True
    number = json_number(text)
    return value if number is None else number


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise UserError for an environment that SageMaker or the container rejects."""
    if len(environment) > MAX_ENTRIES:
        raise UserError(
            f"{len(environment)} environment variables exceed SageMaker's limit of {MAX_ENTRIES}",
            "remove some engine arguments",
            code="environment-too-large",
        )
    for key, value in environment.items():
        _check_variable(key, value)
    total = sum(len(key.encode()) + len(value.encode()) for key, value in environment.items())
    if total > MAX_TOTAL_BYTES:
        raise UserError(
            f"the environment has {total} bytes; SageMaker's limit is {MAX_TOTAL_BYTES}",
            "remove or shorten engine arguments",
            code="environment-too-large",
        )


def _check_variable(key: str, value: str) -> None:
    if len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise UserError(
            f"SageMaker rejects the name of the environment variable {key[:60]!r}",
            "use letters, digits and _; the first character is not a digit",
            code="invalid-variable",
        )
    if len(value) > MAX_VALUE_LENGTH:
        raise UserError(
            f"{key} has {len(value)} characters; SageMaker's limit is {MAX_VALUE_LENGTH}",
            "use shorter paths or fewer settings",
            code="environment-too-large",
        )
    if "%" in value:
        # The supervisor reads the command line as a ConfigParser value.
        raise UserError(
            f"{key} contains %, which crashes the process supervisor of AWS's container",
            "use a value without %",
            code="invalid-variable",
        )
    if "\0" in value:
        raise UserError(
            f"{key} contains a NUL byte", "remove the NUL byte", code="invalid-variable"
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise UserError(
            f"{key} is not valid UTF-8", "write the value in UTF-8", code="invalid-variable"
        )


def _by_flag(arguments: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The arguments as (flag, its tokens). A token that begins with -- is a flag."""
    groups: list[tuple[str, list[str]]] = []
    for token in arguments:
        if token.startswith("--"):
            if not _FLAG.fullmatch(token):
                raise UserError(
                    f"{token!r} cannot be passed to the container",
                    "write engine arguments as --lower-case-words, values as separate words",
                    code="invalid-argument",
                )
            groups.append((token, []))
        elif groups:
            groups[-1][1].append(token)
        else:
            raise UserError(
                f"the engine arguments start with {token!r}",
                "start with a --flag",
                code="invalid-argument",
            )
    return groups


def _value(flag: str, tokens: list[str]) -> str:
    if not tokens:
        return "true"
    if len(tokens) == 1 and _is_passed_unchanged(flag, tokens[0]):
        return tokens[0]
    if flag in WHOLE_ARRAY_FLAGS:
        raise UserError(
            f"{flag} cannot take {' '.join(tokens)!r} through the container's environment",
            f"give {flag} one value other than true or false",
            code="invalid-argument",
        )
    return json.dumps(tokens)


def _is_passed_unchanged(flag: str, token: str) -> bool:
    """Whether the container passes this value on as it is, as one token."""
    is_switch = token.strip().lower() in {"", "true", "false"}
    return not is_switch and tokens_of(flag, token) == [token]
