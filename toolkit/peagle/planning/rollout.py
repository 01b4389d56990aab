"""How an update replaces what serves: its steps, its baking time, and the alarms that undo it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from peagle.errors import UserError
from peagle.findings import Finding, error
from peagle.options import Options, RolloutKind
from peagle.planning.plan import AlarmKind, Copies, Decision, Rollout, Step, decide
from peagle.text import format_duration, format_usd

DEFAULT_BAKING_SECONDS = 600
LONGEST_BAKING_SECONDS = 3600
"""SageMaker's limit of a waiting time."""

_SHARES: dict[RolloutKind, tuple[int, int]] = {
    "rolling": (5, 50),
    "canary": (1, 50),
    "linear": (10, 50),
}
"""The least and the largest step that SageMaker accepts, in percent of the instances."""

_STEP = re.compile(r"([1-9][0-9]{0,3})(%?)", re.ASCII)


def parse_step(text: str, copies: bool = False) -> Step:
    """``2`` (instances, or ``copies``) or ``25%`` (of them). Raises UserError."""
    match = _STEP.fullmatch(text)
    if match is None or (match[2] and int(match[1]) > 100):
        fix = "write a number of instances, or a share of them such as 25%"
        raise UserError(f"rollout_step {text[:20]!r} is not a step", fix, code="rollout-step")
    if match[2]:
        return Step(value=int(match[1]), unit="percent")
    return Step(value=int(match[1]), unit="copies" if copies else "instances")


