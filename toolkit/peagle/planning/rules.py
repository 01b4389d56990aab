"""What the options of a plan may be, and which go together."""

from __future__ import annotations

from peagle.catalog.tables import InstanceTable
from peagle.errors import OptionMissing, OptionsConflict, OutOfRange, UserError, use_option
from peagle.options import Options, check_numbers
from peagle.planning.operation import LONGEST_BAKING_SECONDS, parse_step
from peagle.planning.overrides import check_settings, check_variables
from peagle.planning.weights import INSTANCE_SECONDS, LONGEST, SHORTEST
from peagle.text import exact_duration

LONGEST_SECONDS = 366 * 24 * 3600
"""Of an end time and of a batch."""


def check_options(options: Options, table: InstanceTable) -> None:
    """Raise UserError for a value outside of its limits, for an option that needs another one, and
    for options that exclude each other."""
    check_settings(options.settings)
    check_variables(options.environment)
    if options.rollout_step is not None:
        parse_step(options.rollout_step)
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
    streams = options.weights_by == "stream"
    # AWS documents no capture of the requests to inference components, and its SDK leaves the
    # setting out for them (model_builder.py of sagemaker-python-sdk).
    components = [("--scale-to-zero", options.scale_to_zero)]
    components.append(("--copies", options.copies not in (None, 1)))
    for flag, is_given, other, excludes in (
        ("--drafter", options.drafter is not None, "--no-speculation", not options.speculation),
        ("--k", options.k is not None, "--no-speculation", not options.speculation),
        ("--ttl", options.ttl is not None, "--no-limit", options.no_limit),
        ("--budget", options.budget is not None, "--no-limit", options.no_limit),
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
