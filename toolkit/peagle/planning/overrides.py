"""What the options of a plan may be, and the user's own engine arguments and environment variables,
on top of what the plan decides.

An empty value leaves out what the plan would set; everything else replaces or adds. The rules look
at the result like at the rest of the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

from peagle.case import DECIDED
from peagle.catalog.tables import HERE, InstanceTable
from peagle.errors import OptionMissing, OptionsConflict, OutOfRange, UserError, use_option
from peagle.options import Options, check_numbers
from peagle.planning.operation import LONGEST_BAKING_SECONDS
from peagle.planning.weights import INSTANCE_SECONDS, LONGEST, SHORTEST
from peagle.text import exact_duration, sanitize
from peagle.vllm.versions import canonical_name
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
_COUNT = re.compile(r"0*[1-9][0-9]{0,9}", re.ASCII)
_TOKENS = "max-num-batched-tokens"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
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


def parse_pairs(texts: Iterable[str], flag: str, code: str) -> dict[str, str]:
    """``NAME=VALUE`` by name. Raises UserError for other text, and for one that is given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals or name in pairs:
            message = f"{flag} {sanitize(text, 60)!r} has no name or no value, or is given twice"
            raise UserError(message, f"write {flag} NAME=VALUE once", code)
        pairs[name] = value
    return pairs


def parse_speculative(texts: Iterable[str]) -> dict[str, object]:
    """``NAME=VALUE`` by name: ``2`` is a number, other JSON is JSON, and the rest is text. Raises
    UserError for a key that the pair decides."""
    config: dict[str, object] = {}
    for name, value in parse_pairs(texts, "--speculative", "invalid-argument").items():
        if name in _DECIDED_BY_PAIR:
            fix = "leave it out: PAIR, --k and --drafter decide method, K and model"
            raise UserError(f"--speculative {name} is no setting of its own", fix)
        config[name] = value
        with suppress(InvalidJson):
            config[name] = json_reader.read(value, "the value")
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


LONGEST_SECONDS = 366 * 24 * 3600
"""Of an end time and of a batch."""


def check_options(options: Options, table: InstanceTable) -> None:
    """Raise UserError for a value outside of its limits, for an option that needs another one, and
    for options that exclude each other."""
    check_settings(options.settings)
    check_variables(options.environment)
    check_numbers(options)
    _check_times(options)
    _check_needs(options)
    _check_conflicts(options)
    _check_scaling(options)
    copies, instance_type = options.copies, options.instance_type
    if isinstance(copies, int):
        types = [instance for instance in table.instances if instance_type in (None, instance.type)]
        most = max((instance.gpu_count for instance in types), default=copies)
        if most < copies:
            where = instance_type or "the largest type"
            raise UserError(
                f"--copies {copies} needs a GPU for each copy; {where} has {most}",
                use_option("--copies", most, " or less, or auto"),
                code="too-many-copies",
            )


def _check_times(options: Options) -> None:
    times = {
        "--within": (options.within, INSTANCE_SECONDS + 1, LONGEST_SECONDS),
        "--ttl": (options.ttl, 60, LONGEST_SECONDS),
        "baking_time": (options.baking_time, 0, LONGEST_BAKING_SECONDS),
        "startup_timeout": (options.startup_timeout, SHORTEST, LONGEST),
        "download_timeout": (options.download_timeout, SHORTEST, LONGEST),
    }
    for flag, (seconds, least, most) in times.items():
        if seconds is not None and not least <= seconds <= most:
            message = f"{flag} {exact_duration(seconds)} is out of range"
            raise OutOfRange(message, f"use {exact_duration(least)} to {exact_duration(most)}")


def _check_needs(options: Options) -> None:
    scales = options.max_instances is not None or options.scale_to_zero
    alarms, rolls = options.observe or options.rollout is not None, options.rollout is not None
    captures = options.capture_data is not None
    for flag, value, is_met, needed in (
        ("--within", options.within, options.requests is not None, "--requests"),
        ("rollout_step", options.rollout_step, rolls, "--rollout rolling"),
        ("baking_time", options.baking_time, rolls, "--rollout rolling"),
        ("--min-instances", options.min_instances, scales, "--max-instances"),
        ("target_concurrency", options.target_concurrency, scales, "--max-instances"),
        ("capture_percent", options.capture_percent, captures, "--capture-data"),
        ("capture_kms_key", options.capture_kms_key, captures, "--capture-data"),
        ("capture_retention", options.capture_retention, captures, "--capture-data"),
        ("alarm_topic", options.alarm_topic, alarms, "--observe"),
    ):
        if value is not None and not is_met:
            raise OptionMissing(f"{flag} needs {needed}", f"add {needed}")


def _check_conflicts(options: Options) -> None:
    streams, here = options.weights_by == "stream", options.instance_type == HERE
    # AWS documents no capture of the requests to inference components, and its SDK leaves the
    # setting out for them (model_builder.py of sagemaker-python-sdk).
    components = [("--scale-to-zero", options.scale_to_zero)]
    components.append(("--copies", options.copies not in (None, 1)))
    for flag, is_given, other, excludes in (
        ("--drafter", options.drafter is not None, "--no-speculation", not options.speculation),
        ("--k", options.k is not None, "--no-speculation", not options.speculation),
        ("--ttl", options.ttl is not None, "--no-limit", options.no_limit),
        ("--budget", options.budget is not None, "--no-limit", options.no_limit),
        ("--here", here, "--instance-count", (options.instance_count or 1) > 1),
        ("--here", here, "--max-instances", options.max_instances is not None),
        ("--min-instances", options.min_instances is not None, *components[0]),
        ("--capture-data", options.capture_data is not None, *components[0]),
        ("--capture-data", options.capture_data is not None, *components[1]),
        ("rollout_step", options.rollout_step is not None, "--rollout all-at-once",
         options.rollout == "all-at-once"),
        ("--set load-format", "load-format" in options.settings, "weights_by stream", streams),
        ("--baked-weights", options.baked_weights, "weights_by stream", streams),
        ("warm_sha256", bool(options.warm_sha256), "--allow-unpinned-warm",
         options.allow_unpinned_warm),
    ):  # fmt: skip
        if is_given and excludes:
            raise OptionsConflict(f"{flag} and {other} exclude each other", "omit one of them")


def _check_scaling(options: Options) -> None:
    high, count = options.max_instances, options.instance_count
    low = 1 if options.min_instances is None else options.min_instances
    if high is None or (options.scale_to_zero and high == 1 == (count or 1)):
        return
    if not 1 <= low < high or (count is not None and not low <= count <= high):
        fix = "use --min-instances of 1 or more, a larger --max-instances, and an --instance-count "
        fix += "between them; --instance-count alone for a fixed number"
        if low == 0:
            fix = "use --scale-to-zero in place of --min-instances 0"
        now = f", now {count}," if count else ""
        message = f"{low} to {high} instances{now} cannot scale"
        raise UserError(message, fix, code="invalid-scaling")