def choose_rollout(
    options: Options,
    instance_count: int,
    usd_per_hour: float | None,
    floor: float | None,
    copies: Copies | None = None,
) -> Decision[Rollout | None]:
    """The rollout of updates, with what it takes; ``None`` where the user asks for none.

    ``usd_per_hour`` is the price of all instances, ``floor`` the least acceptance length of a plan
    that speculates, ``copies`` the engines on each instance of a plan with copies. Of these, the
    new ones need GPUs before the earlier ones end, so one more instance starts, and a batch is no
    larger than that instance holds. Raises UserError for a kind that copies do not have.
    """
    kind, asked = options.rollout, options.rollout_step
    if kind is None:
        return Decision(None)
    if copies is not None and kind != "rolling":
        raise UserError(
            f"--rollout {kind} moves requests between two fleets of instances, and SageMaker "
            "updates copies on the same instances, batch by batch",
            "use --rollout rolling, or --copies 1",
            code="rollout-of-copies",
        )
    # One instance, or copy, that may become several has the steps of these.
    several = max(instance_count, options.max_instances or 1)
    total = instance_count if instance_count > 1 else several
    step, fits = _default_step(kind, total), total
    if copies is not None:
        each = copies.per_instance
        total = instance_count * each if instance_count * each > 1 else several * each
        fits = min(each, total // 2)
        step = Step(value=max(1, fits), unit="copies")
    step = parse_step(asked, copies is not None) if asked else step
    extra = 1 if copies else _extra_instances(kind, step, instance_count)
    baking = DEFAULT_BAKING_SECONDS if options.baking_time is None else options.baking_time
    rollout = Rollout(
        kind=kind,
        step=step,
        baking_seconds=baking,
        extra_instances=extra,
        extra_usd_per_hour=(
            None if usd_per_hour is None else round(usd_per_hour * extra / instance_count, 4)
        ),
        alarms=alarms_for(options, floor),
    )
    because = f"updates bake {format_duration(baking)} after each step; an alarm undoes them"
    if copies:
        because = (
            f"updates bake {format_duration(baking)} after each batch; an alarm, on all copies "
            "together, undoes them"
        )
    noun = "copies" if copies else "instances"
    findings = [*_findings(rollout, total, noun, fits if copies else None)]
    return decide(rollout, "rollout", because, rollout.text, findings)


def _findings(
    rollout: Rollout, count: int, noun: str, most_at_once: int | None
) -> Iterator[Finding]:
    """What SageMaker would reject of an update of ``count`` instances, or copies, of which at most
    ``most_at_once`` find room."""
    step = rollout.step
    if step is not None and count < 2:
        message = f"a {rollout.kind} update replaces a part of the {noun}, and the plan has one"
        fix = "use --max-instances 2 or --instance-count 2, or another --rollout or none"
        yield error("rollout-one-instance", "rollout", message, fix)
    elif step is not None:
        least, most = _SHARES[rollout.kind]
        share, fits = step.percent(count), most_at_once or count
        if not least <= share <= most or step.instances(count) > fits:
            room = f", and one more instance has room for {fits}" if most_at_once else ""
            message = (
                f"a step of {step.text} is {share:.0f}% of {count} {noun}; SageMaker accepts "
                f"{least}% to {most}% in a {rollout.kind} update{room}"
            )
            fix = "choose another rollout_step, or omit it"
            yield error("rollout-step", "rollout-step", message, fix)


def _extra_instances(kind: RolloutKind, step: Step | None, count: int) -> int:
    return step.instances(count) if kind == "rolling" and step else count


def rollout_of(rollout: Rollout, count: int) -> Rollout:
    """The rollout where ``count`` instances run, a number that scaling may have chosen: all at once
    for one, and the default step where SageMaker rejects the planned one."""
    kind, step, usd = rollout.kind, rollout.step, rollout.extra_usd_per_hour
    if step is not None and count < 2:
        kind, step = "all-at-once", None
    elif step is not None and not _is_accepted(kind, step, count):
        step = _default_step(kind, count)
    extra = _extra_instances(kind, step, count)
    usd = None if usd is None else round(usd * extra / rollout.extra_instances, 4)
    changed = {"kind": kind, "step": step, "extra_instances": extra, "extra_usd_per_hour": usd}
    return rollout.model_copy(update=changed)


def rollout_of_copies(rollout: Rollout, count: int) -> Rollout | None:
    """The rollout where ``count`` copies run; ``None`` for one, which has no batches. A batch that
    SageMaker rejects becomes the nearest that SageMaker accepts."""
    step = rollout.step
    if step is None or count < 2:
        return None
    if not _is_accepted("rolling", step, count):
        least, most = math.ceil(count / 20), count // 2
        step = Step(value=max(least, min(step.instances(count), most)), unit="copies")
    return rollout.model_copy(update={"step": step})


def _is_accepted(kind: RolloutKind, step: Step, count: int) -> bool:
    least, most = _SHARES[kind]
    return least <= step.percent(count) <= most


def _default_step(kind: RolloutKind, instance_count: int) -> Step | None:
    """The smallest batch, a tenth as the canary, quarters in a linear rollout."""
    sizes = {
        "rolling": math.ceil(instance_count / 20),
        "canary": max(1, instance_count // 10),
        "linear": math.ceil(instance_count / 4),
    }
    return Step(value=sizes[kind], unit="instances") if kind in sizes else None


def rolling_step(count: int, free: int) -> Step | None:
    """The largest step of a rolling update of ``count`` instances that takes at most ``free`` more
    instances; ``None`` where none fits."""
    least, most = _SHARES["rolling"]
    largest = min(free, count * most // 100)
    return Step(value=largest, unit="instances") if largest >= max(1, count * least / 100) else None


def alarms_for(options: Options, floor: float | None) -> tuple[AlarmKind, ...]:
    """The alarms that a new revision has to pass; ``floor`` is the least acceptance length, if the
    plan speculates."""
    kinds: list[AlarmKind] = ["ttft"] if options.slo and options.slo.ttft is not None else []
    return (*kinds, "errors", "acceptance") if floor is not None else (*kinds, "errors")


def cost_text(rollout: Rollout | None) -> str:
    """What a rollout takes besides, and its alarms: one line; empty without one."""
    if rollout is None:
        return ""
    more, price = rollout.extra_instances, "price unknown"
    if rollout.extra_usd_per_hour is not None:
        price = f"{format_usd(rollout.extra_usd_per_hour)} per hour"
    return (
        f"{rollout.text}; {more} more instance{'s' if more > 1 else ''} meanwhile ({price}); "
        f"rolls back on {', '.join(rollout.alarms)}"
    )


def longest_seconds(rollout: Rollout, instance_count: int, start_seconds: float) -> float:
    """How long an update of so many instances, or copies, may take, in seconds: starts of
    ``start_seconds`` and baking."""
    steps = rollout.steps(instance_count)
    starts = steps if rollout.kind == "rolling" else 1
    return starts * start_seconds + (steps + 1) * rollout.baking_seconds
