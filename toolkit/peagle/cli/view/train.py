"""What ``peagle train`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle.aws.training import TrainingJob
from peagle.bench.acceptance import read_acceptance
from peagle.catalog.tables import HERE
from peagle.cli import view
from peagle.cli.context import command_text
from peagle.errors import command_line
from peagle.text import format_concurrency, format_duration, format_size, format_usd
from peagle.train.estimate import Range, TrainingPlan
from peagle.train.job import JobSettings, volume_gb
from peagle.train.result import ACCEPTANCE, CATALOG
from peagle.train.run import Trained, TrainProgress

_ADVICE = {
    "train": "Train a head for {0.target}: it is expected to pay",
    "train-more-data": "Train a head for {0.target} with more data: at least about "
    "{0.conversations_needed:,} conversations",
    "do-not-train": "Do not train a head for {0.target}: even as good as the best published heads, "
    "it would not be the fastest",
    "unknown": "Unknown whether a head for {0.target} pays: no speed is known on this GPU",
}


def print_training_plan(plan: TrainingPlan, prompts: Path | None) -> None:
    """The advice first, then time and cost, and what they come from; last what else to try, with
    the file ``prompts``, unless the head is expected to beat that."""
    view.print_line(_ADVICE[plan.advice].format(plan), bold=True)
    view.print_facts(_facts(plan), err=False)
    if plan.alternatives and (plan.advice != "train" or len(plan.break_even) == 1):
        view.print_line("\nWithout training: measure on your text (--prompts writes it)", bold=True)
        file = str(prompts or "prompts.jsonl")
        measure = command_text(("peagle", "bench", "local", "--acceptance", file))
        for drafter, up in plan.alternatives.items():
            view.print_facts([(drafter, ("", f"{command_text(up)} && {measure}"))], err=False)


def _facts(plan: TrainingPlan) -> Iterator[view.Fact]:
    if plan.expected is None:
        yield "expected", "unknown: no head is published that was trained on so few tokens"
    else:
        expected = f"{plan.expected.likely:.2f} tokens per step with K={plan.k} "
        expected += f"({plan.expected.low:.2f} to {plan.expected.high:.2f})"
        if plan.tokens_per_second:
            expected += f": {plan.tokens_per_second:,.0f} tokens/s"
        yield "expected", f"{expected}; from published heads, not from your text"
    for point in plan.break_even:
        length = f"{point.length:.2f}" if point.length else "no acceptance suffices"
        speed = f"{point.tokens_per_second:,.0f} tokens/s"
        yield "break-even", f"{length} against {point.against.text} ({speed})"
    place = "this machine" if plan.instance_type == HERE else plan.instance_type
    is_here = plan.basis == "measured" or plan.instance_type == HERE
    gpus = "this machine" if is_here else f"{place} ({plan.gpu_count} x {plan.gpu})"
    size = f"{plan.workload.prompt_tokens:,} + {plan.workload.output_tokens:,} tokens"
    yield "load", f"{format_concurrency(plan.concurrency)} of {size} on each engine of {place}"
    if plan.hours:
        yield "time", f"{_hours(plan.hours['total'])} on {gpus}, {plan.basis}"
        names = {"regeneration": "answers", "epochs": f"epochs ({plan.epochs})", "starts": "starts"}
        parts = (f"{name} {_hours(plan.hours[key])}" for key, name in names.items())
        yield "", "; ".join(parts)
    else:
        yield "time", f"unknown on {gpus}"
    yield "cost", _cost(plan)
    data = plan.data
    text = f"{data.conversations:,} conversations, about {data.tokens:,} tokens"
    if data.regenerates:
        text += f", of which {data.answer_tokens:,} are regenerated"
    yield "data", text
    checkpoints = f"checkpoints of {plan.epochs} x {format_size(plan.checkpoint_bytes)}"
    yield "disk", f"{format_size(plan.disk_bytes)}: the data, and {checkpoints}"
    yield "head", f"{plan.parameters / 1e6:,.0f} million parameters"


def _cost(plan: TrainingPlan) -> str:
    if plan.usd is None or plan.usd_per_hour is None:
        return "the price is unknown"
    usd = plan.usd
    text = f"{format_usd(usd.likely)} ({format_usd(usd.low)} to {format_usd(usd.high)}), at "
    text += f"{format_usd(plan.usd_per_hour)} per hour"
    if plan.budget_usd is not None:
        epochs = f"{plan.epochs} of {plan.asked_epochs} epochs"
        text += f"; {format_usd(plan.budget_usd)} pay for {epochs}"
    return text


def _hours(hours: Range) -> str:
    low, likely, high = (format_duration(value * 3600) for value in hours.values)
    return likely if low == high else f"{likely} ({low} to {high})"


_STEPS: dict[str, str] = {
    "answers": "the target answers", "data": "preparing the data",
    "untrained": "an untrained head in the engine", "states": "hidden states",
    "training": "training", "measured": "measuring acceptance",
    "lossless": "comparing answers",
}  # fmt: skip


def show_progress(
    status: view.StatusLine, progress: TrainProgress, usd_per_hour: float | None = None
) -> None:
    """Show a step: how far it is and the time left, else the log's last line; and the cost."""
    parts = [_STEPS[progress.step]]
    if progress.epoch is not None:
        of = f" of {progress.epochs}" if progress.epochs else ""
        parts.append(f"epoch {progress.epoch + 1}{of}")
    if progress.total:
        parts.append(f"{progress.done:,} of {progress.total:,}")
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.2f}")
    if progress.seconds_left is not None:
        parts.append(f"{format_duration(progress.seconds_left)} left")
    if not progress.total and progress.detail:
        parts.append(progress.detail)
    if usd_per_hour is not None:
        parts.append(format_usd(usd_per_hour * progress.seconds / 3600))
    status.show_line(" | ".join(parts))


