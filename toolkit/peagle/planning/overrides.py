"""The user's own engine arguments and environment variables, on top of what the plan decides.

An empty value leaves out what the plan would set; everything else replaces or adds. The rules look
at the result like at the rest of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from peagle.case import DECIDED
from peagle.errors import OptionsConflict, Refused, UserError
from peagle.findings import Finding
from peagle.options import Options
from peagle.planning.pins import PIN_VARIABLES
from peagle.text import json_number
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION
from peagle.vllm.environment import Value
from peagle.vllm.facts import canonical_name
from peagle_serve.contract import (
    HUB_MODEL,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    PREFIX,
    ROOT_VARIABLE,
)
from peagle_serve.environment import flag_of

SECRET = "secret-in-environment"
"""The code of the rule that finds secrets."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_COUNT = re.compile(r"0*[1-9][0-9]{0,9}", re.ASCII)
_SWITCH = {"true": True, "false": False}
_TOKENS = "max-num-batched-tokens"
_SHARE = "gpu-memory-utilization"

_OWN = (IMAGE_CONTENT_VARIABLE, IMAGE_DIGEST_VARIABLE, ROOT_VARIABLE)
"""Variables that image and toolkit set; another value describes another image."""


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` or ``NAME``, which is a switch, by the name of vLLM's argument without dashes.

    Raises UserError for an argument without a name, and for one that is given twice.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        if not name:
            raise UserError(
                f"--set {text!r} has no argument name",
                "write NAME or NAME=VALUE",
                code="invalid-argument",
            )
        name = flag_of(name).removeprefix("--") if name.startswith(PREFIX) else name
        name = canonical_name(name.replace("_", "-"))
        if name in settings:
            raise UserError(f"--set {name} is given twice", "give it once", code="invalid-argument")
        settings[name] = value if equals else "true"
    return settings


def parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` by name. Raises UserError for other text, and for one that is given twice."""
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UserError(
                f"--env {text.partition('=')[0]!r} has no value",
                "write NAME=VALUE",
                code="invalid-variable",
            )
        if name in variables:
            raise UserError(f"--env {name} is given twice", "give it once", code="invalid-variable")
        variables[name] = value
    return variables


def check_overrides(options: Options) -> None:
    """Raise UserError for an argument or variable that another option decides, and for a value
    that the memory model cannot read."""
    check_settings(options.settings)
    if options.weights_by == "stream" and "load-format" in options.settings:
        raise OptionsConflict(
            "--set load-format: weights_by stream decides it", "omit one of the two"
        )
    for name in options.environment:
        _check_variable(name)


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise UserError for an argument that another option decides, or that cannot be read."""
    for name, value in settings.items():
        plain = name.partition(".")[0].removeprefix("no-")
        if not _NAME.fullmatch(plain):
            raise UserError(
                f"--set {name!r} is not an argument of vLLM",
                "write it as lower-case-words=VALUE",
                code="invalid-argument",
            )
        if plain in DECIDED:
            raise UserError(
                f"--set {name}: the plan decides this argument",
                DECIDED[plain],
                code="decided-by-plan",
            )
        if name == _SHARE and value == "":
            raise UserError(
                f"--set {name} has no value",
                f"the planned memory needs one: {GPU_MEMORY_UTILIZATION}",
                code="invalid-argument",
            )
        if name == _TOKENS and not (value == "" or _COUNT.fullmatch(value)):
            shown = value if len(value) < 40 else f"{value[:36]}..."
            raise UserError(
                f"--set {name}={shown} is not a number of tokens",
                "such as 8192",
                code="invalid-argument",
            )


def _check_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise UserError(
            f"--env {name[:60]!r} is not the name of a variable",
            "use letters, digits and _; the first character is not a digit",
            code="invalid-variable",
        )
    if name.startswith(PREFIX):
        argument = flag_of(name).removeprefix("--")
        plain = argument.partition(".")[0].removeprefix("no-")
        raise UserError(
            f"--env {name} is an argument of vLLM",
            DECIDED.get(plain) or f"use --set {argument}=VALUE instead",
            code="decided-by-plan" if plain in DECIDED else "invalid-variable",
        )
    if name == HUB_MODEL:
        raise UserError(
            f"--env {name}: the plan decides the model", DECIDED["model"], code="decided-by-plan"
        )
    if name in PIN_VARIABLES:
        raise UserError(
            f"--env {name}: the plan decides it",
            "use warm_sha256 or --allow-unpinned-warm; deploy pins the weights",
            code="decided-by-plan",
        )
    if name in _OWN or name.startswith("SAGEMAKER_"):
        raise UserError(
            f"--env {name} cannot be set",
            "leave it out: the container sets it",
            code="reserved-variable",
        )


def checked_settings(settings: Mapping[str, str]) -> dict[str, Value | None]:
    """The typed arguments for the memory model. Raises UserError as ``check_settings`` does."""
    check_settings(settings)
    return memory_settings(settings_of(settings))


def refuse_secrets(findings: Iterable[Finding]) -> None:
    """Raise Refused for a secret: no plan, and so no plan file, ever contains one."""
    for finding in findings:
        if finding.code == SECRET:
            raise Refused(finding.message, finding.fix, code=SECRET)


def settings_of(settings: Mapping[str, str]) -> dict[str, Value | None]:
    """The arguments with typed values; ``None`` for what is left out, which is also the opposite
    of each switch."""
    arguments: dict[str, Value | None] = {}
    for name, text in settings.items():
        value: Value | None = None if text == "" else _typed(text)
        opposite = name.removeprefix("no-") if name.startswith("no-") else f"no-{name}"
        arguments[opposite] = None
        arguments[name] = value
    return arguments


def switch_or_text(text: str) -> bool | str:
    """``true`` and ``false`` as switches, other text as it is."""
    return _SWITCH.get(text.strip().lower(), text)


def _typed(text: str) -> Value:
    """A switch, a number or text."""
    value = switch_or_text(text)
    if isinstance(value, bool):
        return value
    number = json_number(text)
    return text if number is None else number


def memory_settings(settings: Mapping[str, Value | None]) -> dict[str, Value | None]:
    """Those that the memory model can compute with; the rules report a share of memory that is
    none."""
    share = settings.get(_SHARE)
    is_share = isinstance(share, (int, float)) and share is not True and 0 < share <= 1
    return {
        name: value
        for name, value in settings.items()
        if name != _SHARE or value is None or is_share
    }


def with_variables(planned: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """The planned variables with the user's. Raises UserError for an empty value of a variable that
    the plan does not set."""
    merged = {**planned, **overrides}
    for name in (name for name, value in overrides.items() if value == ""):
        if name not in planned:
            raise UserError(
                f"--env {name}= leaves out nothing: the plan does not set {name}",
                "give it a value",
                code="nothing-to-leave-out",
            )
        del merged[name]
    return merged
