"""Converts vLLM's argv to the environment of AWS's vLLM container, which converts it back.

``peagle_serve.environment`` documents and implements the container's rule.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from peagle.errors import UserError
from peagle.text import json_number
from peagle.vllm.versions import canonical_name
from peagle_serve.contract import PREFIX
from peagle_serve.environment import WHOLE_ARRAY_FLAGS, make_flag, make_tokens, name_variable

Value = str | int | float | bool
"""The value of one of vLLM's arguments; an object is its JSON."""

MAX_ENTRIES = 100
MAX_VALUE_LENGTH = 1024
MAX_TOTAL_BYTES = 32 * 1024
"""Limits of CreateModel's Environment, from SageMaker's service model and its documentation."""

_SWITCH = {"true": True, "false": False}
_FLAG = re.compile(r"--[a-z0-9]+(-[a-z0-9]+)*")
_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,1023}")


def to_environment(arguments: Iterable[str]) -> dict[str, str]:
    """The ``SM_VLLM_*`` variables that the container reads as exactly these arguments. A token that
    begins with -- is a flag. Raises UserError for arguments that it cannot express."""
    flags: list[tuple[str, list[str]]] = []
    for token in arguments:
        if not token.startswith("--") and flags:
            flags[-1][1].append(token)
            continue
        if not _FLAG.fullmatch(token):
            raise UserError(
                f"{token!r} cannot be passed to the container",
                "write engine arguments as --lower-case-words, values as separate words",
                code="invalid-argument",
            )
        flags.append((token, []))
    environment: dict[str, str] = {}
    for flag, tokens in flags:
        key = name_variable(flag)
        if key in environment:
            raise UserError(
                f"{flag} is given twice; the container's environment allows it once",
                f"give {flag} once",
                code="invalid-argument",
            )
        # The container passes a value on as it is, except those of switches.
        is_switch = len(tokens) == 1 and tokens[0].strip().lower() in {"", "true", "false"}
        if not tokens:
            environment[key] = "true"
        elif len(tokens) == 1 and not is_switch and make_tokens(flag, tokens[0]) == tokens:
            environment[key] = tokens[0]
        elif flag in WHOLE_ARRAY_FLAGS:
            raise UserError(
                f"{flag} cannot take {' '.join(tokens)!r} through the container's environment",
                f"give {flag} one value other than true or false",
                code="invalid-argument",
            )
        else:
            environment[key] = json.dumps(tokens)
    return environment


def engine_part(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that become arguments of vLLM."""
    return {key: value for key, value in environment.items() if key.startswith(PREFIX)}


def parse_values(settings: Mapping[str, str]) -> dict[str, Value | None]:
    """The arguments with typed values; ``None`` for what is left out, which is also the opposite
    of each switch."""
    arguments: dict[str, Value | None] = {}
    for name, text in settings.items():
        opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        value: Value | None = None
        if text != "":
            value = switch_or_text(text)
            number = json_number(text) if value is text else None
            value = value if number is None else number
        arguments |= {opposite: None, name: value}
    return arguments


def switch_or_text(text: str) -> bool | str:
    """``true`` and ``false`` as switches, other text as it is."""
    return _SWITCH.get(text.strip().lower(), text)


def settings_in(environment: Mapping[str, str]) -> dict[str, Value | None]:
    """vLLM's arguments, without the dashes, in these variables; ``None`` for ``false``, which the
    container omits."""
    settings: dict[str, Value | None] = {}
    for key, value in engine_part(environment).items():
        switch: dict[str, Value | None] = {"": True, "true": True, "false": None}
        text, name = value.strip().lower(), canonical_name(make_flag(key).removeprefix("--"))
        number = json_number(value.strip())
        settings[name] = switch.get(text, value if number is None else number)
    return settings


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise UserError for an environment that SageMaker or the container rejects."""
    total = sum(
        len(text.encode(errors="surrogatepass")) for item in environment.items() for text in item
    )
    longest = max(environment, key=lambda name: len(environment[name]), default="")
    length = len(environment.get(longest, ""))
    if len(environment) > MAX_ENTRIES or total > MAX_TOTAL_BYTES or length > MAX_VALUE_LENGTH:
        raise UserError(
            f"the environment has {len(environment)} variables of {total:,} bytes, and {longest} "
            f"has {length:,} characters; SageMaker's limits are {MAX_ENTRIES}, "
            f"{MAX_TOTAL_BYTES:,} and {MAX_VALUE_LENGTH:,}",
            "remove or shorten engine arguments, or use shorter paths",
            code="environment-too-large",
        )
    for key, value in environment.items():
        if not _KEY.fullmatch(key):
            raise UserError(
                f"SageMaker rejects the name of the environment variable {key[:60]!r}",
                "use letters, digits and _; the first character is not a digit",
                code="invalid-variable",
            )
        # Its supervisor reads the command line as a ConfigParser value, where % is special.
        if "%" in value or "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise UserError(
                f"{key} contains %, NUL or text that is no UTF-8, with which AWS's container "
                "does not start",
                "use a value without them",
                code="invalid-variable",
            )
