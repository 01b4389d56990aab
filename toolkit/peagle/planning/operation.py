"""How a deployment is operated: how updates replace what serves, how many engines run and when,
when the deployment ends, and what is observed of it.

SageMaker runs copies as one inference component: every copy is a container with its own GPUs, and
requests go to the copy with the fewest. ``n`` copies are ``n`` engines that share the load evenly.

The target of scaling is the most requests at a time with which one instance, or one copy, is
predicted to meet the objective, and with which none waits for another: more run neither sooner nor
cheaper.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left

from peagle.catalog.tables import Instance
from peagle.errors import Fix, UserError, use_option
from peagle.findings import error, note, warning
from peagle.options import AUTO, Options, RolloutKind
from peagle.planning.candidates import Candidate
from peagle.planning.plan import (
    AlarmKind,
    Capture,
    Copies,
    Decisions,
    Limit,
    Observe,
    Plan,
    Rollout,
    Scaling,
    Step,
    StepUnit,
)
from peagle.s3uri import S3Uri
from peagle.speed.acceptance import Performance
from peagle.speed.estimate import slots
from peagle.text import counted, format_duration, format_usd
from peagle_serve.contract import is_s3_uri

DEFAULT_BAKING_SECONDS = 600
LONGEST_BAKING_SECONDS = 3600
"""SageMaker's limit of a waiting time."""

_SHARES: dict[RolloutKind, tuple[int, int]] = {
    "rolling": (5, 50),
    "canary": (1, 50),
    "linear": (10, 50),
}
"""The least and the largest step that SageMaker accepts, in percent of the instances."""


def choose_rollout(options: Options, plan: Plan, decisions: Decisions) -> Rollout | None:
    """The rollout of updates, with what it takes; ``None`` where the user asks for none.

    Of copies, the new ones need GPUs before the earlier ones end, so one more instance starts, and
    a batch is no larger than that instance holds. Raises UserError for a kind that copies do not
    have.
    """
    kind, asked = options.rollout, options.rollout_step
    copies, instance_count, usd_per_hour = plan.copies, plan.instance_count, plan.price_per_hour_usd
    if kind is None:
        return None
    if copies is not None and kind != "rolling":
        raise UserError(
            f"--rollout {kind} moves requests between two fleets of instances, and SageMaker "
            "updates copies on the same instances, batch by batch",
            "use --rollout rolling, or --copies 1",
            code="rollout-of-copies",
        )
    # One instance, or copy, that may become several has the steps of these.
    each = copies.per_instance if copies else 1
    total, step = instance_count * each, None
    total = total if total > 1 else max(instance_count, options.max_instances or 1) * each
    if kind != "all-at-once":
        unit: StepUnit = "copies" if copies else "instances"
        # The smallest batch, a tenth as the canary, quarters in a linear rollout.
        shares = {"rolling": math.ceil(total / 20), "canary": total // 10}
        usual = each if copies else max(1, shares.get(kind, math.ceil(total / 4)))
        step = Step(value=asked or usual, unit=unit)
        step = _accepted_step(kind, step, total, each if copies else total, unit)
        if total < 2:
            message = f"a {kind} update replaces a part of the {unit}, and the plan has one"
            fix = "use --max-instances 2 or --instance-count 2, or another --rollout or none"
            decisions.findings.append(error("rollout-one-instance", "rollout", message, fix))
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
        alarms=alarms_for(plan),
    )
    decisions.explain(
        "rollout", rollout.text, "rollout-bakes", seconds=baking, copies=copies is not None
    )
    return rollout