def print_trained(head: Path, trained: Trained) -> None:
    """The acceptance of the chosen epoch and of the others."""
    best, compared = trained.best.acceptance, trained.lossless
    interval = best.total.interval
    view.print_line(
        f"{head}: {trained.best.length:.2f} tokens per step with K={best.k} "
        f"({interval.low:.2f} to {interval.high:.2f}) on held-out text",
        bold=True,
    )
    lengths = ", ".join(f"{each.number + 1}: {each.length:.2f}" for each in trained.epochs)
    domains = ", ".join(f"{each.domain} {each.acceptance.length:.2f}" for each in best.domains)
    steps = (f"{_STEPS[name]} {format_duration(spent)}" for name, spent in trained.seconds.items())
    facts = [
        ("epochs", f"{lengths}; {trained.best.number + 1} is kept"),
        ("domains", domains),
        ("lossless", "{unexplained} of {prompts} answers differ".format(**compared)),
        *_whether_it_pays(head),
        ("time", ", ".join(steps)),
    ]
    view.print_facts(facts, err=False)


def _whether_it_pays(head: Path) -> Iterator[view.Fact]:
    for entry in (head / CATALOG).glob("*/*.yaml"):
        target, catalog = f"{entry.parent.name}/{entry.stem}", str(head / CATALOG)
        yield "plan", ("", command_line(("peagle", "--catalog", catalog, "plan", target)))


def print_job_request(
    request: Mapping[str, Any], job: JobSettings, plan: TrainingPlan, region: str
) -> None:
    """The job before it is started, and what it costs."""
    title = f"{request['TrainingJobName']} on {job.instance.type} ({region})"
    view.print_facts(_job_facts(request, job, plan), title=title)


def _job_facts(
    request: Mapping[str, Any], job: JobSettings, plan: TrainingPlan
) -> Iterator[view.Fact]:
    hours = f"{_hours(plan.hours['total'])}, {plan.basis}" if plan.hours else "unknown"
    yield "time", f"{hours}; ended after {format_duration(job.max_seconds)}"
    cost = "the price is unknown"
    if plan.usd_per_hour is not None:
        cost = f"at most {format_usd(plan.usd_per_hour * job.max_seconds / 3600)}, at "
        cost += f"{format_usd(plan.usd_per_hour)} per hour, the price of hosting"
    yield "cost", f"{cost}; less on spot instances" if job.is_spot else cost
    yield "image", job.image
    yield "role", f"{job.role.arn}{f' ({job.role.because})' if job.role.because else ''}"
    yield "data", ", ".join(c["DataSource"]["S3DataSource"]["S3Uri"]
                            for c in request["InputDataConfig"])  # fmt: skip
    yield "checkpoints", request["CheckpointConfig"]["S3Uri"]
    yield "disk", f"{volume_gb(job.disk_bytes)} GB"


def job_text(job: TrainingJob, usd: float | None, line: str) -> str:
    """The state of a job, its cost so far, and the last ``line`` of its log, in a line."""
    seconds = format_duration(job.training_seconds) if job.training_seconds else ""
    cost = "" if usd is None else format_usd(usd)
    parts = (f"{job.name}: {job.stage}", seconds, cost, line or job.message)
    return " | ".join(part for part in parts if part)


def print_job(job: TrainingJob, usd: float | None, head: Path | None) -> None:
    """The state of a job, its cost so far, and what to do next."""
    view.print_line(f"{job.name}: {job.status}", bold=True)
    view.print_facts(_job_state(job, usd, head), err=False)


def _job_state(job: TrainingJob, usd: float | None, head: Path | None) -> Iterator[view.Fact]:
    if job.stage != job.status:
        yield "stage", f"{job.stage}{f': {job.message}' if job.message else ''}"
    if job.failure:
        yield "reason", job.failure
    yield "instance", job.instance_type
    yield "interrupted", f"{job.interruptions} x" if job.is_spot else ""
    yield "time", f"{format_duration(job.training_seconds)}, {job.billable_seconds:,} s are paid"
    yield "cost", "" if usd is None else f"{format_usd(usd)}, at the price of hosting"
    if head and (head / ACCEPTANCE).is_file():
        measured = read_acceptance(head / ACCEPTANCE)
        length = f"{measured.total.acceptance.length:.2f} tokens per step with K={measured.k}"
        yield "head", f"{head}: {length} on held-out text"
    elif head:
        yield "head", str(head)
    elif job.status == "Completed":
        fetch = ("peagle", "train", "status", job.name, "-o", "HEAD")
        yield "head", ("download it", command_text(fetch))
    yield from _whether_it_pays(head) if head else ()
