"""The user's own engine arguments and environment variables, on top of what the plan decides.

An empty value leaves out what the plan would set; everything else replaces or adds. The rules look
at the result like at the rest of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from peagle.case import DECIDED
from peagle.errors import UserError
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION
from peagle.vllm.facts import canonical_name
from peagle_serve import json_reader
from peagle_serve.contract import (
    HUB_MODEL,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    PREFIX,
    ROOT_VARIABLE,
    WARM_PINS_VARIABLE,
    WEIGHTS_PIN_VARIABLE,
)
from peagle_serve.environment import make_flag
from peagle_serve.json_reader import InvalidJson

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_COUNT = re.compile(r"0*[1-9][0-9]{0,9}", re.ASCII)
_TOKENS = "max-num-batched-tokens"
_SHARE = "gpu-memory-utilization"
_DECIDED_BY_PAIR = ("num_speculative_tokens", "method", "parallel_drafting", "model")
"""Keys of ``--speculative-config`` that PAIR, ``--k`` and ``--drafter`` decide."""

_OWN = {
    HUB_MODEL: DECIDED["model"],
    **dict.fromkeys(
        (WARM_PINS_VARIABLE, WEIGHTS_PIN_VARIABLE),
        "use warm_sha256 or --allow-unpinned-warm; deploy pins the weights",
    ),
    **dict.fromkeys(
        (IMAGE_CONTENT_VARIABLE, IMAGE_DIGEST_VARIABLE, ROOT_VARIABLE),
        "leave it out: the container sets it",
    ),
}
"""Variables that plan, image and toolkit set, and what to do instead."""


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` or ``NAME``, which is a switch, by the name of vLLM's argument without dashes.

    Raises UserError for an argument without a name, and for one that is given twice.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.removeprefix("--").partition("=")
        name = make_flag(name).removeprefix("--") if name.startswith(PREFIX) else name
        name = canonical_name(name.replace("_", "-"))
        if not name or name in settings:
            raise UserError(
                f"--set {text.partition('=')[0]!r} has no argument name, or is given twice",
                "write NAME or NAME=VALUE once",
                code="invalid-argument",
            )
        settings[name] = value if equals else "true"
    return settings


def parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """``NAME=VALUE`` by name. Raises UserError for other text, and for one that is given twice."""
    variables: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in variables:
            raise UserError(
                f"--env {name!r} has no value, or is given twice",
                "write NAME=VALUE once",
                code="invalid-variable",
            )
        variables[name] = value
    return variables


def parse_speculative(texts: Iterable[str]) -> dict[str, object]:
    """``NAME=VALUE`` by name: ``2`` is a number, other JSON is JSON, and the rest is text. Raises
    UserError for a key that the pair decides."""
    config: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in _DECIDED_BY_PAIR:
            fix = "write NAME=VALUE; PAIR, --k and --drafter decide method, K and model"
            raise UserError(f"--speculative {text!r} is no setting of its own", fix)
        try:
            config[name] = json_reader.read(value, "the value")
        except InvalidJson:
            config[name] = value
    return config


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise UserError for an argument that another option decides, or that cannot be read."""
    for name, value in settings.items():
        plain = name.partition(".")[0].removeprefix("no-")
        if plain in DECIDED:
            raise UserError(
                f"--set {name}: the plan decides this argument", DECIDED[plain], "decided-by-plan"
            )
        fix = ""
        if not _NAME.fullmatch(plain):
            fix = "write an argument of vLLM as lower-case-words=VALUE"
        elif name == _SHARE and value == "":
            fix = f"the planned memory needs a value: {GPU_MEMORY_UTILIZATION}"
        elif name == _TOKENS and not (value == "" or _COUNT.fullmatch(value)):
            fix = "use a number of tokens such as 8192"
        if fix:
            message = f"--set {name[:60]}={value[:40]} cannot be planned"
            raise UserError(message, fix, code="invalid-argument")


def check_variables(names: Iterable[str]) -> None:
    """Raise UserError for a variable that plan, image or toolkit set, and for an invalid name."""
    for name in names:
        if name.startswith(PREFIX) and _VARIABLE.fullmatch(name):
            argument = make_flag(name).removeprefix("--")
            plain = argument.partition(".")[0].removeprefix("no-")
            fix = DECIDED.get(plain) or f"use --set {argument}=VALUE instead"
            raise UserError(f"--env {name} is an argument of vLLM", fix, code="decided-by-plan")
        if name in _OWN or name.startswith("SAGEMAKER_"):
            fix = _OWN.get(name, "leave it out: SageMaker sets it")
            raise UserError(f"--env {name} is decided already", fix, code="decided-by-plan")
        if not _VARIABLE.fullmatch(name):
            raise UserError(
                f"--env {name[:60]!r} is not the name of a variable",
                "use letters, digits and _; the first character is not a digit",
                code="invalid-variable",
            )


def with_overrides(
    planned: Mapping[str, str], overrides: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The planned variables with the user's. Raises UserError for an empty value of a variable that
    the plan does not set."""
    for name, value in {**planned, **overrides}.items():
        if value or name not in overrides:
            yield name, value
        elif name not in planned:
            raise UserError(
                f"--env {name}= leaves out nothing: the plan does not set {name}",
                "give it a value",
                code="nothing-to-leave-out",
            )