def _accepted_step(
    kind: RolloutKind, step: Step, count: int, fits: int, unit: StepUnit = "instances"
) -> Step:
    """The step of an update of ``count`` instances, or copies, of which ``fits`` find room at a
    time; the nearest that SageMaker accepts in place of one that it rejects."""
    least, most = _SHARES[kind]
    size = step.instances(count)
    if least <= step.percent(count) <= most and size <= fits:
        return step
    nearest = min(max(size, math.ceil(count * least / 100)), count * most // 100, fits)
    return Step(value=max(nearest, 1), unit=unit)


def _extra_instances(kind: RolloutKind, step: Step | None, count: int) -> int:
    return step.instances(count) if kind == "rolling" and step else count


def adapt_rollout(rollout: Rollout, count: int, copies: bool = False) -> Rollout | None:
    """The rollout for ``count`` instances, or copies with ``copies``; scaling may have chosen their
    number. One instance is replaced at once; one copy has no batches: ``None``."""
    kind, step, usd = rollout.kind, rollout.step, rollout.extra_usd_per_hour
    if step is not None and count < 2:
        if copies:
            return None
        kind, step = "all-at-once", None
    elif step is not None:
        step = _accepted_step(kind, step, count, count, "copies" if copies else "instances")
    if copies:
        return rollout.model_copy(update={"step": step})
    extra = _extra_instances(kind, step, count)
    usd = None if usd is None else round(usd * extra / rollout.extra_instances, 4)
    changed = {"kind": kind, "step": step, "extra_instances": extra, "extra_usd_per_hour": usd}
    return rollout.model_copy(update=changed)


def alarms_for(plan: Plan) -> tuple[AlarmKind, ...]:
    """The alarms that a new revision has to pass."""
    kinds: list[AlarmKind] = ["ttft"] if plan.slo and plan.slo.ttft is not None else []
    has_floor = plan.speculation is not None and plan.speculation.acceptance_floor is not None
    return (*kinds, "errors", "acceptance") if has_floor else (*kinds, "errors")


def cost_text(rollout: Rollout | None, watched: bool = True) -> str:
    """What a rollout takes besides, and the alarms that undo it if it is ``watched``: one line;
    empty without one."""
    if rollout is None:
        return ""
    more, price = rollout.extra_instances, "price unknown"
    if rollout.extra_usd_per_hour is not None:
        price = f"{format_usd(rollout.extra_usd_per_hour)} per hour"
    text = f"{rollout.text}; {more} more instance{'s' if more > 1 else ''} meanwhile ({price})"
    return f"{text}; rolls back on {', '.join(rollout.alarms)}" if watched else text


def longest_seconds(rollout: Rollout, instance_count: int, start_seconds: float) -> float:
    """How long an update of so many instances, or copies, may take, in seconds: starts of
    ``start_seconds`` and baking."""
    steps = rollout.steps(instance_count)
    starts = steps if rollout.kind == "rolling" else 1
    return starts * start_seconds + (steps + 1) * rollout.baking_seconds


RESERVED_SHARE = 0.75
"""The share of an instance's CPUs and host memory that its copies reserve together. SageMaker's own
processes need some, and AWS does not say how much; a reservation that is too large is never
placed. Copies may use more than they reserve."""

SHORTEST_SCALE_IN_SECONDS = 300
"""Application Auto Scaling's own cooldown for instances of an endpoint."""

SCALE_OUT_SECONDS = 60
"""SageMaker accepts no further change while an instance starts, so a longer pause adds nothing."""


def reserved(instance: Instance, copies: int, gpus: int) -> Copies:
    """``copies`` with ``gpus`` GPUs each, and equal shares of the instance's CPUs and memory."""
    return Copies(
        per_instance=copies,
        gpus=gpus,
        cpu_cores=max(1, math.floor(instance.vcpus * RESERVED_SHARE / copies)),
        memory_mib=math.floor(instance.memory_gib * 1024 * RESERVED_SHARE / copies),
    )


def with_copies(options: Options) -> Options:
    """The options for planning, where ``copies`` is ``None`` for one engine without an inference
    component: for ``--copies 1``, and by default with an option that SageMaker has for instances
    with a model only. Otherwise the default is ``auto``. Instances that scale to zero always have a
    component: SageMaker keeps one of a variant that has a model."""
    if options.scale_to_zero:
        return options.model_copy(update={"copies": options.copies or AUTO})
    if options.copies == 1:
        return options.model_copy(update={"copies": None})
    excluded = options.capture_data is not None or options.rollout not in (None, "rolling")
    if options.copies is None and not excluded:
        return options.model_copy(update={"copies": AUTO})
    return options


def choose_scaling(
    options: Options, plan: Plan, candidate: Candidate, start_seconds: int, decisions: Decisions
) -> Scaling:
    """The scaling of the planned instances, or of the copies on them. ``start_seconds`` is about
    how long a new instance takes until it serves, which is how long the first request waits after a
    scale to zero."""
    target, copies = options.target_concurrency, plan.copies
    if target is None:
        target = _most_requests(candidate, counted(1, copies is not None), decisions)
    least = 0 if options.scale_to_zero else options.min_instances or 1
    highest = options.max_instances or candidate.count
    cooldown = max(SHORTEST_SCALE_IN_SECONDS, start_seconds)
    scaling = Scaling(
        min_instances=least,
        max_instances=highest,
        target_concurrency=target,
        scale_in_cooldown_seconds=cooldown,
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS,
        min_copies=least * copies.per_instance if copies else None,
        max_copies=highest * copies.per_instance if copies else None,
        wake_up_seconds=start_seconds if options.scale_to_zero else None,
    )
    unit = counted(1, scaling.scales_copies)
    prices = scaling.prices(candidate.usd_per_hour, candidate.count)
    limit = options.max_price_per_hour
    if limit is not None and prices is not None and prices[1] > limit:
        usd = f"{format_usd(prices[1])} an hour; the limit is {format_usd(limit)}"
        allowed, fix = math.floor(limit * highest / prices[1]), Fix("raise the limit")
        if allowed > max(1, least):
            fix = use_option("--max-instances", allowed)
        message = f"{highest} instances cost {usd}"
        finding = error("scaling-above-price-limit", "max_instances", message, fix)
        decisions.findings.append(finding)
    shown = format_duration(cooldown)
    if cooldown > SHORTEST_SCALE_IN_SECONDS:
        decisions.explain("scale_in_cooldown", shown, "cooldown-of-start", unit=unit)
    else:
        decisions.explain("scale_in_cooldown", shown, "cooldown-of-aws")
    return scaling


def _most_requests(candidate: Candidate, unit: str, decisions: Decisions) -> int:
    """The most requests at a time with which one engine meets the objective and none queues;
    ``unit`` is what has an engine."""
    load, engine, slo = candidate.load, candidate.engine, candidate.options.slo
    running = slots(engine.case, engine.fit, load.workload) if engine.fit.fits else 0.0
    limit = max(1, math.floor(running))

    def speed(requests: int) -> Performance:
        return load.performance(engine, candidate.drafter, candidate.k, requests)

    def excess(requests: int) -> float | None:
        times = speed(requests)
        return slo.excess(times.ttft_seconds, times.itl_seconds) if slo else None

    at_limit, most, shown = excess(limit), limit, limit
    holds_with: int | None = None
    code = "none-queues"
    if slo is not None:
        code = "objective-unknown" if at_limit is None else "objective-holds"
    if at_limit is not None and at_limit > 1:
        low = bisect_left(range(1, limit), True, key=lambda n: (excess(n) or 0) > 1)
        code = "objective-breaks"
        most, shown, holds_with = low or 1, low + 1, low
    times = speed(shown)
    decisions.explain(
        "target_concurrency",
        f"{most} per {unit}",
        code,
        requests=shown,
        in_cache=limit < engine.case.engine.max_num_seqs,
        slo=slo.text if slo else None,
        ttft_seconds=times.ttft_seconds,
        itl_seconds=times.itl_seconds,
        basis=times.basis,
        holds_with=holds_with,
    )
    return most


COPIES_BEFORE_SECONDS = 600
"""How long before the endpoint its copies are deleted; the deletion of a component takes some
minutes. SageMaker refuses to delete an endpoint that has copies or is changing: the schedule's
retry policy is then a day long, and what still exists after that ``peagle reap`` deletes."""

LOG_DAYS = (
    1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922,
    3288, 3653,
)  # fmt: skip
"""The retentions that CloudWatch Logs has, in days."""

DEFAULT_LOG_DAYS = 30
DEFAULT_PERCENT = 100
DEFAULT_CAPTURE_DAYS = 30

_TOPIC = re.compile(r"arn:aws[a-z-]*:sns:([a-z0-9-]+):[0-9]{12}:[A-Za-z0-9_-]{1,256}", re.ASCII)


def choose_limit(options: Options, plan: Plan, decisions: Decisions) -> Limit | None:
    """The limit that the options set."""
    ttl, budget, usd_per_hour = options.ttl, options.budget, most_usd_per_hour(plan)
    start_seconds = plan.download_timeout_seconds + plan.startup_timeout_seconds
    if ttl is None and budget is None:
        return Limit() if options.no_limit else None
    limit = Limit(ttl_seconds=ttl, budget_usd=budget)
    seconds = limit_seconds(limit, usd_per_hour)
    if budget is not None and not usd_per_hour:
        message = f"{format_usd(budget)} last for an unknown time: the price is unknown"
        command = ("peagle", "catalog", "refresh", "--prices", "--region", plan.region)
        fix = Fix("set --ttl instead, or get prices from AWS's price list", command)
        decisions.findings.append(error("budget-without-price", "budget", message, fix))
    elif seconds is not None and seconds < start_seconds:
        message = (
            f"the endpoint is deleted after {format_duration(seconds)}; to start, it may take up "
            f"to {format_duration(start_seconds)}"
        )
        where = "budget" if ttl is None else "ttl"
        finding = warning("limit-before-start", where, message, "set a later end")
        decisions.findings.append(finding)
    if seconds is None:
        return limit
    before = COPIES_BEFORE_SECONDS if plan.copies else None
    shown = limit_text(limit, usd_per_hour)
    if budget is not None and usd_per_hour:
        decisions.explain(
            "limit",
            shown,
            "end-by-budget",
            budget_usd=budget,
            usd_per_hour=usd_per_hour,
            seconds=budget / usd_per_hour * 3600,
            ttl_seconds=ttl,
            copies_seconds_before=before,
        )
    else:
        decisions.explain("limit", shown, "end-by-ttl", copies_seconds_before=before)
    return limit


def limit_seconds(limit: Limit, usd_per_hour: float | None) -> int | None:
    """From the deploy to the end, in whole seconds; ``None`` without an end, or where the budget
    lasts for an unknown time."""
    ends = [] if limit.ttl_seconds is None else [limit.ttl_seconds]
    if limit.budget_usd is not None:
        if not usd_per_hour:
            return None
        ends.append(int(limit.budget_usd / usd_per_hour * 3600))
    return min(ends, default=None)


def end_time(limit: Limit, usd_per_hour: float | None, now: float) -> float | None:
    """When a deployment ends that gets this limit ``now``, in whole epoch seconds; ``None`` without
    an end. ``usd_per_hour`` is the price of the most instances."""
    seconds = limit_seconds(limit, usd_per_hour)
    return None if seconds is None else (now + seconds) // 1


def most_usd_per_hour(plan: Plan) -> float | None:
    """The price of the plan at the most instances that it may have."""
    usd, count = plan.price_per_hour_usd, plan.instance_count
    prices = plan.scaling.prices(usd, count) if plan.scaling else None
    return prices[1] if prices else usd


def ends_after(plan: Plan) -> int | None:
    """The seconds after which the plan's endpoint is deleted; ``None`` for never."""
    return limit_seconds(plan.limit, most_usd_per_hour(plan)) if plan.limit else None


def limit_text(limit: Limit, usd_per_hour: float | None) -> str:
    """``8h 00m, at most $49.52``; empty without an end."""
    seconds = limit_seconds(limit, usd_per_hour)
    if seconds is None:
        return ""
    cost = f", at most {format_usd(usd_per_hour * seconds / 3600)}" if usd_per_hour else ""
    return f"{format_duration(seconds)}{cost}"


def choose_observe(options: Options, plan: Plan, decisions: Decisions) -> Observe | None:
    """What the user asks for; ``None`` for nothing. Raises UserError for values that AWS does not
    accept."""
    days, topic = options.log_retention, options.alarm_topic
    if days is not None:  # CloudWatch Logs has these only
        days = next((retention for retention in LOG_DAYS if retention >= days), LOG_DAYS[-1])
    _check_topic(topic, plan.region)
    capture = _choose_capture(options)
    if not (options.observe or days or capture or topic):
        return None
    alarms: tuple[AlarmKind, ...] = ()
    if options.observe:
        alarms = (*alarms_for(plan), "load")
        if days is None:
            days = DEFAULT_LOG_DAYS
            decisions.explain("log retention", f"{days} days", "log-without-end")
        if topic is None:
            message = "the alarms change their state in CloudWatch, and send no notification"
            fix = "add alarm_topic with an SNS topic"
            decisions.findings.append(note("no-alarm-topic", "--observe", message, fix))
    return Observe(
        dashboard=options.observe,
        log_retention_days=days,
        capture=capture,
        alarms=alarms,
        alarm_topic=topic,
    )


def _check_topic(topic: str | None, region: str) -> None:
    """CloudWatch publishes to topics of its own region only."""
    match = _TOPIC.fullmatch(topic or "")
    if topic is not None and (match is None or match[1] != region):
        raise UserError(
            f"{topic[:80]!r} is not the ARN of an SNS topic in {region}",
            f"use alarm_topic: arn:aws:sns:{region}:ACCOUNT:NAME",
            code="invalid-topic",
        )


def _choose_capture(options: Options) -> Capture | None:
    uri, kept, percent = options.capture_data, options.capture_retention, options.capture_percent
    if uri is None:
        return None
    if not (is_s3_uri(uri) and S3Uri.parse(uri).has_bucket_name):
        raise UserError(
            f"--capture-data {uri[:80]!r} is not an S3 prefix",
            "use --capture-data s3://BUCKET/FOLDER",
            code="invalid-s3-uri",
        )
    return Capture(
        s3_uri=uri,
        percent=DEFAULT_PERCENT if percent is None else percent,
        kms_key=options.capture_kms_key or options.kms_key,
        retention_days=(DEFAULT_CAPTURE_DAYS if kept is None else kept) or None,
    )


def capture_text(capture: Capture) -> str:
    """``100% of prompts and answers to s3://captured/a, encrypted with S3's own key``."""
    encrypted = "with your KMS key" if capture.kms_key else "with S3's own key"
    share = f"{capture.percent}% of prompts and answers"
    kept = f", deleted after {capture.retention_days} days" if capture.retention_days else ""
    return f"{share} to {capture.s3_uri}, encrypted {encrypted}{kept}"


def alarm_kinds(plan: Plan) -> tuple[AlarmKind, ...]:
    """The alarms that a plan has: those that undo an update, and those of ``--observe``."""
    rollout, observe = plan.rollout, plan.observe
    rollback_alarms = rollout.alarms if rollout else ()
    return tuple(dict.fromkeys((*rollback_alarms, *(observe.alarms if observe else ()))))
